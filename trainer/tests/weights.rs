//! Weights of samples, from the column to the metrics: what they change, and what they must not.

#![cfg(test)]

use crate::run_support::{Ended, Place, Run, events, last_event};
use headlong_device::cuda::testing::has_devices;
use serde_json::Value;
use std::path::{Path, PathBuf};

const CONFIG: &str = r#"
[data.columns]
label = "clicked"
weight = "often"
dense = ["price"]
categorical = ["user"]

[model]
dim = 4
bottom = [8, 4]
top = [8, 1]

[tables]
rows = [50]

[train]
batch_size = 60
epochs = 2
sum_blocks = 4
log_every = 1
"#;

const ROWS: u64 = 600;

fn clicked(row: u64) -> bool {
    row * row % 17 < 6 || row.is_multiple_of(9)
}

/// A few weights, 0 among them.
fn some(row: u64) -> &'static str {
    ["1", "0", "2.5", "0.25", "1e-2"][(row * 7 % 5) as usize]
}

/// Rows with weights, and labels.
fn csv(rows: u64, weight: impl Fn(u64) -> &'static str, label: impl Fn(u64) -> bool) -> String {
    let line = |row: u64| {
        let (label, user) = (u8::from(label(row)), row * 31 % 47);
        format!("{},{user},{label},{}.5\n", weight(row), row % 7)
    };
    format!("often,user,clicked,price\n{}", (0..rows).map(line).collect::<String>())
}

/// A folder with a configuration and data.
struct Files(Place);

impl Files {
    fn new() -> Self {
        let files = Self(Place::new("rows.txt"));
        files.write("weights.toml", CONFIG);
        files.write("data.csv", &csv(ROWS, some, clicked));
        files.write("valid.csv", &csv(200, some, |row| clicked(row + 3)));
        // The same without weights.
        let without = CONFIG.replace("weight = \"often\"", "ignored = [\"often\"]");
        files.write("plain.toml", &without);
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    fn train(&self, data: &str) -> Run {
        self.train_by("weights.toml", data, "valid.csv")
    }

    fn train_by(&self, config: &str, data: &str, valid: &str) -> Run {
        let run = Run::new("train").path("--config", &self.path(config));
        let run = run.path("--data", &self.path(data)).path("--valid", &self.path(valid));
        run.path("--output-dir", &self.path("out")).with(&["--threads", "1"])
    }

    fn convert(&self, format: &str, output: &str) -> Run {
        let run = Run::new("data").with(&["convert", "--to", format]);
        let run = run.path("--config", &self.path("weights.toml"));
        run.path("--data", &self.path("data.csv")).path("--output", &self.path(output))
    }
}

/// Digest of the weights, and the last evaluation.
fn outcome(run: &Run, log: &Path) -> (String, Value, Value, Value) {
    let digest = run.clone().path("--log-json", log).succeeds().digest();
    let eval = last_event(log, "eval");
    (digest, eval["auc"].clone(), eval["logloss"].clone(), eval["calibration_error"].clone())
}

#[test]
fn weights_of_one_are_no_weights_and_others_are_not() {
    let files = Files::new();
    files.write("ones.csv", &csv(ROWS, |row| ["1", "1.0"][row as usize % 2], clicked));
    files.write("valid.csv", &csv(200, |_| "1", |row| clicked(row + 3)));
    let log = files.path("log");
    let ones = outcome(&files.train("ones.csv"), &log);
    let none = outcome(&files.train_by("plain.toml", "ones.csv", "valid.csv"), &log);
    assert_eq!(ones, none);
    assert_ne!(ones.0, outcome(&files.train("data.csv"), &log).0);
}

#[test]
fn a_row_of_no_weight_teaches_and_counts_nothing_on_any_ranks() {
    let files = Files::new();
    let log = files.path("log");
    // What such a row's label is makes no difference, and nothing else is as it was.
    let other = |row: u64| clicked(row) != (some(row) == "0");
    files.write("other.csv", &csv(ROWS, some, other));
    let expected = outcome(&files.train("data.csv"), &log);
    assert_eq!(outcome(&files.train("other.csv"), &log), expected);
    files.write("heavier.csv", &csv(ROWS, |row| some(row).replace('0', "3").leak(), clicked));
    assert_ne!(outcome(&files.train("heavier.csv"), &log).0, expected.0);
    for ranks in [&["--ranks", "2"][..], &["--ranks", "4", "--schedule", "overlapped"]] {
        assert_eq!(outcome(&files.train("data.csv").with(ranks), &log), expected, "{ranks:?}");
    }
    // Processes, each of which reads its slice and sorts its scores.
    let processes = files.train("data.csv").with(&["--ranks", "2"]).launched(2);
    assert_eq!(outcome(&processes, &log), expected);
    let steps: Vec<Value> = events(&log).into_iter().filter(|at| at["event"] == "step").collect();
    assert_eq!(steps.len(), 20);
}

#[test]
fn a_resumed_run_keeps_its_weights_and_another_column_is_refused() {
    let files = Files::new();
    let expected = files.train("data.csv").succeeds().digest();
    let train = files.train("data.csv").path("--checkpoint-dir", &files.path("saved"));
    train.clone().with(&["--set", "train.steps=7"]).succeeds();
    let resume = train.with(&["--resume"]);
    let another = ["--set", "data.columns.weight=price", "--set", "data.columns.dense=['often']"];
    resume.clone().with(&another).fails(2, &["data.columns.weight = \"price\"", "\"often\""]);
    assert_eq!(resume.succeeds().digest(), expected);
}

#[test]
fn metrics_are_weighted_and_rows_to_predict_need_no_weights() {
    let files = Files::new();
    let saved = files.path("saved");
    files.train("data.csv").path("--checkpoint-dir", &saved).succeeds();
    let on = |command: &str| Run::new(command).path("--checkpoint", &saved);
    let valid = files.path("valid.csv");
    let predict =
        |data: &Path| on("predict").path("--data", data).with(&["--output", "-"]).succeeds().stdout;
    let predicted = predict(&valid);
    let rows: Vec<String> = std::fs::read_to_string(&valid)
        .unwrap()
        .lines()
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            format!("{},{}\n", fields[1], fields[3])
        })
        .collect();
    assert_eq!(predict(&files.write("bare.csv", &rows.concat())), predicted);
    let logits = predicted.lines().skip(1).map(|line| line.split(',').nth(2).unwrap().to_owned());
    let (mut loss, mut sum, mut clicks) = (0.0, 0.0, 0.0);
    for (row, logit) in (0..).zip(logits) {
        let (z, weight): (f64, f64) = (logit.parse().unwrap(), some(row).parse().unwrap());
        let label = f64::from(u8::from(clicked(row + 3)));
        loss += weight * (z.exp().ln_1p() - label * z);
        (sum, clicks) = (sum + weight, clicks + weight * label);
    }
    let eval = |arguments: &[&str]| on("eval").path("--data", &valid).with(arguments).succeeds();
    let found: Value = serde_json::from_str(&eval(&["--json", "--by", "user"]).stdout).unwrap();
    for (name, expected) in [("logloss", loss / sum), ("base_rate", clicks / sum)] {
        // Weights are f32.
        let off = found[name].as_f64().unwrap() - expected;
        assert!(off.abs() < 1e-6, "{name}: {found}, expected {expected}");
    }
    assert_eq!(found["eval_samples"], 160);
    let tenths = found["tenths"].as_array().unwrap().iter();
    assert_eq!(tenths.map(|tenth| tenth["samples"].as_u64().unwrap()).sum::<u64>(), 160);
    // What is evaluated needs them.
    let bare = files.write("labels.csv", "user,clicked,price\n1,0,2.5\n");
    on("eval").path("--data", &bare).fails(1, &["labels.csv", "expected a column `often`"]);
}

#[test]
fn weights_travel_where_they_can_and_nowhere_else() {
    let files = Files::new();
    let log = files.path("log");
    let expected = outcome(&files.train_by("weights.toml", "data.csv", "data.csv"), &log);
    for (format, name) in [("headlong", "a.hld"), ("parquet", "a.parquet"), ("csv", "b.csv")] {
        files.convert(format, name).succeeds();
        let train = files.train_by("weights.toml", name, name);
        assert_eq!(outcome(&train, &log), expected, "{format}");
        if format == "csv" {
            // It says nothing of itself.
            continue;
        }
        let words = ["data.columns.weight", "expected weights: none, the data has", "`often`"];
        files.train_by("plain.toml", name, name).fails(2, &words);
    }
    files.convert("npy", "day_0").fails(2, &["npy cannot hold the weights", "`often`"]);
    files
        .train("data.csv")
        .with(&["--data-format", "raw"])
        .fails(2, &["data.columns.weight", "column `often`", "the data is raw"]);
}

#[test]
fn bad_weights_are_named_or_skipped() {
    let files = Files::new();
    let good = csv(ROWS, some, clicked);
    for bad in ["-1", "nan", "inf", "1e39", "", "heavy"] {
        let line = format!("{bad},3,1,2.5\n");
        let data = good.replacen("price\n", &format!("price\n{line}"), 1);
        files.write("bad.csv", &data);
        let words = format!(
            "column `often` (weight): expected a finite number that is 0 or more, \
                             found \"{bad}\""
        );
        files.train("bad.csv").fails(1, &["bad.csv: line 2", &words]);
    }
    let expected = files.train("data.csv").succeeds().digest();
    let skipping = files.train("bad.csv").with(&["--on-bad-row", "skip"]).succeeds();
    assert!(skipping.stderr.contains("1 bad row"), "{}", skipping.stderr);
    assert_eq!(skipping.digest(), expected);
    let refused = |set: &[&str], words: &[&str]| {
        let sets: Vec<&str> = set.iter().flat_map(|set| ["--set", *set]).collect();
        files.train("data.csv").with(&sets).fails(2, words);
    };
    refused(&["data.columns.dense=['price','often']"], &["data.columns.weight", "`often`"]);
    refused(&["model.loss=mse"], &["model.loss", "data.columns.weight = \"often\""]);
    refused(&["data.columns.weight=clicked"], &["data.columns.label", "`clicked`"]);
    refused(&["data.columns.carry=['often']"], &["data.columns.carry", "`often`"]);
    refused(&["data.columns.group=often"], &["data.columns.group", "`often`"]);
    files.train("data.csv").with(&["--set", "data.columns.weight=offen"]).fails(1, &["`offen`"]);
}

#[test]
fn auto_takes_a_column_of_weights() {
    let files = Files::new();
    let auto = |arguments: &[&str]| {
        let run = Run::new("train").path("--data", &files.path("data.csv"));
        run.path("--output-dir", &files.path("out"))
            .with(&["--auto", "--label", "clicked"])
            .with(arguments)
    };
    let ended: Ended = auto(&["--weight", "often"]).succeeds();
    let kept = std::fs::read_to_string(files.path("out/auto.toml")).unwrap();
    let head = kept.lines().find(|line| line.starts_with("# often")).unwrap();
    assert!(head.contains("weight") && head.contains("asked for by --weight"), "{head}");
    assert!(kept.contains("\nweight = \"often\""), "{kept}");
    let config = headlong::config::Config::from_file(&files.path("out/auto.toml")).unwrap();
    let columns = &config.data.columns;
    let features = columns.dense.iter().chain(&columns.categorical);
    assert!(features.chain(&columns.ignored).all(|name| name != "often"), "{kept}");
    let again = Run::new("train").path("--config", &files.path("out/auto.toml"));
    let again = again.path("--output-dir", &files.path("out")).succeeds();
    assert_eq!(again.digest(), ended.digest());
    let tune = Run::new("tune").path("--data", &files.path("data.csv"));
    let tune = tune.with(&["--label", "clicked", "--weight", "often", "--trials", "2"]);
    tune.path("--output-dir", &files.path("tuned")).succeeds();
    auto(&["--weight", "clicked"]).fails(2, &["--weight", "is the label"]);
    auto(&["--weight", "oftn"]).fails(2, &["--weight", "no column `oftn`"]);
    files.write("data.csv", &csv(ROWS, |row| ["1", "-2"][row as usize % 2], clicked));
    auto(&["--weight", "often"]).fails(2, &["--weight", "0 or more, found -2"]);
    files.write("data.csv", &csv(ROWS, |_| "0", clicked));
    auto(&["--weight", "often"]).fails(2, &["--weight", "0 everywhere"]);
    files.write("data.csv", &csv(ROWS, |row| ["1", "x"][usize::from(row == 7)], clicked));
    auto(&["--weight", "often"]).fails(2, &["--weight", "0 or more, and 1 of"]);
    files.write("data.csv", &csv(ROWS, |_| "40", clicked));
    let many = auto(&["--weight", "often", "--dry-run"]).succeeds();
    let told = many.stdout + &many.stderr;
    assert!(told.contains("; 40.000 on"), "{told}");
}

/// On devices, with batches and their labels kept there, as on the processor.
#[test]
fn devices_weigh_as_the_processor_does() {
    if !has_devices(2) {
        return;
    }
    let files = Files::new();
    let log = files.path("log");
    let train = files.train("data.csv").with(&["--optimizer", "sgd", "--eval-every", "10"]);
    let found = |run: &[&str]| -> Vec<f64> {
        train.clone().path("--log-json", &log).with(run).succeeds();
        let all = events(&log).into_iter();
        let of = |event: Value| event["loss"].as_f64().or(event["logloss"].as_f64());
        all.filter(|event| event["event"] == "step" || event["event"] == "eval")
            .filter_map(of)
            .collect()
    };
    let expected = found(&["--device", "cpu"]);
    assert!(expected.len() > 20, "{expected:?}");
    let found = found(&["--device", "cuda", "--ranks", "2", "--cache-data", "device"]);
    let pairs = expected.iter().zip(&found);
    let off = pairs.map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
    assert!(found.len() == expected.len() && off < 1e-5, "{found:?}, {expected:?}");
}
