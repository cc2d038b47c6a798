//! Training, evaluation and going on, on data of every format: through the built program.

#![cfg(test)]

use crate::run_support::{Ended, Place, Run, last_event};
use std::path::{Path, PathBuf};

/// `headlong data convert`.
fn convert(place: &Place, from: &Path, to: &str, name: &str, more: &[&str]) -> PathBuf {
    let output = place.path(name);
    let run = Run::new("data").with(&["convert"]).path("--data", from).with(&["--to", to]);
    run.path("--output", &output).with(more).succeeds();
    output
}

/// `headlong train` of the small model on these files, three epochs, ids modulo rows.
fn train(place: &Place, data: &Path, valid: &Path, more: &[&str]) -> Run {
    let run = place.train_without_data().path("--data", data).path("--valid", valid);
    let run =
        run.with(&["--set", "data.ids=modulo", "--set", "train.epochs=3", "--eval-every", "10"]);
    run.with(more)
}

impl Files {
    fn of(place: &Place, format: &str, names: [&str; 2], more: &[&str]) -> Self {
        let [train, valid] = [(&place.train, names[0]), (&place.valid, names[1])]
            .map(|(from, name)| convert(place, from, format, name, more));
        Self { train, valid }
    }
}

/// Training and validation data in some format.
struct Files {
    train: PathBuf,
    valid: PathBuf,
}

/// The numbers of the last evaluation, and the weights.
fn outcome(ended: &Ended) -> (String, Vec<String>) {
    let evaluations = ended.stdout.lines().filter(|line| line.contains("AUC"));
    let numbers = evaluations.map(|line| line.split(" in ").next().unwrap_or_default().to_owned());
    (ended.digest(), numbers.collect())
}

#[test]
fn every_format_of_the_same_samples_trains_the_same_weights() {
    let place = Place::new("rows.txt");
    let expected = train(&place, &place.train, &place.valid, &[]).succeeds();
    let transformed = ["--dense-transform", "ln(x+1)"];
    type Case<'a> = (&'a str, [&'a str; 2], &'a [&'a str], &'a [&'a str]);
    let cases: [Case<'_>; 5] = [
        ("headlong", ["a.hld", "b.hld"], &[], &[]),
        ("headlong", ["c.hld", "d.hld"], &transformed, &["--cache-data", "host"]),
        ("mlperf", ["a.bin", "b.bin"], &[], &["--set", "data.format=mlperf"]),
        ("npy", ["a", "b"], &["--dense-transform", "ln(x+1)", "--rows", "1000"], &[]),
        (
            "raw",
            ["a.raw", "b.raw"],
            &transformed,
            &[
                "--set",
                "data.format=raw",
                "--set",
                "data.hotness=[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]",
            ],
        ),
    ];
    for (format, names, conversion, more) in cases {
        let data = Files::of(&place, format, names, conversion);
        let found = train(&place, &data.train, &data.valid, more).succeeds();
        assert_eq!(outcome(&found), outcome(&expected), "{format} {more:?}");
    }
    let cached = train(&place, &place.train, &place.valid, &["--cache-data", "host"]).succeeds();
    assert_eq!(outcome(&cached), outcome(&expected), "text from memory");
    assert!(!outcome(&expected).1.is_empty(), "{}", expected.stdout);
}

#[test]
fn split_files_train_alike_with_rows_and_with_ids() {
    let place = Place::new("rows.txt");
    let more = ["--dense-transform", "ln(x+1)", "--rows", "1000"];
    let data = Files::of(&place, "split", ["day/train", "day/valid"], &more);
    let modulo = train(&place, &data.train, &data.valid, &[]).succeeds();
    let rows = place.train_without_data().path("--data", &data.train).path("--valid", &data.valid);
    let rows = rows
        .with(&["--set", "data.ids=rows", "--set", "train.epochs=3", "--eval-every", "10"])
        .succeeds();
    assert_eq!(outcome(&rows), outcome(&modulo));
    // A table that is too small for the rows of the file.
    let small = place.train_without_data().path("--data", &data.train);
    small
        .with(&["--set", "data.ids=rows", "--set", "tables.rows=900"])
        .fails(1, &["column cat_", "expected a row below 900, found 9"]);
}

/// Each format counts its ids itself, missing ones included, and gives them the rows that the
/// text's dictionary gives them.
#[test]
fn a_dictionary_of_any_format_trains_the_weights_of_the_text_s() {
    let place = Place::new("rows.txt");
    let with = |data: &Path, valid: &Path| {
        let run = place.train_without_data().path("--data", data).path("--valid", valid);
        let run = run.with(&[
            "--set",
            "data.ids=dictionary",
            "--set",
            "data.min_count=2",
            "--epochs",
            "2",
        ]);
        outcome(&run.with(&["--eval-every", "10"]).succeeds())
    };
    let expected = with(&place.train, &place.valid);
    let cases = [("headlong", ["a.hld", "b.hld"]), ("parquet", ["a.parquet", "b.parquet"])];
    for (format, names) in cases {
        let data = Files::of(&place, format, names, &[]);
        assert_eq!(with(&data.train, &data.valid), expected, "{format}");
    }
}

const ORDERS: [&[&str]; 4] = [
    &[],
    &["--set", "data.order=batches", "--set", "data.order_seed=5"],
    &["--set", "data.order=samples", "--set", "data.order_window=500"],
    &["--set", "data.order=samples", "--set", "data.order_window=500", "--cache-data", "host"],
];

#[test]
fn a_run_that_stopped_resumes_bit_for_bit_in_every_order() {
    let place = Place::new("rows.txt");
    let data = Files::of(&place, "headlong", ["a.hld", "b.hld"], &[]);
    let mut digests = Vec::new();
    for (index, order) in ORDERS.into_iter().enumerate() {
        let whole = train(&place, &data.train, &data.valid, order);
        let expected = whole.succeeds().digest();
        let checkpoints = place.path(&format!("checkpoints-{index}"));
        let part = whole.clone().path("--checkpoint-dir", &checkpoints);
        // In the first epoch, at its end, in the second.
        for (steps, resume) in [("5", &[][..]), ("24", &["--resume"]), ("31", &["--resume"])] {
            part.clone().with(resume).with(&["--steps", steps]).succeeds();
        }
        assert_eq!(part.with(&["--resume"]).succeeds().digest(), expected, "{order:?}");
        digests.push(expected);
    }
    assert_eq!(
        digests[2], digests[3],
        "samples from memory come in the order of those from the disk"
    );
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), 3, "orders differ");
}

#[test]
fn a_run_does_not_go_on_in_another_order() {
    let place = Place::new("rows.txt");
    let data = Files::of(&place, "headlong", ["a.hld", "b.hld"], &[]);
    let checkpoints = place.path("checkpoints");
    let run = train(&place, &data.train, &data.valid, &[]).path("--checkpoint-dir", &checkpoints);
    run.clone().with(&["--steps", "5", "--set", "data.order=batches"]).succeeds();
    let words = ["\"batches of 64 samples, seed 1\"", "\"sequential\"", "data.order"];
    run.clone().with(&["--resume"]).fails(2, &words);
    run.with(&["--resume", "--set", "data.order=batches", "--set", "data.order_seed=2"])
        .fails(2, &["seed 2"]);
}

#[test]
fn ranks_train_the_same_on_binary_data() {
    let place = Place::new("rows.txt");
    let data = Files::of(&place, "headlong", ["a.hld", "b.hld"], &[]);
    let ranks = |data: &Path, valid: &Path| {
        train(&place, data, valid, &["--ranks", "2", "--set", "train.sum_blocks=2"])
            .succeeds()
            .digest()
    };
    assert_eq!(ranks(&data.train, &data.valid), ranks(&place.train, &place.valid));
}

#[test]
fn a_checkpoint_predicts_on_another_format_what_it_predicts_on_text() {
    let place = Place::new("rows.txt");
    let data = Files::of(&place, "headlong", ["a.hld", "b.hld"], &[]);
    let checkpoints = place.path("checkpoints");
    train(&place, &data.train, &data.valid, &[]).path("--checkpoint-dir", &checkpoints).succeeds();
    let log = place.path("log.json");
    let eval = |data: &Path| {
        let run = Run::new("eval").path("--checkpoint", &checkpoints).path("--data", data);
        let answer: serde_json::Value =
            serde_json::from_str(&run.with(&["--json"]).succeeds().stdout).unwrap();
        answer["logloss"].as_f64().unwrap().to_bits()
    };
    assert_eq!(eval(&data.valid), eval(&place.valid));
    train(&place, &data.train, &data.valid, &["--steps", "20"]).path("--log-json", &log).succeeds();
    let share = last_event(&log, "step")["data_wait_share"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&share));
    assert_eq!(last_event(&log, "start")["data"]["train_rows"], 1500);
}

#[test]
fn columns_that_differ_are_refused_with_the_key_to_set() {
    let place = Place::new("rows.txt");
    let data = Files::of(&place, "headlong", ["a.hld", "b.hld"], &["--dense-transform", "ln(x+3)"]);
    let refused = |more: &[&str], code: i32, words: &[&str]| {
        place.train_without_data().path("--data", &data.train).with(more).fails(code, words);
    };
    refused(&[], 1, &["gone through ln(x+3)", "data.dense_transform"]);
    refused(
        &["--set", "data.num_sparse=25"],
        2,
        &["data.num_sparse", "25 columns, but the data has 26"],
    );
    refused(
        &["--set", "data.num_dense=12"],
        2,
        &["data.num_dense", "12 columns, but the data has 13"],
    );
    refused(&["--on-bad-row", "skip"], 2, &["data.on_bad_row", "the data is headlong"]);
    let admitted = ["--set", "data.dense_transform=ln(x+3)", "--set", "data.ids=admitted"];
    refused(&admitted, 2, &["data.ids = \"admitted\"", "hash"]);
    let shuffled = place.train().with(&["--set", "data.order=samples"]);
    shuffled.fails(2, &["data.order", "data.cache = \"host\"", "--to headlong"]);
}

/// Samples of three columns with one, three and five ids, as HugeCTR's records.
fn write_multi_hot(path: &Path, count: usize, seed: u64) {
    use headlong_reader::DenseTransform;
    use headlong_reader::formats::Sink;
    use headlong_reader::formats::records::RecordLayout;
    use headlong_reader::hashing::fmix64;
    use headlong_reader::samples::{DenseKind, DenseValues, Samples};
    let hotness = [1, 3, 5];
    let layout =
        RecordLayout::raw(false, 2, DenseKind::Transformed(DenseTransform::LnPlus1), &hotness)
            .unwrap();
    let mut samples = Samples::default();
    samples.clear(&layout.schema);
    samples.num_samples = count;
    let random = |row: usize, column: u64| fmix64(seed ^ ((row as u64) << 8 | column)) >> 33;
    samples.labels.extend((0..count).map(|row| (random(row, 0) % 2) as f32));
    let dense =
        (0..2 * count).map(|index| (random(index / 2, 1 + index as u64 % 2) % 100) as f32 / 25.0);
    samples.dense = DenseValues::Numbers(dense.collect());
    for (column, (bags, hotness)) in samples.sparse.iter_mut().zip(hotness).enumerate() {
        let ids = (0..count).flat_map(|row| {
            (0..u64::from(hotness))
                .map(move |index| random(row, 10 + 10 * column as u64 + index) % 500)
        });
        bags.ids.extend(ids);
    }
    let mut sink = Box::new(layout.create(path).unwrap());
    sink.write(&samples).unwrap();
    sink.finish().unwrap();
}

#[test]
fn samples_of_several_ids_train_alike_from_every_format_and_go_on() {
    let place = Place::new("rows.txt");
    let [raw, valid] = ["a.raw", "b.raw"].map(|name| place.path(name));
    write_multi_hot(&raw, 1500, 1);
    write_multi_hot(&valid, 300, 2);
    let columns = ["--set", "data.num_dense=2", "--set", "data.num_sparse=3"];
    let said = ["--set", "data.format=raw", "--set", "data.hotness=[1,3,5]"];
    let expected = train(&place, &raw, &valid, &columns).with(&said).succeeds();
    let conversion = ["--from", "raw", "--num-dense", "2", "--hotness", "1,3,5"];
    for (to, names) in
        [("headlong", ["a.hld", "b.hld"]), ("npy", ["a", "b"]), ("parquet", ["a.pq", "b.pq"])]
    {
        let [data, valid] = [(&raw, names[0]), (&valid, names[1])]
            .map(|(from, name)| convert(&place, from, to, name, &conversion));
        // These say themselves how many ids there are.
        let found = train(&place, &data, &valid, &columns).succeeds();
        assert_eq!(outcome(&found), outcome(&expected), "{to}");
    }
    let checkpoints = place.path("checkpoints");
    let data = place.path("a.hld");
    let order =
        [&columns[..], &["--set", "data.order=samples", "--set", "data.order_window=300"]].concat();
    let whole = train(&place, &data, &place.path("b.hld"), &order);
    let part = whole.clone().path("--checkpoint-dir", &checkpoints);
    part.clone().with(&["--steps", "29"]).succeeds();
    assert_eq!(part.with(&["--resume"]).succeeds().digest(), whole.succeeds().digest());
    // Another number than the file has.
    let wrong = train(&place, &data, &place.path("b.hld"), &columns);
    wrong
        .with(&["--set", "data.hotness=[1,3,4]"])
        .fails(2, &["data.hotness", "column C3: expected 4 ids a sample, the data has 5"]);
}
