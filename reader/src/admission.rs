//! Admission in one pass: an id gets a row of its own at its k-th sight, before that its column's
//! shared row.
//!
//! Row 0 of every table is shared: by ids not admitted yet, and by ids that came when the table was
//! full. Columns are independent of each other, and within a column only the order of samples
//! counts, so batch size and threads change nothing. Every sight of an unadmitted id is state,
//! exactly; the memory is 8 bytes for each distinct (column, id) over the table's load of at most
//! 3/4.

use headlong_device::simd::prefetch;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{ReaderError, Result, refuse};
use crate::hashing::{MISSING_ID, fmix64};

/// An entry with this bit has been admitted; the other bits are its row. Without it, they are its
/// sights.
const ADMITTED: u32 = 1 << 31;
/// Most rows of a table of admitted ids.
pub(crate) const MAX_ADMITTED_ROWS: u64 = ADMITTED as u64;
/// An entry whose sights have all been undone; it keeps its place so that other ids are still
/// found.
const FORGOTTEN: u32 = ADMITTED - 1;
/// The first bytes of a saved state: its format and version.
const MAGIC: &[u8; 8] = b"HLADMIT1";
const AHEAD: usize = 12;

#[derive(Clone, Debug)]
pub struct Admission {
    min_count: u32,
    columns: Vec<ColumnState>,
}

/// One change to the state, as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undo {
    column: u16,
    missing: bool,
    id: u32,
    before: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct ColumnIds<'a> {
    /// `num_samples × num_columns` ids.
    pub sparse: &'a [u32],
    /// For each sample, bit `column` says that the value is missing.
    pub missing: &'a [u64],
    /// Columns in `sparse`.
    pub num_columns: usize,
    pub column: usize,
}

impl ColumnIds<'_> {
    pub fn len(&self) -> usize {
        self.missing.len()
    }

    pub fn is_empty(&self) -> bool {
        self.missing.is_empty()
    }

    /// The id of sample `index`; `None` is a missing value.
    #[inline(always)]
    pub fn get(&self, index: usize) -> Option<u32> {
        let present = self.missing[index] >> self.column & 1 == 0;
        present.then(|| self.sparse[index * self.num_columns + self.column])
    }
}

impl Admission {
    /// Nothing admitted yet; table `t` has `rows[t]` rows, an id is admitted at its `min_count`-th
    /// sight.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`] if `min_count` is 0 or a table has no row or more than 2³¹.
    pub fn new(min_count: u32, rows: &[u64]) -> Result<Self> {
        if !(1..FORGOTTEN).contains(&min_count) {
            refuse!("min_count: expected 1 to {}, found {min_count}", FORGOTTEN - 1);
        }
        if let Some(column) = rows.iter().position(|rows| !(1..=MAX_ADMITTED_ROWS).contains(rows)) {
            let found = rows[column];
            refuse!("rows of table {column}: expected 1 to 2^31 for admitted ids, found {found}");
        }
        Ok(Self { min_count, columns: rows.iter().map(|&rows| ColumnState::new(rows)).collect() })
    }

    /// Rows of the table of `column`, and how many of them are in use, the shared one included.
    pub fn rows(&self, column: usize) -> (u64, u64) {
        (self.columns[column].rows, self.columns[column].next_row)
    }

    pub fn row(&self, column: usize, id: Option<u32>) -> u64 {
        row_of(self.columns[column].entry(id))
    }

    /// The ids of `column` that have a row of their own, and which; [`MISSING_ID`] is a missing
    /// value.
    pub fn rows_of_ids(&self, column: usize) -> Vec<(u64, u64)> {
        let state = &self.columns[column];
        let ids = state.ids.sorted().into_iter().map(|(id, entry)| (u64::from(id), row_of(entry)));
        ids.chain([(MISSING_ID, row_of(state.missing))]).filter(|(_, row)| *row > 0).collect()
    }

    /// Looks at the ids of a column in order, writes their rows and notes changes in `log`.
    ///
    /// # Panics
    /// If `rows` is shorter than `ids`.
    pub fn learn_column(&mut self, ids: ColumnIds<'_>, rows: &mut [u64], log: &mut Vec<Undo>) {
        let min_count = self.min_count;
        let column = ids.column as u16;
        let state = &mut self.columns[ids.column];
        for (index, row) in rows[..ids.len()].iter_mut().enumerate() {
            state.prefetch_ahead(ids, index);
            let id = ids.get(index);
            let (before, after) = state.see(id, min_count);
            if before != after {
                log.push(Undo { column, missing: id.is_none(), id: id.unwrap_or(0), before });
            }
            *row = row_of(after);
        }
    }

    /// Writes the rows of a column's ids and learns nothing.
    ///
    /// # Panics
    /// If `rows` is shorter than `ids`.
    pub fn look_up_column(&self, ids: ColumnIds<'_>, rows: &mut [u64]) {
        let state = &self.columns[ids.column];
        for (index, row) in rows[..ids.len()].iter_mut().enumerate() {
            state.prefetch_ahead(ids, index);
            *row = row_of(state.entry(ids.get(index)));
        }
    }

    /// Takes the changes of `log` back, the last first.
    pub fn undo(&mut self, log: &[Undo]) {
        for undo in log.iter().rev() {
            self.columns[undo.column as usize].restore(undo);
        }
    }

    /// The state as bytes with a checksum; equal states give equal bytes, whatever their history.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&self.min_count.to_le_bytes());
        bytes.extend_from_slice(&(self.columns.len() as u32).to_le_bytes());
        for column in &self.columns {
            column.append_to(&mut bytes);
        }
        let checksum = xxh3_64(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The state of [`Admission::to_bytes`], which must have been of the same `min_count` and
    /// `rows`.
    ///
    /// # Errors
    /// [`ReaderError::BadState`] for damaged bytes or another shape; those of [`Admission::new`].
    pub fn from_bytes(bytes: &[u8], min_count: u32, rows: &[u64]) -> Result<Self> {
        let bad = |reason: String| ReaderError::BadState {
            what: "the admission state".to_owned(),
            reason,
        };
        let mut admission = Self::new(min_count, rows)?;
        let (content, checksum) =
            bytes.split_last_chunk::<8>().ok_or_else(|| bad(format!("{} bytes", bytes.len())))?;
        let (expected, found) = (u64::from_le_bytes(*checksum), xxh3_64(content));
        if expected != found {
            return Err(bad(format!("checksum: expected {expected:016x}, found {found:016x}")));
        }
        let mut input = Input { bytes: content };
        let header = (input.take::<8>(), input.u32(), input.u32());
        let expected = (Some(*MAGIC), Some(min_count), Some(rows.len() as u32));
        if header != expected {
            return Err(bad(format!("header: expected {expected:?}, found {header:?}")));
        }
        for (index, column) in admission.columns.iter_mut().enumerate() {
            let rows = column.rows;
            column
                .load_from(&mut input, min_count)
                .ok_or_else(|| bad(format!("table {index} of {rows} rows differs")))?;
        }
        if !input.bytes.is_empty() {
            return Err(bad(format!("{} bytes too many", input.bytes.len())));
        }
        Ok(admission)
    }
}

#[inline(always)]
fn row_of(entry: u32) -> u64 {
    if entry & ADMITTED != 0 { (entry & !ADMITTED) as u64 } else { 0 }
}

#[derive(Clone, Debug)]
struct ColumnState {
    rows: u64,
    next_row: u64,
    missing: u32,
    ids: IdTable,
}

impl ColumnState {
    fn new(rows: u64) -> Self {
        Self { rows, next_row: 1, missing: 0, ids: IdTable::default() }
    }

    fn entry(&self, id: Option<u32>) -> u32 {
        id.map_or(self.missing, |id| self.ids.get(id))
    }

    /// Asks for the slot of a sample a little further on.
    #[inline(always)]
    fn prefetch_ahead(&self, ids: ColumnIds<'_>, index: usize) {
        let ahead = index + AHEAD;
        if ahead < ids.len()
            && let Some(id) = ids.get(ahead)
        {
            self.ids.prefetch(id);
        }
    }

    /// Counts one sight of `id`; gives its entry before and after.
    #[inline(always)]
    fn see(&mut self, id: Option<u32>, min_count: u32) -> (u32, u32) {
        let entry = match id {
            None => &mut self.missing,
            Some(id) => self.ids.get_mut(id),
        };
        let before = *entry;
        if before & ADMITTED != 0 {
            return (before, before);
        }
        let sights = before + 1;
        let after = match (sights >= min_count, self.next_row < self.rows) {
            (false, _) => sights,
            (true, false) => ADMITTED,
            (true, true) => {
                self.next_row += 1;
                ADMITTED | (self.next_row - 1) as u32
            }
        };
        *entry = after;
        (before, after)
    }

    /// Puts an entry back to what it was; a row given since is free again.
    fn restore(&mut self, undo: &Undo) {
        let entry = if undo.missing { &mut self.missing } else { self.ids.get_mut(undo.id) };
        if row_of(*entry) != 0 {
            self.next_row -= 1;
        }
        *entry = undo.before;
        if !undo.missing && undo.before == 0 {
            self.ids.forget(undo.id);
        }
    }

    fn append_to(&self, bytes: &mut Vec<u8>) {
        let entries = self.ids.sorted();
        bytes.extend_from_slice(&self.rows.to_le_bytes());
        bytes.extend_from_slice(&self.next_row.to_le_bytes());
        bytes.extend_from_slice(&self.missing.to_le_bytes());
        bytes.extend_from_slice(&(entries.len() as u64).to_le_bytes());
        for (id, entry) in entries {
            bytes.extend_from_slice(&id.to_le_bytes());
            bytes.extend_from_slice(&entry.to_le_bytes());
        }
    }

    /// Reads what `append_to` wrote; `None` if it is not of a table of as many rows, of which each
    /// that is in use belongs to one id.
    fn load_from(&mut self, input: &mut Input<'_>, min_count: u32) -> Option<()> {
        let rows = input.u64()?;
        self.next_row = input.u64()?;
        self.missing = input.u32()?;
        let num_entries = input.u64()?;
        // The shared row, that of missing values, and one for each entry that is there.
        let most_used = 2 + num_entries.min(input.bytes.len() as u64 / 8);
        if rows != self.rows || !(1..=rows.min(most_used)).contains(&self.next_row) {
            return None;
        }
        let mut given = vec![false; self.next_row as usize];
        let mut num_given = 1;
        let mut take = |entry: u32| {
            let row = row_of(entry);
            let is_new = row > 0 && !std::mem::replace(given.get_mut(row as usize)?, true);
            num_given += u64::from(is_new);
            (is_new || row == 0 && (entry & ADMITTED != 0 || entry < min_count)).then_some(())
        };
        take(self.missing)?;
        let mut last = None;
        for _ in 0..num_entries {
            let (id, entry) = (input.u32()?, input.u32()?);
            if entry == 0 || last.replace(id).is_some_and(|last| last >= id) {
                return None;
            }
            take(entry)?;
            *self.ids.get_mut(id) = entry;
        }
        (num_given == self.next_row).then_some(())
    }
}

/// Ids to entries: open addressing with linear probing; an entry of 0 is an empty slot.
#[derive(Clone, Debug, Default)]
struct IdTable {
    /// (id, entry); a power of two of them, or none.
    slots: Vec<(u32, u32)>,
    used: usize,
}

impl IdTable {
    /// The slot that holds `id`, or the empty one where it belongs. The table must have an empty
    /// slot.
    #[inline(always)]
    fn slot_of(&self, id: u32) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = self.first_slot(id);
        while self.slots[slot].1 != 0 && self.slots[slot].0 != id {
            slot = (slot + 1) & mask;
        }
        slot
    }

    #[inline(always)]
    fn first_slot(&self, id: u32) -> usize {
        fmix64(id as u64) as usize & (self.slots.len() - 1)
    }

    #[inline(always)]
    fn prefetch(&self, id: u32) {
        if !self.slots.is_empty() {
            prefetch(&self.slots, self.first_slot(id));
        }
    }

    #[inline(always)]
    fn get(&self, id: u32) -> u32 {
        if self.slots.is_empty() {
            return 0;
        }
        let entry = self.slots[self.slot_of(id)].1;
        if entry == FORGOTTEN { 0 } else { entry }
    }

    /// The entry of `id`, 0 if it is new; the caller makes it something else.
    #[inline(always)]
    fn get_mut(&mut self, id: u32) -> &mut u32 {
        if self.used * 4 >= self.slots.len() * 3 {
            self.grow();
        }
        let slot = self.slot_of(id);
        let (found, entry) = &mut self.slots[slot];
        if *entry == 0 {
            *found = id;
            self.used += 1;
        } else if *entry == FORGOTTEN {
            *entry = 0;
        }
        entry
    }

    /// Makes the entry of `id`, which is 0 but has its place, read as 0 without breaking the
    /// probing of others.
    fn forget(&mut self, id: u32) {
        let mask = self.slots.len() - 1;
        let mut slot = self.first_slot(id);
        // The slot of `id` reads as empty at this moment, so it is found by its id alone.
        while self.slots[slot] != (id, 0) {
            slot = (slot + 1) & mask;
        }
        self.slots[slot].1 = FORGOTTEN;
    }

    fn grow(&mut self) {
        let length = (self.slots.len() * 2).max(16);
        let old = std::mem::replace(&mut self.slots, vec![(0, 0); length]);
        self.used = 0;
        for (id, entry) in old {
            if entry != 0 && entry != FORGOTTEN {
                let slot = self.slot_of(id);
                self.slots[slot] = (id, entry);
                self.used += 1;
            }
        }
    }

    fn sorted(&self) -> Vec<(u32, u32)> {
        let known = self.slots.iter().filter(|(_, entry)| *entry != 0 && *entry != FORGOTTEN);
        let mut entries: Vec<_> = known.copied().collect();
        entries.sort_unstable();
        entries
    }
}

struct Input<'a> {
    bytes: &'a [u8],
}

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests;
