//! Rows held out of the training files to validate on.

#![cfg(test)]

use crate::run_support::{Place, Run, last_event};
use serde_json::Value;
use std::path::{Path, PathBuf};

const CONFIG: &str = r#"
[data.columns]
label = "clicked"
categorical = ["user", "page"]

[model]
dim = 8
top = [8, 1]

[tables]
rows = [200, 20]

[train]
batch_size = 64
epochs = 2
"#;

fn csv(rows: std::ops::Range<u64>) -> String {
    let line = |row: u64| {
        let user = row * row % 97;
        format!("{},{user},{}\n", u8::from((user + row % 5).is_multiple_of(3)), row % 7)
    };
    format!("clicked,user,page\n{}", rows.map(line).collect::<String>())
}

fn write(place: &Place, name: &str, text: &str) -> PathBuf {
    let path = place.path(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn last_eval(log: &Path) -> Value {
    last_event(log, "done")["last_eval"].clone()
}

/// As if two files had been made by hand, the dictionary included.
#[test]
fn the_last_rows_are_held_out_as_if_cut_off() {
    let place = Place::new("rows.txt");
    let config = write(&place, "clicks.toml", CONFIG);
    let whole = write(&place, "whole.csv", &csv(0..1000));
    let first = write(&place, "first.csv", &csv(0..800));
    let rest = write(&place, "rest.csv", &csv(800..1000));
    for ids in ["data.ids=hash", "data.ids=dictionary"] {
        let log = place.path("log.json");
        let train = |file: &Path| {
            let train = Run::new("train").path("--config", &config).path("--data", file);
            train.with(&["--set", ids]).path("--log-json", &log)
        };
        let held = train(&whole).with(&["--holdout", "0.2", "--set", "data.holdout_by=last"]);
        let held = held.path("--output-dir", &place.path("held")).succeeds().digest();
        let found = last_eval(&log);
        let cut = train(&first).path("--valid", &rest).path("--output-dir", &place.path("cut"));
        assert_eq!(held, cut.succeeds().digest(), "{ids}");
        assert_eq!(found["eval_samples"], 200);
        assert_eq!(found["auc"], last_eval(&log)["auc"], "{ids}");
    }
}

/// Criteo's text is read into memory to be counted, whatever its order; a run resumes with the same
/// rows held out, or not at all.
#[test]
fn rows_of_text_are_held_out_at_random() {
    let place = Place::new("rows.txt");
    let (log, checkpoints) = (place.path("log.json"), place.path("checkpoints"));
    let train = place.train().with(&["--set", "data.order=samples"]);
    let held = train.clone().with(&["--holdout", "0.25"]);
    let whole = held.clone().with(&["--epochs", "2"]).path("--log-json", &log).succeeds();
    let samples = last_eval(&log)["eval_samples"].as_u64().unwrap();
    assert!((300..450).contains(&samples), "{samples} of 1,500");

    held.clone().path("--checkpoint-dir", &checkpoints).with(&["--steps", "10"]).succeeds();
    let resumed =
        |run: Run| run.path("--checkpoint-dir", &checkpoints).with(&["--resume", "--epochs", "2"]);
    resumed(train.with(&["--holdout", "0.5"])).fails(2, &["data.holdout = 0.5", "0.25"]);
    assert_eq!(resumed(held).succeeds().digest(), whole.digest());
}

#[test]
fn holdouts_that_leave_nothing_are_refused() {
    let place = Place::new("rows.txt");
    let config = write(&place, "clicks.toml", CONFIG);
    let file = write(&place, "whole.csv", &csv(0..4));
    let train = Run::new("train").path("--config", &config).path("--data", &file);
    train.clone().with(&["--holdout", "1"]).fails(2, &["data.holdout", "0 to below 1"]);
    let none = train.clone().with(&["--holdout", "0.01", "--set", "data.holdout_by=last"]);
    none.fails(1, &["whole.csv", "0.01 of 4 samples"]);
    let other = write(&place, "other.csv", &csv(0..4));
    let both = train.path("--valid", &other).with(&["--set", "data.holdout=0.5"]);
    both.fails(2, &["data.holdout = 0.5", "data.valid"]);
}
