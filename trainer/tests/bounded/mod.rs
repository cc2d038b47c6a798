//! The model written out forward and backward in f64, on numbers that carry a bound of their f32
//! rounding error: the same arithmetic as `fixtures/error_bound.py`, for any model and batch.
//!
//! A sum of n products is off by at most γ(n) = n·u / (1 − n·u) times the sum of the absolute
//! products (u = 2⁻²⁴), in whatever order it is added (Higham, Accuracy and Stability of Numerical
//! Algorithms, 2nd ed., section 3.1), plus what the errors of its inputs contribute. So the bound
//! holds for every number of ranks and blocks.

use headlong_reader::{Batch, Jagged};
use std::collections::BTreeMap;

/// Unit roundoff of f32.
pub const U: f64 = 1.0 / (1 << 24) as f64;

/// What exp and log1p are granted, in units of [`U`].
const EXP_ULPS: usize = 8;

/// The bound of n roundings in a row.
pub fn gamma(n: usize) -> f64 {
    n as f64 * U / (1.0 - n as f64 * U)
}

/// A number and how far an f32 program may be from it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Number {
    pub value: f64,
    pub error: f64,
}

impl Number {
    fn exact(value: f64) -> Self {
        Self { value, error: 0.0 }
    }

    fn high(self) -> f64 {
        self.value.abs() + self.error
    }

    fn rounded(self, operations: usize) -> Self {
        Self { error: self.error + gamma(operations) * self.high(), ..self }
    }

    /// Its product with another, as a term of a sum whose roundings are counted by the sum.
    fn times(self, other: Self) -> Self {
        let error = self.value.abs() * other.error + self.error * other.high();
        Self { value: self.value * other.value, error }
    }
}

/// The sum of terms, with `extra` roundings besides the additions.
fn sum(terms: impl Iterator<Item = Number>, extra: usize) -> Number {
    let (mut total, mut absolute, mut count) = (Number::default(), 0.0, extra);
    for term in terms {
        total.value += term.value;
        total.error += term.error;
        absolute += term.high();
        count += 1;
    }
    Number { error: total.error + gamma(count) * absolute, ..total }
}

/// A matrix of such numbers.
#[derive(Debug, Clone)]
pub struct Matrix {
    rows: usize,
    cols: usize,
    numbers: Vec<Number>,
}

impl Matrix {
    fn from_fn(rows: usize, cols: usize, number: impl Fn(usize, usize) -> Number) -> Self {
        let numbers = (0..rows * cols).map(|at| number(at / cols, at % cols)).collect();
        Self { rows, cols, numbers }
    }

    /// Of f32 numbers as they are.
    pub fn exact(cols: usize, values: &[f32]) -> Self {
        let numbers = values.iter().map(|&value| Number::exact(f64::from(value))).collect();
        Self { rows: values.len() / cols, cols, numbers }
    }

    fn at(&self, row: usize, col: usize) -> Number {
        self.numbers[row * self.cols + col]
    }

    /// All numbers, row by row.
    pub fn numbers(&self) -> &[Number] {
        &self.numbers
    }
}

/// Weights or gradients by name: `bottom.0.weight`, `table.3`.
pub type Named = BTreeMap<String, Matrix>;

/// One layer of a network as the backward pass needs it.
struct Layer {
    name: String,
    input: Matrix,
    /// Units that pass; none: all, there is no activation.
    passes: Option<Vec<bool>>,
}

/// Forward through a network; none where a unit is nearer to zero than its error, so that it could
/// pass or not.
fn forward(
    network: &str,
    input: Matrix,
    weights: &Named,
    relu_last: bool,
) -> Option<(Matrix, Vec<Layer>)> {
    let depth = (0..)
        .take_while(|layer| weights.contains_key(&format!("{network}.{layer}.weight")))
        .count();
    let (mut x, mut layers) = (input, Vec::new());
    for layer in 0..depth {
        let name = format!("{network}.{layer}");
        let (weight, bias) =
            (&weights[&format!("{name}.weight")], &weights[&format!("{name}.bias")]);
        let mut z = Matrix::from_fn(x.rows, weight.rows, |row, unit| {
            let products = (0..x.cols).map(|k| x.at(row, k).times(weight.at(unit, k)));
            sum(products.chain([bias.numbers[unit]]), 2)
        });
        let mut passes = None;
        if relu_last || layer + 1 < depth {
            if z.numbers.iter().any(|number| number.value.abs() <= number.error) {
                return None;
            }
            let mask: Vec<bool> = z.numbers.iter().map(|number| number.value > 0.0).collect();
            z = masked(&z, &mask);
            passes = Some(mask);
        }
        layers.push(Layer { name, input: x, passes });
        x = z;
    }
    Some((x, layers))
}

fn masked(matrix: &Matrix, mask: &[bool]) -> Matrix {
    let keep = |at: usize| if mask[at] { matrix.numbers[at] } else { Number::default() };
    Matrix::from_fn(matrix.rows, matrix.cols, |row, col| keep(row * matrix.cols + col))
}

/// Backward through a network: adds its gradients and returns the gradient of its input.
fn backward(d_output: Matrix, layers: &[Layer], weights: &Named, gradients: &mut Named) -> Matrix {
    let mut d = d_output;
    for layer in layers.iter().rev() {
        if let Some(mask) = &layer.passes {
            d = masked(&d, mask);
        }
        let (x, weight) = (&layer.input, &weights[&format!("{}.weight", layer.name)]);
        let d_weight = Matrix::from_fn(weight.rows, weight.cols, |unit, k| {
            sum((0..d.rows).map(|row| d.at(row, unit).times(x.at(row, k))), 1)
        });
        let d_bias = Matrix::from_fn(1, weight.rows, |_, unit| {
            sum((0..d.rows).map(|row| d.at(row, unit)), 0)
        });
        gradients.insert(format!("{}.weight", layer.name), d_weight);
        gradients.insert(format!("{}.bias", layer.name), d_bias);
        d = Matrix::from_fn(d.rows, weight.cols, |row, k| {
            sum((0..weight.rows).map(|unit| d.at(row, unit).times(weight.at(unit, k))), 1)
        });
    }
    d
}

fn bag(bags: &Jagged, sample: usize) -> &[u64] {
    &bags.values[bags.offsets[sample] as usize..bags.offsets[sample + 1] as usize]
}

/// Mean loss and gradients of a batch at `weights`; none where a unit could pass or not.
pub fn step(weights: &Named, batch: &Batch) -> Option<(Number, Named)> {
    let samples = batch.num_samples;
    let dense = Matrix::exact(batch.dense.len() / samples, &batch.dense);
    let (bottom, bottom_layers) = forward("bottom", dense, weights, true)?;
    let dim = bottom.cols;
    let mut features = vec![bottom];
    for (table, bags) in batch.sparse.iter().enumerate() {
        let rows = &weights[&format!("table.{table}")];
        features.push(Matrix::from_fn(samples, dim, |sample, col| {
            sum(bag(bags, sample).iter().map(|&row| rows.at(row as usize, col)), 0)
        }));
    }
    let pairs: Vec<(usize, usize)> =
        (0..features.len()).flat_map(|i| (0..i).map(move |j| (i, j))).collect();
    let interaction = Matrix::from_fn(samples, dim + pairs.len(), |sample, col| {
        if col < dim {
            return features[0].at(sample, col);
        }
        let (i, j) = pairs[col - dim];
        sum((0..dim).map(|k| features[i].at(sample, k).times(features[j].at(sample, k))), 1)
    });
    let (logits, top_layers) = forward("top", interaction, weights, false)?;
    let (loss, d_logits) = loss(&logits, &batch.labels);
    let mut gradients = Named::new();
    let d_top = backward(d_logits, &top_layers, weights, &mut gradients);
    let d_feature = |feature: usize| {
        Matrix::from_fn(samples, dim, |sample, col| {
            let own = (feature == 0).then(|| d_top.at(sample, col));
            let products = pairs.iter().enumerate().filter_map(|(pair, &(i, j))| {
                let other = if i == feature {
                    j
                } else if j == feature {
                    i
                } else {
                    return None;
                };
                Some(d_top.at(sample, dim + pair).times(features[other].at(sample, col)))
            });
            sum(own.into_iter().chain(products), 2)
        })
    };
    for (table, bags) in batch.sparse.iter().enumerate() {
        let (d, rows) = (d_feature(table + 1), weights[&format!("table.{table}")].rows);
        gradients.insert(format!("table.{table}"), row_gradients(bags, &d, rows));
    }
    backward(d_feature(0), &bottom_layers, weights, &mut gradients);
    Some((loss, gradients))
}

fn row_gradients(bags: &Jagged, d_vectors: &Matrix, rows: usize) -> Matrix {
    let mut occurrences = vec![Vec::new(); rows];
    for sample in 0..d_vectors.rows {
        bag(bags, sample).iter().for_each(|&row| occurrences[row as usize].push(sample));
    }
    Matrix::from_fn(rows, d_vectors.cols, |row, col| {
        sum(occurrences[row].iter().map(|&sample| d_vectors.at(sample, col)), 0)
    })
}

/// Mean binary cross entropy, and its gradient by the logits.
fn loss(logits: &Matrix, labels: &[f32]) -> (Number, Matrix) {
    let samples = labels.len();
    let losses = logits.numbers.iter().zip(labels).map(|(logit, &label)| {
        let z = logit.value;
        let value = z.max(0.0) - z * f64::from(label) + (-z.abs()).exp().ln_1p();
        // The slope is at most 1; the terms are of size |z| and log 2, each rounded a few times.
        let error = logit.error + gamma(EXP_ULPS) * (2.0 * z.abs() + std::f64::consts::LN_2);
        Number { value, error }
    });
    let total = sum(losses, 1);
    let mean = Number { value: total.value / samples as f64, error: total.error / samples as f64 };
    let d_logits = Matrix::from_fn(samples, 1, |sample, _| {
        let logit = logits.numbers[sample];
        let sigmoid = 1.0 / (1.0 + (-logit.value).exp());
        // The slope of the sigmoid is at most 1/4; then one subtraction and one division.
        let error = 0.25 * logit.error + gamma(EXP_ULPS) * sigmoid;
        let value = (sigmoid - f64::from(labels[sample])) / samples as f64;
        Number { value, error: error / samples as f64 }.rounded(2)
    });
    (mean, d_logits)
}
