//! Several ids a sample, made of one: while it is read, and written to a file before.

#![cfg(test)]

use crate::run_support::{Place, Run, last_event};
use std::path::Path;

/// Ids a sample of the 26 columns.
const SIZES: &str = "3,2,1,2,6,1,1,1,1,7,3,8,1,6,9,5,1,1,1,2,10,7,4,3,1,1";

fn train(place: &Place, data: &Path, valid: &Path) -> Run {
    let run = Run::new("train")
        .path("--data", data)
        .path("--valid", valid)
        .path("--output-dir", &place.path("output"));
    run.with(&["--set", "model.dim=8", "--set", "model.bottom=[16,8]", "--set", "model.top=[16,1]"])
        .with(&[
            "--set",
            "model.interaction=cross",
            "--set",
            "model.cross_rank=8",
            "--set",
            "tables.rows=1000",
            "--set",
            "train.batch_size=64",
            "--set",
            "data.ids=modulo",
            "--threads",
            "1",
        ])
}

fn generated(run: Run, distribution: &str) -> Run {
    run.with(&["--set", &format!("multi_hot.sizes=[{SIZES}]")])
        .with(&["--set", &format!("multi_hot.distribution={distribution}")])
}

/// Writes `from` as multi-hot data of `format`.
fn written(
    place: &Place,
    from: &Path,
    format: &str,
    distribution: &str,
    name: &str,
) -> std::path::PathBuf {
    let output = place.path(name);
    let run =
        Run::new("data").with(&["multi-hot", "--to", format, "--rows", "1000", "--sizes", SIZES]);
    let run = run.with(&["--distribution", distribution, "--dense-transform", "ln(x+1)"]);
    run.path("--data", from).path("--output", &output).succeeds();
    output
}

/// The same weights and the same evaluation, whether ids are made while text is read or were
/// written before.
#[test]
fn ids_that_are_made_are_those_that_are_written() {
    let place = Place::new("rows.txt");
    for (distribution, format) in [("uniform", "headlong"), ("pareto", "raw")] {
        let log = place.path("log");
        let outcome = |run: Run| {
            let digest = run.path("--log-json", &log).succeeds().digest();
            let eval = last_event(&log, "eval");
            std::fs::remove_file(&log).unwrap();
            (digest, eval["auc"].clone(), eval["logloss"].clone())
        };
        let made = outcome(generated(train(&place, &place.train, &place.valid), distribution));
        let train_file = written(&place, &place.train, format, distribution, "train.bin");
        let valid_file = written(&place, &place.valid, format, distribution, "valid.bin");
        let read = train(&place, &train_file, &valid_file);
        let hotness = format!("data.hotness=[{SIZES}]");
        let format = format!("data.format={format}");
        let read = read.with(&["--set", &format, "--set", &hotness]);
        assert_eq!(outcome(read.clone()), made, "{distribution}");
        // What is multi-hot already stays as it is.
        assert_eq!(outcome(generated(read, distribution)), made, "{distribution}");
        let one_hot = outcome(train(&place, &place.train, &place.valid));
        assert_ne!(one_hot, made);
    }
}

/// Resumed, predicted on four ranks and on one: the checkpoint knows how ids were made.
#[test]
fn a_run_with_made_ids_is_resumed_and_applied() {
    let place = Place::new("rows.txt");
    let run = generated(train(&place, &place.train, &place.valid), "uniform")
        .with(&["--set", "sum_blocks=4"]);
    let expected = run.clone().succeeds().digest();
    let saved = place.path("saved");
    let half = run.clone().with(&["--ranks", "4", "--set", "train.steps=9"]);
    half.path("--checkpoint-dir", &saved).succeeds();
    let other = run.clone().with(&["--resume", "--set", "multi_hot.seed=1"]);
    other
        .path("--checkpoint-dir", &saved)
        .fails(1, &["multi-hot uniform, seed 1", "multi-hot uniform, seed 0"]);
    let log = place.path("log");
    let resumed = run
        .with(&["--resume", "--ranks", "2"])
        .path("--checkpoint-dir", &saved)
        .path("--log-json", &log);
    assert_eq!(resumed.succeeds().digest(), expected);
    let json = place.path("eval.json");
    let eval = Run::new("eval").path("--checkpoint", &saved).path("--data", &place.valid);
    eval.path("--json-file", &json).with(&["--which", "newest"]).succeeds();
    let text = std::fs::read_to_string(&json).unwrap();
    let applied: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(applied["auc"], last_event(&log, "eval")["auc"]);
}

#[test]
fn sizes_that_do_not_fit_are_refused_by_name() {
    let place = Place::new("rows.txt");
    let run = train(&place, &place.train, &place.valid);
    run.clone()
        .with(&["--set", "multi_hot.sizes=[1,2]"])
        .fails(2, &["multi_hot.sizes", "expected 26 counts"]);
    run.with(&["--set", "multi_hot.sizes=kaggle"])
        .fails(2, &["multi_hot.sizes", "\"mlperf\"", "kaggle"]);
    let data =
        Run::new("data").with(&["multi-hot", "--to", "headlong"]).path("--data", &place.train);
    data.path("--output", &place.path("out")).fails(2, &["--rows"]);
    // What the format cannot hold is refused before anything is drawn, which would be said.
    let criteo = Run::new("data").with(&["multi-hot", "--to", "criteo", "--rows", "1000"]);
    let criteo = criteo.path("--data", &place.train).path("--output", &place.path("out"));
    let refused = criteo.fails(2, &["criteo: it has one id a sample in every column"]);
    assert!(!refused.stderr.contains("of memory for what is drawn"), "{}", refused.stderr);
}

/// Where all data is multi-hot already, nothing is drawn, and no memory planned for it.
#[test]
fn data_that_is_multi_hot_already_draws_nothing() {
    let place = Place::new("rows.txt");
    let train_file = written(&place, &place.train, "headlong", "uniform", "train.bin");
    let planned = |valid: &Path| {
        let sizes = format!("multi_hot.sizes=[{SIZES}]");
        let run = Run::new("plan")
            .path("--data", &train_file)
            .path("--valid", valid)
            .with(&["--set", &sizes]);
        let run = run.with(&["--set", "data.ids=modulo", "--set", "tables.rows=1000"]);
        run.with(&["--set", &format!("data.hotness=[{SIZES}]"), "--json"])
    };
    let reader_bytes = |run: Run| {
        let plan: serde_json::Value = serde_json::from_str(&run.succeeds().stdout).unwrap();
        plan["memory"]["reader_bytes"].as_u64().unwrap()
    };
    let drawn =
        SIZES.split(',').map(|size| 4 * 1000 * (size.parse::<u64>().unwrap() - 1)).sum::<u64>();
    // Small validation data stays in memory, and is counted, too: text as it lies in its file,
    // other formats decoded, the dense numbers and the label of a sample in 4 bytes each, ids in 8.
    let text_bytes = std::fs::metadata(&place.valid).unwrap().len();
    let ids = SIZES.split(',').map(|size| size.parse::<u64>().unwrap()).sum::<u64>();
    let samples = std::fs::read_to_string(&place.train).unwrap().lines().count() as u64;
    let of_text = reader_bytes(planned(&place.valid)) - text_bytes;
    let of_bags = reader_bytes(planned(&train_file)) - samples * (4 * 14 + 8 * ids);
    assert_eq!(of_text - of_bags, drawn);
}

/// A bound on what is drawn: the same weights and the same file, by less memory, which the plan
/// counts.
#[test]
fn a_bound_on_memory_changes_no_id() {
    let place = Place::new("rows.txt");
    let run = generated(train(&place, &place.train, &place.valid), "uniform");
    let run = run.with(&["--set", "tables.rows=20000"]);
    let bounded = run.clone().with(&["--set", "multi_hot.memory_mib=1"]);
    assert_eq!(bounded.succeeds().digest(), run.succeeds().digest());
    let written = |name: &str, memory: &[&str]| {
        let output = place.path(name);
        let run = Run::new("data").with(&[
            "multi-hot",
            "--to",
            "raw",
            "--rows",
            "20000",
            "--sizes",
            SIZES,
        ]);
        let run = run.with(&["--dense-transform", "ln(x+1)"]).with(memory);
        run.path("--data", &place.train).path("--output", &output).succeeds();
        std::fs::read(output).unwrap()
    };
    assert!(written("bounded", &["--memory-mib", "1"]) == written("all", &["--memory-mib", "0"]));
}

/// What is more than any machine has is refused before it is drawn, by the name of what bounds it.
#[test]
fn draws_that_do_not_fit_are_refused_by_name() {
    let place = Place::new("rows.txt");
    let data = Run::new("data").with(&[
        "multi-hot",
        "--to",
        "raw",
        "--rows",
        "4000000000",
        "--sizes",
        SIZES,
    ]);
    let data = data.path("--data", &place.train).path("--output", &place.path("out"));
    let refused = data
        .clone()
        .with(&["--memory-mib", "0"])
        .fails(2, &["--memory-mib", "bounds what is drawn"]);
    assert!(!place.path("out").exists(), "{}", refused.stderr);
    // As much as can be said is no bound, not one of nothing.
    data.with(&["--memory-gib", "18446744073709551615"]).fails(2, &["--memory-mib"]);
}
