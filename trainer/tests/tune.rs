//! `headlong tune`: a plan that is interrupted gives what one gives that is not, and what it
//! writes trains the model that it has scored.

#![cfg(test)]

use crate::run_support::{Ended, Run, digest, events, last_event, names, signal, wait_until};
use headlong::config::Config;
use headlong_device::rng::CounterRng;
use serde_json::Value;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Clicks that depend on an id and on a number.
fn csv(rows: u64, seed: u64) -> String {
    let random = CounterRng::new(seed, 5);
    let mut text = "clicked,user,page,price\n".to_owned();
    for row in 0..rows {
        let draw = |column: u64| random.uniform(row * 4 + column);
        let (user, page) = ((draw(0) * 40.0) as u64, (draw(1) * 9.0) as u64);
        let rate = 0.15 + 0.4 * (user % 2) as f32 + 0.3 * draw(2);
        let clicked = u8::from(draw(3) < rate);
        text += &format!("{clicked},u{user},p{page},{:.2}\n", draw(2) * 50.0);
    }
    text
}

struct Place {
    folder: TempDir,
    data: PathBuf,
    valid: PathBuf,
}

impl Place {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let (data, valid) = (folder.path().join("clicks.csv"), folder.path().join("valid.csv"));
        std::fs::write(&data, csv(1200, 1)).unwrap();
        std::fs::write(&valid, csv(400, 2)).unwrap();
        Self { folder, data, valid }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// So many trials, the base among them, of models that train in no time.
    fn tune(&self, output: &str, trials: &str) -> Run {
        let tune = Run::new("tune").path("--data", &self.data).with(&["--trials", trials]);
        tune.with(&["--set", "train.epochs=1"]).path("--output-dir", &self.path(output))
    }

    fn with_valid(&self, output: &str, trials: &str) -> Run {
        self.tune(output, trials).path("--valid", &self.valid)
    }
}

fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap()
}

/// Results without their seconds, in the order of trials.
fn results(folder: &Path) -> Vec<String> {
    let mut lines: Vec<String> = events(&folder.join("trials.jsonl"))
        .into_iter()
        .map(|mut line| {
            line.as_object_mut().unwrap().retain(|key, _| !key.ends_with("seconds"));
            line.to_string()
        })
        .collect();
    lines.sort();
    lines
}

fn same(one: (&Path, &Ended), other: (&Path, &Ended)) {
    assert_eq!(one.1.stdout, other.1.stdout);
    for name in ["best.toml", "trials.svg"] {
        assert_eq!(read(one.0, name), read(other.0, name), "{name}");
    }
    assert_eq!(results(one.0), results(other.0));
}

/// Killed whenever a result is there, in the middle of a line of results, too.
#[test]
fn killed_and_resumed_it_gives_the_same_table_bit_for_bit() {
    let place = Place::new();
    let (whole, killed) = (place.path("whole"), place.path("killed"));
    let undisturbed = place.with_valid("whole", "13").succeeds();
    let run = place.with_valid("killed", "13");
    let file = killed.join("trials.jsonl");
    // Two groups of trials, folds, and what comes last.
    for results in [3, 16, 27] {
        let mut child = run.start();
        wait_until("more results", || events(&file).len() >= results);
        child.kill().unwrap();
        child.wait().unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text + "{\"trial\":1,\"sco").unwrap();
    }
    let before = events(&file).len();
    let resumed = run.succeeds();
    assert!(events(&file).len() > before, "nothing was left to do");
    same((&whole, &undisturbed), (&killed, &resumed));
    same((&killed, &resumed), (&killed, &run.succeeds()));
}

/// The final score is that of the model that `best.toml` trains, and the base is what `--auto`
/// trains.
#[test]
fn what_is_written_trains_what_was_scored() {
    let place = Place::new();
    let folder = place.path("out");
    // A base that is bad in one way, so that a trial is surely better.
    let space = place.path("space.toml");
    std::fs::write(&space, "[train]\nlearning_rate = [0.01, 0.02]\n").unwrap();
    let bad =
        ["--set", "train.learning_rate=0.00001", "--set", "train.sparse_learning_rate=0.00001"];
    let tune = place.with_valid("out", "3").with(&bad).path("--space", &space);
    let ended = tune.succeeds();
    assert!(ended.stdout.contains("tuned is better there, too"), "{}", ended.stdout);
    let best = Config::from_file(&folder.join("best.toml")).unwrap();
    assert!([0.01, 0.02].contains(&best.train.learning_rate), "{}", best.train.learning_rate);

    // Of several models the digest is that of the last.
    let digest_of = |run: Run, name: &str| {
        let log = place.path(&format!("{name}.json"));
        let run = run.path("--valid", &place.valid).path("--output-dir", &place.path(name));
        run.path("--checkpoint-dir", &place.path(&format!("{name}-kept")))
            .path("--log-json", &log)
            .succeeds();
        assert_eq!(last_event(&log, "ensemble")["models"], 3);
        digest(&log)
    };
    let train = Run::new("train").path("--config", &folder.join("best.toml"));
    let finals: Vec<Value> = events(&folder.join("trials.jsonl"))
        .into_iter()
        .filter(|line| line["scored"] == "final")
        .collect();
    let scored = |is_base: bool| {
        let line = finals.iter().find(|line| (line["trial"] == 0) == is_base).unwrap();
        line["weights_digest"].as_str().unwrap().to_owned()
    };
    assert_eq!(digest_of(train, "trained"), scored(false));
    let auto = Run::new("train").with(&["--auto", "--set", "train.epochs=1"]).with(&bad);
    let auto = auto.path("--data", &place.data).with(&["--eval-every", "0"]);
    assert_eq!(digest_of(auto, "auto"), scored(true));

    let eval = Run::new("eval").path("--checkpoint", &folder.join("best"));
    let eval = eval.path("--data", &place.valid).with(&["--json"]).succeeds();
    let found: Value = serde_json::from_str(&eval.stdout).unwrap();
    let line = finals.iter().find(|line| line["trial"] != 0).unwrap();
    assert_eq!(found["auc"], line["metrics"]["auc"]);
    let left = ["base.toml", "best", "best.toml", "trials.jsonl", "trials.svg", "tune.toml"];
    assert_eq!(names(&folder), left);

    Run::new("report").with(&[folder.to_str().unwrap(), "--threads", "1"]).succeeds();
    let page = std::fs::read_to_string(folder.join("report.html")).unwrap();
    let auc = format!("AUC {:.5}", found["auc"].as_f64().unwrap());
    let whose = format!("By the mean of 3 models, on all 400 rows of the validation data: {auc}");
    assert!(page.contains(&whose), "{whose}");
}

/// Without files for it, the final score is of rows that are held out of trials and folds.
#[test]
fn rows_are_kept_for_the_final_score_and_a_signal_stops_all() {
    let place = Place::new();
    let run = place.tune("out", "3");
    let file = place.path("out").join("trials.jsonl");
    let mut child = run.start();
    wait_until("a result", || !events(&file).is_empty());
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143));
    let ended = run.succeeds();
    let lines = events(&file);
    let samples = |scored: &Value| {
        let line = lines.iter().find(|line| line["scored"] == *scored).unwrap();
        line["metrics"]["eval_samples"].as_u64().unwrap()
    };
    let [of_fold, kept] = [serde_json::json!({ "fold": 0 }), "final".into()].map(|of| samples(&of));
    assert!((80..160).contains(&of_fold) && (80..160).contains(&kept), "{of_fold}, {kept}");
    assert!(ended.stdout.contains(&format!("rows {kept}")), "{}", ended.stdout);
    let best = Config::from_file(&place.path("out").join("best.toml")).unwrap();
    assert_eq!((best.data.holdout, best.data.valid.len()), (0.0, 0));
}

/// What trials have read of a file that changed under them is not kept.
#[test]
fn data_that_changes_under_trials_is_noticed_and_put_back_changes_no_bit() {
    let place = Place::new();
    let (whole, changed) = (place.path("whole"), place.path("changed"));
    let undisturbed = place.with_valid("whole", "6").succeeds();
    let run = place.with_valid("changed", "6");
    let child = run.start();
    wait_until("a result", || !events(&changed.join("trials.jsonl")).is_empty());
    let text = std::fs::read_to_string(&place.data).unwrap();
    let half = text.lines().take(600).map(|line| format!("{line}\n")).collect::<String>();
    std::fs::write(&place.data, half).unwrap();
    let ended = Ended::of(child.wait_with_output().unwrap());
    assert_ne!(ended.code, Some(0), "{}", ended.stderr);
    std::fs::write(&place.data, text).unwrap();
    let put_back = run.succeeds();
    same((&whole, &undisturbed), (&changed, &put_back));
}

/// Not after hours of trials.
#[test]
fn files_for_the_final_score_are_looked_at_first() {
    let place = Place::new();
    std::fs::write(&place.valid, "clicked,user,page\n1,u1,p1\n").unwrap();
    place.with_valid("out", "2").fails(1, &["expected a column `price`"]);
    assert_eq!(events(&place.path("out").join("trials.jsonl")).len(), 0);
}

#[test]
fn a_folder_of_another_search_is_refused() {
    let place = Place::new();
    let run = place.with_valid("out", "2");
    run.succeeds();
    let refused = |run: Run, words: &[&str]| {
        run.fails(2, &[&["out has begun with", "name another folder"][..], words].concat());
    };
    refused(run.clone().with(&["--seed", "2"]), &["seed 1, now it is 2"]);
    refused(place.with_valid("out", "4"), &["trials 2, now it is 4"]);
    refused(run.clone().with(&["--set", "model.dim=4"]), &["set[1]", "model.dim=4"]);
    let space = place.path("space.toml");
    std::fs::write(&space, "[model]\ndim = [4, 8]\n").unwrap();
    refused(run.clone().path("--space", &space), &["space"]);
    std::fs::write(&place.data, csv(1200, 3)).unwrap();
    refused(run, &["data[0]", "clicks.csv", "sample_xxh3"]);
}

#[test]
fn spaces_that_cannot_be_are_refused_by_line() {
    let place = Place::new();
    let space = place.path("space.toml");
    for (text, words) in [
        ("[model]\ndim = [4]\n[train]\nlearning_rat = [1]\n", "space.toml:4: unknown key"),
        ("[train]\nlearning_rate = 0.1\n", "space.toml:2: `train.learning_rate`: expected a list"),
        ("[train]\nlearning_rate = { log_uniform = [0.0, 1.0] }\n", "space.toml:2"),
        ("[train]\nepochs = [1, 2]\n", "space.toml:2: `train.epochs` is not tried"),
        ("[run]\nthreads = [1, 2]\n", "space.toml:2: `run.threads` is not tried"),
        ("[model]\ndim = [8, \"wide\"]\n", "model.dim = \"wide\""),
        ("[column]\nbins = [\"edges\"]\n", "space.toml:2: `column.bins`: expected [true, false]"),
        ("", "expected keys"),
    ] {
        std::fs::write(&space, text).unwrap();
        place.tune("out", "2").path("--space", &space).fails(2, &[words]);
    }
    assert!(!place.path("out").join("tune.toml").exists());
    // A model of bins alone has no other tables.
    let numbers = place.path("numbers.csv");
    let row = |row: u64| format!("{},{}.5\n", u8::from(row % 97 > 40), row % 97);
    std::fs::write(&numbers, "y,x\n".to_owned() + &(0..900).map(row).collect::<String>()).unwrap();
    let print = Run::new("tune").with(&["--print-space", "--label", "y"]).path("--data", &numbers);
    assert!(!print.succeeds().stdout.contains("bins ="));
    let printed = place.tune("out", "2").with(&["--print-space"]).succeeds().stdout;
    assert!(printed.contains("bins = [true, false]"), "{printed}");
    assert!(printed.contains("learning_rate = { log_uniform = [0.0025, 0.04] }"), "{printed}");
    std::fs::write(&space, &printed).unwrap();
    let again = place.tune("out", "2").path("--space", &space).with(&["--print-space"]).succeeds();
    assert_eq!(again.stdout, printed);
}

#[test]
fn bad_rows_are_skipped_where_that_is_asked_for() {
    let place = Place::new();
    std::fs::write(&place.data, csv(300, 1) + "1,2\n").unwrap();
    let tune = Run::new("tune").path("--data", &place.data).with(&["--print-space"]);
    tune.clone().fails(1, &["line 302", "expected 4 fields"]);
    tune.with(&["--on-bad-row", "skip", "--threads", "1"]).succeeds();
}
