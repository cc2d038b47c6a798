//! A rank of a training job of two processes is killed or stopped while a checkpoint is written:
//! the job ends within seconds, names it, leaves whole checkpoints and no process, and resumes from
//! there to the same weights.

#![cfg(test)]

use crate::run_support::{Ended, Place, Run, digest, is_alive, names, ranks_of, steps};
use headlong::state::checkpoint;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Training that saves often, and long enough to be hit while it does.
fn training(place: &Place, log: &str) -> Run {
    let run = Run::new("train").with(&["--threads", "1", "--epochs", "1", "--seed", "5"]);
    let run = run.with(&[
        "--set",
        "model.dim=8",
        "--set",
        "model.bottom=[16,8]",
        "--set",
        "model.top=[16,1]",
    ]);
    let run = run.with(&[
        "--set",
        "tables.rows=8000",
        "--set",
        "train.batch_size=64",
        "--set",
        "sum_blocks=4",
    ]);
    let run = run.path("--data", &place.train).path("--output-dir", &place.path("output"));
    run.path("--log-json", &place.path(log))
}

fn launched(run: &Run) -> Run {
    let command: Vec<&str> = run.arguments().iter().map(String::as_str).collect();
    Run::new("launch").with(&["-n", "2", "--grace-s", "1", "--"]).with(&command)
}

/// Whether a checkpoint newer than all whole ones is half written.
fn is_being_written(checkpoints: &Path) -> bool {
    let newest = steps(checkpoints).last().copied().unwrap_or(0);
    let aside = names(checkpoints);
    let half = aside.iter().filter_map(|name| name.strip_prefix(".tmp-step-")?.parse::<u64>().ok());
    newest > 0 && half.max().is_some_and(|step| step > newest)
}

/// Strikes a rank while a checkpoint is written. Standard error of the launcher, and the time to
/// its end.
fn strike(run: &Run, checkpoints: &Path, victim: usize, signal: &str) -> (Ended, Duration) {
    let mut launcher =
        run.command().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let begin = Instant::now();
    while !is_being_written(checkpoints) {
        let ended = launcher.try_wait().expect("an own child");
        if ended.is_some() || begin.elapsed() > Duration::from_secs(30) {
            // Its ranks end with it.
            let _ = launcher.kill();
            panic!("no checkpoint was being written; ended: {ended:?}");
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    let ranks = ranks_of(&launcher);
    assert_eq!(ranks.len(), 2, "both ranks run");
    let begin = Instant::now();
    let sent =
        Command::new("kill").args([&format!("-{signal}"), &ranks[victim].to_string()]).status();
    assert!(sent.expect("kill").success());
    let output = launcher.wait_with_output().expect("an own child");
    let took = begin.elapsed();
    assert!(!ranks.iter().any(|pid| is_alive(*pid)), "no process is left behind");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    (Ended { code: output.status.code(), stdout, stderr }, took)
}

fn struck_while_saving(victim: usize, signal: &str, words: &str) {
    let place = Place::new("rows.txt");
    let checkpoints = place.path("checkpoints");
    let run = training(&place, "log.json").path("--checkpoint-dir", &checkpoints);
    let run = launched(&run.with(&["--save-every", "2", "--resume"]));
    let (ended, took) = strike(&run, &checkpoints, victim, signal);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains(words), "{}", ended.stderr);
    assert!(took < Duration::from_secs(9), "{took:?}");
    let newest = checkpoint::newest(&checkpoints).unwrap().expect("one was whole before");
    newest.verify().expect("every byte as it was written");

    run.succeeds();
    let left: Vec<String> =
        names(&checkpoints).into_iter().filter(|name| name.starts_with(".tmp")).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    training(&place, "alone.json").succeeds();
    assert_eq!(
        digest(&place.path("log.json")),
        digest(&place.path("alone.json")),
        "other weights than one process"
    );
}

#[test]
fn rank_1_killed_during_a_checkpoint() {
    struck_while_saving(1, "KILL", "rank 1 was killed by SIGKILL");
}

#[test]
fn rank_0_killed_during_a_checkpoint() {
    struck_while_saving(0, "KILL", "rank 0 was killed by SIGKILL");
}

#[test]
fn rank_1_stopped_during_a_checkpoint() {
    struck_while_saving(1, "STOP", "rank 1 did not end within 1 s");
}
