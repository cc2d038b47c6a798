//! Kernels of the hybrid ops: tiles of rows gathered, pooled, summed and updated.

use super::merge::MergedParts;
use crate::rows::{RowElement, RowMemory, RowsRef, WeightMemory, each_type, summands, widen};
use crate::simd::{entries_ahead, prefetch_row};
use crate::table::{MAX_DIM, Pooling, SparseStep};
use crate::update::simd::{Parts, RowRounding, SampleParts, SegmentSum, TableMemory, UpdateTile};
use headlong_device::pool::SharedMut;
use headlong_device::{DType, MatRef, vectorized};
use std::ops::Range;

/// Marks the vectors of frequent rows, which lie in the replica and not among those received.
pub(super) const IN_REPLICA: u64 = 1 << 63;

/// Rows copied one after the other.
pub(super) struct Copy<'a> {
    pub(super) weights: RowsRef<'a>,
    pub(super) rows: &'a [u64],
    /// Where the first one goes.
    pub(super) out: SharedMut<f32>,
    pub(super) out_first: usize,
}

vectorized! {
    /// Writes the vectors of `rows` one after the other.
    pub(super) fn copy_rows(tile: &Copy<'_>) {
        each_type!(RowsRef, tile.weights, weights => copy_rows_of(tile, weights));
    }

    /// Writes the vectors of `tile`.
    pub(super) fn pool(tile: &PoolTile<'_>) {
        each_type!(RowsRef, tile.replica, replica => pool_rows(tile, replica.data()));
    }

    /// Sums the gradients of the rows `range`, each to its destination.
    pub(super) fn reduce_tile(tile: &ReduceTile<'_>) {
        for index in tile.range.clone() {
            let destination = tile.destinations[index] | tile.mark;
            let out = if destination & IN_REPLICA != 0 {
                let row = (destination & !IN_REPLICA) as usize;
                // SAFETY: a row of the replica is one unique row of one tile; both places lie in
                // the frequent block, by its layout.
                let touched = unsafe { tile.frequent.slice(tile.first_touched + row, 1) };
                touched[0] = 1.0;
                // SAFETY: as above.
                unsafe { tile.frequent.slice(tile.first_gradient + row * tile.dim, tile.dim) }
            } else {
                // SAFETY: every requested row has its own `dim` elements of the buffer, which is as
                // long as all requests.
                unsafe { tile.to_owners.slice(destination as usize, tile.dim) }
            };
            tile.sum.row(index, out);
        }
    }

    /// Sums the gradients that sources sent for rows of this owner, and updates the rows.
    pub(super) fn update_merged_tile(tile: &UpdateTile<'_, MergedParts<'_>>) {
        tile.run();
    }

    /// Sums the gradients that sources sent, row after row from `first` on.
    pub(super) fn sum_merged_rows(
        sum: &SegmentSum<'_, MergedParts<'_>>, out: SharedMut<f32>, first: usize, dim: usize,
        rows: Range<usize>,
    ) {
        for index in rows {
            // SAFETY: `out` holds one row of `dim` per unique row from `first` on, and each index
            // is handed out once.
            sum.row(index, unsafe { out.slice(first + index * dim, dim) });
        }
    }

    /// Copies the vector of each merged row to every source that requests it.
    pub(super) fn expand_tile(tile: &ExpandTile<'_>) {
        for index in tile.rows.clone() {
            let vector = &tile.vectors[index * tile.dim..][..tile.dim];
            for entry in tile.parts.entries(index) {
                // SAFETY: every part has its own `dim` elements of `out`, and belongs to one row of
                // one tile.
                unsafe { tile.out.slice(tile.parts.element(entry), tile.dim) }
                    .copy_from_slice(vector);
            }
        }
    }

    /// Updates the rows of a replica that some rank touched.
    pub(super) fn update_frequent_tile(tile: &FrequentTile<'_>) {
        each_type!(
            WeightMemory, tile.memory.weights, weights => update_frequent_rows(tile, weights)
        );
    }
}

#[inline(always)]
fn copy_rows_of<T: RowElement>(tile: &Copy<'_>, weights: MatRef<T>) {
    let dim = weights.cols();
    let ahead = entries_ahead(dim);
    let (data, stride) = (weights.data(), weights.stride());
    for (index, &row) in tile.rows.iter().enumerate() {
        if let Some(&coming) = tile.rows.get(index + ahead) {
            prefetch_row(data, (coming as usize).wrapping_mul(stride), dim);
        }
        // SAFETY: a list of requests has its own elements of `out`, `dim` for each row; only this
        // tile writes them.
        let out = unsafe { tile.out.slice(tile.out_first + index * dim, dim) };
        widen(weights.row(row as usize), out);
    }
}

#[inline(always)]
fn update_frequent_rows<T: RowElement>(tile: &FrequentTile<'_>, weights: RowMemory<T>) {
    let TableMemory { first, second, .. } = tile.memory;
    let RowRounding { rounding, row_of_local } = tile.rounding;
    let dim = weights.cols;
    let mut wide = [0.0; MAX_DIM];
    for row in tile.rows.clone() {
        if tile.touched[row] == 0.0 {
            continue;
        }
        let gradient = &tile.gradients[row * dim..][..dim];
        let at = row as u64;
        // SAFETY: the row lies in the replica, and in no other tile.
        let (weights, first, second) = unsafe { (weights.row(at), first.row(at), second.row(at)) };
        let index = if T::IS_NARROW { row_of_local(at) } else { at };
        T::change(weights, &mut wide[..dim], &rounding, index, |weights| {
            tile.step.optimizer.apply(tile.step.step, weights, first, second, gradient);
        });
    }
}

/// Samples of one table, to be pooled.
pub(super) struct PoolTile<'a> {
    pub(super) dim: usize,
    /// Where each id's vector lies.
    pub(super) origins: &'a [u64],
    /// Bounds of the tile's bags among the origins.
    pub(super) offsets: &'a [u32],
    /// One weight per id, or none at all.
    pub(super) factors: &'a [f32],
    pub(super) pooling: Pooling,
    pub(super) recv_rows: &'a [f32],
    /// What the origins of frequent rows count in; empty where no row is frequent.
    pub(super) replica: RowsRef<'a>,
    /// What its rows are rounded to before they are added; what was received is rounded.
    pub(super) narrow: Option<DType>,
    /// Which bags are pooled: those of only frequent rows, all others, or all there are.
    pub(super) bags: Pooled,
    pub(super) out: SharedMut<f32>,
    pub(super) out_first: usize,
    pub(super) out_stride: usize,
}

/// Which bags are pooled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pooled {
    All,
    OnlyFrequent,
    Others,
}

/// The pooling of one tile, whose replica is stored in `T`.
struct Pool<'a, T> {
    tile: &'a PoolTile<'a>,
    replica: &'a [T],
}

#[inline(always)]
fn start_of(origin: u64) -> (bool, usize) {
    (origin & IN_REPLICA != 0, (origin & !IN_REPLICA) as usize)
}

#[inline(always)]
fn pool_rows<T: RowElement>(tile: &PoolTile, replica: &[T]) {
    let pool = Pool { tile, replica };
    let mut column = 0;
    while column < tile.dim {
        column += match tile.dim - column {
            128.. => pool.strip::<128>(column, 128),
            64.. => pool.strip::<64>(column, 64),
            32.. => pool.strip::<32>(column, 32),
            16.. => pool.strip::<16>(column, 16),
            len => pool.strip::<16>(column, len),
        };
    }
}

impl<T: RowElement> Pool<'_, T> {
    /// Calls `body` with each number of `sum` and the vector's at its place. `wide` is as long, and
    /// scratch memory.
    #[inline(always)]
    fn with(
        &self,
        origin: u64,
        column: usize,
        (sum, wide): (&mut [f32], &mut [f32]),
        body: impl Fn(&mut f32, f32),
    ) {
        let (frequent, start) = start_of(origin);
        let row = match frequent {
            true => summands(&self.replica[start + column..][..sum.len()], self.tile.narrow, wide),
            false => &self.tile.recv_rows[start + column..][..sum.len()],
        };
        sum.iter_mut().zip(row).for_each(|(sum, &value)| body(sum, value));
    }

    #[inline(always)]
    fn prefetch(&self, entry: usize, column: usize, width: usize) {
        if let Some(&origin) = self.tile.origins.get(entry) {
            let (frequent, start) = start_of(origin);
            let start = start.wrapping_add(column);
            // Note: of another tile, perhaps of another batch; a prefetch ignores what lies
            // outside.
            if frequent {
                prefetch_row(self.replica, start, width);
            } else {
                prefetch_row(self.tile.recv_rows, start, width);
            }
        }
    }

    /// The columns `column .. column + len` of all samples of the tile, `len` at most `W`. Returns
    /// `len`.
    ///
    /// The sums are those of [`crate::lookup`], operation by operation: which bits a vector has
    /// does not depend on where its rows came from.
    #[inline(always)]
    fn strip<const W: usize>(&self, column: usize, len: usize) -> usize {
        let tile = self.tile;
        let ahead = entries_ahead(W);
        let mut wide = [0.0; W];
        for (sample, bounds) in tile.offsets.windows(2).enumerate() {
            let entries = bounds[0] as usize..bounds[1] as usize;
            entries.clone().for_each(|entry| self.prefetch(entry + ahead, column, W));
            let origins = &tile.origins[entries.clone()];
            if tile.bags != Pooled::All {
                let frequent = origins.iter().all(|origin| origin & IN_REPLICA != 0);
                if frequent != (tile.bags == Pooled::OnlyFrequent) {
                    continue;
                }
            }
            let first = tile.out_first + sample * tile.out_stride + column;
            // SAFETY: `vectors` is `samples × Σ dim`, by the set's checks; only this tile writes
            // these samples' columns of this table, and each call's slice is gone before the next
            // one.
            let out = unsafe { tile.out.slice(first, len) };
            self.bag(origins, tile.factors.get(entries), column, (out, &mut wide));
        }
        len
    }

    /// One strip of one bag.
    #[inline(always)]
    fn bag<const W: usize>(
        &self,
        origins: &[u64],
        factors: Option<&[f32]>,
        column: usize,
        (out, wide): (&mut [f32], &mut [f32; W]),
    ) {
        let wide = &mut wide[..out.len()];
        match (origins, factors) {
            ([], _) => return out.fill(0.0),
            // Note: a mean of one is multiplied with 1, which changes no bit.
            (&[origin], None) => {
                return self.with(origin, column, (out, wide), |out, value| *out = value);
            }
            _ => {}
        }
        // What −0 is added to stays what it is, of either sign.
        let mut sum = [-0.0; W];
        let sum = &mut sum[..out.len()];
        if let Some(factors) = factors {
            for (&origin, &factor) in origins.iter().zip(factors) {
                self.with(origin, column, (sum, wide), |sum, value| *sum += value * factor);
            }
        } else {
            for &origin in origins {
                self.with(origin, column, (sum, wide), |sum, value| *sum += value);
            }
            if self.tile.pooling == Pooling::Mean {
                let reciprocal = 1.0 / origins.len() as f32;
                sum.iter_mut().for_each(|sum| *sum *= reciprocal);
            }
        }
        out.copy_from_slice(sum);
    }
}

/// Unique rows of one table, whose gradients are summed over the slice's samples.
pub(super) struct ReduceTile<'a> {
    pub(super) sum: SegmentSum<'a, SampleParts<'a>>,
    pub(super) range: Range<usize>,
    pub(super) destinations: &'a [u64],
    /// Bits that all destinations have.
    pub(super) mark: u64,
    pub(super) dim: usize,
    pub(super) to_owners: SharedMut<f32>,
    pub(super) frequent: SharedMut<f32>,
    pub(super) first_touched: usize,
    pub(super) first_gradient: usize,
}

/// Merged rows whose vectors lie one after the other.
pub(super) struct ExpandTile<'a> {
    pub(super) parts: MergedParts<'a>,
    pub(super) rows: Range<usize>,
    pub(super) vectors: &'a [f32],
    pub(super) dim: usize,
    pub(super) out: SharedMut<f32>,
}

/// Rows of one replica.
pub(super) struct FrequentTile<'a> {
    pub(super) rows: Range<usize>,
    /// One number per row of the replica: not zero where it occurred.
    pub(super) touched: &'a [f32],
    /// The table's part of the frequent block.
    pub(super) gradients: &'a [f32],
    pub(super) memory: TableMemory,
    pub(super) step: SparseStep<'a>,
    pub(super) rounding: RowRounding<'a>,
}
