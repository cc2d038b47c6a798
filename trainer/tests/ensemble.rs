//! Several models of one configuration, of which the mean predicts.

#![cfg(test)]

use crate::run_support::{Ended, Place, Run};
use serde_json::Value;
use std::path::Path;

fn train(place: &Place, checkpoints: &Path) -> Run {
    let train = place.train().path("--valid", &place.valid).with(&["--seeds", "3"]);
    train.path("--checkpoint-dir", checkpoints)
}

fn eval(place: &Place, checkpoint: &Path) -> Run {
    let eval = Run::new("eval").path("--checkpoint", checkpoint).path("--data", &place.valid);
    eval.with(&["--json"])
}

fn probabilities(place: &Place, checkpoint: &Path) -> Vec<f64> {
    let predict = Run::new("predict").path("--checkpoint", checkpoint).path("--data", &place.valid);
    let text = predict.with(&["--output", "-"]).succeeds().stdout;
    text.lines().skip(1).map(|line| line.split(',').nth(1).unwrap().parse().unwrap()).collect()
}

fn digests(ended: &Ended) -> Vec<&str> {
    ended.stdout.lines().filter_map(|line| line.strip_prefix("weights ")).collect()
}

#[test]
fn models_are_those_of_their_seeds_and_their_mean_predicts() {
    let place = Place::new("rows.txt");
    let checkpoints = place.path("checkpoints");
    let ended = train(&place, &checkpoints).succeeds();
    let single = |seed: &str| place.train().path("--valid", &place.valid).with(&["--seed", seed]);
    let alone = ["1", "2", "3"].map(|seed| single(seed).succeeds().digest());
    assert_eq!(digests(&ended), alone);
    assert!(ended.stdout.contains("mean of 3 models  AUC"), "{}", ended.stdout);

    let members = ["seed-1", "seed-2", "seed-3"].map(|name| checkpoints.join(name));
    let of_each = members.each_ref().map(|member| probabilities(&place, member));
    for (row, mean) in probabilities(&place, &checkpoints).into_iter().enumerate() {
        let expected = of_each.iter().map(|of_one| of_one[row]).sum::<f64>() / 3.0;
        assert!((mean - expected).abs() < 1e-6, "row {row}: {mean}, expected {expected}");
    }
    let found: Value = serde_json::from_str(&eval(&place, &checkpoints).succeeds().stdout).unwrap();
    assert_eq!(found["models"], 3, "{found}");
    let auc = format!("mean of 3 models  AUC {:.5}", found["auc"].as_f64().unwrap());
    assert!(ended.stdout.contains(&auc), "{auc}: {}", ended.stdout);
}

/// What a crash has left is trained by `--resume`, and not taken for the whole.
#[test]
fn an_ensemble_that_lacks_a_model_is_refused_and_resumed() {
    let place = Place::new("rows.txt");
    let checkpoints = place.path("checkpoints");
    let whole = train(&place, &checkpoints).succeeds();
    std::fs::remove_dir_all(checkpoints.join("seed-3")).unwrap();
    eval(&place, &checkpoints).fails(2, &["expected 3 models, found 2", "--resume"]);
    let export = Run::new("checkpoint").with(&["export", checkpoints.to_str().unwrap()]);
    export.fails(2, &["expected 3 models, found 2", "--resume"]);
    train(&place, &checkpoints).fails(2, &["seed-1", "--resume"]);
    let resumed = train(&place, &checkpoints).with(&["--resume"]).succeeds();
    assert_eq!(digests(&resumed), digests(&whole));
    let inspect = Run::new("checkpoint").with(&["inspect"]);
    inspect.with(&[checkpoints.to_str().unwrap()]).fails(2, &["several models", "seed-1"]);
    let single = place.train().path("--checkpoint-dir", &checkpoints);
    single.fails(2, &["seed-1", "another folder"]);
}

/// More models later, but not fewer.
#[test]
fn an_ensemble_grows() {
    let place = Place::new("rows.txt");
    let checkpoints = place.path("checkpoints");
    let of = |seeds: &str| {
        let train = place.train().path("--valid", &place.valid).with(&["--seeds", seeds]);
        train.path("--checkpoint-dir", &checkpoints).with(&["--resume"])
    };
    of("2").succeeds();
    let three = of("3").succeeds();
    assert!(three.stdout.contains("mean of 3 models  AUC"), "{}", three.stdout);
    of("2").fails(2, &["train.seeds", "3 models already"]);
    eval(&place, &checkpoints).succeeds();
}

/// Models see the samples in orders of their own, where these are random.
#[test]
fn models_differ_in_the_order_of_samples() {
    let place = Place::new("rows.txt");
    let order = ["--set", "data.order=samples", "--cache-data", "host"];
    let ended = train(&place, &place.path("checkpoints")).with(&order).succeeds();
    let seed = ["--seed", "3", "--set", "data.order_seed=3"];
    let third = place.train().path("--valid", &place.valid).with(&order).with(&seed).succeeds();
    assert_eq!(digests(&ended)[2], third.digest());
}

#[test]
fn an_ensemble_needs_a_folder_of_its_own() {
    let place = Place::new("rows.txt");
    place.train().with(&["--seeds", "2"]).fails(2, &["train.seeds", "--checkpoint-dir"]);
    place.train().with(&["--seeds", "0"]).fails(2, &["train.seeds", "1 to 64"]);
    let checkpoints = place.path("checkpoints");
    place.train().path("--checkpoint-dir", &checkpoints).succeeds();
    train(&place, &checkpoints).fails(2, &["one model", "another folder"]);
}
