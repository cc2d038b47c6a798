//! Counting the rows of one table in bounded memory.

use super::{RowCount, RowSample, TableStatistics, sort_rows};
use crate::hybrid::partition::mix;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Of the rows counted singly, this part is the size of the tail's sample.
const SAMPLE_PART: usize = 4;

/// Keeps the sample's choice of rows apart from the hash tables' buckets.
const SAMPLE_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Hashes one 64-bit row (row indices are small and near each other, hash tables want neither), the
/// same in every run: what is counted does not depend on chance.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RowHasher(u64);

impl Hasher for RowHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = mix(self.0 ^ u64::from(byte)));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = mix(word);
    }
}

pub(super) type RowMap<V> = HashMap<u64, V, BuildHasherDefault<RowHasher>>;

/// Whether the tail's sample holds `row` at `level`.
pub(super) fn is_sampled(row: u64, level: u32) -> bool {
    level == 0 || mix(row ^ SAMPLE_SEED) >> (u64::BITS - level.min(63)) == 0
}

/// Rows of a sample for `capacity` rows counted singly.
pub(super) fn sample_capacity(capacity: usize) -> usize {
    (capacity / SAMPLE_PART).max(1)
}

/// Exact counts of the rows whose hash begins with `level` zero bits.
#[derive(Debug)]
pub(super) struct Sampler {
    level: u32,
    capacity: usize,
    counts: RowMap<u64>,
}

impl Sampler {
    pub(super) fn new(capacity: usize, rows: impl Iterator<Item = RowCount>) -> Self {
        let mut sampler = Self { level: 0, capacity, counts: RowMap::default() };
        rows.for_each(|row| sampler.add(row.row, row.count));
        sampler
    }

    /// Continues with a sample that one row in `2^level` is in.
    pub(super) fn raise_to(&mut self, level: u32) {
        if level > self.level {
            self.level = level;
            self.counts.retain(|&row, _| is_sampled(row, level));
        }
    }

    pub(super) fn add(&mut self, row: u64, count: u64) {
        if !is_sampled(row, self.level) {
            return;
        }
        *self.counts.entry(row).or_default() += count;
        while self.counts.len() > self.capacity {
            self.raise_to(self.level + 1);
        }
    }

    pub(super) fn finish(self) -> RowSample {
        let mut rows: Vec<_> =
            self.counts.into_iter().map(|(row, count)| RowCount { row, count }).collect();
        sort_rows(&mut rows);
        RowSample { level: self.level, rows }
    }
}

/// One row counted singly. `error` of its `count` belong to rows that stood here before.
#[derive(Debug, Clone, Copy)]
struct Slot {
    row: u64,
    count: u64,
    error: u64,
}

/// Exact until there are more distinct rows than `capacity`, then Space-Saving and a sample of the
/// tail.
#[derive(Debug)]
pub(super) struct Counter {
    capacity: usize,
    lookups: u64,
    slot_of: RowMap<u32>,
    slots: Vec<Slot>,
    /// Once full: slots as a binary heap with the least count first, and each slot's place there.
    heap: Vec<u32>,
    place: Vec<u32>,
    sampler: Option<Sampler>,
}

impl Counter {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.min(u32::MAX as usize),
            lookups: 0,
            slot_of: RowMap::default(),
            slots: Vec::new(),
            heap: Vec::new(),
            place: Vec::new(),
            sampler: None,
        }
    }

    pub(super) fn add(&mut self, row: u64) {
        self.lookups += 1;
        if let Some(sampler) = &mut self.sampler {
            sampler.add(row, 1);
        }
        if let Some(&slot) = self.slot_of.get(&row) {
            self.slots[slot as usize].count += 1;
            if !self.heap.is_empty() {
                self.sift_down(self.place[slot as usize] as usize);
            }
        } else if self.slots.len() < self.capacity {
            self.slot_of.insert(row, self.slots.len() as u32);
            self.slots.push(Slot { row, count: 1, error: 0 });
        } else {
            if self.heap.is_empty() {
                self.overflow(row);
            }
            self.replace_least(row);
        }
    }

    /// Ends exact counting: `row` is the first for which there is no slot.
    fn overflow(&mut self, row: u64) {
        let known = self.slots.iter().map(|slot| RowCount { row: slot.row, count: slot.count });
        let mut sampler = Sampler::new(sample_capacity(self.capacity), known);
        sampler.add(row, 1);
        self.sampler = Some(sampler);
        self.heap = (0..self.slots.len() as u32).collect();
        let slots = &self.slots;
        // A sorted array is a heap.
        self.heap.sort_unstable_by_key(|&slot| (slots[slot as usize].count, slot));
        self.place = vec![0; self.heap.len()];
        for (place, &slot) in self.heap.iter().enumerate() {
            self.place[slot as usize] = place as u32;
        }
    }

    fn replace_least(&mut self, row: u64) {
        let least = self.heap[0];
        let slot = &mut self.slots[least as usize];
        self.slot_of.remove(&slot.row);
        *slot = Slot { row, count: slot.count + 1, error: slot.count };
        self.slot_of.insert(row, least);
        self.sift_down(0);
    }

    fn sift_down(&mut self, mut place: usize) {
        let count_at = |heap: &[u32], place: usize| self.slots[heap[place] as usize].count;
        loop {
            let (left, right) = (2 * place + 1, 2 * place + 2);
            let mut least = place;
            if left < self.heap.len() && count_at(&self.heap, left) < count_at(&self.heap, least) {
                least = left;
            }
            if right < self.heap.len() && count_at(&self.heap, right) < count_at(&self.heap, least)
            {
                least = right;
            }
            if least == place {
                return;
            }
            self.heap.swap(place, least);
            self.place[self.heap[place] as usize] = place as u32;
            self.place[self.heap[least] as usize] = least as u32;
            place = least;
        }
    }

    pub(super) fn finish(self, name: String, rows: Option<u64>) -> TableStatistics {
        let error_bound = self.heap.first().map_or(0, |&least| self.slots[least as usize].count);
        let certain = self
            .slots
            .iter()
            .map(|slot| RowCount { row: slot.row, count: slot.count - slot.error });
        let mut counted: Vec<_> = certain.collect();
        sort_rows(&mut counted);
        TableStatistics {
            name,
            rows,
            lookups: self.lookups,
            counted,
            error_bound,
            sample: self.sampler.map(Sampler::finish),
        }
    }
}
