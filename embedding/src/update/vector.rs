//! One tile of an update: segments of gradients summed in registers, straight into the optimiser.

use crate::route::TableRoute;
use crate::table::{MAX_DIM, SparseStep};
use crate::vector::{entries_ahead, prefetch_row};
use headlong_device::pool::SharedMut;
use headlong_device::{MatRef, vectorized};
use std::ops::Range;

/// Depth of the tree over [`super::MAX_SUM_BLOCKS`] blocks, and one for the part being added.
const TREE_DEPTH: usize = 9;

#[derive(Clone, Copy)]
pub(super) struct TableMemory {
    pub(super) weights: RowMemory,
    pub(super) first: RowMemory,
    pub(super) second: RowMemory,
}

/// Rows of `cols` elements, one after the other; no columns where there is no state.
#[derive(Clone, Copy)]
pub(super) struct RowMemory {
    pub(super) data: SharedMut<f32>,
    pub(super) cols: usize,
}

impl RowMemory {
    /// Row `row`, for the tile that owns it.
    ///
    /// # Safety
    /// The row exists and belongs to the caller's tile, which holds no other use of it.
    #[inline(always)]
    unsafe fn row<'a>(self, row: u64) -> &'a mut [f32] {
        // SAFETY: passed on to the caller.
        unsafe { self.data.slice(row as usize * self.cols, self.cols) }
    }

    /// Asks for row `row` ahead of its use. Same duties as [`Self::row`].
    #[inline(always)]
    unsafe fn prefetch(self, row: u64) {
        // SAFETY: passed on to the caller.
        prefetch_row(unsafe { self.row(row) }, 0, self.cols);
    }
}

/// The summed gradients of one table's unique rows.
pub(super) struct SegmentSum<'a> {
    pub(super) route: &'a TableRoute,
    pub(super) gradients: MatRef<'a>,
    pub(super) block_len: u32,
    pub(super) one_block: bool,
}

impl SegmentSum<'_> {
    /// Sums the columns `column .. column + out.len()` of row number `index`, `W` or fewer.
    #[inline(always)]
    fn strip<const W: usize>(&self, index: usize, column: usize, out: &mut [f32]) {
        let entries = self.route.starts[index] as usize..self.route.starts[index + 1] as usize;
        let sum = if self.one_block || entries.len() == 1 {
            self.run::<W>(entries, column, out.len())
        } else {
            self.tree::<W>(entries, column, out.len())
        };
        out.copy_from_slice(&sum[..out.len()]);
    }

    /// The sum over `entries` in order, from +0 on.
    #[inline(always)]
    fn run<const W: usize>(&self, entries: Range<usize>, column: usize, len: usize) -> [f32; W] {
        let ahead = entries_ahead(W);
        let (data, stride) = (self.gradients.data(), self.gradients.stride());
        let samples = self.route.samples();
        let mut sum = [0.0; W];
        for entry in entries {
            if let Some(&sample) = samples.get(entry + ahead) {
                prefetch_row(data, sample as usize * stride + column, W);
            }
            let sample = samples[entry] as usize;
            let gradient = &data[sample * stride + column..][..len];
            if self.route.reciprocals.is_empty() {
                sum[..len].iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
            } else {
                let reciprocal = self.route.reciprocals[sample];
                sum[..len].iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g * reciprocal);
            }
        }
        sum
    }

    /// The sum over blocks in the fixed tree. Parts wait on a stack; two are added once the next block lies outside
    /// the smallest subtree that holds both.
    #[inline(always)]
    fn tree<const W: usize>(&self, entries: Range<usize>, column: usize, len: usize) -> [f32; W] {
        let block_of = |entry: usize| self.route.samples[entry] / self.block_len;
        let mut stack = [([0.0; W], 0_u32); TREE_DEPTH];
        let mut depth = 0;
        let mut first = entries.start;
        while first < entries.end {
            let block = block_of(first);
            let mut last = first + 1;
            while last < entries.end && block_of(last) == block {
                last += 1;
            }
            while depth >= 2
                && height(stack[depth - 2].1, stack[depth - 1].1) < height(stack[depth - 1].1, block)
            {
                depth = merge(&mut stack, depth);
            }
            stack[depth] = (self.run::<W>(first..last, column, len), block);
            depth += 1;
            first = last;
        }
        while depth >= 2 {
            depth = merge(&mut stack, depth);
        }
        stack[0].0
    }

    /// The whole summed gradient of row number `index`.
    #[inline(always)]
    fn row(&self, index: usize, out: &mut [f32]) {
        let dim = out.len();
        let mut column = 0;
        while column < dim {
            let rest = &mut out[column..];
            column += match rest.len() {
                128.. => {
                    self.strip::<128>(index, column, &mut rest[..128]);
                    128
                }
                64.. => {
                    self.strip::<64>(index, column, &mut rest[..64]);
                    64
                }
                32.. => {
                    self.strip::<32>(index, column, &mut rest[..32]);
                    32
                }
                16.. => {
                    self.strip::<16>(index, column, &mut rest[..16]);
                    16
                }
                len => {
                    self.strip::<16>(index, column, rest);
                    len
                }
            };
        }
    }
}

/// Level of the smallest subtree that holds the blocks `a` and `b`.
#[inline(always)]
fn height(a: u32, b: u32) -> u32 {
    u32::BITS - (a ^ b).leading_zeros()
}

/// Adds the top of the stack to the part below it.
#[inline(always)]
fn merge<const W: usize>(stack: &mut [([f32; W], u32); TREE_DEPTH], depth: usize) -> usize {
    let (right, block) = stack[depth - 1];
    let left = &mut stack[depth - 2];
    left.0.iter_mut().zip(right).for_each(|(left, right)| *left += right);
    left.1 = block;
    depth - 1
}

pub(super) struct UpdateTile<'a> {
    pub(super) sum: SegmentSum<'a>,
    pub(super) rows: Range<usize>,
    pub(super) memory: TableMemory,
    pub(super) step: SparseStep<'a>,
}

vectorized! {
    pub(super) fn update_tile(tile: &UpdateTile<'_>) {
        let TableMemory { weights, first, second } = tile.memory;
        let rows = &tile.sum.route.rows;
        let ahead = entries_ahead(weights.cols);
        let mut buffer = [0.0; MAX_DIM];
        let gradient = &mut buffer[..weights.cols];
        for index in tile.rows.clone() {
            if index + ahead < tile.rows.end {
                let row = rows[index + ahead];
                // SAFETY: rows of a route are in range and unique, and each belongs to one tile: this one.
                unsafe { weights.prefetch(row) };
                // SAFETY: as above.
                unsafe { first.prefetch(row) };
                // SAFETY: as above.
                unsafe { second.prefetch(row) };
            }
            tile.sum.row(index, gradient);
            let row = rows[index];
            // SAFETY: as above; the slices of the prefetch are gone.
            let (weights, first, second) = unsafe { (weights.row(row), first.row(row), second.row(row)) };
            tile.step.optimizer.apply(tile.step.step, weights, first, second, gradient);
        }
    }

    /// The summed gradients of the first `out.rows()` unique rows.
    pub(super) fn sum_rows(sum: &SegmentSum<'_>, out: SharedMut<f32>, dim: usize, rows: Range<usize>) {
        for index in rows {
            // SAFETY: `out` holds one row of `dim` per unique row, and each index is handed out once.
            sum.row(index, unsafe { out.slice(index * dim, dim) });
        }
    }
}
