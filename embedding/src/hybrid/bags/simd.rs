//! Kernels: an owner's part of each bag, the sum of all owners' parts, and both where one rank has
//! all rows.

use super::received::ReceivedBag;
use super::{SentBags, SentPart, SumParts, row_of, weight_of};
use crate::rows::{RowElement, RowsRef, each_type};
use crate::simd::{entries_ahead, prefetch_row};
use crate::table::Pooling;
use crate::update::simd::{runs_of, sum_tree};
use headlong_device::pool::SharedMut;
use headlong_device::{JaggedRef, MatRef, vectorized};
use std::ops::Range;

/// Bags of one table, whose rows here are added up.
pub(super) struct OwnedTile<'a> {
    pub(super) weights: RowsRef<'a>,
    /// Of all bags.
    pub(super) words: &'a [u64],
    /// Of all words; none where the owner has one leaf.
    pub(super) leaves: &'a [u32],
    pub(super) bags: &'a [ReceivedBag],
    pub(super) out: SharedMut<f32>,
}

/// Samples of one table, whose owners' sums are added up.
pub(super) struct PartsTile<'a> {
    pub(super) sent: &'a SentBags,
    pub(super) samples: Range<usize>,
    pub(super) recv_rows: &'a [f32],
    pub(super) vectors: Vectors,
}

/// Samples of one table, whose gradients go to the owners of their rows.
pub(super) struct GradientsTile<'a> {
    pub(super) sent: &'a SentBags,
    pub(super) samples: Range<usize>,
    /// The table's columns.
    pub(super) gradients: MatRef<'a>,
    pub(super) pooling: Pooling,
    pub(super) to_owners: SharedMut<f32>,
}

/// Samples of one table of which one rank has all rows.
pub(super) struct WholeTile<'a> {
    pub(super) weights: RowsRef<'a>,
    pub(super) table: usize,
    pub(super) sum: &'a SumParts,
    pub(super) ids: JaggedRef<'a>,
    /// One for each id, or none at all.
    pub(super) factors: &'a [f32],
    pub(super) samples: Range<usize>,
    pub(super) vectors: Vectors,
}

/// Where the vectors of a table's bags go.
#[derive(Clone, Copy)]
pub(super) struct Vectors {
    pub(super) out: SharedMut<f32>,
    pub(super) first_column: usize,
    pub(super) stride: usize,
    pub(super) dim: usize,
    pub(super) pooling: Pooling,
}

impl Vectors {
    /// Writes columns of the vector of sample `sample`, whose bag has `num_ids` ids.
    ///
    /// # Safety
    /// The sample lies in the matrix, and only the caller writes it.
    #[inline(always)]
    unsafe fn write(&self, sample: usize, column: usize, sum: &[f32], num_ids: usize) {
        let first = sample * self.stride + self.first_column + column;
        // SAFETY: passed on to the caller.
        let out = unsafe { self.out.slice(first, sum.len()) };
        match self.pooling {
            Pooling::Sum => out.copy_from_slice(sum),
            Pooling::Mean => {
                let factor = reciprocal(num_ids);
                out.iter_mut().zip(sum).for_each(|(out, sum)| *out = sum * factor);
            }
        }
    }
}

/// What the sum of `num_ids` rows is multiplied with to be their mean.
#[inline(always)]
fn reciprocal(num_ids: usize) -> f32 {
    1.0 / num_ids.max(1) as f32
}

/// Calls `$body` for strips of columns of all `$dim`: with how many at most (a constant), the first
/// one, and how many.
macro_rules! strips {
    ($dim:expr, $width:ident, $column:ident, $len:ident => $body:expr) => {{
        let mut $column = 0;
        while $column < $dim {
            macro_rules! strip {
                ($w:literal, $l:expr) => {{
                    const $width: usize = $w;
                    let $len = $l;
                    $body;
                    $len
                }};
            }
            $column += match $dim - $column {
                128.. => strip!(128, 128),
                64.. => strip!(64, 64),
                32.. => strip!(32, 32),
                16.. => strip!(16, 16),
                len => strip!(16, len),
            };
        }
    }};
}

vectorized! {
    /// Adds up this owner's rows of each bag.
    pub(super) fn sum_owned(tile: &OwnedTile<'_>) {
        each_type!(RowsRef, tile.weights, weights => sum_owned_rows(tile, weights));
    }

    /// Adds up what the owners have of each bag.
    pub(super) fn add_parts(tile: &PartsTile<'_>) {
        let dim = tile.vectors.dim;
        strips!(dim, W, column, len => add_strip::<W>(tile, column, len));
    }

    /// Hands every owner the gradients of the bags that it has rows of.
    pub(super) fn hand_out(tile: &GradientsTile<'_>) {
        for sample in tile.samples.clone() {
            let factor = match tile.pooling {
                Pooling::Sum => 1.0,
                Pooling::Mean => reciprocal(tile.sent.num_ids_of(sample)),
            };
            let gradient = tile.gradients.row(sample);
            for part in tile.sent.parts_of(sample) {
                // SAFETY: every part has `dim` elements of its own in what this rank sends back,
                // and belongs to one sample of one tile.
                let out = unsafe { tile.to_owners.slice(part.element, gradient.len()) };
                let numbers = out.iter_mut().zip(gradient);
                numbers.for_each(|(out, gradient)| *out = gradient * factor);
            }
        }
    }

    /// Adds up the rows of each bag, as their owners and the rank that asks them would.
    pub(super) fn sum_whole(tile: &WholeTile<'_>) {
        each_type!(RowsRef, tile.weights, weights => sum_whole_rows(tile, weights));
    }
}

/// The sum over rows and weights in their order.
#[inline(always)]
fn run_of<const W: usize, T: RowElement>(
    weights: MatRef<T>,
    (column, len): (usize, usize),
    mut entries: impl Iterator<Item = (u64, f32)>,
) -> [f32; W] {
    let (data, stride) = (weights.data(), weights.stride());
    let row = |row: u64| &data[row as usize * stride + column..][..len];
    let mut sum = [0.0; W];
    let Some((first, weight)) = entries.next() else { return sum };
    let numbers = sum[..len].iter_mut().zip(row(first));
    numbers.for_each(|(sum, value)| *sum = value.wide() * weight);
    for (next, weight) in entries {
        let numbers = sum[..len].iter_mut().zip(row(next));
        numbers.for_each(|(sum, value)| *sum += value.wide() * weight);
    }
    sum
}

#[inline(always)]
fn sum_owned_rows<T: RowElement>(tile: &OwnedTile<'_>, weights: MatRef<T>) {
    let dim = weights.cols();
    strips!(dim, W, column, len => owned_strip::<W, T>(tile, weights, column, len));
}

#[inline(always)]
fn owned_strip<const W: usize, T: RowElement>(
    tile: &OwnedTile<'_>,
    weights: MatRef<T>,
    column: usize,
    len: usize,
) {
    let ahead = entries_ahead(W);
    let run = |entries: Range<usize>| {
        for entry in entries.clone() {
            if let Some(&coming) = tile.words.get(entry + ahead) {
                let start = row_of(coming) as usize * weights.stride() + column;
                prefetch_row(weights.data(), start, W);
            }
        }
        let words = tile.words[entries].iter();
        run_of::<W, T>(weights, (column, len), words.map(|&word| (row_of(word), weight_of(word))))
    };
    for bag in tile.bags {
        let entries = bag.first as usize..bag.end as usize;
        let sum = match tile.leaves.is_empty() {
            true => run(entries),
            false => sum_tree::<W, false, _>(runs_of(entries, |entry| tile.leaves[entry]), run),
        };
        // SAFETY: every bag has `dim` elements of its own in what this owner sends, and belongs to
        // one tile.
        let out = unsafe { tile.out.slice(bag.element + column, len) };
        out.copy_from_slice(&sum[..len]);
    }
}

#[inline(always)]
fn add_strip<const W: usize>(tile: &PartsTile<'_>, column: usize, len: usize) {
    for sample in tile.samples.clone() {
        let parts = tile.sent.parts_of(sample);
        let part = |part: &SentPart| {
            let mut sum = [0.0; W];
            sum[..len].copy_from_slice(&tile.recv_rows[part.element + column..][..len]);
            sum
        };
        let num_ids = tile.sent.num_ids_of(sample);
        let mut parts = parts.iter();
        let sum = sum_tree::<W, false, _>(|| parts.next().map(|next| (next.leaf, next)), part);
        // SAFETY: `vectors` is `samples × Σ dim`, by the set's checks; only this tile writes these
        // samples' columns of this table.
        unsafe { tile.vectors.write(sample, column, &sum[..len], num_ids) };
    }
}

#[inline(always)]
fn sum_whole_rows<T: RowElement>(tile: &WholeTile<'_>, weights: MatRef<T>) {
    let dim = tile.vectors.dim;
    strips!(dim, W, column, len => whole_strip::<W, T>(tile, weights, column, len));
}

#[inline(always)]
fn whole_strip<const W: usize, T: RowElement>(
    tile: &WholeTile<'_>,
    weights: MatRef<T>,
    column: usize,
    len: usize,
) {
    for sample in tile.samples.clone() {
        let entries = tile.ids.offsets[sample] as usize..tile.ids.offsets[sample + 1] as usize;
        let bag = &tile.ids.values[entries.clone()];
        let factors = tile.factors.get(entries).unwrap_or(&[]);
        let leaf = |row: u64| tile.sum.leaf(tile.table, row);
        // Each leaf is found by a look at the whole bag: nothing is sorted or kept, and bags are
        // short.
        let mut least = 0;
        let next = || {
            let leaves = bag.iter().map(|&row| leaf(row));
            let next = leaves.filter(|&leaf| leaf >= least).min()?;
            least = next + 1;
            Some((next, next))
        };
        let sum = sum_tree::<W, false, _>(next, |wanted| {
            let entries = bag.iter().enumerate().filter(|(_, row)| leaf(**row) == wanted);
            let weight = |entry| factors.get(entry).copied().unwrap_or(1.0);
            run_of::<W, T>(
                weights,
                (column, len),
                entries.map(|(entry, &row)| (row, weight(entry))),
            )
        });
        // SAFETY: as in `add_strip`.
        unsafe { tile.vectors.write(sample, column, &sum[..len], bag.len()) };
    }
}
