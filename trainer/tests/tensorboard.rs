//! `--tensorboard DIR`: TensorBoard itself reads what the JSON log says.

#![cfg(test)]

use crate::python_support::python;
use crate::run_support::{Place, Run, events};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Prints tags, and of each scalar the steps and values.
const READ: &str = "
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0})
found.Reload()
tags = found.Tags()
scalars = {tag: [[of.step, of.value] for of in found.Scalars(tag)] for tag in tags['scalars']}
texts = {tag: found.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in tags['tensors']}
print(json.dumps({'scalars': scalars, 'texts': texts}))
";

fn train(place: &Place) -> Run {
    let train = place.train().path("--valid", &place.valid).with(&["--eval-every", "4"]);
    train.path("--tensorboard", &place.path("events"))
}

fn read(python: &Path, folder: &Path) -> Value {
    let output = Command::new(python).args(["-c", READ]).arg(folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // A damaged record is not an error there, but a warning.
    assert!(output.status.success() && !said.to_lowercase().contains("corrupt"), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Steps, and values of single precision.
type Values = Vec<(u64, f32)>;

/// What the log says of `key`.
fn logged(log: &[Value], event: &str, key: &str) -> Values {
    let of = log.iter().filter(|line| line["event"] == event);
    of.map(|line| (line["step"].as_u64().unwrap(), line[key].as_f64().unwrap() as f32)).collect()
}

/// What TensorBoard has of `tag`.
fn shown(found: &Value, tag: &str) -> Values {
    let of = found["scalars"][tag].as_array().unwrap().iter();
    of.map(|of| (of[0].as_u64().unwrap(), of[1].as_f64().unwrap() as f32)).collect()
}

#[test]
fn tensorboard_reads_the_numbers_of_the_log_and_a_resumed_run_continues() {
    let Some(python) = python(&["tensorboard"]) else { return };
    let place = Place::new("rows.txt");
    let (log, folder, checkpoints) =
        (place.path("log.json"), place.path("events"), place.path("checkpoints"));
    let saved = train(&place).path("--checkpoint-dir", &checkpoints).path("--log-json", &log);
    saved.clone().with(&["--steps", "8"]).succeeds();
    // Steps 9 to 12 are lost with their checkpoint, and trained again.
    saved.clone().with(&["--steps", "12", "--resume"]).succeeds();
    std::fs::remove_dir_all(checkpoints.join("step-000000012")).unwrap();
    saved.with(&["--steps", "16", "--resume", "--set", "train.learning_rate=0.5"]).succeeds();
    let mut lines = events(&log);
    let last = lines.iter().rposition(|line| line["event"] == "start").unwrap();
    let mut at = 0;
    lines.retain(|line| {
        at += 1;
        at > last || line["step"].as_u64() <= Some(8)
    });
    let found = read(&python, &folder);
    for (tag, event, key) in [
        ("train/loss", "step", "loss"),
        ("train/learning_rate", "step", "learning_rate"),
        ("train/samples_per_s", "step", "samples_per_s"),
        ("eval/auc", "eval", "auc"),
        ("eval/logloss", "eval", "logloss"),
        ("eval/ne", "eval", "ne"),
        ("eval/accuracy", "eval", "accuracy"),
    ] {
        assert_eq!(shown(&found, tag), logged(&lines, event, key), "{tag}");
    }
    assert!(shown(&found, "train/loss").iter().map(|of| of.0).eq(1..=16));
    let config = found["texts"]["config"].as_str().unwrap();
    assert!(config.contains("\"batch_size\": 64"), "{config}");

    // A run from the beginning takes the place of an earlier one.
    train(&place).with(&["--steps", "2"]).succeeds();
    assert_eq!(shown(&read(&python, &folder), "train/loss").len(), 2);
}

#[test]
fn a_folder_that_cannot_be_written_ends_the_run_before_it_begins() {
    let place = Place::new("rows.txt");
    std::fs::write(place.path("events"), "").unwrap();
    train(&place).fails(1, &["events", "is not a folder"]);
    assert!(!place.path("output").exists());
}

/// To TensorBoard each model is a run.
#[test]
fn models_of_an_ensemble_have_folders_of_their_own() {
    let place = Place::new("rows.txt");
    let checkpoints = place.path("checkpoints");
    let train = train(&place).with(&["--seeds", "2", "--steps", "2"]);
    train.path("--checkpoint-dir", &checkpoints).succeeds();
    for member in ["seed-1", "seed-2"] {
        let files = std::fs::read_dir(place.path("events").join(member)).unwrap();
        assert_eq!(files.count(), 1, "{member}");
    }
}
