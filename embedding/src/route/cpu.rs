//! One task per table; a stable radix sort of `row << low_bits | sample`, or of pairs where rows
//! are raw ids.

use super::{Route, RouteArgs, TableRoute};
use crate::ids::Bags;
use crate::table::Keys;
use headlong_device::{JaggedRef, Stream, vectorized};

pub(super) fn route(stream: &Stream, args: &RouteArgs, out: &mut Route) {
    stream.pool().chunks_mut(&mut out.tables, 1, |table, slot| {
        slot[0].fill((args.ids)(table));
    });
}

impl TableRoute {
    /// Routes one table's bags. Where an id is out of range, nothing is routed and `in_range` says
    /// so.
    pub(crate) fn fill(&mut self, bags: Bags) {
        let ids = bags.ids;
        self.clear();
        self.in_range = self.key_kind == Keys::RawIds || all_below(ids.values, self.table_rows);
        if !self.in_range {
            return;
        }
        self.num_ids = ids.values.len();
        self.one_each = one_each(ids.offsets);
        let by_position = !self.one_each && (self.keeps_positions || !bags.weights.is_empty());
        if self.key_kind == Keys::RawIds {
            self.sort_pairs(ids, by_position);
        } else {
            self.sort_keys(ids, by_position);
        }
        if by_position {
            self.split_positions(ids);
        }
        self.factors.clear();
        if !bags.weights.is_empty() {
            let capacity = self.samples.len();
            self.factors.reserve_exact(capacity);
            let positions = if self.one_each { &self.samples } else { &self.positions };
            self.factors
                .extend(positions[..self.num_ids].iter().map(|&at| bags.weights[at as usize]));
        }
        if !self.reciprocals.is_empty() {
            for (sample, reciprocal) in self.reciprocals[..ids.num_samples()].iter_mut().enumerate()
            {
                // Note: infinite for an empty bag, where it is not read.
                *reciprocal = 1.0 / (ids.offsets[sample + 1] - ids.offsets[sample]) as f32;
            }
        }
    }

    fn sort_keys(&mut self, ids: JaggedRef, by_position: bool) {
        pack(&mut self.keys, ids, self.low_bits, by_position || self.one_each);
        self.sort.sort(&mut self.keys, &mut self.spare, self.num_ids);
        let (bits, mask) = (self.low_bits, (1_u64 << self.low_bits) - 1);
        let keys = self.keys[..self.num_ids].iter();
        let entries = keys.map(|&key| (key >> bits, (key & mask) as u32));
        self.num_rows = cut(entries, &mut self.rows, &mut self.starts, &mut self.samples);
    }

    fn sort_pairs(&mut self, ids: JaggedRef, by_position: bool) {
        self.pairs.clear();
        if by_position || self.one_each {
            self.pairs.extend(ids.values.iter().copied().zip(0..));
        } else {
            for (sample, number) in (0..ids.num_samples()).zip(0..) {
                self.pairs.extend(ids.bag(sample).iter().map(|&id| (id, number)));
            }
        }
        self.pairs.sort_unstable();
        let entries = self.pairs.iter().copied();
        self.num_rows = cut(entries, &mut self.rows, &mut self.starts, &mut self.samples);
    }

    /// The entries were sorted with the ids' positions: keeps those, and finds their samples.
    fn split_positions(&mut self, ids: JaggedRef) {
        // Taken with the first batch of bags, as none before may need it.
        let capacity = self.samples.len();
        self.positions.resize(capacity, 0);
        self.sample_of.resize(capacity, 0);
        for (bounds, sample) in ids.offsets.windows(2).zip(0..) {
            self.sample_of[bounds[0] as usize..bounds[1] as usize].fill(sample);
        }
        let entries = self.samples.iter_mut().zip(&mut self.positions).take(self.num_ids);
        for (sample, position) in entries {
            *position = *sample;
            *sample = self.sample_of[*position as usize];
        }
    }
}

/// Cuts sorted entries, `(row, sample)`, into unique rows and their samples. Returns the number of
/// rows.
#[inline(always)]
pub(crate) fn cut(
    entries: impl Iterator<Item = (u64, u32)> + Clone,
    rows: &mut [u64],
    starts: &mut [u32],
    samples: &mut [u32],
) -> usize {
    let mut num_rows = 0;
    let mut previous = entries.clone().next().map_or(0, |(row, _)| !row);
    // Note: no branch on a new row, which would be mispredicted for every other key. The current
    // row is written again with each of its keys, and its end, which is the next row's start, moves
    // on.
    for ((entry, (row, low)), sample) in (1..).zip(entries).zip(samples) {
        num_rows += usize::from(row != previous);
        previous = row;
        rows[num_rows - 1] = row;
        starts[num_rows] = entry;
        *sample = low;
    }
    num_rows
}

vectorized! {
    /// Whether all of `values` are rows of a table of `rows`.
    pub(crate) fn all_below(values: &[u64], rows: u64) -> bool {
        values.iter().fold(true, |fine, &row| fine & (row < rows))
    }

    /// Whether every sample has one id.
    fn one_each(offsets: &[u32]) -> bool {
        offsets.iter().zip(0..).fold(true, |fine, (&offset, sample)| fine & (offset == sample))
    }

    /// `row << bits | sample` for every id, in the order of samples; or `| position`.
    fn pack(keys: &mut [u64], ids: JaggedRef<'_>, bits: u32, by_position: bool) {
        if by_position {
            for ((key, &row), position) in keys.iter_mut().zip(ids.values).zip(0_u64..) {
                *key = row << bits | position;
            }
            return;
        }
        for sample in 0..ids.num_samples() {
            let first = ids.offsets[sample] as usize;
            for (key, &row) in keys[first..].iter_mut().zip(ids.bag(sample)) {
                *key = row << bits | sample as u64;
            }
        }
    }
}
