//! What a run keeps between its processes, in memory: statistics of rows, the state of admission,
//! files of counts, histories, results of trials.

use super::{Files, Outcome, Subject, as_it_is, damage_text, named, one, refused, seal_end};
use crate::mutate;
use crate::random::Random;
use headlong::commands::tune::journal;
use headlong::report::history;
use headlong_embedding::hybrid::statistics::{RowCount, RowSample, Statistics, TableStatistics};
use headlong_reader::dictionary::look_at_counts;
use headlong_reader::{IdMapper, IdPolicy};
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// Columns of the good files of counts, and rows of the tables of the good states of admission.
const NUM_COLUMNS: usize = 3;
const ROWS: [u64; NUM_COLUMNS] = [2, 4, 1 << 31];
const MIN_COUNT: u32 = 2;

pub const STATISTICS: Subject = Subject {
    name: "statistics",
    bound_mib: 16,
    good: |_| Ok(vec![files(statistics(1).to_bytes()), files(statistics(3).to_bytes())]),
    damage: damage_sealed,
    seal: seal_end,
    on_disk: false,
    read: |_, files| {
        let statistics = Statistics::from_bytes(&files[0].1).map_err(refused)?;
        let again = Statistics::from_bytes(&statistics.to_bytes());
        assert_eq!(again.as_ref(), Ok(&statistics), "what was read is written and read again");
        Ok(())
    },
};

pub const ADMISSION: Subject = Subject {
    name: "admission",
    bound_mib: 16,
    good: |_| Ok(vec![files(admission(&[])), files(admission(&[7, 9, 1 << 31]))]),
    damage: damage_sealed,
    seal: seal_end,
    on_disk: false,
    read: |_, files| {
        let policy = IdPolicy::Admitted { min_count: MIN_COUNT };
        let mut mapper = IdMapper::new(policy, &ROWS).map_err(refused)?;
        mapper.restore_state(&files[0].1).map_err(refused)?;
        let admission = mapper.admission().expect("the policy admits");
        for (column, rows) in ROWS.into_iter().enumerate() {
            let (_, used) = admission.rows(column);
            let mut given: Vec<_> =
                admission.rows_of_ids(column).into_iter().map(|(_, row)| row).collect();
            given.sort_unstable();
            assert!(given.iter().all(|row| *row < used.min(rows)), "rows that the table has");
            assert!(given.windows(2).all(|pair| pair[0] < pair[1]), "a row belongs to one id");
        }
        let bytes = mapper.state_bytes();
        mapper.restore_state(&bytes).expect("a state that was read is read again");
        assert_eq!(mapper.state_bytes(), bytes);
        Ok(())
    },
};

pub const COUNTS: Subject = Subject {
    name: "counts",
    bound_mib: 16,
    good: |_| {
        let counts = |entries: [u64; NUM_COLUMNS]| {
            let all: u64 = entries.iter().sum();
            let words = (0..2 * all).chain(entries).chain([NUM_COLUMNS as u64]);
            let mut bytes = b"HLCOUNT1".to_vec();
            bytes.extend(words.flat_map(u64::to_le_bytes));
            let checksum = xxh3_64(&bytes);
            bytes.extend(checksum.to_le_bytes());
            files(bytes)
        };
        Ok(vec![counts([0, 0, 0]), counts([3, 0, 5])])
    },
    damage: damage_sealed,
    seal: seal_end,
    on_disk: false,
    read: |_, files| {
        let (name, bytes) = &files[0];
        let entries =
            named(look_at_counts(Path::new(name), bytes, NUM_COLUMNS), name).map_err(refused)?;
        let all: u128 = entries.iter().map(|count| u128::from(*count)).sum();
        assert!(all * 16 < bytes.len() as u128, "entries that the file has");
        Ok(())
    },
};

pub const HISTORY: Subject = Subject {
    name: "history",
    bound_mib: 16,
    good: |_| {
        let all = include_bytes!("../../../fuzz/seeds/history/resumed.jsonl");
        Ok(vec![vec![("history.jsonl".to_owned(), all.to_vec())]])
    },
    damage: damage_text,
    seal: as_it_is,
    on_disk: true,
    read: |folder, files| {
        let kept = history::read::read(&folder.join(&files[0].0));
        let kept = named(kept, "history.jsonl").map_err(refused)?;
        for model in &kept.models {
            let _ = (model.reached(), model.best(), model.of_kept_weights());
        }
        Ok(())
    },
};

pub const TRIALS: Subject = Subject {
    name: "trials",
    bound_mib: 16,
    good: |_| {
        let all = include_bytes!("../../../fuzz/seeds/trials/trials.jsonl");
        Ok(vec![vec![("trials.jsonl".to_owned(), all.to_vec())]])
    },
    damage: damage_text,
    seal: as_it_is,
    on_disk: false,
    read: read_trials,
};

fn read_trials(_: &Path, files: &Files) -> Outcome {
    let (name, text) = (&files[0].0, std::str::from_utf8(&files[0].1).map_err(refused)?);
    let path = Path::new(name);
    let (lines, whole) = named(journal::parse(text, path), name).map_err(refused)?;
    assert!(whole <= text.len() && text[..whole].lines().count() == lines.len());
    for line in &lines {
        let text = serde_json::to_string(line).map_err(refused)?;
        let (again, _) = journal::parse(&format!("{text}\n"), path).map_err(refused)?;
        assert!(again.len() == 1 && again[0] == *line, "{text}");
    }
    Ok(())
}

fn files(bytes: Vec<u8>) -> Files {
    vec![("state".to_owned(), bytes)]
}

/// Damage before the checksum, which then fits; now and then damage to all.
fn damage_sealed(good: &[Files], random: &mut Random) -> Files {
    let mut files = one(good, random);
    let bytes = &mut files[0].1;
    mutate::bytes(bytes, random);
    if !random.once_in(8) {
        seal_end(bytes);
    }
    files
}

fn statistics(num_tables: u64) -> Statistics {
    let row = |row: u64, count: u64| RowCount { row, count };
    let table = |index: u64| TableStatistics {
        name: format!("C{}", index + 1),
        rows: (index > 0).then_some(1000 * index),
        lookups: 90,
        counted: vec![row(3, 40), row(7, 40), row(1, 2)],
        error_bound: index,
        sample: (index > 1)
            .then(|| RowSample { level: 5, rows: vec![row(9, 3), row(u64::MAX, 1)] }),
    };
    Statistics {
        num_batches: 3,
        num_samples: 300,
        batch_size: 128,
        tables: (0..num_tables).map(table).collect(),
    }
}

/// The bytes of a state in which every column has seen these ids.
fn admission(ids: &[u32]) -> Vec<u8> {
    let mut bytes = b"HLADMIT1".to_vec();
    bytes.extend(MIN_COUNT.to_le_bytes());
    bytes.extend((NUM_COLUMNS as u32).to_le_bytes());
    for rows in ROWS {
        bytes.extend(rows.to_le_bytes());
        bytes.extend((1 + u64::from(!ids.is_empty())).to_le_bytes());
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend((ids.len() as u64).to_le_bytes());
        for (place, id) in ids.iter().enumerate() {
            // The first has row 1, the others were seen once.
            let entry = if place == 0 { 1 << 31 | 1_u32 } else { 1 };
            bytes.extend(id.to_le_bytes());
            bytes.extend(entry.to_le_bytes());
        }
    }
    let checksum = xxh3_64(&bytes);
    bytes.extend(checksum.to_le_bytes());
    bytes
}
