//! Counting: how often each id of each column was seen, in memory.

use std::sync::{Mutex, PoisonError};

use headlong_device::pool::Pool;
use headlong_device::simd::prefetch;

use super::AHEAD;
use super::runs::Entry;
use super::slots::{first_slot, slot_of};
use crate::admission::ColumnIds;
use crate::criteo::RawBlock;
use crate::hashing::MISSING_ID;
use crate::lock;

/// Slots of an empty table; a power of two.
const LEAST_SLOTS: usize = 1 << 10;
const SLOT_BYTES: u64 = 8;

/// The counts of all columns, in as much memory as is allowed.
#[derive(Debug)]
pub struct CountTables {
    columns: Vec<Mutex<CountTable>>,
    memory_bytes: u64,
}

impl CountTables {
    /// Empty tables for `num_columns` columns, to be filled up to `memory_bytes`.
    pub fn new(num_columns: usize, memory_bytes: u64) -> Self {
        let mut columns = Vec::new();
        columns.resize_with(num_columns, Mutex::default);
        Self { columns, memory_bytes }
    }

    /// Whether `num_samples` more samples surely stay within the memory, even if every id is new
    /// and a table has to be copied to grow.
    pub fn has_room_for(&mut self, num_samples: usize) -> bool {
        let (mut after, mut copied) = (0, 0);
        for column in &mut self.columns {
            let column = column.get_mut().unwrap_or_else(PoisonError::into_inner);
            let grown = column.slots_for(num_samples);
            after += grown as u64 * SLOT_BYTES;
            copied +=
                if grown > column.slots.len() { column.slots.len() as u64 * SLOT_BYTES } else { 0 };
        }
        after + copied <= self.memory_bytes
    }

    /// Counts the ids of a block, each column on its own.
    ///
    /// # Panics
    /// If the block has another number of columns.
    pub fn count(&self, block: &RawBlock, pool: &Pool) {
        let num_columns = self.columns.len();
        assert_eq!(block.sparse.len(), block.num_samples * num_columns, "the columns of the block");
        pool.run(num_columns, &|column| {
            let ids = ColumnIds {
                sparse: &block.sparse,
                missing: &block.sparse_missing,
                num_columns,
                column,
            };
            lock(&self.columns[column]).count(ids);
        });
    }

    /// Whether nothing has been counted.
    pub fn is_empty(&self) -> bool {
        self.columns.iter().all(|column| {
            let column = lock(column);
            column.used == 0 && column.missing == 0
        })
    }

    /// Takes all counts out: for each column its entries by rising id, each id once. The memory is
    /// freed.
    pub fn drain(&mut self, pool: &Pool) -> Vec<Vec<Entry>> {
        let sorted: Vec<Mutex<Vec<Entry>>> =
            self.columns.iter().map(|_| Mutex::default()).collect();
        pool.run(self.columns.len(), &|column| {
            let table = std::mem::take(&mut *lock(&self.columns[column]));
            *lock(&sorted[column]) = table.into_sorted();
        });
        sorted
            .into_iter()
            .map(|entries| entries.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect()
    }
}

/// The counts of one column: open addressing with linear probing, at most three quarters full.
#[derive(Debug, Default)]
struct CountTable {
    /// `count << 32 | id`, 0 for an empty slot; a power of two of them, or none.
    slots: Vec<u64>,
    used: usize,
    missing: u64,
    /// What did not fit into 32 bits of count.
    carried: Vec<Entry>,
}

impl CountTable {
    /// Slots needed to count `num_samples` more.
    fn slots_for(&self, num_samples: usize) -> usize {
        let needed = (self.used + num_samples) * 4 / 3 + 1;
        needed.next_power_of_two().max(LEAST_SLOTS).max(self.slots.len())
    }

    fn count(&mut self, ids: ColumnIds<'_>) {
        self.reserve(ids.len());
        for index in 0..ids.len() {
            if let Some(Some(ahead)) = (index + AHEAD < ids.len()).then(|| ids.get(index + AHEAD)) {
                prefetch(&self.slots, first_slot(&self.slots, ahead));
            }
            match ids.get(index) {
                Some(id) => self.see(id),
                None => self.missing += 1,
            }
        }
    }

    fn reserve(&mut self, num_samples: usize) {
        let slots = self.slots_for(num_samples);
        if slots == self.slots.len() {
            return;
        }
        for entry in std::mem::replace(&mut self.slots, vec![0; slots]) {
            if entry != 0 {
                let slot = slot_of(&self.slots, entry as u32);
                self.slots[slot] = entry;
            }
        }
    }

    #[inline(always)]
    fn see(&mut self, id: u32) {
        let slot = slot_of(&self.slots, id);
        let entry = &mut self.slots[slot];
        self.used += usize::from(*entry == 0);
        if *entry >> 32 == u64::from(u32::MAX) {
            self.carried.push(Entry { id: u64::from(id), count: *entry >> 32 });
            *entry = u64::from(id);
        }
        *entry = (((*entry >> 32) + 1) << 32) | u64::from(id);
    }

    fn into_sorted(self) -> Vec<Entry> {
        let mut entries = self.carried;
        let counted = self.slots.iter().filter(|&&entry| entry != 0);
        entries.extend(
            counted.map(|entry| Entry { id: entry & u64::from(u32::MAX), count: entry >> 32 }),
        );
        if self.missing > 0 {
            entries.push(Entry { id: MISSING_ID, count: self.missing });
        }
        entries.sort_unstable_by_key(|entry| entry.id);
        entries.dedup_by(|next, kept| {
            let same = next.id == kept.id;
            kept.count += if same { next.count } else { 0 };
            same
        });
        entries
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::hashing::fmix64;

    #[test]
    fn counts_are_those_of_a_map() {
        let (num_columns, num_samples) = (3, 5000);
        let draw = |index: u64| fmix64(index) as u32;
        let sparse: Vec<u32> =
            (0..num_samples * 3).map(|index| draw(index) % (10 << (index % 3 * 6))).collect();
        let missing: Vec<u64> =
            (0..num_samples).map(|index| u64::from(draw(index + 77) & 7)).collect();
        let mut expected = vec![BTreeMap::new(); num_columns];
        for (ids, missing) in sparse.chunks(3).zip(&missing) {
            for column in 0..3 {
                let id =
                    if missing >> column & 1 == 1 { MISSING_ID } else { u64::from(ids[column]) };
                *expected[column].entry(id).or_insert(0_u64) += 1;
            }
        }
        let block = RawBlock {
            num_samples: num_samples as usize,
            sparse,
            sparse_missing: missing,
            ..RawBlock::default()
        };
        let pool = Pool::new(2);
        let mut tables = CountTables::new(num_columns, 1 << 20);
        assert!(tables.is_empty() && tables.has_room_for(5000) && !tables.has_room_for(1 << 20));
        tables.count(&block, &pool);
        tables.count(&block, &pool);
        for (entries, expected) in tables.drain(&pool).iter().zip(&expected) {
            let found: Vec<(u64, u64)> =
                entries.iter().map(|entry| (entry.id, entry.count)).collect();
            let expected: Vec<(u64, u64)> =
                expected.iter().map(|(&id, &count)| (id, 2 * count)).collect();
            assert_eq!(found, expected);
        }
        assert!(tables.is_empty());
    }

    #[test]
    fn counts_beyond_32_bits_are_carried() {
        let mut table = CountTable::default();
        table.reserve(4);
        let slot = slot_of(&table.slots, 9);
        table.slots[slot] = (u64::from(u32::MAX) << 32) | 9;
        table.used = 1;
        (0..3).for_each(|_| table.see(9));
        assert_eq!(table.into_sorted(), [Entry { id: 9, count: u64::from(u32::MAX) + 3 }]);
    }

    #[test]
    fn id_zero_is_an_id() {
        let mut table = CountTable::default();
        table.reserve(4);
        (0..2).for_each(|_| table.see(0));
        assert_eq!(table.into_sorted(), [Entry { id: 0, count: 2 }]);
    }
}
