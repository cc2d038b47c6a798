//! Processes that read their rank's slice of each batch: the weights are those of one process that
//! reads it all, and no byte is read that another reads, but the pages that two share.

#![cfg(test)]

use crate::run_support::{Place, Run, last_event};
use std::path::{Path, PathBuf};

/// The rows of a text as another format.
fn convert(place: &Place, from: &Path, to: &str, name: &str) -> PathBuf {
    let output = place.path(name);
    let run = Run::new("data").with(&["convert"]).path("--data", from).with(&["--to", to]);
    run.path("--output", &output).succeeds();
    output
}

fn train(place: &Place, data: &Path) -> Run {
    let train = place.train_without_data().path("--data", data);
    train.with(&[
        "--threads",
        "1",
        "--set",
        "data.ids=modulo",
        "--set",
        "train.sum_blocks=8",
        "--epochs",
        "2",
    ])
}

#[test]
fn processes_that_read_their_slices_train_the_weights_of_one_that_reads_all() {
    let place = Place::new("rows.txt");
    let (records, blocks) = (
        convert(&place, &place.train, "mlperf", "a.bin"),
        convert(&place, &place.train, "headlong", "a.hld"),
    );
    let of = |data: &Path, more: &[&str]| train(&place, data).with(more);
    let mlperf = ["--set", "data.format=mlperf"];
    let cases = [
        // 1,500 rows in batches of 512: the last is short, and some ranks have nothing of its last
        // micro-batch.
        of(&records, &[&mlperf[..], &["--accumulate", "8"]].concat()),
        of(&records, &[&mlperf[..], &["--set", "data.order=batches"]].concat()),
        of(&blocks, &["--set", "data.order=samples", "--set", "data.order_window=500"]),
        // Every rank needs all ids.
        of(&records, &[&mlperf[..], &["--set", "comm.ids=known", "--accumulate", "2"]].concat()),
        of(
            &records,
            &[&mlperf[..], &["--set", "hybrid.repartition_drift=0.01", "--eval-every", "8"]]
                .concat(),
        )
        .path("--valid", &records),
    ];
    for case in cases {
        // Ranks that are threads share a reader of whole batches.
        let expected = case.clone().with(&["--ranks", "4"]).succeeds().digest();
        assert_eq!(case.clone().launched(4).succeeds().digest(), expected, "{case:?}");
    }
}

#[test]
fn a_process_reads_its_part_of_the_bytes() {
    let place = Place::new("rows.txt");
    let data = convert(&place, &place.train, "mlperf", "a.bin");
    let train = train(&place, &data).with(&[
        "--set",
        "data.format=mlperf",
        "--set",
        "train.batch_size=500",
    ]);
    let bytes_of = |run: &Run, log: &Path| {
        run.succeeds();
        last_event(log, "done")["data_bytes_read"].as_u64().unwrap()
    };
    let log = place.path("log.json");
    let train = train.path("--log-json", &log);
    let whole = bytes_of(&train, &log);
    assert!(
        (480_000..520_000).contains(&whole),
        "two epochs of 1,500 records of 160 bytes: {whole}"
    );
    for ranks in [2, 4] {
        std::fs::remove_file(&log).unwrap();
        let part = bytes_of(&train.clone().launched(ranks), &log);
        let share = whole / ranks as u64;
        // Of each of the six batches, at most two pages are shared.
        let most = share + 6 * 2 * 4096;
        assert!((share - 20_000..=most).contains(&part), "{ranks} ranks: {part} of {whole}");
    }
}
