//! The programs of `docs/python.md`, run as they are printed there.

#![cfg(test)]

use crate::python_support::python;
use crate::run_support::Place;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The page's programs, in order.
fn programs() -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/python.md");
    let text = std::fs::read_to_string(page).unwrap();
    let parts =
        text.split("```python\n").skip(1).map(|part| part.split("```").next().unwrap().to_owned());
    parts.collect()
}

/// Runs one of them; what it prints.
fn run(python: &Path, place: &Place, program: usize, arguments: &[&Path]) -> String {
    let file = place.path("program.py");
    std::fs::write(&file, &programs()[program]).unwrap();
    let output = Command::new(python).arg(&file).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// A model trained on the place's rows, and what the page's commands write.
struct Written {
    model: PathBuf,
    checkpoint: PathBuf,
    predictions: PathBuf,
    log: PathBuf,
}

fn written(place: &Place, name: &str, arguments: &[&str]) -> Written {
    let path = |what: &str| place.path(&format!("{name}-{what}"));
    let (folder, log) = (path("checkpoints"), path("log.json"));
    let train = place.train().path("--valid", &place.valid).path("--checkpoint-dir", &folder);
    train.path("--log-json", &log).with(arguments).succeeds();
    let (model, predictions) = (path("model.safetensors"), path("predictions.csv"));
    let headlong = |command: &str| crate::run_support::Run::new(command);
    headlong("checkpoint").path("export", &folder).path("--output", &model).succeeds();
    let predict = headlong("predict").path("--checkpoint", &folder).path("--data", &place.valid);
    predict.path("--output", &predictions).succeeds();
    let name =
        crate::run_support::names(&folder).into_iter().find(|name| name.starts_with("step-"));
    let checkpoint = match name {
        Some(name) => folder.join(name),
        // Of an ensemble, any model's.
        None => headlong::state::checkpoint::open(&folder.join("seed-2")).unwrap().path().into(),
    };
    Written { model, checkpoint, predictions, log }
}

#[test]
fn numpy_predicts_the_same_from_an_export() {
    let Some(python) = python(&["numpy"]) else { return };
    let place = Place::new("rows.txt");
    let dictionary = [
        "--set",
        "data.ids=dictionary",
        "--set",
        "tables.rows=dictionary",
        "--set",
        "data.min_count=2",
    ];
    let ensemble = [&dictionary[..], &["--seeds", "3", "--eval-every", "10"]].concat();
    for (name, arguments) in
        [("hashed", &[][..]), ("dictionary", &dictionary[..]), ("ensemble", &ensemble)]
    {
        let Written { model, checkpoint, predictions, .. } = written(&place, name, arguments);
        let said = run(&python, &place, 0, &[&model, &checkpoint, &place.valid, &predictions]);
        let difference: f64 = said.trim().rsplit(' ').next().unwrap().parse().unwrap();
        // Logits of a few units, f32 against f64.
        assert!(said.starts_with("300 rows") && difference < 1e-5, "{name}: {said}");
        // And it can tell when they differ.
        let wrong = place.path("wrong.csv");
        let text = std::fs::read_to_string(&predictions).unwrap();
        let (header, rows) = text.split_once('\n').unwrap();
        let reversed: Vec<&str> = std::iter::once(header).chain(rows.lines().rev()).collect();
        std::fs::write(&wrong, reversed.join("\n")).unwrap();
        let said = run(&python, &place, 0, &[&model, &checkpoint, &place.valid, &wrong]);
        assert!(said.trim().rsplit(' ').next().unwrap().parse::<f64>().unwrap() > 0.01, "{said}");
    }
}

#[test]
fn pandas_reads_the_log_and_the_predictions() {
    let Some(python) = python(&["pandas"]) else { return };
    let place = Place::new("rows.txt");
    let Written { predictions, log, .. } = written(&place, "run", &["--eval-every", "10"]);
    let said = run(&python, &place, 1, &[&log]);
    assert!(said.contains("samples_per_s") && said.contains("calibration_error"), "{said}");
    // Whole numbers, not 10.0.
    assert!(said.lines().any(|line| line.split_whitespace().nth(1) == Some("10")), "{said}");
    let said = run(&python, &place, 2, &[&place.valid, &predictions]);
    assert_eq!(said.lines().filter(|line| line.contains('(')).count(), 10, "{said}");
}
