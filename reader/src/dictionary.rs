//! Dictionaries: which row of its column's table each frequent raw id has.
//!
//! Row 0 of every table is shared by the ids seen fewer than `min_count` times and by ids never
//! seen. The others have rows of their own from 1 on, ordered by falling count and, where counts
//! are equal, by rising value, so a dictionary depends on the multiset of rows alone: not on their
//! order, on threads, or on how the counting was cut into parts. A missing value is an id like any
//! other, 2³² in that order.
//!
//! [`crate::make`] builds one from files; `docs/formats.md` describes the stored form.

mod counted;
mod counts;
mod format;
mod runs;
mod slots;

use std::collections::HashMap;

use headlong_device::simd::prefetch;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use xxhash_rust::xxh3::Xxh3Default;

use crate::admission::ColumnIds;
use crate::hashing::MISSING_ID;
use crate::identity::FileIdentity;
use crate::ids::RowLookup;
use slots::{first_slot, slot_of};

pub(crate) use counts::CountTables;
pub use format::DICTIONARY_FILE;
pub(crate) use runs::{
    ENTRY_BYTES, MAX_MERGED_RUNS, Run, merge_into_columns, merge_into_run, write_run,
};

/// Entries of each column of a file of counts in memory, which is whole; `path` is for messages.
///
/// # Errors
/// [`ReaderError::Format`](crate::ReaderError::Format) if it is not whole.
pub fn look_at_counts(
    path: &std::path::Path,
    bytes: &[u8],
    num_columns: usize,
) -> crate::Result<Vec<u64>> {
    Run::look_at(path, bytes, num_columns)
}

const AHEAD: usize = 12;
/// The most rows of a table: rows are kept in 32 bits.
pub const MAX_DICTIONARY_ROWS: u64 = u32::MAX as u64;

/// Which ids get a row of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DictionaryRule {
    /// An id needs at least this many sights, and one at any rate.
    pub min_count: u64,
    /// The most rows of a table, the shared one included; the most frequent ids win.
    pub max_rows: Option<u64>,
}

/// A file that was counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountedFile {
    /// Its path, as it was given.
    pub path: String,
    /// Its size in bytes, as stored.
    pub bytes: u64,
    /// Good rows in it.
    pub rows: u64,
    /// Bad rows skipped.
    pub skipped: u64,
    /// What it was when it was counted; none of a pipe, and in dictionaries of an earlier format.
    #[serde(default)]
    pub identity: Option<FileIdentity>,
}

/// The ids of one column that have rows of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DictionaryColumn {
    /// `ids[r - 1]` has row `r`; [`MISSING_ID`] is a missing value.
    pub ids: Vec<u64>,
    /// How often each was seen.
    pub counts: Vec<u64>,
    /// Distinct ids seen, a missing value included.
    pub distinct: u64,
    /// Sights of the ids that share row 0.
    pub shared_count: u64,
}

impl DictionaryColumn {
    /// Rows of the column's table: the shared one, and one for each id.
    pub fn rows(&self) -> u64 {
        self.ids.len() as u64 + 1
    }
}

/// The ids of all columns, with what they were counted on.
#[derive(Clone, Debug)]
pub struct Dictionary {
    rule: DictionaryRule,
    files: Vec<CountedFile>,
    columns: Vec<DictionaryColumn>,
    tables: Vec<RowTable>,
    fingerprint: u64,
    settings: Value,
}

impl Dictionary {
    /// A dictionary of these columns.
    ///
    /// # Panics
    /// If a column lists an id twice, or more than [`MAX_DICTIONARY_ROWS`] allow.
    pub fn new(
        rule: DictionaryRule,
        files: Vec<CountedFile>,
        columns: Vec<DictionaryColumn>,
    ) -> Self {
        let tables = columns.iter().map(|column| RowTable::new(&column.ids)).collect();
        let fingerprint = fingerprint(&columns);
        Self { rule, files, columns, tables, fingerprint, settings: Value::Null }
    }

    /// The same, with what decided the ids besides files and rule: how the files were read.
    pub fn with_settings(self, settings: Value) -> Self {
        Self { settings, ..self }
    }

    /// What decided the ids besides files and rule; null where it was not recorded.
    pub fn settings(&self) -> &Value {
        &self.settings
    }

    /// Which ids got rows.
    pub fn rule(&self) -> DictionaryRule {
        self.rule
    }

    /// The files that were counted.
    pub fn files(&self) -> &[CountedFile] {
        &self.files
    }

    /// The columns.
    pub fn columns(&self) -> &[DictionaryColumn] {
        &self.columns
    }

    /// Rows of each column's table.
    pub fn rows(&self) -> Vec<u64> {
        self.columns.iter().map(DictionaryColumn::rows).collect()
    }

    /// XXH3-64 of the mapping alone (ids in row order, column by column): equal for dictionaries
    /// that map alike. Checkpoints record it.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

impl RowLookup for Dictionary {
    fn num_columns(&self) -> usize {
        self.columns.len()
    }

    fn row(&self, column: usize, id: Option<u32>) -> u64 {
        self.tables[column].row(id)
    }

    fn wide_row(&self, column: usize, id: u64) -> u64 {
        let table = &self.tables[column];
        match u32::try_from(id) {
            Ok(id) => table.row(Some(id)),
            Err(_) if id == MISSING_ID => table.row(None),
            Err(_) => table.wide.get(&id).copied().unwrap_or(0),
        }
    }

    fn look_up_column(&self, ids: ColumnIds<'_>, rows: &mut [u64]) {
        let table = &self.tables[ids.column];
        for (index, row) in rows.iter_mut().enumerate() {
            if let Some(Some(ahead)) = (index + AHEAD < ids.len()).then(|| ids.get(index + AHEAD)) {
                prefetch(&table.slots, first_slot(&table.slots, ahead));
            }
            *row = table.row(ids.get(index));
        }
    }
}

/// Hashes what decides the rows: numbers of ids, and ids, in order.
fn fingerprint(columns: &[DictionaryColumn]) -> u64 {
    let mut hasher = Xxh3Default::new();
    for column in columns {
        hasher.update(&(column.ids.len() as u64).to_le_bytes());
        for id in &column.ids {
            hasher.update(&id.to_le_bytes());
        }
    }
    hasher.digest()
}

/// Ids to rows: open addressing with linear probing, at most half full.
#[derive(Clone, Debug)]
struct RowTable {
    /// `row << 32 | id`, 0 for an empty slot (row 0 is never stored); a power of two of them.
    slots: Vec<u64>,
    missing_row: u64,
    /// Rows of ids beyond 32 bits, which text of Criteo's does not have.
    wide: HashMap<u64, u64>,
}

impl RowTable {
    fn new(ids: &[u64]) -> Self {
        assert!((ids.len() as u64) < MAX_DICTIONARY_ROWS, "a dictionary's rows should fit 32 bits");
        let slots = vec![0; (2 * ids.len()).next_power_of_two().max(2)];
        let mut table = Self { slots, missing_row: 0, wide: HashMap::new() };
        for (index, &id) in ids.iter().enumerate() {
            let row = index as u64 + 1;
            if id == MISSING_ID {
                assert_eq!(table.missing_row, 0, "a missing value should have one row");
                table.missing_row = row;
                continue;
            }
            let Ok(id) = u32::try_from(id) else {
                assert!(table.wide.insert(id, row).is_none(), "the id {id} should have one row");
                continue;
            };
            let slot = slot_of(&table.slots, id);
            assert_eq!(table.slots[slot], 0, "the id {id:08x} should have one row");
            table.slots[slot] = (row << 32) | u64::from(id);
        }
        table
    }

    #[inline(always)]
    fn row(&self, id: Option<u32>) -> u64 {
        // An empty slot says row 0, the shared one.
        id.map_or(self.missing_row, |id| self.slots[slot_of(&self.slots, id)] >> 32)
    }
}

#[cfg(test)]
mod tests;
