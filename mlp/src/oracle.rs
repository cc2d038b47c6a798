//! Every op, slow and obvious, in f64. This defines them; everything else is measured against it.
//!
//! Matrices are row-major lists, shapes are given by counts. Where a bound is wanted, a sum comes
//! with that of the absolute values of its products: an f32 chain of n fused steps lies
//! within `n·u / (1 - n·u)` times that of the true sum (u = 2⁻²⁴; Higham, "Accuracy and Stability
//! of Numerical Algorithms", §3.1).

use crate::linear::Activation;
use crate::loss::Loss;
use headlong_device::optimizer::{Optimizer, Step};
use std::ops::Range;

/// Unit roundoff of f32.
pub const UNIT: f64 = 1.0 / (1 << 24) as f64;

/// Relative bound of a sum of `count` products in f32, by the sum of the absolute values of the
/// products.
pub fn sum_bound(count: usize) -> f64 {
    let n = count as f64 * UNIT;
    n / (1.0 - n)
}

/// A sum and the sum of the absolute values of its terms.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sum {
    /// The sum.
    pub value: f64,
    /// The sum of absolute values.
    pub magnitude: f64,
}

impl Sum {
    fn of(terms: impl Iterator<Item = f64>) -> Self {
        terms.fold(Self::default(), |sum, x| Self {
            value: sum.value + x,
            magnitude: sum.magnitude + x.abs(),
        })
    }

    /// Whether `got`, an f32 sum of `count` rounded operations, can be this sum.
    pub fn admits(&self, got: f32, count: usize) -> bool {
        (f64::from(got) - self.value).abs() <= sum_bound(count) * self.magnitude
    }
}

/// `Z = X·Wᵀ + b` before the activation: samples × out. `w` is out × in.
pub fn linear(x: &[f64], w: &[f64], b: &[f64], inputs: usize) -> Vec<Sum> {
    let outputs = b.len();
    let element = |s: usize, o: usize| {
        let products = (0..inputs).map(|i| x[s * inputs + i] * w[o * inputs + i]);
        Sum::of(products.chain([b[o]]))
    };
    (0..x.len() / inputs)
        .flat_map(|s| (0..outputs).map(move |o| (s, o)))
        .map(|(s, o)| element(s, o))
        .collect()
}

/// The activation of one number.
pub fn activate(activation: Activation, z: f64) -> f64 {
    match activation {
        Activation::None => z,
        Activation::Relu => z.max(0.0),
    }
}

/// `dX = dZ·W`: samples × in.
pub fn linear_backward_data(d_z: &[f64], w: &[f64], outputs: usize) -> Vec<Sum> {
    let inputs = w.len() / outputs;
    let element = |s: usize, i: usize| {
        Sum::of((0..outputs).map(|o| d_z[s * outputs + o] * w[o * inputs + i]))
    };
    (0..d_z.len() / outputs)
        .flat_map(|s| (0..inputs).map(move |i| (s, i)))
        .map(|(s, i)| element(s, i))
        .collect()
}

/// `dW = dZᵀ·X`, out × in, and `db = Σ dZ`.
pub fn linear_backward_weights(
    x: &[f64],
    d_z: &[f64],
    inputs: usize,
    outputs: usize,
) -> (Vec<Sum>, Vec<Sum>) {
    let samples = x.len() / inputs;
    let weight = |o: usize, i: usize| {
        Sum::of((0..samples).map(|s| d_z[s * outputs + o] * x[s * inputs + i]))
    };
    let d_w = (0..outputs)
        .flat_map(|o| (0..inputs).map(move |i| (o, i)))
        .map(|(o, i)| weight(o, i))
        .collect();
    let d_b = (0..outputs).map(|o| Sum::of((0..samples).map(|s| d_z[s * outputs + o]))).collect();
    (d_w, d_b)
}

/// Dot interaction of one sample: `features` are its rows, the bottom output first, each of `dim`.
pub fn dot(features: &[f64], dim: usize) -> Vec<Sum> {
    let rows: Vec<&[f64]> = features.chunks(dim).collect();
    let copy = rows[0].iter().map(|&x| Sum::of([x].into_iter()));
    let pairs = (1..rows.len()).flat_map(|i| (0..i).map(move |j| (i, j)));
    let products = pairs.map(|(i, j)| Sum::of(rows[i].iter().zip(rows[j]).map(|(x, y)| x * y)));
    copy.chain(products).collect()
}

/// Gradient of [`dot`] by all features of one sample, by the gradient of its output.
pub fn dot_backward(features: &[f64], dim: usize, d_out: &[f64]) -> Vec<Sum> {
    let count = features.len() / dim;
    let factor = |i: usize, j: usize| d_out[dim + i.max(j) * (i.max(j) - 1) / 2 + i.min(j)];
    let element = |i: usize, d: usize| {
        let copy = if i == 0 { d_out[d] } else { 0.0 };
        let others = (0..count).filter(|&j| j != i);
        Sum::of([copy].into_iter().chain(others.map(|j| factor(i, j) * features[j * dim + d])))
    };
    (0..count).flat_map(|i| (0..dim).map(move |d| (i, d))).map(|(i, d)| element(i, d)).collect()
}

/// A layer of a cross network in its definition: `W` width × rank, `V` rank × width, `b` of width.
#[derive(Debug, Clone)]
pub struct CrossLayer {
    /// `V`.
    pub v: Vec<f64>,
    /// `W`.
    pub w: Vec<f64>,
    /// `b`.
    pub b: Vec<f64>,
}

/// The output of a cross network for one sample: `x ← x₀ ⊙ (W·(V·x) + b) + x` for each layer.
pub fn cross(x0: &[f64], layers: &[CrossLayer]) -> Vec<f64> {
    layers.iter().fold(x0.to_vec(), |x, layer| {
        let [_, h] = layer.products(&x);
        x0.iter().zip(h).zip(&x).map(|((x0, h), x)| x0 * h + x).collect()
    })
}

impl CrossLayer {
    /// `V·x` and `W·(V·x) + b`.
    fn products(&self, x: &[f64]) -> [Vec<f64>; 2] {
        let values = |sums: Vec<Sum>| sums.iter().map(|sum| sum.value).collect::<Vec<_>>();
        let no_bias = vec![0.0; self.v.len() / x.len()];
        let u = values(linear(x, &self.v, &no_bias, x.len()));
        let h = values(linear(&u, &self.w, &self.b, u.len()));
        [u, h]
    }
}

/// Gradients of [`cross`] by the input and by each layer's parameters, by the gradient of its
/// output.
pub fn cross_backward(
    x0: &[f64],
    layers: &[CrossLayer],
    d_y: &[f64],
) -> (Vec<f64>, Vec<CrossLayer>) {
    let times = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).collect::<Vec<_>>();
    let plus = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<_>>();
    let values = |sums: Vec<Sum>| sums.iter().map(|sum| sum.value).collect::<Vec<_>>();
    let (mut d_x, mut d_x0, mut gradients) = (d_y.to_vec(), vec![0.0; x0.len()], Vec::new());
    for (index, layer) in layers.iter().enumerate().rev() {
        let x = cross(x0, &layers[..index]);
        let [u, h] = layer.products(&x);
        d_x0 = plus(&d_x0, &times(&d_x, &h));
        let d_h = times(&d_x, x0);
        let d_u = values(linear_backward_data(&d_h, &layer.w, x0.len()));
        let (w, b) = linear_backward_weights(&u, &d_h, u.len(), x0.len());
        let (v, _) = linear_backward_weights(&x, &d_u, x0.len(), u.len());
        gradients.insert(0, CrossLayer { v: values(v), w: values(w), b: values(b) });
        d_x = plus(&d_x, &values(linear_backward_data(&d_u, &layer.v, u.len())));
    }
    (plus(&d_x0, &d_x), gradients)
}

/// `1 / (1 + e^-z)`.
pub fn sigmoid(z: f64) -> f64 {
    1.0 / (1.0 + (-z).exp())
}

/// Loss of one sample and its derivative by the logit, straight from the definitions; for |z| below
/// 30 or so.
pub fn loss(kind: Loss, z: f64, y: f64) -> (f64, f64) {
    let p = sigmoid(z);
    match kind {
        Loss::BceWithLogits => (-(y * p.ln() + (1.0 - y) * (1.0 - p).ln()), p - y),
        Loss::MseOfSigmoid => ((p - y).powi(2), 2.0 * (p - y) * p * (1.0 - p)),
    }
}

/// Weights and states of an optimiser, in f64.
#[derive(Debug, Clone, Default)]
pub struct OptimizerOracle {
    /// Parameters.
    pub weights: Vec<f64>,
    /// First state.
    pub first: Vec<f64>,
    /// Second state.
    pub second: Vec<f64>,
    /// Where each tensor lies, for LAMB.
    pub tensors: Vec<Range<usize>>,
}

impl OptimizerOracle {
    /// One step of SGD, Adagrad, Adam or LAMB with gradients clipped to `clip`; the other
    /// optimisers have no dense form.
    pub fn step(
        &mut self,
        optimizer: &Optimizer,
        step: &Step,
        gradient: &[f64],
        clip: Option<f64>,
    ) {
        let norm = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
        let scale = clip.map_or(1.0, |clip| (clip / (norm + 1e-6)).min(1.0));
        let lr = f64::from(step.learning_rate);
        let mut change = vec![0.0; gradient.len()];
        for (i, gradient) in gradient.iter().enumerate() {
            let g = gradient * scale;
            change[i] = match *optimizer {
                Optimizer::Adagrad { epsilon, .. } => {
                    self.first[i] += g * g;
                    lr * g / (self.first[i].sqrt() + f64::from(epsilon))
                }
                Optimizer::Adam { beta1, beta2, epsilon } => {
                    let (m, v) = self.moments(i, g, step, [beta1, beta2]);
                    lr * m / (v.sqrt() + f64::from(epsilon))
                }
                Optimizer::Lamb { beta1, beta2, epsilon, weight_decay } => {
                    let (m, v) = self.moments(i, g, step, [beta1, beta2]);
                    m / (v.sqrt() + f64::from(epsilon)) + f64::from(weight_decay) * self.weights[i]
                }
                _ => lr * g,
            };
        }
        if let Optimizer::Lamb { .. } = optimizer {
            let norm = |values: &[f64]| values.iter().map(|x| x * x).sum::<f64>().sqrt();
            for range in self.tensors.clone() {
                let (w, r) = (norm(&self.weights[range.clone()]), norm(&change[range.clone()]));
                let ratio = if w == 0.0 || r == 0.0 { 1.0 } else { w / r };
                change[range].iter_mut().for_each(|r| *r *= lr * ratio);
            }
        }
        self.weights.iter_mut().zip(change).for_each(|(w, change)| *w -= change);
    }

    /// Adam's moments of element `i` after gradient `g`, without their bias towards zero.
    fn moments(&mut self, i: usize, g: f64, step: &Step, betas: [f32; 2]) -> (f64, f64) {
        let ([beta1, beta2], t) = (betas.map(f64::from), step.number as i32);
        self.first[i] = beta1 * self.first[i] + (1.0 - beta1) * g;
        self.second[i] = beta2 * self.second[i] + (1.0 - beta2) * g * g;
        (self.first[i] / (1.0 - beta1.powi(t)), self.second[i] / (1.0 - beta2.powi(t)))
    }
}
