//! Optimiser formulas, written once, for dense parameters and for embedding rows alike.
//!
//! All work elementwise on f32 slices, so they vectorise and give the same bits on every
//! instruction set. Weight `w`, gradient `g` (summed over duplicates before), learning rate `lr`.
//!
//! | optimiser | state | update | as in |
//! |---|---|---|---|
//! | SGD | none | `w -= lr·g` | PyTorch `SGD` |
//! | Adagrad | `s` per element | `s += g²; w -= lr·g / (√s + ε)` | PyTorch `Adagrad`, FBGEMM `EXACT_ADAGRAD` |
//! | row-wise Adagrad | `s` per row | `s += mean(g²); w -= lr·g / (√s + ε)` | FBGEMM `EXACT_ROWWISE_ADAGRAD`, dlrm `RWSAdagrad` |
//! | Adam, lazy Adam | `m`, `v` per element | `m += (1-β₁)(g-m); v = β₂v + (1-β₂)g²; w -= lr/(1-β₁ᵗ) · m / (√v/√(1-β₂ᵗ) + ε)` | PyTorch `Adam`, `SparseAdam` |
//! | LAMB, dense parameters only | `m`, `v` per element | `m`, `v` as Adam; `r = (m/(1-β₁ᵗ)) / (√v/√(1-β₂ᵗ) + ε) + λw; w -= lr·(‖w‖/‖r‖ · r)`, norms per tensor | You et al., "Large batch optimization for deep learning", ICLR 2020, Algorithm 2, φ(z) = z |
//! | FTRL-proximal | `z`, `n` per element | McMahan et al., "Ad click prediction", KDD'13, Algorithm 1 | TensorFlow `Ftrl`, `lr_power = -0.5` |
//!
//! Epsilon stands outside the square root everywhere. PyTorch's Adagrad default is 1e-10, FBGEMM's
//! and MLPerf's 1e-8. Lazy Adam updates only rows that occur; `t` counts steps of the whole run, as
//! PyTorch's `SparseAdam` does.

use crate::vectorized;

/// An optimiser with its constants.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Optimizer {
    /// Plain stochastic gradient descent.
    Sgd,
    /// Adagrad with one accumulator per element.
    Adagrad {
        /// Added to the root of the accumulator.
        epsilon: f32,
        /// Accumulator before the first step.
        initial_accumulator: f32,
    },
    /// Adagrad with one accumulator per row: the mean of the squared gradients of the row.
    RowWiseAdagrad {
        /// Added to the root of the accumulator.
        epsilon: f32,
        /// Accumulator before the first step.
        initial_accumulator: f32,
    },
    /// Adam; for embedding rows the lazy form, which does not touch rows that do not occur.
    Adam {
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Added to the root of the corrected second moment.
        epsilon: f32,
    },
    /// Adam whose step is as long as the weights of its tensor: for dense parameters, of which
    /// whole tensors are at hand.
    Lamb {
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Added to the root of the corrected second moment.
        epsilon: f32,
        /// What the direction has of the weights (λ of the paper).
        weight_decay: f32,
    },
    /// Follow the regularised leader, proximal.
    Ftrl {
        /// Added to the root of the accumulator (β of the paper).
        beta: f32,
        /// L1 strength.
        l1: f32,
        /// L2 strength.
        l2: f32,
        /// Accumulator before the first step.
        initial_accumulator: f32,
    },
}

/// How wide an optimiser's state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateWidth {
    /// One number per weight.
    PerElement,
    /// One number per row.
    PerRow,
}

/// One state tensor of an optimiser.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StateSpec {
    /// Name in checkpoints.
    pub name: &'static str,
    /// Per element or per row.
    pub width: StateWidth,
    /// Value before the first step.
    pub initial: f32,
}

impl Optimizer {
    /// The name used in configuration, logs and checkpoints.
    pub const fn name(&self) -> &'static str {
        match self {
            Optimizer::Sgd => "sgd",
            Optimizer::Adagrad { .. } => "adagrad",
            Optimizer::RowWiseAdagrad { .. } => "rowwise_adagrad",
            Optimizer::Adam { .. } => "adam",
            Optimizer::Lamb { .. } => "lamb",
            Optimizer::Ftrl { .. } => "ftrl",
        }
    }

    /// The state tensors, in the order in which [`Self::apply`] takes them.
    pub fn states(&self) -> Vec<StateSpec> {
        let element = |name, initial| StateSpec { name, width: StateWidth::PerElement, initial };
        match *self {
            Optimizer::Sgd => vec![],
            Optimizer::Adagrad { initial_accumulator, .. } => {
                vec![element("accumulator", initial_accumulator)]
            }
            Optimizer::RowWiseAdagrad { initial_accumulator: initial, .. } => {
                vec![StateSpec { name: "accumulator", width: StateWidth::PerRow, initial }]
            }
            Optimizer::Adam { .. } | Optimizer::Lamb { .. } => {
                vec![element("first_moment", 0.0), element("second_moment", 0.0)]
            }
            Optimizer::Ftrl { initial_accumulator, .. } => {
                vec![element("linear", 0.0), element("accumulator", initial_accumulator)]
            }
        }
    }

    /// Bytes of state for `rows` rows of `dim` elements.
    pub fn state_bytes(&self, rows: u64, dim: usize) -> u64 {
        let width = |state: &StateSpec| match state.width {
            StateWidth::PerElement => dim as u64,
            StateWidth::PerRow => 1,
        };
        self.states().iter().map(|state| rows * width(state) * 4).sum()
    }

    /// Applies one step to one row, or to any run of elements where the state is per element.
    ///
    /// `first` and `second` are the state tensors of [`Self::states`], empty where there are fewer.
    ///
    /// # Panics
    /// For LAMB, which needs norms of a whole tensor between [`lamb_directions`] and [`sgd`].
    #[inline]
    pub fn apply(
        &self,
        step: &Step,
        weights: &mut [f32],
        first: &mut [f32],
        second: &mut [f32],
        gradient: &[f32],
    ) {
        let lr = step.learning_rate;
        match *self {
            Optimizer::Sgd => sgd(weights, gradient, lr),
            Optimizer::Adagrad { epsilon, .. } => adagrad(weights, first, gradient, lr, epsilon),
            Optimizer::RowWiseAdagrad { epsilon, .. } => {
                first[0] += mean_of_squares(gradient);
                sgd(weights, gradient, lr / (first[0].sqrt() + epsilon));
            }
            Optimizer::Adam { beta1, beta2, epsilon } => {
                let (root, rate) = step.adam_corrections(beta1, beta2);
                adam(weights, first, second, gradient, &[beta1, beta2, epsilon, root, rate]);
            }
            Optimizer::Lamb { .. } => panic!("LAMB takes whole tensors, not runs of elements"),
            Optimizer::Ftrl { beta, l1, l2, .. } => {
                ftrl(weights, first, second, gradient, &[lr, beta, l1, l2])
            }
        }
    }
}

/// What a step brings to the formulas: how fast, and how often so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Learning rate of this step.
    pub learning_rate: f32,
    /// 1 for the first step.
    pub number: u64,
}

impl Step {
    /// Adam's factors for an optimiser: `(√(1-β₂ᵗ), lr/(1-β₁ᵗ))`, those of LAMB with lr = 1;
    /// `(1, lr)` for every other.
    pub(crate) fn corrections(&self, optimizer: &Optimizer) -> (f32, f32) {
        match *optimizer {
            Optimizer::Adam { beta1, beta2, .. } => self.adam_corrections(beta1, beta2),
            Optimizer::Lamb { beta1, beta2, .. } => self.lamb_corrections(beta1, beta2),
            _ => (1.0, self.learning_rate),
        }
    }

    /// `(√(1-β₂ᵗ), 1/(1-β₁ᵗ))`: the learning rate multiplies the direction later.
    pub fn lamb_corrections(&self, beta1: f32, beta2: f32) -> (f32, f32) {
        Self { learning_rate: 1.0, ..*self }.adam_corrections(beta1, beta2)
    }

    /// `(√(1-β₂ᵗ), lr/(1-β₁ᵗ))`, in f64 as PyTorch computes them.
    fn adam_corrections(&self, beta1: f32, beta2: f32) -> (f32, f32) {
        let t = self.number.min(i32::MAX as u64) as i32;
        let root = (1.0 - f64::from(beta2).powi(t)).sqrt();
        let rate = f64::from(self.learning_rate) / (1.0 - f64::from(beta1).powi(t));
        (root as f32, rate as f32)
    }
}

vectorized! {
    /// `w -= lr·g`.
    pub fn sgd(weights: &mut [f32], gradient: &[f32], learning_rate: f32) {
        for (w, g) in weights.iter_mut().zip(gradient) {
            *w -= learning_rate * g;
        }
    }

    /// `s += g²; w -= lr·g / (√s + ε)`.
    pub fn adagrad(
        weights: &mut [f32], accumulator: &mut [f32], gradient: &[f32], learning_rate: f32,
        epsilon: f32,
    ) {
        for ((w, s), g) in weights.iter_mut().zip(accumulator).zip(gradient) {
            *s += g * g;
            *w -= learning_rate * g / (s.sqrt() + epsilon);
        }
    }

    /// The mean of the squares of a row, summed in sixteen lanes and a fixed tree, the same on
    /// every instruction set.
    pub fn mean_of_squares(row: &[f32]) -> f32 {
        let mut lanes = [0.0_f32; 16];
        let chunks = row.chunks_exact(16);
        for (lane, x) in lanes.iter_mut().zip(chunks.remainder()) {
            *lane = x * x;
        }
        for chunk in chunks {
            for (lane, x) in lanes.iter_mut().zip(chunk) {
                *lane += x * x;
            }
        }
        let mut width = 8;
        while width > 0 {
            for i in 0..width {
                lanes[i] += lanes[i + width];
            }
            width /= 2;
        }
        lanes[0] / row.len() as f32
    }

    /// Adam; `constants` are β₁, β₂, ε, √(1-β₂ᵗ) and lr/(1-β₁ᵗ).
    pub fn adam(
        weights: &mut [f32], first: &mut [f32], second: &mut [f32], gradient: &[f32],
        constants: &[f32; 5],
    ) {
        let [beta1, beta2, epsilon, root, rate] = *constants;
        for (((w, m), v), g) in weights.iter_mut().zip(first).zip(second).zip(gradient) {
            *m += (1.0 - beta1) * (g - *m);
            *v = beta2 * *v + (1.0 - beta2) * g * g;
            *w -= rate * *m / (v.sqrt() / root + epsilon);
        }
    }

    /// LAMB's moments and directions before the norms: `directions` holds gradients and then
    /// `m/(1-β₁ᵗ) / (√v/√(1-β₂ᵗ) + ε) + λw`. `constants` are β₁, β₂, ε, √(1-β₂ᵗ), 1/(1-β₁ᵗ), λ.
    pub fn lamb_directions(
        weights: &[f32], first: &mut [f32], second: &mut [f32], directions: &mut [f32],
        constants: &[f32; 6],
    ) {
        let [beta1, beta2, epsilon, root, rate, decay] = *constants;
        for (((w, m), v), g) in weights.iter().zip(first).zip(second).zip(directions) {
            *m += (1.0 - beta1) * (*g - *m);
            *v = beta2 * *v + (1.0 - beta2) * *g * *g;
            *g = rate * *m / (v.sqrt() / root + epsilon) + decay * w;
        }
    }

    /// FTRL-proximal; `constants` are α (the learning rate), β, λ₁ and λ₂.
    pub fn ftrl(
        weights: &mut [f32], linear: &mut [f32], accumulator: &mut [f32], gradient: &[f32],
        constants: &[f32; 4],
    ) {
        let [alpha, beta, l1, l2] = *constants;
        for (((w, z), n), g) in weights.iter_mut().zip(linear).zip(accumulator).zip(gradient) {
            let before = n.sqrt();
            *n += g * g;
            let after = n.sqrt();
            *z += g - (after - before) / alpha * *w;
            let shrunk = (z.abs() - l1).max(0.0).copysign(*z);
            *w = -shrunk / ((beta + after) / alpha + l2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(optimizer: Optimizer, steps: u64) -> (Vec<f32>, Vec<f32>) {
        let mut weights = vec![0.5, -0.25, 1.0];
        let states = optimizer.states();
        let state = |i: usize| states.get(i).map_or(vec![], |s| vec![s.initial; 3]);
        let (mut first, mut second) = (state(0), state(1));
        for number in 1..=steps {
            let gradient = [0.1 * number as f32, -0.2, 0.0];
            optimizer.apply(
                &Step { learning_rate: 0.1, number },
                &mut weights,
                &mut first,
                &mut second,
                &gradient,
            );
        }
        (weights, first)
    }

    fn close(got: &[f32], expected: &[f64]) {
        for (g, e) in got.iter().zip(expected) {
            assert!((f64::from(*g) - e).abs() < 1e-6, "got {got:?}, expected {expected:?}");
        }
    }

    #[test]
    fn sgd_by_hand() {
        close(&run(Optimizer::Sgd, 2).0, &[0.5 - 0.01 - 0.02, -0.25 + 0.04, 1.0]);
    }

    #[test]
    fn adagrad_by_hand() {
        let (weights, state) =
            run(Optimizer::Adagrad { epsilon: 1e-10, initial_accumulator: 0.0 }, 2);
        // First step: g/√g² is the sign; second: 0.2/√0.05 and 0.2/√0.08.
        close(
            &weights,
            &[
                0.5 - 0.1 - 0.1 * 0.2 / 0.05_f64.sqrt(),
                -0.25 + 0.1 + 0.1 * 0.2 / 0.08_f64.sqrt(),
                1.0,
            ],
        );
        close(&state, &[0.05, 0.08, 0.0]);
    }

    #[test]
    fn row_wise_adagrad_by_hand() {
        let (weights, state) =
            run(Optimizer::RowWiseAdagrad { epsilon: 1e-8, initial_accumulator: 0.0 }, 1);
        let mean = (0.01 + 0.04) / 3.0_f64;
        close(&state[..1], &[mean]);
        close(&weights, &[0.5 - 0.01 / mean.sqrt(), -0.25 + 0.02 / mean.sqrt(), 1.0]);
    }

    #[test]
    fn adam_first_step_moves_by_the_learning_rate() {
        let (weights, _) = run(Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }, 1);
        close(&weights, &[0.4, -0.15, 1.0]);
    }

    #[test]
    fn ftrl_without_penalties_is_adagrad_like_and_l1_gives_zeros() {
        let strong = Optimizer::Ftrl { beta: 1.0, l1: 10.0, l2: 0.0, initial_accumulator: 0.1 };
        assert_eq!(run(strong, 1).0[..2], [0.0, 0.0]);
        let (weights, _) =
            run(Optimizer::Ftrl { beta: 1.0, l1: 0.0, l2: 0.0, initial_accumulator: 0.1 }, 1);
        // By hand: n = 0.11, z = g - (√0.11 - √0.1)/α·w, w = -z·α/(β + √0.11).
        let z = 0.1 - (0.11_f64.sqrt() - 0.1_f64.sqrt()) / 0.1 * 0.5;
        close(&weights[..1], &[-z * 0.1 / (1.0 + 0.11_f64.sqrt())]);
    }

    #[test]
    fn mean_of_squares_of_any_length() {
        for len in [1, 2, 15, 16, 17, 128] {
            let row: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let exact = row.iter().map(|x| x * x).sum::<f32>() / len as f32;
            assert_eq!(mean_of_squares(&row), exact, "length {len}");
        }
    }
}
