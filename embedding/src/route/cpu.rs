//! One task per table; a stable radix sort of `row << sample_bits | sample`.

use super::{Digit, Route, RouteArgs, TableRoute};
use headlong_device::{JaggedRef, Stream, vectorized};

pub(super) fn route(stream: &Stream, args: &RouteArgs, out: &mut Route) {
    stream.pool().chunks_mut(&mut out.tables, 1, |table, slot| {
        slot[0].fill((args.ids)(table), args.specs[table].rows);
    });
}

impl TableRoute {
    fn fill(&mut self, ids: JaggedRef, rows: u64) {
        self.num_ids = 0;
        self.num_rows = 0;
        self.starts[0] = 0;
        self.in_range = all_below(ids.values, rows);
        if !self.in_range {
            return;
        }
        self.num_ids = ids.values.len();
        pack(&mut self.keys, ids, self.sample_bits);
        self.sort();
        self.cut();
        if !self.reciprocals.is_empty() {
            for (sample, reciprocal) in self.reciprocals[..ids.num_samples()].iter_mut().enumerate() {
                // Note: infinite for an empty bag, where nobody reads it.
                *reciprocal = 1.0 / (ids.offsets[sample + 1] - ids.offsets[sample]) as f32;
            }
        }
    }

    /// Sorts the first `num_ids` keys by row; equal rows keep the order of samples.
    fn sort(&mut self) {
        self.counts.fill(0);
        for digit in &self.digits {
            let counts = &mut self.counts[digit.first_count..][..=digit.mask as usize];
            for &key in &self.keys[..self.num_ids] {
                counts[digit.of(key)] += 1;
            }
            let mut before = 0;
            for count in counts.iter_mut() {
                before += std::mem::replace(count, before);
            }
        }
        for digit in &self.digits {
            let counts = &mut self.counts[digit.first_count..][..=digit.mask as usize];
            let spare = &mut self.spare[..self.num_ids];
            for &key in &self.keys[..self.num_ids] {
                let place = &mut counts[digit.of(key)];
                spare[*place as usize] = key;
                *place += 1;
            }
            std::mem::swap(&mut self.keys, &mut self.spare);
        }
    }

    /// Cuts the sorted keys into unique rows and their samples.
    fn cut(&mut self) {
        let sample_mask = (1_u64 << self.sample_bits) - 1;
        let mut num_rows = 0;
        let mut previous = u64::MAX;
        // Note: no branch on a new row, which would be mispredicted for every other key. The current row is written
        // again with each of its keys, and its end, which is the next row's start, moves on.
        for ((entry, &key), sample) in (1..).zip(&self.keys[..self.num_ids]).zip(&mut self.samples) {
            let row = key >> self.sample_bits;
            num_rows += usize::from(row != previous);
            previous = row;
            self.rows[num_rows - 1] = row;
            self.starts[num_rows] = entry;
            *sample = (key & sample_mask) as u32;
        }
        self.num_rows = num_rows;
    }
}

vectorized! {
    fn all_below(values: &[u64], rows: u64) -> bool {
        values.iter().fold(true, |fine, &row| fine & (row < rows))
    }

    /// `row << bits | sample` for every id, in the order of samples.
    fn pack(keys: &mut [u64], ids: JaggedRef<'_>, bits: u32) {
        let one_each = ids.offsets.iter().zip(0..).fold(true, |fine, (&offset, sample)| fine & (offset == sample));
        if one_each {
            for ((key, &row), sample) in keys.iter_mut().zip(ids.values).zip(0_u64..) {
                *key = row << bits | sample;
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

impl Digit {
    #[inline(always)]
    fn of(self, key: u64) -> usize {
        (key >> self.shift & self.mask) as usize
    }
}
