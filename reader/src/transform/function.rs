//! A dense transform, ready to be applied.

use std::sync::Arc;

use crate::columns::DenseColumns;
use crate::samples::present;

const TABLE_SIZE: usize = 4096;

/// What is applied to every integer of a file; missing counts as 0.
#[derive(Clone, Debug)]
pub enum DenseFunction {
    /// The integer, rounded to f32.
    Identity,
    /// `ln(max(x, floor) + shift)`, computed in f64 and rounded once to f32.
    Logarithm {
        floor: i64,
        /// Added before the logarithm; `floor + shift` is positive.
        shift: i64,
        /// `ln(n)` for small n, from 0.
        table: Vec<f32>,
    },
    /// Of each column its own; applied to whole samples.
    Columns(Arc<DenseColumns>),
}

impl DenseFunction {
    pub(super) fn logarithm(floor: i64, shift: i64) -> Self {
        assert!(floor + shift > 0, "a logarithm needs a positive argument");
        let table = (0..TABLE_SIZE).map(|n| (n as f64).ln() as f32).collect();
        Self::Logarithm { floor, shift, table }
    }

    /// TorchRec's: `ln(x - (minimum - 2))`.
    pub fn of_file_minimum(minimum: i32) -> Self {
        let minimum = (minimum as i64).min(0);
        Self::logarithm(minimum, 2 - minimum)
    }

    /// Applies it to `raw`, element by element.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn apply(&self, raw: &[i32], out: &mut [f32]) {
        assert_eq!(raw.len(), out.len(), "as many numbers as integers");
        let pairs = raw.iter().map(|&value| present(value)).zip(&mut *out);
        match self {
            DenseFunction::Columns(columns) => columns.apply(raw, out),
            DenseFunction::Identity => pairs.for_each(|(value, out)| *out = value as f32),
            DenseFunction::Logarithm { floor, shift, table } => {
                for (value, out) in pairs {
                    let argument = (value as i64).max(*floor) + shift;
                    *out = match table.get(argument as usize) {
                        Some(&logarithm) => logarithm,
                        None => (argument as f64).ln() as f32,
                    };
                }
            }
        }
    }
}
