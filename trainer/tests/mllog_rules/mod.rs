//! The rules of MLPerf's compliance checker, written down once more, and that checker itself, where
//! it is installed.

#![allow(dead_code, reason = "each test binary uses its own part")]

use crate::python_support::python;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Lines of a log.
pub fn lines(log: &Path) -> Vec<Value> {
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
pub fn violations(lines: &[Value]) -> Vec<String> {
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
    let is_first =
        lines.iter().any(|line| line["key"] == "submission_benchmark" && line["value"] == "dlrm");
    let of_model = if is_first { &FIRST[..] } else { &SECOND[..] };
    for key in ONCE.iter().chain(of_model) {
        if count.get(key) != Some(&1) {
            found.push(format!("{key}: {:?} times", count.get(key)));
        }
    }
    for key in
        ["cache_clear", "init_start", "block_start", "block_stop", "eval_start", "eval_accuracy"]
    {
        if !count.contains_key(key) {
            found.push(format!("no {key}"));
        }
    }
    for pair in [
        ["block_start", "block_stop"],
        ["eval_start", "eval_stop"],
        ["eval_start", "eval_accuracy"],
    ] {
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
                std::mem::replace(&mut in_block, false)
                    && line["metadata"]["first_epoch_num"].is_f64()
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

/// The published checker, where a Python has it (`pip install mlperf-logging`).
pub fn published_checker(log: &Path, ruleset: &str) {
    let Some(python) = python(&["mlperf_logging"]) else { return };
    let mut checker = Command::new(python);
    checker.args([
        "-m",
        "mlperf_logging.compliance_checker",
        "--usage",
        "training",
        "--ruleset",
        ruleset,
    ]);
    // Its own log goes next to ours, not into the folder of the tests.
    let output = checker
        .args(["--log_output", log.with_extension("checked").to_str().unwrap()])
        .arg(log)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("SUCCESS"), "{text}");
    println!("{ruleset}: the published checker is content");
}
