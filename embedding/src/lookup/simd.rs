//! One tile of a lookup: rows to vectors, in strips of at most 128 columns.

use crate::rows::{RowElement, RowsRef, by_type, each_type, summand, widen};
use crate::simd::{entries_ahead, prefetch_row};
use crate::table::Pooling;
use headlong_device::pool::SharedMut;
use headlong_device::{DType, MatRef, vectorized};
use std::ops::Range;

/// One tile: the samples of `offsets`, which index `values`.
pub(crate) struct Gather<'a> {
    pub(crate) weights: RowsRef<'a>,
    pub(crate) values: &'a [u64],
    pub(crate) offsets: &'a [u32],
    /// One weight per value, or none at all.
    pub(crate) factors: &'a [f32],
    pub(crate) pooling: Pooling,
    pub(crate) out: SharedMut<f32>,
    pub(crate) out_first: usize,
    pub(crate) out_stride: usize,
}

impl Gather<'_> {
    /// The entries of the tile, in `values`.
    fn ids(&self) -> Range<usize> {
        self.offsets[0] as usize..self.offsets[self.offsets.len() - 1] as usize
    }

    pub(crate) fn in_range(&self) -> bool {
        let rows = self.weights.rows() as u64;
        self.values[self.ids()].iter().fold(true, |fine, &row| fine & (row < rows))
    }

    /// Whether every sample of the tile has one id.
    fn is_one_hot(&self) -> bool {
        self.offsets.windows(2).fold(true, |one, bounds| one & (bounds[1] - bounds[0] == 1))
    }
}

/// Writes the vectors of `tile`; rows are rounded to `narrow` before they are added.
///
/// Without a type parameter, so that the kernels are compiled here, once, and not in every crate
/// that calls a generic lookup.
pub(crate) fn gather(narrow: Option<DType>, tile: &Gather<'_>) {
    by_type!(narrow, gather_tile(tile));
}

vectorized! {
    /// Rows are rounded as `TO` says before they are added.
    fn gather_tile<const TO: u8>(tile: &Gather<'_>) {
        each_type!(RowsRef, tile.weights, weights => gather_rows::<_, TO>(tile, weights));
    }
}

#[inline(always)]
fn gather_rows<T: RowElement, const TO: u8>(tile: &Gather, weights: MatRef<T>) {
    let dim = weights.cols();
    let mut column = 0;
    while column < dim {
        column += match dim - column {
            128.. => gather_strip::<128, T, TO>(tile, weights, column, 128),
            64.. => gather_strip::<64, T, TO>(tile, weights, column, 64),
            32.. => gather_strip::<32, T, TO>(tile, weights, column, 32),
            16.. => gather_strip::<16, T, TO>(tile, weights, column, 16),
            len => gather_strip::<16, T, TO>(tile, weights, column, len),
        };
    }
}

/// The columns `column .. column + len` of all samples of the tile, `len` at most `W`. Returns
/// `len`.
///
/// Both sides of the copy are prefetched: the rows lie anywhere, the vectors a whole sample
/// apart.
#[inline(always)]
fn gather_strip<const W: usize, T: RowElement, const TO: u8>(
    tile: &Gather,
    weights: MatRef<T>,
    column: usize,
    len: usize,
) -> usize {
    let strip = Strip::<W, T, TO> { tile, weights, column, len };
    if tile.factors.is_empty() && tile.is_one_hot() {
        strip.copy_rows()
    } else {
        strip.pool_bags()
    }
    len
}

struct Strip<'a, const W: usize, T: RowElement, const TO: u8> {
    tile: &'a Gather<'a>,
    weights: MatRef<'a, T>,
    column: usize,
    len: usize,
}

impl<const W: usize, T: RowElement, const TO: u8> Strip<'_, W, T, TO> {
    #[inline(always)]
    fn row(&self, row: u64) -> &[T] {
        let weights = &self.weights;
        &weights.data()[row as usize * weights.stride() + self.column..][..self.len]
    }

    /// Calls `body` with each number of `sum` and the row's at its place.
    #[inline(always)]
    fn with(&self, row: u64, sum: &mut [f32; W], body: impl Fn(&mut f32, f32)) {
        let numbers = sum[..self.len].iter_mut().zip(self.row(row));
        numbers.for_each(|(sum, value)| body(sum, summand::<T, TO>(*value)));
    }

    /// Prefetches the row of entry `entry` of the table's ids, if there is one.
    #[inline(always)]
    fn prefetch_entry(&self, entry: usize) {
        let weights = &self.weights;
        if let Some(&row) = self.tile.values.get(entry) {
            // Note: not checked yet where it is another tile's; a prefetch ignores what lies
            // outside.
            let start = (row as usize).wrapping_mul(weights.stride()).wrapping_add(self.column);
            prefetch_row(weights.data(), start, W);
        }
    }

    /// The vector of sample `sample` of the tile, to be written.
    #[inline(always)]
    fn vector<'v>(&self, sample: usize) -> &'v mut [f32] {
        assert!(sample + 1 < self.tile.offsets.len(), "the sample lies in the tile");
        let first = self.tile.out_first + sample * self.tile.out_stride + self.column;
        // SAFETY: `vectors` is `samples × Σ dim`, by the set's checks; only this tile writes these
        // samples' columns of this table, and each call's slice is gone before the next call.
        unsafe { self.tile.out.slice(first, self.len) }
    }

    #[inline(always)]
    fn prefetch_vector(&self, sample: usize) {
        if sample + 1 < self.tile.offsets.len() {
            prefetch_row(self.vector(sample), 0, W);
        }
    }

    #[inline(always)]
    fn copy_rows(&self) {
        let ahead = entries_ahead(W);
        let ids = self.tile.ids();
        for (sample, &row) in self.tile.values[ids.clone()].iter().enumerate() {
            self.prefetch_entry(ids.start + sample + ahead);
            self.prefetch_vector(sample + ahead);
            widen(self.row(row), self.vector(sample));
        }
    }

    #[inline(always)]
    fn pool_bags(&self) {
        let ahead = entries_ahead(W);
        for (sample, bounds) in self.tile.offsets.windows(2).enumerate() {
            let entries = bounds[0] as usize..bounds[1] as usize;
            entries.clone().for_each(|entry| self.prefetch_entry(entry + ahead));
            self.prefetch_vector(sample + ahead);
            let bag = &self.tile.values[entries.clone()];
            let [first, rest @ ..] = bag else {
                self.vector(sample).fill(0.0);
                continue;
            };
            let mut sum = [0.0; W];
            self.with(*first, &mut sum, |sum, value| *sum = value);
            if let Some(factors) = self.tile.factors.get(entries) {
                sum.iter_mut().for_each(|sum| *sum *= factors[0]);
                for (&row, &factor) in rest.iter().zip(&factors[1..]) {
                    self.with(row, &mut sum, |sum, value| *sum += value * factor);
                }
                self.vector(sample).copy_from_slice(&sum[..self.len]);
                continue;
            }
            for &row in rest {
                self.with(row, &mut sum, |sum, value| *sum += value);
            }
            if self.tile.pooling == Pooling::Mean {
                let reciprocal = 1.0 / bag.len() as f32;
                sum.iter_mut().for_each(|sum| *sum *= reciprocal);
            }
            self.vector(sample).copy_from_slice(&sum[..self.len]);
        }
    }
}
