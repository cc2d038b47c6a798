use std::collections::HashMap;
use std::io::Read;

use super::*;
use crate::criteo::testing;
use crate::dictionary::DictionaryColumn;
use crate::hashing::MISSING_ID;
use crate::ids::RowLookup;

fn rule(min_count: u64, max_rows: Option<u64>) -> DictionaryRule {
    DictionaryRule { min_count, max_rows }
}

/// Little more than the empty tables take.
const SMALL_MEMORY: u64 = 300_000;

/// Small enough to spill several times over a few thousand rows.
fn spilling(rule: DictionaryRule) -> MakeOptions {
    MakeOptions { rule, memory_bytes: SMALL_MEMORY, block_bytes: 20_000, ..MakeOptions::default() }
}

fn make(files: &[DataFile], folder: &Path, options: &MakeOptions) -> Result<MakeReport> {
    make_dictionary(files, folder, options, &Pool::new(2), &mut |_| ())
}

/// What a dictionary should be, the slow and obvious way.
fn naive_columns(text: &str, rule: DictionaryRule) -> Vec<DictionaryColumn> {
    let mut counts: Vec<HashMap<u64, u64>> = vec![HashMap::new(); 26];
    for line in text.lines() {
        for (field, counts) in line.split('\t').skip(14).zip(&mut counts) {
            let id =
                if field.is_empty() { MISSING_ID } else { u64::from_str_radix(field, 16).unwrap() };
            *counts.entry(id).or_default() += 1;
        }
    }
    let column = |counts: &HashMap<u64, u64>| {
        let mut entries: Vec<(u64, u64)> = counts.iter().map(|(&id, &count)| (count, id)).collect();
        let total: u64 = entries.iter().map(|entry| entry.0).sum();
        entries.retain(|entry| entry.0 >= rule.min_count);
        entries.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        entries.truncate(rule.max_rows.map_or(usize::MAX, |rows| rows as usize - 1));
        let (counted, ids): (Vec<u64>, Vec<u64>) = entries.into_iter().unzip();
        let shared_count = total - counted.iter().sum::<u64>();
        DictionaryColumn { ids, counts: counted, distinct: counts.len() as u64, shared_count }
    };
    counts.iter().map(column).collect()
}

/// Two files of 3,000 rows each, and their text.
fn two_files(folder: &Path) -> (Vec<DataFile>, String) {
    let texts = [1, 2].map(|seed| String::from_utf8(testing::rows(3000, seed)).unwrap());
    let files = ["a.txt", "b.txt"].map(|name| DataFile::from(folder.join(name)));
    files.iter().zip(&texts).for_each(|(file, text)| fs::write(file, text).unwrap());
    (files.to_vec(), texts.concat())
}

#[test]
fn what_it_takes_is_estimated_from_above_and_progress_reaches_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let (files, _) = two_files(folder.path());
    for options in [MakeOptions::default(), spilling(rule(3, Some(20)))] {
        let MakeEstimate { rows, disk_bytes } = estimate(&files, &options).unwrap();
        assert!((5_400..6_600).contains(&rows), "{rows} of 6,000 rows");
        let out = tempfile::tempdir().unwrap();
        let (mut most, mut last) = (0, MakeProgress::default());
        let mut look = |at: &MakeProgress| {
            let runs = fs::read_dir(out.path().join("counting")).unwrap();
            most = most.max(runs.map(|run| run.unwrap().metadata().unwrap().len()).sum::<u64>());
            assert!(
                at.call_bytes_read >= last.call_bytes_read && at.call_bytes_read <= at.call_bytes
            );
            last = at.clone();
        };
        make_dictionary(&files, out.path(), &options, &Pool::new(2), &mut look).unwrap();
        assert!(most <= disk_bytes, "{most} bytes on disk, estimated {disk_bytes}");
        assert_eq!(last.call_bytes_read, last.call_bytes);
        assert_eq!(
            last.call_bytes,
            files.iter().map(|file| fs::metadata(file).unwrap().len()).sum::<u64>()
        );
    }
}

#[test]
fn dictionaries_are_those_of_a_map_however_the_counting_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let (files, text) = two_files(folder.path());
    for rule in [rule(1, None), rule(3, None), rule(2, Some(20)), rule(1, Some(1))] {
        let expected = naive_columns(&text, rule);
        for options in [MakeOptions { rule, ..MakeOptions::default() }, spilling(rule)] {
            let out = tempfile::tempdir().unwrap();
            let report = make(&files, out.path(), &options);
            // The ids of all columns do not fit the small memory if each is to be kept.
            if let Err(error) = report {
                assert!(rule.max_rows.is_none() && options.memory_bytes == SMALL_MEMORY, "{error}");
                continue;
            }
            let report = report.unwrap();
            assert_eq!(report.dictionary.columns(), expected);
            assert_eq!((report.rows, report.resumed_files), (6000, 0));
            assert_eq!(
                report.spills > 3,
                options.memory_bytes == SMALL_MEMORY,
                "{} spills",
                report.spills
            );
            let loaded = Dictionary::load(&report.file).unwrap();
            assert_eq!(loaded.columns(), expected);
            assert!(!out.path().join("counting").exists());
        }
    }
}

#[test]
fn more_runs_than_can_be_merged_at_once_are_merged_in_rounds() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = Vec::new();
    let mut files = Vec::new();
    for seed in 0..=MAX_MERGED_RUNS {
        let rows = testing::rows(40, seed as u64);
        files.push(DataFile::from(folder.path().join(format!("{seed}.txt"))));
        fs::write(&files[seed], &rows).unwrap();
        text.extend(rows);
    }
    let text = String::from_utf8(text).unwrap();
    let options = MakeOptions { rule: rule(3, Some(50)), ..MakeOptions::default() };
    let report = make(&files, folder.path(), &options).unwrap();
    assert_eq!(report.dictionary.columns(), naive_columns(&text, options.rule));
}

#[test]
fn a_call_that_failed_continues_at_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let (files, text) = two_files(folder.path());
    let good = fs::read(&files[1]).unwrap();
    let options = spilling(rule(3, Some(100)));
    let message_of = |bytes: &[u8]| {
        fs::write(&files[1], bytes).unwrap();
        make(&files, folder.path(), &options).unwrap_err().to_string()
    };
    assert!(message_of(&[&*good, b"0\tx\n"].concat()).contains("b.txt, line 3001"));
    assert!(!folder.path().join(DICTIONARY_FILE).exists());
    // What the crash left behind of the second file, and rubbish, does not count.
    let [rubbish, mine] =
        ["run-9", "my-only-copy"].map(|name| folder.path().join("counting").join(name));
    fs::write(&rubbish, "half a run").unwrap();
    fs::write(&mine, "precious").unwrap();

    fs::write(&files[1], &good).unwrap();
    let mut seen = Vec::new();
    let pool = Pool::new(1);
    let report = make_dictionary(&files, folder.path(), &options, &pool, &mut |progress| {
        seen.push(progress.clone())
    });
    let report = report.unwrap();
    assert_eq!((report.resumed_files, report.rows), (1, 6000));
    assert!(seen.iter().all(|progress| progress.file == 1 && progress.num_files == 2));
    assert_eq!(seen.last().map(|progress| progress.rows), Some(3000));
    assert_eq!(report.dictionary.columns(), naive_columns(&text, options.rule));
    // What somebody else keeps there stays.
    assert!(!rubbish.exists() && !folder.path().join("counting/state.json").exists());
    assert_eq!(fs::read_to_string(mine).unwrap(), "precious");
}

#[test]
fn what_another_call_left_unfinished_is_not_taken_for_a_finished_file() {
    let folder = tempfile::tempdir().unwrap();
    let (files, text) = two_files(folder.path());
    let good = fs::read(&files[1]).unwrap();
    let options = spilling(rule(3, Some(100)));
    fs::write(&files[1], b"0\tx\n").unwrap();
    make(&files, folder.path(), &options).unwrap_err();
    // A call with another policy is killed while it counts the first file, after as many runs.
    let counting = folder.path().join("counting");
    let run = fs::read(counting.join("run-0")).unwrap();
    let num_runs =
        (0..).take_while(|index| counting.join(format!("run-{index}")).is_file()).count();
    let skipping = MakeOptions { on_bad_row: BadRowPolicy::Skip, ..MakeOptions::default() };
    let mut killed = State::open(folder.path(), &skipping, &files).unwrap();
    let mut first = FinishedFile::begin(&files[0]).unwrap();
    for _ in 0..num_runs {
        fs::write(killed.new_run(&mut first), &run).unwrap();
    }
    drop(killed);

    fs::write(&files[1], &good).unwrap();
    let report = make(&files, folder.path(), &options).unwrap();
    assert_eq!((report.resumed_files, report.rows), (0, 6000));
    assert_eq!(report.dictionary.columns(), naive_columns(&text, options.rule));
}

#[test]
fn a_file_that_changed_since_is_counted_again() {
    let folder = tempfile::tempdir().unwrap();
    let (files, _) = two_files(folder.path());
    let good = fs::read(&files[1]).unwrap();
    let options = spilling(rule(3, Some(100)));
    fs::write(&files[1], b"0\tx\n").unwrap();
    make(&files, folder.path(), &options).unwrap_err();
    let changed = testing::rows(2000, 9);
    fs::write(&files[0], &changed).unwrap();
    fs::write(&files[1], &good).unwrap();
    let report = make(&files, folder.path(), &options).unwrap();
    assert_eq!((report.resumed_files, report.rows), (0, 5000));
    let text = String::from_utf8([changed, good].concat()).unwrap();
    assert_eq!(report.dictionary.columns(), naive_columns(&text, options.rule));
}

#[test]
fn damaged_counts_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let (files, _) = two_files(folder.path());
    let good = fs::read(&files[1]).unwrap();
    fs::write(&files[1], b"0\tx\n").unwrap();
    let options = spilling(rule(3, Some(100)));
    make(&files, folder.path(), &options).unwrap_err();
    let run = folder.path().join("counting/run-0");
    let mut bytes = fs::read(&run).unwrap();
    bytes[1000] ^= 1;
    fs::write(&run, bytes).unwrap();
    fs::write(&files[1], good).unwrap();
    let message = make(&files, folder.path(), &options).unwrap_err().to_string();
    assert!(message.contains("run-0") && message.contains("damaged counts"), "{message}");
}

#[test]
fn bad_rows_are_skipped_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (files, text) = two_files(folder.path());
    let mut bytes = b"rubbish\n".to_vec();
    bytes.extend(fs::read(&files[0]).unwrap());
    fs::write(&files[0], bytes).unwrap();
    let options = MakeOptions { on_bad_row: BadRowPolicy::Skip, ..MakeOptions::default() };
    let report = make(&files, folder.path(), &options).unwrap();
    assert_eq!((report.skipped.total, report.skipped.first[0].line), (1, 1));
    assert_eq!(report.dictionary.files()[0].skipped, 1);
    assert_eq!(report.dictionary.columns(), naive_columns(&text, options.rule));
}

#[test]
fn what_cannot_be_done_is_refused_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let (files, _) = two_files(folder.path());
    let message_of = |files: &[DataFile], options: &MakeOptions| {
        make(files, folder.path(), options).unwrap_err().to_string()
    };
    let message =
        message_of(&files, &MakeOptions { memory_bytes: 100_000, ..spilling(rule(1, None)) });
    // Of the testing rows every third column has thousands of ids.
    assert!(message.contains("expected at most 100000: column C"), "{message}");
    assert!(message.contains("raise min_count, limit"), "{message}");
    let twice = [files[0].clone(), files[0].clone()];
    assert!(message_of(&twice, &MakeOptions::default()).contains("a.txt is named twice"));
    assert!(
        message_of(&files, &MakeOptions { rule: rule(0, None), ..MakeOptions::default() })
            .contains("at least 1")
    );
    assert!(
        message_of(&[folder.path().join("none").into()], &MakeOptions::default())
            .contains("cannot open")
    );

    let other = DictionaryFolder::open(folder.path()).unwrap();
    assert!(other.try_lock());
    assert!(
        message_of(&files, &MakeOptions::default())
            .contains("another process is making a dictionary")
    );
    drop(other);
    make(&files, folder.path(), &MakeOptions::default()).unwrap();
}

/// Values seen three times or more in the real training sample, column by column; from the README
/// of the data.
const SEEN_THRICE: [usize; 26] = [
    197, 463, 2668, 3492, 66, 9, 4775, 120, 3, 4178, 2893, 2738, 2370, 25, 2794, 3044, 9, 1591,
    757, 3, 2836, 8, 14, 2958, 40, 2248,
];

#[test]
fn the_real_sample_has_the_published_numbers_of_values() {
    let path =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/criteo/train.txt.gz"));
    if !path.exists() {
        println!("skipped, because {} is absent", path.display());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let report = make(&[path.into()], folder.path(), &MakeOptions::default()).unwrap();
    assert_eq!(report.rows, 95_997);
    let valued =
        |column: &DictionaryColumn| column.ids.iter().filter(|&&id| id != MISSING_ID).count();
    let found: Vec<usize> = report.dictionary.columns().iter().map(valued).collect();
    assert_eq!(found, SEEN_THRICE);

    let mut text = String::new();
    flate2::read::GzDecoder::new(fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    assert_eq!(report.dictionary.columns(), naive_columns(&text, rule(3, None)));
    // C9's most frequent value has the first row.
    assert_eq!(report.dictionary.row(8, Some(0xa73e_e510)), 1);
}
