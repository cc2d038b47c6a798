//! Tests of admission: against the obvious version, undone exactly, saved exactly.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// One column's ids, `None` missing, as [`ColumnIds`] of a single column.
fn learn(admission: &mut Admission, ids: &[Option<u32>], log: &mut Vec<Undo>) -> Vec<u64> {
    let sparse: Vec<u32> = ids.iter().map(|id| id.unwrap_or(0)).collect();
    let missing: Vec<u64> = ids.iter().map(|id| id.is_none() as u64).collect();
    let ids = ColumnIds { sparse: &sparse, missing: &missing, num_columns: 1, column: 0 };
    let mut rows = vec![0; sparse.len()];
    admission.learn_column(ids, &mut rows, log);
    let mut again = vec![0; sparse.len()];
    admission.look_up_column(ids, &mut again);
    let expected: Vec<u64> = (0..ids.len()).map(|index| admission.row(0, ids.get(index))).collect();
    assert_eq!(again, expected);
    rows
}

/// The definition, with a hash map.
fn learn_obviously(ids: &[Option<u32>], min_count: u32, rows: u64) -> Vec<u64> {
    let mut counts = HashMap::new();
    let mut own = HashMap::new();
    let row = |id: &Option<u32>| {
        let count = counts.entry(*id).or_insert(0);
        *count += 1;
        if *count >= min_count && !own.contains_key(id) {
            let admitted = own.values().filter(|&&row| row > 0).count() as u64;
            own.insert(*id, if admitted + 1 < rows { admitted + 1 } else { 0 });
        }
        own.get(id).copied().unwrap_or(0)
    };
    ids.iter().map(row).collect()
}

fn ids(count: usize, distinct: u32) -> impl Strategy<Value = Vec<Option<u32>>> {
    prop::collection::vec(prop::option::weighted(0.9, 0..distinct), count)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rows_are_given_as_defined(ids in ids(400, 60), min_count in 1_u32..5, rows in 1_u64..80) {
        let mut admission = Admission::new(min_count, &[rows]).unwrap();
        let found = learn(&mut admission, &ids, &mut Vec::new());
        prop_assert_eq!(found, learn_obviously(&ids, min_count, rows));
        let listed: HashMap<u64, u64> = admission.rows_of_ids(0).into_iter().collect();
        for id in ids {
            let row = listed.get(&id.map_or(MISSING_ID, u64::from)).copied().unwrap_or(0);
            prop_assert_eq!(row, admission.row(0, id));
        }
    }

    #[test]
    fn undoing_gives_back_the_earlier_state(
        first in ids(150, 100), second in ids(150, 100), third in ids(150, 100),
        min_count in 1_u32..4,
    ) {
        let mut admission = Admission::new(min_count, &[40]).unwrap();
        learn(&mut admission, &first, &mut Vec::new());
        let earlier = admission.clone();
        let mut log = Vec::new();
        let rows = learn(&mut admission, &second, &mut log);
        admission.undo(&log);
        prop_assert_eq!(admission.to_bytes(), earlier.to_bytes());
        prop_assert_eq!(admission.rows(0), earlier.rows(0));
        // And going on from there is the same as never having gone further.
        prop_assert_eq!(learn(&mut admission, &second, &mut Vec::new()), rows);
        let mut fresh = earlier.clone();
        learn(&mut fresh, &second, &mut Vec::new());
        prop_assert_eq!(
            learn(&mut admission, &third, &mut Vec::new()),
            learn(&mut fresh, &third, &mut Vec::new())
        );
        prop_assert_eq!(admission.to_bytes(), fresh.to_bytes());
    }

    #[test]
    fn saving_and_restoring_changes_nothing(first in ids(200, 100), second in ids(200, 100)) {
        let mut admission = Admission::new(2, &[30]).unwrap();
        learn(&mut admission, &first, &mut Vec::new());
        let mut restored = Admission::from_bytes(&admission.to_bytes(), 2, &[30]).unwrap();
        prop_assert_eq!(restored.to_bytes(), admission.to_bytes());
        prop_assert_eq!(
            learn(&mut restored, &second, &mut Vec::new()),
            learn(&mut admission, &second, &mut Vec::new())
        );
    }
}

/// The checksum fits, as that of a file that was made on purpose does.
#[test]
fn a_state_that_contradicts_itself_is_refused() {
    let state = |next_row: u64, missing: u32, entries: &[(u32, u32)]| {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([2_u32, 1].into_iter().flat_map(u32::to_le_bytes));
        bytes.extend([100, next_row].into_iter().flat_map(u64::to_le_bytes));
        bytes.extend(missing.to_le_bytes());
        bytes.extend((entries.len() as u64).to_le_bytes());
        bytes.extend(
            entries.iter().flat_map(|(id, entry)| [*id, *entry]).flat_map(u32::to_le_bytes),
        );
        let checksum = xxh3_64(&bytes);
        bytes.extend(checksum.to_le_bytes());
        Admission::from_bytes(&bytes, 2, &[100])
    };
    let row = |row: u32| ADMITTED | row;
    assert!(state(3, row(2), &[(7, row(1)), (8, 1), (9, row(0))]).is_ok());
    assert!(state(1, 0, &[]).is_ok() && state(2, row(1), &[]).is_ok());
    for (next_row, missing, entries, what) in [
        (3, row(5), &[(7, row(1))][..], "the row of missing values is beyond the table's"),
        (3, 0, &[(7, row(1)), (8, row(1))], "two ids have a row"),
        (2, row(1), &[(7, row(1))], "an id and missing values have a row"),
        (3, 0, &[(7, row(1))], "a row in use is no one's"),
        (2, 0, &[(7, row(1)), (7, 1)], "an id comes twice"),
        (2, 0, &[(8, row(1)), (7, 1)], "ids fall"),
        (2, 0, &[(7, row(1)), (8, 2)], "an id was seen often and not admitted"),
        (2, 0, &[(7, row(1)), (8, FORGOTTEN)], "an id is marked as forgotten"),
        (1 << 31, 0, &[(7, row(1))], "more rows are in use than there are ids"),
    ] {
        assert!(state(next_row, missing, entries).is_err(), "{what}");
    }
}

#[test]
fn damaged_or_foreign_state_is_refused() {
    let mut admission = Admission::new(2, &[30]).unwrap();
    learn(&mut admission, &[Some(7), Some(7), None, Some(9)], &mut Vec::new());
    let bytes = admission.to_bytes();
    for index in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[index] ^= 0x10;
        let message = Admission::from_bytes(&damaged, 2, &[30]).unwrap_err().to_string();
        assert!(message.contains("checksum: expected"), "{message}");
    }
    for length in 0..bytes.len() {
        assert!(Admission::from_bytes(&bytes[..length], 2, &[30]).is_err());
    }
    let message = Admission::from_bytes(&bytes, 3, &[30]).unwrap_err().to_string();
    assert!(message.contains("header: expected"), "{message}");
    let message = Admission::from_bytes(&bytes, 2, &[31]).unwrap_err().to_string();
    assert!(message.contains("table 0 of 31 rows differs"), "{message}");
}

#[test]
fn senseless_sizes_are_refused() {
    assert!(Admission::new(0, &[10]).unwrap_err().to_string().contains("min_count: expected 1"));
    let message = Admission::new(1, &[10, 0]).unwrap_err().to_string();
    assert_eq!(message, "rows of table 1: expected 1 to 2^31 for admitted ids, found 0");
}
