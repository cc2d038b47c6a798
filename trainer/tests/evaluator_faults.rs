//! Processes that only evaluate and those that train are killed, stopped and asked to end, in a job
//! of real processes: training is never lost with those that evaluate, no process is left, and what
//! is lost of training resumes from its checkpoint.

#![cfg(test)]

use crate::run_support::{
    Ended, Place, Run, digest, events, is_alive, names, ranks_of, wait_until,
};
use headlong::state::checkpoint;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Some two thousand steps with an evaluation every 24.
fn training(place: &Place, log: &Path) -> Run {
    let train = place.train().with(&["--epochs", "80", "--eval-every", "24"]);
    let train = train.with(&["--set", "sum_blocks=4", "--set", "eval.batch_size=128"]);
    train.path("--valid", &place.valid).path("--log-json", log)
}

/// With two processes that train and `count` that evaluate.
fn launched(train: &Run, count: usize) -> Run {
    let train = train.clone().with(&["--eval-processes", &count.to_string()]);
    let command: Vec<&str> = train.arguments().iter().map(String::as_str).collect();
    let processes = (2 + count).to_string();
    Run::new("launch").with(&["-n", &processes, "--grace-s", "1", "--"]).with(&command)
}

/// Evaluated steps and what was found.
fn evaluations(log: &Path) -> BTreeMap<u64, (Value, Value)> {
    let evaluations = events(log).into_iter().filter(|event| event["event"] == "eval");
    let found = |event: Value| (event["auc"].clone(), event["logloss"].clone());
    evaluations.map(|event| (event["step"].as_u64().unwrap(), found(event))).collect()
}

/// Sends `signal` to rank `victim` of `ranks` as soon as the log has `evaluated` evaluations, and
/// `after` more; what is left of the run.
fn strike(
    run: &Run,
    log: &Path,
    (victim, ranks): (usize, usize),
    signal: &str,
    (evaluated, after): (usize, Duration),
) -> Ended {
    let mut launcher =
        run.command().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    wait_until("evaluations", || {
        let ended = launcher.try_wait().expect("an own child");
        assert!(ended.is_none(), "it ended before it was struck: {ended:?}");
        events(log).iter().any(|event| event["event"] == "start")
            && evaluations(log).len() >= evaluated
    });
    std::thread::sleep(after);
    let pids = ranks_of(&launcher);
    assert_eq!(pids.len(), ranks, "all ranks run");
    let target = pids[victim].to_string();
    let sent = Command::new("kill").args([&format!("-{signal}"), &target]).status();
    assert!(sent.expect("kill").success());
    let begin = Instant::now();
    let ended = Ended::of(launcher.wait_with_output().expect("an own child"));
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    assert!(!pids.iter().any(|pid| is_alive(*pid)), "no process is left behind");
    ended
}

#[test]
fn a_killed_evaluator_costs_a_warning_and_the_evaluation_under_way() {
    let place = Place::new("rows.txt");
    let alone = place.path("alone.json");
    training(&place, &alone).succeeds();
    let (expected, weights) = (evaluations(&alone), digest(&alone));
    for (number, (count, evaluated, after_ms)) in
        [(1, 0, 0), (1, 2, 3), (2, 1, 11)].into_iter().enumerate()
    {
        let log = place.path(&format!("killed-{number}.json"));
        let run = launched(&training(&place, &log), count);
        let victim = (1 + count, 2 + count);
        let moment = (evaluated, Duration::from_millis(after_ms));
        let ended = strike(&run, &log, victim, "KILL", moment);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert_eq!(digest(&log), weights);
        let found = evaluations(&log);
        assert!(found.iter().all(|(step, metrics)| expected[step] == *metrics), "{found:?}");
        assert!(found.len() + 1 >= expected.len(), "{} of {}", found.len(), expected.len());
        assert_eq!(found.last_key_value(), expected.last_key_value());
        let note = format!("note: rank {}, which evaluated, was killed by SIGKILL", victim.0);
        for words in ["the processes that evaluate are lost", "rank 2", &note] {
            assert!(ended.stderr.contains(words), "{words}: {}", ended.stderr);
        }
        let warnings = events(&log).into_iter().filter(|event| event["event"] == "warning");
        assert_eq!(warnings.count(), 1, "{}", ended.stderr);
    }
}

#[test]
fn a_stopped_evaluator_holds_no_training_up_for_long() {
    let place = Place::new("rows.txt");
    let log = place.path("stopped.json");
    let run = launched(&training(&place, &log), 1);
    let ended = strike(&run, &log, (2, 3), "STOP", (1, Duration::ZERO));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for words in ["the processes that evaluate are lost", "rank 2, which evaluated, did not end"] {
        assert!(ended.stderr.contains(words), "{words}: {}", ended.stderr);
    }
}

/// Either process that trains is killed: the evaluator ends with the job, which resumes.
#[test]
fn killed_training_resumes_with_its_evaluator() {
    let place = Place::new("rows.txt");
    let alone = place.path("alone.json");
    training(&place, &alone).succeeds();
    for victim in [0, 1] {
        let (log, folder) = (place.path(&format!("{victim}.json")), format!("kept-{victim}"));
        let folder = place.path(&folder);
        let train = training(&place, &log).path("--checkpoint-dir", &folder);
        let train = train.with(&["--save-every", "50", "--resume"]);
        let run = launched(&train.with(&["--set", "checkpoint.keep_best=false"]), 1);
        let ended = strike(&run, &log, (victim, 3), "KILL", (6, Duration::from_millis(5)));
        assert_eq!(ended.code, Some(3), "{}", ended.stderr);
        let words = format!("rank {victim} was killed by SIGKILL");
        assert!(ended.stderr.contains(&words), "{}", ended.stderr);
        checkpoint::newest(&folder).unwrap().expect("step 50 was saved").verify().unwrap();
        run.succeeds();
        assert_eq!(digest(&log), digest(&alone));
        assert!(!names(&folder).iter().any(|name| name.starts_with(".tmp")));
        // It has finished: both sides end at once.
        assert!(run.succeeds().stderr.contains("finished already"));
    }
}

#[test]
fn asked_to_end_the_run_hears_its_evaluation_saves_and_resumes() {
    let place = Place::new("rows.txt");
    let (alone, log) = (place.path("alone.json"), place.path("asked.json"));
    training(&place, &alone).succeeds();
    let folder = place.path("kept");
    let train = training(&place, &log).path("--checkpoint-dir", &folder).with(&["--resume"]);
    let run = launched(&train, 1);
    let mut launcher =
        run.command().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    wait_until("evaluations", || {
        assert!(launcher.try_wait().unwrap().is_none(), "it ended before it was asked to");
        evaluations(&log).len() >= 2
    });
    crate::run_support::signal(&launcher, "TERM");
    let ended = Ended::of(launcher.wait_with_output().unwrap());
    assert_eq!(ended.code, Some(143), "{}", ended.stderr);
    assert!(!ended.stderr.contains("warning"), "{}", ended.stderr);
    run.succeeds();
    assert_eq!(digest(&log), digest(&alone));
    assert_eq!(evaluations(&log), evaluations(&alone));
}

/// What the evaluator cannot read, the ranks that train cannot read either: its words come first.
#[test]
fn an_evaluator_that_fails_says_why() {
    let place = Place::new("rows.csv");
    let train = place.train_on_a_bad_row().with(&["--eval-every", "4"]);
    let words = [
        "the processes that evaluate are lost, and the evaluation of step 4 with them: rank 2 has \
         failed: the evaluation of step 4 has failed",
        "expected a row below 10, found 10",
        " has failed with exit code 1",
    ];
    launched(&train, 1).fails(1, &words);
}

#[test]
fn what_cannot_be_evaluated_apart_is_refused_by_name() {
    let place = Place::new("rows.txt");
    let log = place.path("log.json");
    let train = training(&place, &log).with(&["--eval-processes", "1"]);
    train.fails(2, &["run.eval_processes", "headlong launch"]);
    train.clone().launched(1).fails(2, &["run.eval_processes = 1", "1 processes", "left to train"]);
    let saving = train.clone().path("--checkpoint-dir", &place.path("kept"));
    let saving = saving.with(&["--save-every", "10"]).launched(2);
    saving.fails(2, &["run.eval_processes = 1", "checkpoint.keep_best"]);
    let both = train.clone().with(&["--set", "run.eval_ranks=1"]).launched(2);
    both.fails(2, &["run.eval_processes = 1", "run.eval_ranks = 1"]);
    let alone = place.train().with(&["--eval-processes", "1"]).launched(2);
    alone.fails(2, &["run.eval_processes = 1", "no validation data", "--valid"]);
    train.launched(2).with(&["--dry-run"]).succeeds();
}
