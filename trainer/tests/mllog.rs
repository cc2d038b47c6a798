//! `--mllog`: logs of whole runs against the rules of MLPerf's compliance checker, written down here once more; and against that checker
//! itself, where it is installed.

#![cfg(test)]

mod run_support;

use headlong::config::Config;
use headlong::mllog::{MlLog, Place};
use headlong::preset::preset;
use run_support::{Place as Folder, names};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Lines of a log.
fn lines(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap();
    let parse = |line: &str| serde_json::from_str(line.strip_prefix(":::MLLOG ").unwrap()).unwrap();
    text.lines().map(parse).collect()
}

/// Keys that every log has once, by the common rules of both rounds.
const ONCE: [&str; 15] = [
    "submission_benchmark",
    "submission_org",
    "submission_platform",
    "submission_division",
    "submission_status",
    "init_stop",
    "run_start",
    "run_stop",
    "train_samples",
    "eval_samples",
    "global_batch_size",
    "opt_base_learning_rate",
    "opt_learning_rate_warmup_steps",
    "seed",
    "opt_name",
];
/// Keys of the first model alone, and of the second alone.
const FIRST: [&str; 4] = [
    "lr_decay_start_steps",
    "sgd_opt_base_learning_rate",
    "sgd_opt_learning_rate_decay_poly_power",
    "sgd_opt_learning_rate_decay_steps",
];
const SECOND: [&str; 6] = [
    "opt_adagrad_learning_rate_decay",
    "opt_weight_decay",
    "opt_adagrad_initial_accumulator_value",
    "opt_adagrad_epsilon",
    "opt_learning_rate_decay_start_step",
    "opt_learning_rate_decay_steps",
];

/// What the rules find wrong.
fn violations(lines: &[Value]) -> Vec<String> {
    let mut found = Vec::new();
    let mut count = BTreeMap::<&str, usize>::new();
    for line in lines {
        *count.entry(line["key"].as_str().unwrap()).or_default() += 1;
        let whole = line["time_ms"].is_u64()
            && line["metadata"]["file"].is_string()
            && line["metadata"]["lineno"].is_u64();
        let kind = line["event_type"].as_str().unwrap();
        if !whole || !["INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"].contains(&kind) {
            found.push(format!("a line without its fields: {line}"));
        }
    }
    let is_first = lines.iter().any(|line| line["key"] == "submission_benchmark" && line["value"] == "dlrm");
    let of_model = if is_first { &FIRST[..] } else { &SECOND[..] };
    for key in ONCE.iter().chain(of_model) {
        if count.get(key) != Some(&1) {
            found.push(format!("{key}: {:?} times", count.get(key)));
        }
    }
    for key in ["cache_clear", "init_start", "block_start", "block_stop", "eval_start", "eval_accuracy"] {
        if !count.contains_key(key) {
            found.push(format!("no {key}"));
        }
    }
    for pair in [["block_start", "block_stop"], ["eval_start", "eval_stop"], ["eval_start", "eval_accuracy"]]
    {
        if count.get(pair[0]) != count.get(pair[1]) {
            found.push(format!("{pair:?}: not as many of one as of the other"));
        }
    }
    found.extend(out_of_order(lines));
    found
}

/// Intervals that do not nest, times that run backwards, numbers that are missing.
fn out_of_order(lines: &[Value]) -> Vec<String> {
    let mut found = Vec::new();
    let position = |key: &str| lines.iter().position(|line| line["key"] == key);
    let order = [
        "cache_clear",
        "init_start",
        "init_stop",
        "run_start",
        "block_start",
        "eval_start",
        "eval_stop",
        "run_stop",
    ];
    if !order.map(position).is_sorted() {
        found.push(format!("{order:?} come at {:?}", order.map(position)));
    }
    if !lines.iter().map(|line| line["time_ms"].as_u64()).is_sorted() {
        found.push("times run backwards".to_owned());
    }
    let (mut in_block, mut evaluating, mut last) = (false, None, 0.0);
    for line in lines {
        let epoch = line["metadata"]["epoch_num"].as_f64();
        let right = match line["key"].as_str().unwrap() {
            "block_start" => {
                let wrong = std::mem::replace(&mut in_block, true);
                !wrong && line["metadata"]["epoch_count"].as_f64().is_some_and(|count| count > 0.0)
            }
            "block_stop" => {
                std::mem::replace(&mut in_block, false) && line["metadata"]["first_epoch_num"].is_f64()
            }
            "eval_start" => {
                !in_block && evaluating.is_none() && {
                    evaluating = epoch;
                    epoch >= Some(last)
                }
            }
            "eval_stop" => epoch.is_some() && evaluating == epoch,
            "eval_accuracy" => {
                last = epoch.unwrap_or(0.0);
                evaluating.take() == epoch && line["value"].is_f64()
            }
            "run_stop" => evaluating.is_none() && line["metadata"]["status"].is_string(),
            _ => true,
        };
        if !right {
            found.push(format!("out of place: {line}"));
        }
    }
    found
}

/// The published checker, where `pip install mlperf-logging` has put it for the `python3` of the path.
fn published_checker(log: &Path, ruleset: &str) {
    let has = Command::new("python3").args(["-c", "import mlperf_logging"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        println!("skipped: python3 has no mlperf_logging (pip install mlperf-logging)");
        return;
    }
    let mut checker = Command::new("python3");
    checker.args(["-m", "mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", ruleset]);
    // Its own log goes beside ours, not into the folder of the tests.
    let output = checker
        .args(["--log_output", log.with_extension("checked").to_str().unwrap()])
        .arg(log)
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("SUCCESS"), "{text}");
    println!("{ruleset}: the published checker is content");
}

/// A run that reaches its target: at the fraction that the rules name, with the status that they name.
#[test]
fn a_run_to_its_target_keeps_the_rules() {
    let place = Folder::new("rows.txt");
    let log = place.path("mlperf.log");
    let train = place.train().path("--valid", &place.valid).path("--mllog", &log);
    let train = train.with(&["--epochs", "3", "--eval-every", "0.5", "--set", "mlperf.org=nobody"]);
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
    let epochs: Vec<_> = epochs.map(|line| line["metadata"]["epoch_num"].as_f64().unwrap()).collect();
    assert_eq!(epochs[..6], [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]);
}

/// The log of a run that was interrupted, and then went on from an earlier checkpoint still, is that of one run.
#[test]
fn a_log_goes_on_with_its_run() {
    let place = Folder::new("rows.txt");
    let train = place.train().path("--valid", &place.valid).with(&["--epochs", "3", "--eval-every", "0.5"]);
    let (whole, parts) = (place.path("whole.log"), place.path("parts.log"));
    // As one that saves the best, it waits for its evaluations.
    train.clone().path("--mllog", &whole).with(&["--set", "eval.asynchronous=false"]).succeeds();
    let what = |log: &Path| -> Vec<(Value, Value, Value)> {
        let lines = lines(log).into_iter().filter(|line| line["key"] != "tracked_stats");
        lines
            .map(|line| (line["key"].clone(), line["value"].clone(), line["metadata"]["step"].clone()))
            .collect()
    };
    let checkpoints = place.path("checkpoints");
    let saving =
        train.path("--checkpoint-dir", &checkpoints).path("--mllog", &parts).with(&["--save-every", "13"]);
    saving.clone().succeeds();
    // As if it had been killed at its end: only earlier checkpoints are left, and half a line.
    let done = names(&checkpoints).into_iter().filter(|name| name.starts_with("step-")).max().unwrap();
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
        let is_free =
            ["weights_initialization", "tracked_stats", "gradient_accumulation_steps"].contains(&key);
        assert!(is_free || !violations(&fewer).is_empty(), "{gone} may be left out");
    }
    let mut swapped = whole.clone();
    let last = swapped.len() - 1;
    swapped.swap(last, last - 1);
    assert!(!violations(&swapped).is_empty());
}

/// A pretended run of the closed division, at full size: the published rules of both models hold for its settings.
fn pretended(name: &str, auc: f64, rules: &str) {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("result_0.txt");
    let Ok(mut config) = preset(name) else {
        println!("skipped: this build has no preset {name}");
        return;
    };
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
