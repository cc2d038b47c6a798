use std::fs;

use super::*;
use crate::batch::Jagged;
use crate::criteo::RawBlock;
use crate::ids::IdMapper;

fn column(ids: &[u64]) -> DictionaryColumn {
    let counts = (0..ids.len() as u64).rev().map(|count| count + 3).collect();
    DictionaryColumn { ids: ids.to_vec(), counts, distinct: ids.len() as u64 + 5, shared_count: 7 }
}

fn dictionary() -> Dictionary {
    let files = vec![CountedFile {
        path: "day_0.gz".to_owned(),
        bytes: 10,
        rows: 5,
        skipped: 1,
        identity: None,
    }];
    let columns = vec![
        column(&[5, 0, u64::from(u32::MAX), MISSING_ID, 77]),
        column(&[]),
        column(&(0..1000).map(|id| id * 4_000_037 % (1 << 32)).collect::<Vec<_>>()),
    ];
    Dictionary::new(DictionaryRule { min_count: 3, max_rows: Some(1001) }, files, columns)
}

#[test]
fn ids_have_the_rows_of_their_places() {
    let dictionary = dictionary();
    assert_eq!(dictionary.rows(), [6, 1, 1001]);
    let rows = [Some(5), Some(0), Some(u32::MAX), None, Some(77), Some(78)]
        .map(|id| dictionary.row(0, id));
    assert_eq!(rows, [1, 2, 3, 4, 5, 0]);
    assert_eq!((dictionary.row(1, Some(5)), dictionary.row(1, None)), (0, 0));
    for (index, &id) in dictionary.columns()[2].ids.iter().enumerate() {
        assert_eq!(dictionary.row(2, Some(id as u32)), index as u64 + 1);
    }
    assert_eq!((dictionary.row(2, Some(1)), dictionary.row(2, None)), (0, 0));
}

#[test]
fn a_column_at_once_is_the_same_as_one_by_one() {
    let dictionary = dictionary();
    let num_samples = 500;
    let id = |sample: u64, column: u64| {
        if sample.is_multiple_of(3) { 77 } else { sample * (column + 1) * 4_000_037 }
    };
    let sparse: Vec<u32> = (0..num_samples)
        .flat_map(|sample| [0, 1, 2].map(|column| id(sample, column) as u32))
        .collect();
    let sparse_missing: Vec<u64> = (0..num_samples).map(|sample| sample % 5).collect();
    let block = RawBlock {
        num_samples: num_samples as usize,
        sparse,
        sparse_missing,
        ..RawBlock::default()
    };
    let mapper =
        IdMapper::with_lookup(std::sync::Arc::new(dictionary.clone()), &dictionary.rows()).unwrap();
    let mut bags = vec![Jagged::default(); 3];
    bags.iter_mut().for_each(|bags| bags.values.resize(block.num_samples, 0));
    mapper.map(&block, 0..block.num_samples, &mut bags, 0);
    for (column, bags) in bags.iter().enumerate() {
        for (sample, &row) in bags.values.iter().enumerate() {
            let missing = block.sparse_missing[sample] >> column & 1 == 1;
            let id = (!missing).then_some(block.sparse[sample * 3 + column]);
            assert_eq!(row, dictionary.row(column, id));
        }
    }
}

#[test]
fn what_is_saved_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(DICTIONARY_FILE);
    let saved = dictionary();
    saved.save(&path).unwrap();
    for place in [&*path, folder.path()] {
        let loaded = Dictionary::load(place).unwrap();
        assert_eq!(loaded.columns(), saved.columns());
        assert_eq!((loaded.rule(), loaded.files()), (saved.rule(), saved.files()));
        assert_eq!(loaded.fingerprint(), saved.fingerprint());
        assert_eq!(loaded.row(0, None), 4);
    }
}

#[test]
fn settings_and_files_are_saved_and_a_dictionary_of_the_first_version_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(DICTIONARY_FILE);
    let data = folder.path().join("day_0.gz");
    fs::write(&data, "rows").unwrap();
    let mut saved = dictionary().with_settings(serde_json::json!({ "num_sparse": 3 }));
    saved.files[0].identity = FileIdentity::of(&data).unwrap();
    saved.save(&path).unwrap();
    let loaded = Dictionary::load(&path).unwrap();
    assert_eq!((loaded.settings(), loaded.files()), (saved.settings(), saved.files()));

    let bytes = fs::read(&path).unwrap();
    let end = 16 + u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[16..end]).unwrap();
    header["format_version"] = 1.into();
    header.as_object_mut().unwrap().remove("settings");
    header["files"][0].as_object_mut().unwrap().remove("identity");
    let header = serde_json::to_vec(&header).unwrap();
    let length = (header.len() as u64).to_le_bytes();
    let mut first = [&bytes[..8], &length, &header, &bytes[end..bytes.len() - 8]].concat();
    let checksum = xxhash_rust::xxh3::xxh3_64(&first);
    first.extend(checksum.to_le_bytes());
    fs::write(&path, first).unwrap();
    let loaded = Dictionary::load(&path).unwrap();
    assert_eq!((loaded.columns(), loaded.settings()), (saved.columns(), &Value::Null));
    assert_eq!(loaded.files()[0].identity, None);
}

#[test]
fn the_fingerprint_is_that_of_the_mapping() {
    let same = dictionary();
    let mut columns = same.columns().to_vec();
    columns[0].counts[0] += 1;
    let rule = DictionaryRule { min_count: 1, max_rows: None };
    assert_eq!(
        Dictionary::new(rule, Vec::new(), columns.clone()).fingerprint(),
        same.fingerprint()
    );
    columns[0].ids.swap(0, 1);
    assert_ne!(Dictionary::new(rule, Vec::new(), columns).fingerprint(), same.fingerprint());
}

#[test]
fn every_damaged_byte_and_every_length_is_an_error_that_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.hld");
    dictionary().save(&path).unwrap();
    let good = fs::read(&path).unwrap();
    let message_of = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let message = Dictionary::load(&path).unwrap_err().to_string();
        assert!(message.contains("d.hld"), "{message}");
        message
    };
    for place in (0..900).chain(good.len() - 20..good.len()) {
        let mut bad = good.clone();
        bad[place] ^= 0x10;
        message_of(&bad);
    }
    for length in (0..good.len()).step_by(97) {
        message_of(&good[..length]);
    }
    message_of(&[&*good, b"\n"].concat());
    assert!(message_of(b"1\t2\t3\n and so on").contains("not a dictionary"));
    let mut bad = good.clone();
    let place = good.len() - 100;
    bad[place] ^= 1;
    assert!(message_of(&bad).contains("checksum expected"));
    fs::remove_file(&path).unwrap();
    assert!(Dictionary::load(&path).unwrap_err().to_string().starts_with("cannot open"));
}

#[test]
fn ids_of_any_width_counted_from_samples_have_rows_by_falling_count() {
    use crate::formats::delimited::DelimitedSource;
    use crate::formats::named::{DenseReading, NamedColumns, id_of_text};
    use crate::samples::{Hotness, SparseColumn};
    let folder = tempfile::tempdir().unwrap();
    let text = "word,gaps\nwar,7\nlove,900000000000\nwar,900000000000\nrare,\nlove,\nwar,1\n";
    let path = crate::io::testing::write(folder.path(), "a.csv", text.as_bytes());
    let column = |name: &str| SparseColumn { name: name.to_owned(), hotness: Hotness::Fixed(1) };
    let columns = NamedColumns {
        label: None,
        weight: None,
        dense: Vec::new(),
        dense_reading: DenseReading::Integers,
        sparse: vec![column("word"), column("gaps")],
        dense_columns: None,
        times: Vec::new(),
        separator: None,
        list_separator: b'|',
        ignored: Vec::new(),
    };
    let source = DelimitedSource::open(&[path], &columns, crate::BadRowPolicy::Error).unwrap();
    let rule = DictionaryRule { min_count: 2, max_rows: None };
    let dictionary = Dictionary::count(&source, rule, Vec::new()).unwrap();
    let file = folder.path().join(DICTIONARY_FILE);
    dictionary.save(&file).unwrap();
    let dictionary = Dictionary::load(&file).unwrap();
    assert_eq!(dictionary.rows(), [3, 3]);
    let rows = |column: usize, ids: &[u64]| -> Vec<u64> {
        ids.iter().map(|&id| dictionary.wide_row(column, id)).collect()
    };
    assert_eq!(
        rows(0, &[id_of_text(b"war"), id_of_text(b"love"), id_of_text(b"rare"), 3]),
        [1, 2, 0, 0]
    );
    assert_eq!(rows(1, &[MISSING_ID, 900_000_000_000, 7, 1]), [1, 2, 0, 0]);
}

/// The checksum fits, as that of a file that was made on purpose does.
#[test]
fn counts_whose_numbers_wrap_are_refused() {
    let file = |numbers: &[u64; 3]| {
        let mut bytes = b"HLCOUNT1".to_vec();
        bytes.extend([7_u64, 2].into_iter().flat_map(u64::to_le_bytes));
        bytes.extend(numbers.iter().chain(&[3]).flat_map(|number| number.to_le_bytes()));
        let checksum = xxhash_rust::xxh3::xxh3_64(&bytes);
        bytes.extend(checksum.to_le_bytes());
        look_at_counts(std::path::Path::new("counts"), &bytes, 3)
    };
    assert_eq!(file(&[0, 1, 0]).unwrap(), [0, 1, 0]);
    for numbers in [[0, 0, 0], [u64::MAX, 2, 0], [1 << 60, 1, 0]] {
        let error = file(&numbers).unwrap_err().to_string();
        assert!(error.contains("the numbers of entries do not fit"), "{numbers:?}: {error}");
    }
}
