//! Early stopping: a run ends when evaluations are not better any more, and the best weights are
//! those that are applied.

#![cfg(test)]

use crate::run_support::{Ended, Place, Run, last_event, names, steps};
use serde_json::Value;
use std::path::Path;

/// More epochs than 1,500 rows bear: 24 steps each, with an evaluation after each.
const ARGUMENTS: [&str; 10] = [
    "--epochs",
    "60",
    "--eval-every",
    "24",
    "--set",
    "eval.patience=2",
    "--set",
    "sum_blocks=4",
    "--optimizer",
    "adagrad",
];

fn train(place: &Place) -> Run {
    place.train().with(&ARGUMENTS).path("--valid", &place.valid)
}

fn done(log: &Path) -> Value {
    last_event(log, "done")
}

fn evaluated(place: &Place, checkpoints: &Path, arguments: &[&str]) -> (Value, Ended) {
    let eval = Run::new("eval").path("--checkpoint", checkpoints).path("--data", &place.valid);
    let ended = eval.with(&["--json"]).with(arguments).succeeds();
    (serde_json::from_str(&ended.stdout).unwrap(), ended)
}

#[test]
fn a_run_ends_when_evaluations_are_not_better_and_its_best_weights_are_applied() {
    let place = Place::new("rows.txt");
    let (checkpoints, log) = (place.path("checkpoints"), place.path("log.json"));
    let saving = train(&place).path("--checkpoint-dir", &checkpoints);
    let ended = saving.clone().path("--log-json", &log).succeeds();
    let done = done(&log);
    let (best, last) = (&done["best_eval"], done["eval_step"].as_u64().unwrap());
    let best_step = best["step"].as_u64().unwrap();
    assert_eq!((&done["reason"], last), (&"patience".into(), best_step + 48), "{done}");
    assert_eq!(steps(&checkpoints).first(), Some(&best_step), "{:?}", names(&checkpoints));
    assert_eq!(steps(&checkpoints).last(), Some(&last));
    assert!(ended.stdout.contains("best evaluation: step"), "{}", ended.stdout);

    let (found, told) = evaluated(&place, &checkpoints, &[]);
    assert_eq!((&found["auc"], &found["step"]), (&best["metrics"]["auc"], &best_step.into()));
    assert!(told.stderr.contains("--which newest"), "{}", told.stderr);
    let (found, told) = evaluated(&place, &checkpoints, &["--which", "newest"]);
    assert_eq!((&found["auc"], &found["step"]), (&done["last_eval"]["auc"], &last.into()));
    assert!(!told.stderr.contains("--which"), "{}", told.stderr);

    // Its report again, and further where more patience is asked for.
    let resumed = saving.with(&["--resume"]);
    assert_eq!(resumed.succeeds().digest(), ended.digest());
    let longer = place.path("longer.json");
    let more = resumed.with(&["--set", "eval.patience=3"]);
    more.path("--log-json", &longer).succeeds();
    assert!(last_event(&longer, "done")["eval_step"].as_u64() > Some(last));
}

/// The weights of the best evaluation are saved: from there the run ends as the undisturbed one.
#[test]
fn a_run_resumed_at_its_best_ends_at_the_same_step_on_any_ranks() {
    let place = Place::new("rows.txt");
    let checkpoints = place.path("checkpoints");
    let whole = train(&place).path("--checkpoint-dir", &checkpoints).succeeds();
    let crashed = place.path("crashed");
    std::fs::create_dir(&crashed).unwrap();
    let best = names(&checkpoints).into_iter().find(|name| name.starts_with("step-")).unwrap();
    std::fs::rename(checkpoints.join(&best), crashed.join(&best)).unwrap();
    let resumed = train(&place).path("--checkpoint-dir", &crashed).with(&["--resume"]);
    assert_eq!(resumed.with(&["--ranks", "2"]).succeeds().digest(), whole.digest());
}

/// Without a folder, training continues while scores are sorted, and stops at a step that no
/// machine's speed decides.
#[test]
fn without_checkpoints_it_ends_a_little_later() {
    let place = Place::new("rows.txt");
    let digests = ["1", "2"].map(|ranks| {
        let log = place.path(&format!("{ranks}.json"));
        let ended = train(&place).with(&["--ranks", ranks]).path("--log-json", &log).succeeds();
        let done = done(&log);
        let best = done["best_eval"]["step"].as_u64().unwrap();
        assert_eq!(done["eval_step"].as_u64(), Some(best + 48), "{done}");
        ended.digest()
    });
    assert_eq!(digests[0], digests[1]);
}

#[test]
fn the_metric_decides_which_is_the_best() {
    let place = Place::new("rows.txt");
    let log = place.path("log.json");
    let by = train(&place).with(&["--set", "eval.metric=log_loss"]);
    by.path("--log-json", &log).succeeds();
    let done = done(&log);
    assert_eq!(done["reason"], "patience", "{done}");
    let found = crate::run_support::events(&log);
    let losses = found.iter().filter(|event| event["event"] == "eval");
    let least = losses.map(|event| event["logloss"].as_f64().unwrap()).fold(f64::MAX, f64::min);
    assert_eq!(done["best_eval"]["metrics"]["logloss"].as_f64(), Some(least));
}

#[test]
fn patience_without_evaluations_is_refused() {
    let place = Place::new("rows.txt");
    let train = place.train().with(&["--patience", "2"]);
    train.clone().fails(2, &["eval.patience = 2", "--eval-every"]);
    let train = train.with(&["--eval-every", "4"]);
    train.clone().fails(2, &["eval.patience = 2", "--valid"]);
    let saving = train.path("--valid", &place.valid).path("--checkpoint-dir", &place.path("c"));
    saving.with(&["--set", "checkpoint.keep_best=false"]).fails(2, &["checkpoint.keep_best"]);
}
