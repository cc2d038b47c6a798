//! Tables of bf16 through the built program: planned at half the bytes, trained, continued,
//! exported, evaluated.

#![cfg(test)]

use crate::run_support::{Place, Run, last_event, names, steps};
use serde_json::Value;

const NARROW: [&str; 2] = ["--set", "tables.dtype=bf16"];

#[test]
fn a_run_in_bf16_resumes_bit_for_bit_and_its_weights_are_what_it_trained() {
    let place = Place::new("rows.txt");
    let train = place.train_on(2).with(&NARROW).with(&["--optimizer", "rowwise_adagrad"]);
    let train = train.path("--valid", &place.valid);
    let whole = train.clone().with(&["--steps", "30"]).succeeds().digest();
    let checkpoints = place.path("checkpoints");
    let log = place.path("resumed.json");
    let parts = train.path("--checkpoint-dir", &checkpoints).path("--log-json", &log);
    let parts = parts.with(&["--set", "checkpoint.keep=1", "--set", "checkpoint.keep_best=false"]);
    parts.clone().with(&["--steps", "13"]).succeeds();
    // Next to the checkpoint, so that it stays when the checkpoint goes.
    Run::new("checkpoint").with(&["export"]).with(&[checkpoints.to_str().unwrap()]).succeeds();
    assert_eq!(parts.with(&["--steps", "30", "--resume"]).succeeds().digest(), whole);
    assert_eq!(steps(&checkpoints), [30]);
    let exported =
        names(&checkpoints).into_iter().find(|name| name.ends_with(".safetensors")).unwrap();
    assert!(exported.starts_with("step-") && exported.contains("13."), "{exported}");

    let bytes = std::fs::read(checkpoints.join(exported)).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let table = tensors.tensor("emb_l.0.weight").unwrap();
    assert_eq!(table.dtype(), safetensors::Dtype::F32);
    let is_narrow = |value: &[u8]| value[0] == 0 && value[1] == 0;
    assert!(table.data().chunks(4).all(is_narrow), "the lower half of every number is zero");
    let dense = tensors.tensor("bot_l.0.weight").unwrap();
    assert!(!dense.data().chunks(4).all(is_narrow), "the dense network is in f32");

    let auc = last_event(&log, "eval")["auc"].as_f64().unwrap();
    let eval = Run::new("eval").path("--checkpoint", &checkpoints).path("--data", &place.valid);
    let found: Value = serde_json::from_str(&eval.with(&["--json"]).succeeds().stdout).unwrap();
    assert_eq!(found["auc"].as_f64().unwrap(), auc);
}

#[test]
fn the_plan_counts_the_bytes_that_are_stored() {
    let place = Place::new("rows.txt");
    let plan = |more: &[&str]| -> Value {
        let run =
            Run::new("plan").path("--data", &place.train).with(&["--set", "tables.rows=1000"]);
        serde_json::from_str(&run.with(more).with(&["--json"]).succeeds().stdout).unwrap()
    };
    let weights = |plan: &Value| plan["memory"]["table_weight_bytes"].as_u64().unwrap();
    let (wide, narrow) = (plan(&[]), plan(&NARROW));
    assert_eq!(weights(&wide), 2 * weights(&narrow));
    let state = |plan: &Value| plan["memory"]["table_state_bytes"].as_u64().unwrap();
    assert_eq!(state(&wide), state(&narrow), "states are f32");
}

/// Rounding by chance adds noise of 2⁻⁹ of a weight at each update, far less than what one epoch's
/// order of samples does.
#[test]
fn what_is_learnt_in_bf16_is_what_is_learnt_in_f32() {
    let place = Place::new("rows.txt");
    let auc = |more: &[&str]| {
        let log = place.path("auc.json");
        let _ = std::fs::remove_file(&log);
        let train =
            Run::new("train").with(&["--preset", "tiny", "--set", "synthetic.train_rows=30000"]);
        let train = train.with(&["--set", "synthetic.valid_rows=10000"]).with(more);
        train.path("--output-dir", &place.path("output")).path("--log-json", &log).succeeds();
        last_event(&log, "eval")["auc"].as_f64().unwrap()
    };
    let (wide, narrow) = (auc(&[]), auc(&NARROW));
    println!("AUC {wide:.5} in f32, {narrow:.5} in bf16");
    assert!((wide - narrow).abs() < 0.003, "AUC {wide} in f32, {narrow} in bf16");
    assert_ne!(wide, narrow, "bf16 was asked for and f32 stored");
}

#[test]
fn what_cannot_be_stored_is_refused_by_key() {
    let place = Place::new("rows.txt");
    for device in ["cpu", "auto"] {
        let half = ["--set", "tables.dtype=f16", "--device", device];
        place.train().with(&half).fails(2, &["tables.dtype", "f16"]);
        Run::new("plan").with(&half).fails(2, &["tables.dtype", "f16"]);
    }
    place.train().with(&["--set", "tables.dtype=int8"]).fails(2, &["tables.dtype", "f32", "bf16"]);
}
