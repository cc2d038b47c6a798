//! Whether `apply` is one step of the optimiser.
//!
//! Where rows stand for themselves, the optimiser's own formula says where each row goes. Where
//! they share storage, the derivative of `lookup` says what the gradient of each weight is: finite
//! differences find it, weights being written by `load`. A step of SGD must go along it; another
//! optimiser must make of the same gradient what its formula says, with the states that the table
//! saves.

use super::step;
use super::subject::{Origin, Subject};
use crate::checkpoint::{RowSink as _, SavedRows, TensorSpec};
use crate::kind::TableKind;
use crate::table::{Grain, Keys, TableSpec};
use headlong_device::optimizer::{Optimizer, StateWidth, Step};
use headlong_device::testing::uniform;
use headlong_device::{DType, Stream};
use std::ops::Range;

/// Learning rates and strides of the steps that are followed: every second row, all, every third.
const STEPS: [(f32, usize); 3] = [(0.25, 2), (0.5, 1), (0.125, 3)];

/// Rows up to which all of a table are checked, not only those that a step names.
const MOST_WATCHED: u64 = 4096;

/// Rows of a tensor whose derivative is found one by one.
const DERIVED_ROWS: usize = 12;

/// A difference moves weights by this part of their size.
const DIFFERENCE: f64 = 1.0 / 256.0;

/// A derivative by differences may be off by this part.
const OF_DIFFERENCES: f64 = 0.02;

pub(super) fn check(kind: &dyn TableKind, spec: &TableSpec, optimizer: Optimizer, stream: &Stream) {
    let new = |optimizer, origin| Subject::new(kind, spec, optimizer, stream, origin);
    if spec.grain == Grain::Rows {
        return check_rows(&mut new(optimizer, Origin::FIRST));
    }
    if spec.keys == Keys::RawIds {
        // What a tensor of entries holds besides weights is the table's own: no difference can be
        // taken of it.
        return;
    }
    match optimizer {
        Optimizer::Sgd => {
            check_derivative(&mut new(optimizer, Origin::FIRST), &mut new(optimizer, Origin::OTHER))
        }
        _ => check_formula(
            &mut new(optimizer, Origin::FIRST),
            &mut new(Optimizer::Sgd, Origin::OTHER),
        ),
    }
}

/// Weights and states of one row.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    weights: Vec<f32>,
    states: [Vec<f32>; 2],
}

impl Row {
    fn step(&mut self, optimizer: &Optimizer, step: &Step, gradient: &[f32]) {
        let [first, second] = &mut self.states;
        optimizer.apply(step, &mut self.weights, first, second, gradient);
    }

    /// The state numbers and the weights, each with its name.
    fn parts<'a>(
        &'a self,
        optimizer: &Optimizer,
    ) -> impl Iterator<Item = (&'static str, &'a [f32])> {
        let names = std::iter::once("weights")
            .chain(optimizer.states().into_iter().map(|state| state.name));
        let parts = std::iter::once(&self.weights).chain(&self.states).map(Vec::as_slice);
        names.zip(parts).collect::<Vec<_>>().into_iter()
    }
}

/// Rows that stand for themselves.
fn check_rows(subject: &mut Subject) {
    let (optimizer, dim, dtype) = (subject.optimizer, subject.spec.dim, subject.spec.dtype);
    let rows = subject.some_rows();
    subject.make_known(&rows);
    let watched: Vec<u64> = match subject.spec.keys {
        Keys::RowIndices if subject.spec.rows <= MOST_WATCHED => (0..subject.spec.rows).collect(),
        _ => rows.clone(),
    };
    let states = optimizer.states();
    let state = |number: usize| match states.get(number) {
        Some(state) if state.width == StateWidth::PerRow => vec![state.initial],
        Some(state) => vec![state.initial; dim],
        None => vec![],
    };
    let new = |weights: &[f32]| Row { weights: weights.to_vec(), states: [state(0), state(1)] };
    let mut expected: Vec<Row> = subject.lookup(&watched).chunks(dim).map(new).collect();
    for (number, (learning_rate, stride)) in (1..).zip(STEPS) {
        let step = Step { learning_rate, ..step(number) };
        let chosen: Vec<u64> = rows.iter().copied().step_by(stride).collect();
        let gradients = uniform(number, chosen.len() * dim);
        subject.apply(&chosen, &gradients, step);
        let found = subject.lookup(&watched);
        for ((&row, expected), found) in watched.iter().zip(&mut expected).zip(found.chunks(dim)) {
            let before = expected.weights.clone();
            if let Ok(index) = chosen.binary_search(&row) {
                expected.step(&optimizer, &step, &gradients[index * dim..][..dim]);
            }
            for (column, (&found, &expected)) in found.iter().zip(&expected.weights).enumerate() {
                let exact = optimizer == Optimizer::Sgd && dtype == DType::F32
                    || expected == before[column];
                let is_right = if exact {
                    found == expected
                } else {
                    is_near(found, expected, before[column], dtype)
                };
                let name = optimizer.name();
                assert!(
                    is_right,
                    "row {row}, column {column} after step {number} of {name} with learning rate \
                     {learning_rate}: expected {expected}, found {found}"
                );
            }
            // Rounding is not added up from step to step.
            expected.weights.copy_from_slice(found);
        }
    }
}

/// Whether a number that was `before` has come to what was expected, except for rounding.
fn is_near(found: f32, expected: f32, before: f32, dtype: DType) -> bool {
    let of_weight = if dtype == DType::F32 { 1e-5 } else { 1.0 / 64.0 };
    (found - expected).abs()
        <= 2e-3 * (expected - before).abs() + of_weight * (1.0 + expected.abs())
}

/// Values of `tensor` as they were saved.
fn values<'a>(saved: &'a SavedRows, tensor: &TensorSpec) -> &'a [f32] {
    saved.tensor(&tensor.name).unwrap_or_else(|| panic!("tensor `{}` is not saved", tensor.name))
}

/// Saved rows with those of one tensor replaced.
fn replaced(saved: &SavedRows, tensors: &[TensorSpec], name: &str, values: &[f32]) -> SavedRows {
    let mut new = SavedRows::default();
    for tensor in tensors {
        let of_tensor = if tensor.name == name { values } else { self::values(saved, tensor) };
        new.rows(tensor, 0, of_tensor).expect("tensors come whole, each once");
    }
    new
}

/// A step of SGD goes along the derivative of `lookup`, in each tensor.
fn check_derivative(subject: &mut Subject, probe: &mut Subject) {
    let rows = subject.some_rows();
    let dim = subject.spec.dim;
    // Away from where a table begins: a factor of zeros would hide the other.
    for number in 1..=2 {
        subject.apply(&rows, &uniform(number, rows.len() * dim), step(number));
    }
    for (number, (learning_rate, stride)) in (3..).zip(STEPS) {
        let chosen: Vec<u64> = rows.iter().copied().step_by(stride).collect();
        let gradients = uniform(number, chosen.len() * dim);
        let before = subject.save();
        subject.apply(&chosen, &gradients, Step { learning_rate, ..step(number) });
        let after = subject.save();
        let mut objective = Objective { probe: &mut *probe, rows: &chosen, gradients: &gradients };
        let tensors = subject.table.tensors();
        for tensor in &tensors {
            let (before_values, after) = (values(&before, tensor), values(&after, tensor));
            let moved: Vec<f64> = before_values
                .iter()
                .zip(after)
                .map(|(before, after)| {
                    (f64::from(*before) - f64::from(*after)) / f64::from(learning_rate)
                })
                .collect();
            for (name, range) in directions(tensor, &moved) {
                let slope = objective.slope(&before, &tensors, tensor, &range);
                let along: f64 = range.clone().map(|index| moved[index] * sign(index)).sum();
                let size = moved[range].iter().map(|moved| moved * moved).sum::<f64>().sqrt();
                let tolerance = OF_DIFFERENCES * size.max(slope.value.abs()) + slope.noise;
                assert!(
                    (slope.value - along).abs() <= tolerance,
                    "{name} of tensor `{}`: a step of SGD goes by {along:.5} times the learning \
                     rate ({learning_rate}) against a direction in which the loss rises by {:.5} \
                     (± {tolerance:.5})",
                    tensor.name,
                    slope.value
                );
            }
        }
    }
}

/// Directions in which a tensor's derivative is looked at: all of it, and rows one by one, those
/// that have moved and others.
fn directions(tensor: &TensorSpec, moved: &[f64]) -> Vec<(String, Range<usize>)> {
    let row = |row: usize| row * tensor.cols..(row + 1) * tensor.cols;
    let has_moved = |&number: &usize| moved[row(number)].iter().any(|&moved| moved != 0.0);
    let (moving, still): (Vec<usize>, Vec<usize>) = (0..tensor.rows as usize).partition(has_moved);
    let some = |rows: Vec<usize>| {
        let stride = rows.len().div_ceil(DERIVED_ROWS).max(1);
        let last = rows.last().copied();
        let mut some: Vec<usize> = rows.into_iter().step_by(stride).collect();
        some.extend(last.filter(|last| !some.contains(last)));
        some
    };
    let rows = some(moving).into_iter().chain(some(still));
    let rows = rows.map(|number| (format!("row {number}"), row(number)));
    std::iter::once(("all".to_owned(), 0..moved.len())).chain(rows).collect()
}

/// A direction of random signs.
fn sign(index: usize) -> f64 {
    if crate::hybrid::mix(index as u64) & 1 == 0 { 1.0 } else { -1.0 }
}

/// What a step goes down: the sum of vectors times their gradients.
struct Objective<'a> {
    probe: &'a mut Subject,
    rows: &'a [u64],
    gradients: &'a [f32],
}

/// A derivative by differences, and what rounding may have made of it.
struct Slope {
    value: f64,
    noise: f64,
}

impl Objective<'_> {
    /// The value, and the sum of its terms' sizes.
    fn at(&mut self, saved: &SavedRows) -> (f64, f64) {
        self.probe.load(saved);
        let vectors = self.probe.lookup(self.rows);
        let terms = vectors.iter().zip(self.gradients).map(|(x, g)| f64::from(*x) * f64::from(*g));
        terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
    }

    /// The derivative along [`sign`] in `range` of `tensor`.
    fn slope(
        &mut self,
        saved: &SavedRows,
        tensors: &[TensorSpec],
        tensor: &TensorSpec,
        range: &Range<usize>,
    ) -> Slope {
        let values = values(saved, tensor);
        let square = values.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
        let size = (square / values.len().max(1) as f64).sqrt().max(1e-3);
        let step = size * DIFFERENCE;
        let mut moved = |by: f64| {
            let mut values = values.to_vec();
            for index in range.clone() {
                values[index] = (f64::from(values[index]) + by * sign(index)) as f32;
            }
            self.at(&replaced(saved, tensors, &tensor.name, &values))
        };
        // Of fourth order: what is not linear in the weights is no fault.
        let [(above, size), (below, _), (far_above, _), (far_below, _)] =
            [1.0, -1.0, 2.0, -2.0].map(|by| moved(by * step));
        Slope {
            value: (8.0 * (above - below) - (far_above - far_below)) / (12.0 * step),
            noise: 3.0 * f64::from(f32::EPSILON) * (size / step + range.len() as f64),
        }
    }
}

/// Steps of another optimiser make of each tensor's gradient what the formula says. `slopes` is a
/// table with SGD, whose steps show the gradient.
fn check_formula(subject: &mut Subject, slopes: &mut Subject) {
    let (optimizer, dim, dtype) = (subject.optimizer, subject.spec.dim, subject.spec.dtype);
    let rows = subject.some_rows();
    for (number, (learning_rate, stride)) in (1..).zip(STEPS) {
        let step = Step { learning_rate, ..step(number) };
        let chosen: Vec<u64> = rows.iter().copied().step_by(stride).collect();
        let gradients = uniform(number, chosen.len() * dim);
        let before = subject.save();
        slopes.load(&before);
        slopes.apply(&chosen, &gradients, Step { learning_rate: 1.0, ..step });
        let descended = slopes.save();
        subject.apply(&chosen, &gradients, step);
        let after = subject.save();
        for group in subject.table.tensors().chunks(1 + optimizer.states().len()) {
            let weights = &group[0];
            let fallen = values(&descended, weights);
            for row in 0..weights.rows as usize {
                let (was, is) = (row_of(&before, group, row), row_of(&after, group, row));
                let range = row * weights.cols..(row + 1) * weights.cols;
                let gradient: Vec<f32> = was
                    .weights
                    .iter()
                    .zip(&fallen[range])
                    .map(|(before, after)| before - after)
                    .collect();
                if is == was && gradient.iter().all(|&x| x == 0.0) {
                    continue;
                }
                let mut expected = was.clone();
                expected.step(&optimizer, &step, &gradient);
                let parts =
                    is.parts(&optimizer).zip(expected.parts(&optimizer)).zip(was.parts(&optimizer));
                for (((name, is), (_, expected)), (_, was)) in parts {
                    for (column, ((&is, &expected), &was)) in
                        is.iter().zip(expected).zip(was).enumerate()
                    {
                        let (optimizer, tensor) = (optimizer.name(), &weights.name);
                        assert!(
                            is_near(is, expected, was, dtype),
                            "{name} of row {row}, column {column} of tensor `{tensor}` after step \
                             {number} of {optimizer} with learning rate {learning_rate}: expected \
                             {expected}, found {is}"
                        );
                    }
                }
            }
        }
    }
}

/// One row of weights and of their states.
fn row_of(saved: &SavedRows, group: &[TensorSpec], row: usize) -> Row {
    let part = |number: usize| {
        let Some(tensor) = group.get(number) else { return vec![] };
        values(saved, tensor)[row * tensor.cols..(row + 1) * tensor.cols].to_vec()
    };
    Row { weights: part(0), states: [part(1), part(2)] }
}
