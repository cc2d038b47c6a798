//! `--mllog`: logs of whole runs against the rules of MLPerf's compliance checker.

#![cfg(test)]

use crate::mllog_rules::{lines, published_checker, violations};
use crate::run_support::{Place as Folder, names};
use headlong::config::Config;
use headlong::config::preset::preset;
use headlong::report::mllog::{MlLog, Place};
use serde_json::Value;
use std::path::Path;

/// A run that reaches its target: at the fraction that the rules name, with the status that they
/// name.
#[test]
fn a_run_to_its_target_keeps_the_rules() {
    let place = Folder::new("rows.txt");
    let log = place.path("mlperf.log");
    let train = place.train().path("--valid", &place.valid).path("--mllog", &log);
    let train = train.with(&["--epochs", "3", "--eval-every", "0.5", "--set", "mlperf.org=none"]);
    train.clone().with(&["--target-auc", "0.4"]).succeeds();
    let first = lines(&log);
    assert_eq!(violations(&first), [] as [&str; 0]);
    assert_eq!(first.last().unwrap()["metadata"]["status"], "success");
    let evaluated: Vec<_> = first.iter().filter(|line| line["key"] == "eval_accuracy").collect();
    assert_eq!(evaluated.len(), 1, "the run went on");
    // 1,500 rows, half of them in batches of 64, rounded down: step 11.
    assert_eq!(
        (&evaluated[0]["metadata"]["epoch_num"], &evaluated[0]["metadata"]["step"]),
        (&0.5.into(), &11.into())
    );
    published_checker(&log, "2.1.0");

    train.with(&["--target-auc", "0.99", "--ranks", "2"]).succeeds();
    let missed = lines(&log);
    assert_eq!(violations(&missed), [] as [&str; 0]);
    assert_eq!(missed.last().unwrap()["metadata"]["status"], "aborted");
    let epochs = missed.iter().filter(|line| line["key"] == "eval_accuracy");
    let epochs: Vec<_> =
        epochs.map(|line| line["metadata"]["epoch_num"].as_f64().unwrap()).collect();
    assert_eq!(epochs[..6], [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]);
}

/// The log of a run that was interrupted, and then went on from an earlier checkpoint still, is
/// that of one run.
#[test]
fn a_log_continues_with_its_run() {
    let place = Folder::new("rows.txt");
    let train =
        place.train().path("--valid", &place.valid).with(&["--epochs", "3", "--eval-every", "0.5"]);
    let (whole, parts) = (place.path("whole.log"), place.path("parts.log"));
    // As one that saves the best, it waits for its evaluations.
    train.clone().path("--mllog", &whole).with(&["--set", "eval.asynchronous=false"]).succeeds();
    let what = |log: &Path| -> Vec<(Value, Value, Value)> {
        let lines = lines(log).into_iter().filter(|line| line["key"] != "tracked_stats");
        lines
            .map(|line| {
                (line["key"].clone(), line["value"].clone(), line["metadata"]["step"].clone())
            })
            .collect()
    };
    let checkpoints = place.path("checkpoints");
    let saving = train
        .path("--checkpoint-dir", &checkpoints)
        .path("--mllog", &parts)
        .with(&["--save-every", "13"]);
    saving.clone().succeeds();
    // As if it had been killed at its end: only earlier checkpoints are left, and half a line.
    let done =
        names(&checkpoints).into_iter().filter(|name| name.starts_with("step-")).max().unwrap();
    std::fs::remove_dir_all(checkpoints.join(done)).unwrap();
    let text = std::fs::read_to_string(&parts).unwrap();
    std::fs::write(&parts, text + ":::MLLOG {\"key\": \"eval_st").unwrap();
    saving.with(&["--resume"]).succeeds();
    assert_eq!(what(&parts), what(&whole));
    assert_eq!(violations(&lines(&parts)), [] as [&str; 0]);
    published_checker(&parts, "2.1.0");

    std::fs::write(&parts, "not a log\n").unwrap();
    let refused = place
        .train()
        .path("--mllog", &parts)
        .path("--checkpoint-dir", &checkpoints)
        .with(&["--resume", "--epochs", "9"]);
    refused.fails(2, &["parts.log:1: not a line of an MLPerf log"]);
}

/// Each rule finds a log that breaks it.
#[test]
fn the_rules_find_what_is_wrong() {
    let place = Folder::new("rows.txt");
    let log = place.path("mlperf.log");
    let train = place.train().path("--valid", &place.valid).path("--mllog", &log);
    train.with(&["--epochs", "1", "--eval-every", "0.5"]).succeeds();
    let whole = lines(&log);
    for index in 0..whole.len() {
        let mut fewer = whole.clone();
        let gone = fewer.remove(index);
        let key = gone["key"].as_str().unwrap();
        // Of these a log may have any number, or none.
        let is_free = ["weights_initialization", "tracked_stats", "gradient_accumulation_steps"]
            .contains(&key);
        assert!(is_free || !violations(&fewer).is_empty(), "{gone} may be left out");
    }
    let mut swapped = whole.clone();
    let last = swapped.len() - 1;
    swapped.swap(last, last - 1);
    assert!(!violations(&swapped).is_empty());
}

/// A pretended run of the closed division, at full size: the published rules of both models hold
/// for its settings.
fn pretended(name: &str, auc: f64, rules: &str) {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("result_0.txt");
    let mut config = preset(name).unwrap();
    config.mlperf.division = "closed".to_owned();
    config.mlperf.status = "onprem".to_owned();
    write_run(&config, &log, auc);
    assert_eq!(violations(&lines(&log)), [] as [&str; 0]);
    published_checker(&log, rules);
}

fn write_run(config: &Config, log: &Path, auc: f64) {
    let mut log = MlLog::open(log, config, None).unwrap();
    log.begin(config, 4_195_197_692, Some(89_137_319)).unwrap();
    let per_block = 4_195_197_692 / (config.train.batch_size as u64 * 20);
    let at = |block: u64| Place { step: block * per_block, epoch: block as f64 * 0.05 };
    for block in 1..=2 {
        log.train(at(block - 1), 0.05).unwrap();
        log.eval_start(at(block)).unwrap();
        log.eval_stop(at(block), Some(auc), 89_137_319, 1e6).unwrap();
    }
    log.stop(at(2), true).unwrap();
}

#[test]
fn full_runs_of_both_models_keep_the_closed_rules() {
    pretended("criteo-terabyte-dlrm", 0.8026, "2.1.0");
    pretended("criteo-terabyte-dcnv2", 0.8028, "6.0.0");
}
