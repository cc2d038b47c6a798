//! One task per table; a stable radix sort of `row << sample_bits | sample`.

use super::{Digit, Route, RouteArgs, TableRoute};
use headlong_device::{JaggedRef, Stream};

pub(super) fn route(stream: &Stream, args: &RouteArgs, out: &mut Route) {
    stream.pool().chunks_mut(&mut out.tables, 1, |table, slot| {
        slot[0].fill((args.ids)(table), args.specs[table].rows);
    });
}

impl TableRoute {
    fn fill(&mut self, ids: JaggedRef, rows: u64) {
        self.in_range = ids.values.iter().fold(0, |most, &row| most.max(row)) < rows || ids.values.is_empty();
        self.num_ids = ids.values.len();
        self.num_rows = 0;
        self.starts[0] = 0;
        if !self.in_range {
            self.num_ids = 0;
            return;
        }
        self.pack(ids);
        self.sort();
        self.cut();
        if !self.reciprocals.is_empty() {
            for (sample, reciprocal) in self.reciprocals[..ids.num_samples()].iter_mut().enumerate() {
                // Note: infinite for an empty bag, where nobody reads it.
                *reciprocal = 1.0 / (ids.offsets[sample + 1] - ids.offsets[sample]) as f32;
            }
        }
    }

    fn pack(&mut self, ids: JaggedRef) {
        let bits = self.sample_bits;
        if ids.is_one_hot() {
            for (sample, (key, &row)) in self.keys.iter_mut().zip(ids.values).enumerate() {
                *key = row << bits | sample as u64;
            }
            return;
        }
        for sample in 0..ids.num_samples() {
            let first = ids.offsets[sample] as usize;
            for (key, &row) in self.keys[first..].iter_mut().zip(ids.bag(sample)) {
                *key = row << bits | sample as u64;
            }
        }
    }

    /// Sorts the first `num_ids` keys by row; equal rows keep the order of samples.
    fn sort(&mut self) {
        self.counts.fill(0);
        for &key in &self.keys[..self.num_ids] {
            for digit in &self.digits {
                self.counts[digit.place(key)] += 1;
            }
        }
        for pass in 0..self.digits.len() {
            let digit = self.digits[pass];
            let counts = &mut self.counts[digit.first_count..][..=digit.mask as usize];
            let mut before = 0;
            for count in counts.iter_mut() {
                before += std::mem::replace(count, before);
            }
            for &key in &self.keys[..self.num_ids] {
                let place = &mut self.counts[digit.place(key)];
                self.spare[*place as usize] = key;
                *place += 1;
            }
            std::mem::swap(&mut self.keys, &mut self.spare);
        }
    }

    /// Cuts the sorted keys into unique rows and their samples.
    fn cut(&mut self) {
        let sample_mask = (1_u64 << self.sample_bits) - 1;
        let mut num_rows = 0;
        let mut previous = None;
        for (entry, &key) in self.keys[..self.num_ids].iter().enumerate() {
            let row = key >> self.sample_bits;
            if previous != Some(row) {
                self.rows[num_rows] = row;
                self.starts[num_rows] = entry as u32;
                num_rows += 1;
                previous = Some(row);
            }
            self.samples[entry] = (key & sample_mask) as u32;
        }
        self.starts[num_rows] = self.num_ids as u32;
        self.num_rows = num_rows;
    }
}

impl Digit {
    #[inline(always)]
    fn place(self, key: u64) -> usize {
        self.first_count + (key >> self.shift & self.mask) as usize
    }
}
