//! One tile of an update: segments of gradients summed in registers, straight into the optimiser.

use crate::route::TableRoute;
use crate::rows::{Rounding, RowElement, RowMemory, WeightMemory, each_type};
use crate::simd::{entries_ahead, prefetch_row};
use crate::table::{MAX_DIM, SparseStep};
use headlong_device::pool::SharedMut;
use headlong_device::{bf16, vectorized};
use std::ops::Range;

/// Depth of the tree over [`super::MAX_SUM_BLOCKS`] blocks, and one for the part being added.
const TREE_DEPTH: usize = super::MAX_SUM_BLOCKS.ilog2() as usize + 2;

#[derive(Clone, Copy)]
pub(crate) struct TableMemory {
    pub(crate) weights: WeightMemory,
    pub(crate) first: RowMemory<f32>,
    pub(crate) second: RowMemory<f32>,
}

/// How the rows of one update are rounded, where they are stored narrow.
#[derive(Clone, Copy)]
pub(crate) struct RowRounding<'a> {
    pub(crate) rounding: Rounding,
    /// Row of the model's table of a local row.
    pub(crate) row_of_local: &'a (dyn Fn(u64) -> u64 + Sync),
}

impl<T> RowMemory<T> {
    /// Row `row`, for the tile that owns it.
    ///
    /// # Safety
    /// The row exists and belongs to the caller's tile, which holds no other use of it.
    #[inline(always)]
    pub(crate) unsafe fn row<'a>(self, row: u64) -> &'a mut [T] {
        // SAFETY: passed on to the caller.
        unsafe { self.data.slice(row as usize * self.cols, self.cols) }
    }

    /// Prefetches row `row`. Same duties as [`Self::row`].
    #[inline(always)]
    pub(crate) unsafe fn prefetch(self, row: u64) {
        // SAFETY: passed on to the caller.
        prefetch_row(unsafe { self.row(row) }, 0, self.cols);
    }
}

/// Where the parts of each unique row's sum lie, and in which block each stands.
pub(crate) trait Parts: Copy + Sync {
    /// The parts of row `index`; a block's parts stand together, blocks rise.
    fn entries(&self, index: usize) -> Range<usize>;

    /// Where part `entry` starts in the data; `None` after the last one.
    fn start(&self, entry: usize) -> Option<usize>;

    /// Block of part `entry`.
    fn block(&self, entry: usize) -> u32;

    /// What part `entry` is multiplied with, if anything.
    fn factor(&self, entry: usize) -> Option<f32>;
}

/// Parts that are the gradients of samples: blocks are runs of samples.
#[derive(Clone, Copy)]
pub(crate) struct SampleParts<'a> {
    pub(crate) route: &'a TableRoute,
    /// Elements from one sample's gradient to the next.
    pub(crate) stride: usize,
    pub(crate) block_len: u32,
}

impl Parts for SampleParts<'_> {
    #[inline(always)]
    fn entries(&self, index: usize) -> Range<usize> {
        self.route.starts[index] as usize..self.route.starts[index + 1] as usize
    }

    #[inline(always)]
    fn start(&self, entry: usize) -> Option<usize> {
        self.route.samples().get(entry).map(|&sample| sample as usize * self.stride)
    }

    #[inline(always)]
    fn block(&self, entry: usize) -> u32 {
        self.route.samples[entry] / self.block_len
    }

    #[inline(always)]
    fn factor(&self, entry: usize) -> Option<f32> {
        if !self.route.factors.is_empty() {
            return Some(self.route.factors[entry]);
        }
        if !self.route.reciprocals.is_empty() {
            return Some(self.route.reciprocals[self.route.samples[entry] as usize]);
        }
        None
    }
}

/// The summed gradients of unique rows.
#[derive(Clone, Copy)]
pub(crate) struct SegmentSum<'a, P> {
    pub(crate) parts: P,
    /// What the parts lie in.
    pub(crate) data: &'a [f32],
    /// Whether there is one block only.
    pub(crate) one_block: bool,
    /// Whether parts and sums are rounded to bf16.
    pub(crate) narrow: bool,
}

impl<'a, P: Parts> SegmentSum<'a, P> {
    /// Of parts that sources sent, each of which is a block.
    pub(crate) fn of_sources(parts: P, data: &'a [f32], narrow: bool) -> Self {
        Self { parts, data, one_block: false, narrow }
    }

    /// Sums the columns `column .. column + out.len()` of row number `index`, `W` or fewer. Returns
    /// how many.
    #[inline(always)]
    fn strip<const W: usize, const NARROW: bool>(
        &self,
        index: usize,
        column: usize,
        out: &mut [f32],
    ) -> usize {
        let entries = self.parts.entries(index);
        let sum = if self.one_block || entries.len() == 1 {
            self.run::<W, NARROW>(entries, column, out.len())
        } else {
            self.tree::<W, NARROW>(entries, column, out.len())
        };
        out.copy_from_slice(&sum[..out.len()]);
        out.len()
    }

    /// The sum over `entries` in order, from +0 on.
    #[inline(always)]
    fn run<const W: usize, const NARROW: bool>(
        &self,
        entries: Range<usize>,
        column: usize,
        len: usize,
    ) -> [f32; W] {
        let round = |part| if NARROW { bf16::nearest(part) } else { part };
        let ahead = entries_ahead(W);
        let mut sum = [0.0; W];
        for entry in entries {
            if let Some(start) = self.parts.start(entry + ahead) {
                prefetch_row(self.data, start + column, W);
            }
            let start = self.parts.start(entry).unwrap_or(usize::MAX);
            let gradient = &self.data[start + column..][..len];
            match self.parts.factor(entry) {
                None => sum[..len].iter_mut().zip(gradient).for_each(|(sum, g)| *sum += round(*g)),
                Some(factor) => sum[..len]
                    .iter_mut()
                    .zip(gradient)
                    .for_each(|(sum, g)| *sum += round(g * factor)),
            }
        }
        if NARROW {
            // A sum that is rounded to −0 is +0, as one without parts.
            sum.iter_mut().for_each(|sum| *sum = bf16::nearest(*sum) + 0.0);
        }
        sum
    }

    /// The sum over blocks in the fixed tree.
    #[inline(always)]
    fn tree<const W: usize, const NARROW: bool>(
        &self,
        entries: Range<usize>,
        column: usize,
        len: usize,
    ) -> [f32; W] {
        let runs = runs_of(entries, |entry| self.parts.block(entry));
        sum_tree::<W, NARROW, _>(runs, |run| self.run::<W, NARROW>(run, column, len))
    }

    /// The whole summed gradient of row number `index`.
    #[inline(always)]
    pub(crate) fn row(&self, index: usize, out: &mut [f32]) {
        let dim = out.len();
        let mut column = 0;
        while column < dim {
            let rest = &mut out[column..];
            // Strips of one length each are worth their kernels where nothing has to be rounded.
            column += match (self.narrow, rest.len()) {
                (true, 64..) => self.strip::<64, true>(index, column, &mut rest[..64]),
                (true, len) => self.strip::<16, true>(index, column, &mut rest[..len.min(16)]),
                (false, 128..) => self.strip::<128, false>(index, column, &mut rest[..128]),
                (false, 64..) => self.strip::<64, false>(index, column, &mut rest[..64]),
                (false, 32..) => self.strip::<32, false>(index, column, &mut rest[..32]),
                (false, 16..) => self.strip::<16, false>(index, column, &mut rest[..16]),
                (false, _) => self.strip::<16, false>(index, column, rest),
            };
        }
    }
}

/// Adds up blocks in their tree. `next` gives the number of each, which rises, and its entries,
/// which `run` adds up. Parts wait on a stack; two are added once the next block lies outside the
/// smallest subtree that holds both.
#[inline(always)]
pub(crate) fn sum_tree<const W: usize, const NARROW: bool, E>(
    mut next: impl FnMut() -> Option<(u32, E)>,
    run: impl Fn(E) -> [f32; W],
) -> [f32; W] {
    let mut stack = [([0.0; W], 0_u32); TREE_DEPTH];
    let mut depth = 0;
    while let Some((block, entries)) = next() {
        while depth >= 2
            && height(stack[depth - 2].1, stack[depth - 1].1) < height(stack[depth - 1].1, block)
        {
            depth = merge::<W, NARROW>(&mut stack, depth);
        }
        stack[depth] = (run(entries), block);
        depth += 1;
    }
    while depth >= 2 {
        depth = merge::<W, NARROW>(&mut stack, depth);
    }
    stack[0].0
}

/// The runs of equal blocks among `entries`, one after the other.
#[inline(always)]
pub(crate) fn runs_of(
    mut entries: Range<usize>,
    block_of: impl Fn(usize) -> u32,
) -> impl FnMut() -> Option<(u32, Range<usize>)> {
    move || {
        let first = entries.next()?;
        let block = block_of(first);
        while !entries.is_empty() && block_of(entries.start) == block {
            entries.start += 1;
        }
        Some((block, first..entries.start))
    }
}

/// Level of the smallest subtree that holds the blocks `a` and `b`.
#[inline(always)]
fn height(a: u32, b: u32) -> u32 {
    u32::BITS - (a ^ b).leading_zeros()
}

/// Adds the top of the stack to the part below it.
#[inline(always)]
fn merge<const W: usize, const NARROW: bool>(
    stack: &mut [([f32; W], u32); TREE_DEPTH],
    depth: usize,
) -> usize {
    let (right, block) = stack[depth - 1];
    let left = &mut stack[depth - 2];
    left.0.iter_mut().zip(right).for_each(|(left, right)| *left += right);
    if NARROW {
        left.0.iter_mut().for_each(|sum| *sum = bf16::nearest(*sum));
    }
    left.1 = block;
    depth - 1
}

/// Rows of one table, to be summed and updated.
pub(crate) struct UpdateTile<'a, P> {
    pub(crate) sum: SegmentSum<'a, P>,
    /// Local rows of the table, unique.
    pub(crate) rows: &'a [u64],
    /// The tile's part of them.
    pub(crate) range: Range<usize>,
    pub(crate) memory: TableMemory,
    pub(crate) step: SparseStep<'a>,
    pub(crate) rounding: RowRounding<'a>,
}

impl<P: Parts> UpdateTile<'_, P> {
    #[inline(always)]
    pub(crate) fn run(&self) {
        each_type!(WeightMemory, self.memory.weights, weights => self.run_on(weights));
    }

    #[inline(always)]
    fn run_on<T: RowElement>(&self, weights: RowMemory<T>) {
        let TableMemory { first, second, .. } = self.memory;
        let RowRounding { rounding, row_of_local } = self.rounding;
        let ahead = entries_ahead(weights.cols);
        let (mut buffer, mut wide) = ([0.0; MAX_DIM], [0.0; MAX_DIM]);
        let (gradient, wide) = (&mut buffer[..weights.cols], &mut wide[..weights.cols]);
        for index in self.range.clone() {
            if index + ahead < self.range.end {
                let row = self.rows[index + ahead];
                // SAFETY: rows of a route are in range and unique, and each belongs to one tile:
                // this one.
                unsafe { weights.prefetch(row) };
                // SAFETY: as above.
                unsafe { first.prefetch(row) };
                // SAFETY: as above.
                unsafe { second.prefetch(row) };
            }
            self.sum.row(index, gradient);
            let row = self.rows[index];
            // SAFETY: as above; the slices of the prefetch are gone.
            let (weights, first, second) =
                unsafe { (weights.row(row), first.row(row), second.row(row)) };
            let index = if T::IS_NARROW { row_of_local(row) } else { row };
            T::change(weights, wide, &rounding, index, |weights| {
                self.step.optimizer.apply(self.step.step, weights, first, second, gradient);
            });
        }
    }
}

vectorized! {
    pub(super) fn update_tile(tile: &UpdateTile<'_, SampleParts<'_>>) {
        tile.run();
    }

    /// The summed gradients of the first `out.rows()` unique rows.
    pub(super) fn sum_rows(
        sum: &SegmentSum<'_, SampleParts<'_>>, out: SharedMut<f32>, dim: usize, rows: Range<usize>,
    ) {
        for index in rows {
            // SAFETY: `out` holds one row of `dim` per unique row, and each index is handed out
            // once.
            sum.row(index, unsafe { out.slice(index * dim, dim) });
        }
    }
}
