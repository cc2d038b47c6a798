use std::fs;

use super::*;
use crate::batch::Position;
use crate::criteo::{BlockOptions, BlockStream, Event};
use crate::error::ReaderError;

fn options(seed: u64, gzip: bool) -> SyntheticOptions {
    SyntheticOptions {
        seed,
        train_rows: 20_000,
        valid_rows: 5_000,
        gzip,
        ..SyntheticOptions::default()
    }
}

fn generated(options: &SyntheticOptions, threads: usize) -> (tempfile::TempDir, SyntheticReport) {
    let folder = tempfile::tempdir().unwrap();
    let report = generate(options, folder.path(), &Pool::new(threads), &mut |_| ()).unwrap();
    (folder, report)
}

#[test]
fn bytes_depend_on_the_seed_and_not_on_threads() {
    for gzip in [false, true] {
        let (_one, first) = generated(&options(7, gzip), 1);
        let (_three, second) = generated(&options(7, gzip), 3);
        let (_other, third) = generated(&options(8, gzip), 2);
        let contents = |report: &SyntheticReport| {
            [&report.train_file, &report.valid_file].map(|file| fs::read(file).unwrap())
        };
        assert!(contents(&first) == contents(&second));
        assert!(contents(&first) != contents(&third));
        assert_eq!((first.best_auc, first.click_rate), (second.best_auc, second.click_rate));
    }
}

#[test]
fn the_real_parser_reads_every_row_and_both_files_follow_one_truth() {
    for gzip in [false, true] {
        let (_folder, report) = generated(&options(3, gzip), 2);
        let files = vec![report.train_file.clone().into(), report.valid_file.clone().into()];
        let mut stream =
            BlockStream::open(files, &BlockOptions::default(), &Position::default(), Some(1))
                .unwrap();
        let (mut samples, mut clicks) = ([0, 0], [0_u64, 0]);
        while let Some(event) = stream.next().unwrap() {
            let Event::Block(block) = event else { continue };
            samples[block.file] += block.raw.num_samples as u64;
            clicks[block.file] +=
                block.raw.labels.iter().map(|&label| u64::from(label)).sum::<u64>();
        }
        assert_eq!(samples, [20_000, 5_000]);
        let [train_rate, valid_rate] = [clicks[0] as f64 / 20_000.0, clicks[1] as f64 / 5_000.0];
        assert_eq!(train_rate, report.click_rate);
        // Six standard deviations of the smaller file's rate.
        assert!(
            (train_rate - valid_rate).abs() < 6.0 * 0.5 / 70.0,
            "{train_rate} and {valid_rate}"
        );
    }
}

#[test]
fn what_is_there_already_is_not_made_again() {
    let (folder, first) = generated(&options(1, false), 2);
    let again = |options: &SyntheticOptions| {
        let mut calls = 0;
        let report = generate(options, folder.path(), &Pool::new(1), &mut |_| calls += 1).unwrap();
        assert_eq!(report.reused, calls == 0);
        report
    };
    assert_eq!(again(&options(1, false)), SyntheticReport { reused: true, ..first.clone() });
    // A file that has changed, and other options, are made again.
    fs::write(&first.train_file, "cut short").unwrap();
    assert_eq!(again(&options(1, false)), first);
    assert!(!again(&options(2, false)).reused);
    fs::write(folder.path().join(RECORD_FILE), "{").unwrap();
    assert!(!again(&options(2, false)).reused);
}

#[test]
fn data_in_use_is_shared_and_other_data_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let small =
        |seed| SyntheticOptions { train_rows: 900, valid_rows: 100, ..options(seed, false) };
    let obtain = |seed| obtain(&small(seed), folder.path(), &Pool::new(1), &mut |_| ());
    let first = obtain(1).unwrap();
    let text = fs::read(&first.report.train_file).unwrap();
    let second = obtain(1).unwrap();
    assert!(!first.report.reused && second.report.reused);
    let refused = obtain(2).unwrap_err().to_string();
    assert!(
        refused.contains("in use by another run") && refused.contains("--output-dir"),
        "{refused}"
    );
    assert!(fs::read(&first.report.train_file).unwrap() == text, "a refused run changes nothing");
    drop((first, second));
    assert!(!obtain(2).unwrap().report.reused);
}

#[test]
fn who_comes_while_data_is_made_waits_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(1, false);
    let run = || {
        let mut events = Vec::new();
        let obtained =
            obtain(&options, folder.path(), &Pool::new(1), &mut |event| events.push(event));
        (obtained.unwrap().report, events)
    };
    let ends: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(ends.iter().filter(|(report, _)| !report.reused).count(), 1, "made once");
    for (report, events) in &ends {
        assert_eq!(events.contains(&SyntheticEvent::Begins), !report.reused);
        assert!(find(&options, folder.path()).is_some());
    }
}

#[test]
fn progress_ends_with_all_rows() {
    let folder = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    generate(&options(1, false), folder.path(), &Pool::new(1), &mut |progress| seen.push(progress))
        .unwrap();
    assert!(seen.windows(2).all(|pair| pair[0].rows < pair[1].rows));
    assert_eq!(seen.last(), Some(&SyntheticProgress { rows: 25_000, total_rows: 25_000 }));
}

#[test]
fn senseless_options_and_places_are_refused() {
    let refused = |options: SyntheticOptions| options.check().unwrap_err().to_string();
    assert!(
        refused(SyntheticOptions { scale: 0.0, ..options(1, false) })
            .starts_with("synthetic scale")
    );
    assert!(
        refused(SyntheticOptions { train_rows: 0, ..options(1, false) })
            .starts_with("synthetic rows")
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = generate(&options(1, false), file.path(), &Pool::new(1), &mut |_| ()).unwrap_err();
    assert!(matches!(error, ReaderError::Write { .. }), "{error}");
}
