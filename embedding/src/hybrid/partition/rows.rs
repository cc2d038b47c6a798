//! The rows that lists name, found in one access.

use super::Code;
use headlong_device::simd::prefetch;

/// Marks an empty entry; no table has this row.
const EMPTY: u64 = u64::MAX;

/// How many rows ahead of its turn a row is prefetched.
const AHEAD: usize = 16;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum HotRows {
    /// No row is named.
    None,
    /// The code of every row, by formula or not: for small tables.
    Array(Vec<Code>),
    /// Open addressing with linear probing, at most half full: `(row, code)`.
    Hash {
        /// One less than the number of entries, a power of two.
        mask: u64,
        entries: Vec<(u64, Code)>,
    },
}

impl HotRows {
    /// `codes` has rows rising, each once; `formula` gives the code of all others.
    pub(super) fn new(rows: u64, codes: &[(u64, Code)], formula: impl Fn(u64) -> Code) -> Self {
        if codes.is_empty() {
            return HotRows::None;
        }
        let capacity = (codes.len() * 2).next_power_of_two();
        if rows <= 2 * capacity as u64 {
            let mut all: Vec<_> = (0..rows).map(formula).collect();
            codes.iter().for_each(|&(row, code)| all[row as usize] = code);
            return HotRows::Array(all);
        }
        let mut entries = vec![(EMPTY, Code::default()); capacity];
        let mask = capacity as u64 - 1;
        for &(row, code) in codes {
            let mut place = first_place(row, mask);
            while entries[place].0 != EMPTY {
                place = (place + 1) & mask as usize;
            }
            entries[place] = (row, code);
        }
        HotRows::Hash { mask, entries }
    }

    #[inline]
    pub(super) fn classify(&self, rows: &[u64], codes: &mut [Code], formula: impl Fn(u64) -> Code) {
        match self {
            HotRows::None => {
                codes.iter_mut().zip(rows).for_each(|(code, &row)| *code = formula(row))
            }
            HotRows::Array(all) => {
                codes.iter_mut().zip(rows).for_each(|(code, &row)| *code = all[row as usize]);
            }
            HotRows::Hash { mask, entries } => {
                for (index, (code, &row)) in codes.iter_mut().zip(rows).enumerate() {
                    if let Some(&coming) = rows.get(index + AHEAD) {
                        prefetch(entries, first_place(coming, *mask));
                    }
                    *code = find(entries, *mask, row).unwrap_or_else(|| formula(row));
                }
            }
        }
    }
}

#[inline(always)]
fn find(entries: &[(u64, Code)], mask: u64, row: u64) -> Option<Code> {
    let mut place = first_place(row, mask);
    // At most half of the entries are taken, so an empty one ends the search.
    loop {
        let (found, code) = entries[place];
        if found == row {
            return Some(code);
        }
        if found == EMPTY {
            return None;
        }
        place = (place + 1) & mask as usize;
    }
}

/// Fibonacci hashing (Knuth, TAOCP 3, 6.4): neighbouring rows land far apart.
#[inline(always)]
fn first_place(row: u64, mask: u64) -> usize {
    (row.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32 & mask) as usize
}
