//! Hashing: any raw id to a row index of its column's table, with no state.

use headlong_device::vectorized;
use serde::{Deserialize, Serialize};

/// The hash functions; the name is recorded in configurations and checkpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HashFunction {
    /// `row = (fmix64(id + (column + 1) · 0x9e3779b97f4a7c15) >> 32) · rows >> 32`, where `fmix64`
    /// is MurmurHash3's finaliser, columns count from 0 and a missing value is the id 2³².
    #[default]
    #[serde(rename = "murmur3-fmix64")]
    Murmur3Fmix64,
}

impl HashFunction {
    /// The recorded name.
    pub fn name(self) -> &'static str {
        match self {
            HashFunction::Murmur3Fmix64 => "murmur3-fmix64",
        }
    }
}

/// The id a missing value stands for, beyond every 32-bit id.
pub const MISSING_ID: u64 = 1 << 32;

/// The most rows that a table of hashed ids can have: 2³².
pub const MAX_HASHED_ROWS: u64 = 1 << 32;

/// MurmurHash3's 64-bit finaliser (Appleby, public domain): a bijection of 64-bit words.
#[inline(always)]
pub fn fmix64(word: u64) -> u64 {
    let word = (word ^ (word >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let word = (word ^ (word >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ (word >> 33)
}

/// The row of `id` (or [`MISSING_ID`]) in the table of `column`, which has `rows` rows.
#[inline(always)]
pub fn hashed_row(id: u64, column: usize, rows: u64) -> u64 {
    let salt = (column as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((fmix64(id.wrapping_add(salt)) >> 32) * rows) >> 32
}

vectorized! {
    /// The rows of one column of row-major samples: sample `i` has the id
    /// `sparse[i · num_sparse + column]`, unless bit `column` of `missing[i]` is set.
    pub fn hash_column(
        sparse: &[u32], missing: &[u64], num_sparse: usize, column: usize, rows: u64,
        out: &mut [u64],
    ) {
        let samples = sparse.chunks_exact(num_sparse).zip(missing);
        for ((ids, missing), out) in samples.zip(out) {
            let id = ids[column] as u64 | ((missing >> column & 1) << 32);
            *out = hashed_row(id, column, rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_function_never_changes() {
        // Rows of trained tables depend on these numbers; computed once with Python's integers.
        assert_eq!(fmix64(1), 0xb456_bcfc_34c2_cb2c);
        assert_eq!(hashed_row(0x68fd_1e64, 0, 1000), 236);
        assert_eq!(hashed_row(0x68fd_1e64, 25, 1000), 199);
        assert_eq!(hashed_row(MISSING_ID, 3, 1 << 32), 2_721_007_828);
        assert_eq!(serde_json::to_string(&HashFunction::default()).unwrap(), "\"murmur3-fmix64\"");
    }

    #[test]
    fn rows_are_evenly_used_and_columns_differ() {
        let rows = 97;
        let mut counts = [0_i32; 97];
        let mut same = 0;
        for id in 0..97_000 {
            let row = hashed_row(id, 4, rows);
            counts[row as usize] += 1;
            same += (row == hashed_row(id, 5, rows)) as i32;
        }
        // 1000 expected each; 6 standard deviations are 190.
        assert!(counts.iter().all(|count| (count - 1000).abs() < 190), "{counts:?}");
        assert!((same - 1000).abs() < 190, "{same}");
    }

    #[test]
    fn a_column_at_once_is_the_same_as_one_by_one() {
        let sparse: Vec<u32> = (0..300).map(|index| fmix64(index) as u32).collect();
        let missing: Vec<u64> = (0..100).map(|index| fmix64(index) & 7).collect();
        for column in 0..3 {
            let mut out = vec![0; 100];
            hash_column(&sparse, &missing, 3, column, 12_345, &mut out);
            for (sample, &row) in out.iter().enumerate() {
                let is_missing = missing[sample] >> column & 1;
                // A missing value is stored as 0, so its bit alone makes the id.
                let id =
                    if is_missing == 1 { continue } else { sparse[sample * 3 + column] as u64 };
                assert_eq!(row, hashed_row(id, column, 12_345));
            }
        }
        let mut out = [0];
        hash_column(&[0, 0, 0], &[2], 3, 1, 12_345, &mut out);
        assert_eq!(out[0], hashed_row(MISSING_ID, 1, 12_345));
    }
}
