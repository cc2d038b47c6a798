//! Update: gradients of pooled vectors become gradients of rows, and each row that occurs takes one
//! optimiser step.
//!
//! `g[r] = Σ d_vectors[s, columns of t]` over the samples `s` whose bag holds row `r` (as often as
//! it holds it; times one over the bag's length for mean pooling, or the id's weight in weighted
//! bags), then `weights_t[r], states_t[r] = optimizer(weights_t[r], states_t[r], g[r])`.
//!
//! The sum has a fixed shape. `sum_blocks` cuts the batch's samples into blocks of
//! `⌈samples / sum_blocks⌉`. A block's part is summed from +0 on in the order of samples; blocks
//! are then added in one fixed binary tree, neighbours first (0+1, 2+3, then (0+1)+(2+3), …). A
//! block in which the row does not occur is left out, which gives the same bits as adding its
//! zeros. So threads, tiles and, later, ranks never change a bit.
//!
//! Where ranks exchange 16 bits ([`crate::SetOptions::narrow`]), every gradient, every block's sum
//! and every sum of the tree is rounded to bf16, to nearest, ties to even; the additions are f32's.
//! So whatever travels has been rounded before, and still no rank changes a bit.
//!
//! Shapes: `d_vectors` is `samples × Σ dim`, f32, on a device also of 16 bits. Enqueues one pass
//! over tiles of all tables; every row is written once. Errors: none of its own. Source: the sparse
//! gradient coalescing of PyTorch's `SparseAdam` and FBGEMM's exact optimisers.

pub(crate) mod cpu;
pub(crate) mod cuda;
pub(crate) mod simd;

use crate::error::Result;
use crate::route::Route;
use crate::slot::TableSlot;
use crate::table::SparseStep;
use headlong_device::{Mat, Stream};

/// Most blocks that a batch is cut into.
pub const MAX_SUM_BLOCKS: usize = 1024;

/// Samples of one sum block; the last block may be shorter.
pub fn sum_block_len(num_samples: usize, sum_blocks: usize) -> usize {
    num_samples.div_ceil(sum_blocks.max(1)).max(1)
}

/// What an update reads and writes.
pub(crate) struct UpdateArgs<'a> {
    pub(crate) tables: &'a [TableSlot],
    pub(crate) route: &'a Route,
    pub(crate) d_vectors: &'a Mat,
    pub(crate) step: SparseStep<'a>,
    pub(crate) sum_blocks: usize,
    /// Of the run: what narrow rows are rounded by.
    pub(crate) seed: u64,
    /// Whether gradients and their sums are rounded to bf16.
    pub(crate) narrow: bool,
}

pub(crate) fn update(stream: &Stream, args: &UpdateArgs) -> Result<()> {
    cpu::update_plain(stream, args);
    cpu::update_staged(stream, args)
}
