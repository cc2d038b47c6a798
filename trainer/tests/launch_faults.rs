//! A rank of a training job of several processes is killed or stopped while they write a
//! checkpoint: the job ends within seconds, names it, leaves whole checkpoints and no process, and
//! resumes from there to the same weights.

#![cfg(test)]

use crate::run_support::{Ended, Place, Run, digest, is_alive, names, ranks_of, steps};
use headlong::state::checkpoint;
use headlong_device::rng::CounterRng;
use rustix::process::{Pid, Signal};
use std::path::Path;
use std::process::{Child, Command, Stdio};
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

fn launched(run: &Run, ranks: usize) -> Run {
    let command: Vec<&str> = run.arguments().iter().map(String::as_str).collect();
    let ranks = ranks.to_string();
    Run::new("launch").with(&["-n", &ranks, "--grace-s", "1", "--"]).with(&command)
}

/// The step of a checkpoint newer than all whole ones that is half written.
fn half_written(checkpoints: &Path) -> Option<u64> {
    let newest = steps(checkpoints).last().copied().unwrap_or(0);
    let aside = names(checkpoints);
    let half = aside.iter().filter_map(|name| name.strip_prefix(".tmp-step-")?.parse::<u64>().ok());
    half.max().filter(|&step| newest > 0 && step > newest)
}

/// Strikes a rank while a checkpoint is written. Standard error of the launcher, and the time to
/// its end.
fn strike(run: &Run, checkpoints: &Path, victim: usize, signal: &str) -> (Ended, Duration) {
    let mut launcher =
        run.command().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let begin = Instant::now();
    while half_written(checkpoints).is_none() {
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
    let run = launched(&run.with(&["--save-every", "2", "--resume"]), 2);
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

/// A rank is killed while it saves, and later another one: the launcher starts all again, twice.
#[test]
fn a_lost_rank_is_started_again_as_often_as_asked() {
    let place = Place::new("rows.txt");
    let checkpoints = place.path("checkpoints");
    let run = training(&place, "log.json").path("--checkpoint-dir", &checkpoints);
    let run = run.with(&["--save-every", "1", "--resume"]);
    let command: Vec<&str> = run.arguments().iter().map(String::as_str).collect();
    let launch = |restarts: &str| {
        let launch = Run::new("launch").with(&["-n", "2", "--grace-s", "1"]);
        launch.with(&["--max-restarts", restarts, "--"]).with(&command)
    };
    let mut launcher = launch("2").command().stderr(Stdio::piped()).spawn().expect("starts");
    let mut killed = 0;
    let struck = [1, 0].map(|victim| {
        let moment = (1, Duration::ZERO);
        strike_a_save(&mut launcher, &checkpoints, moment, (victim, 2), &mut killed)
    });
    let output = launcher.wait_with_output().expect("an own child");
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success() && struck == [true; 2], "{struck:?}: {said}");
    for words in ["(1 of 2)", "(2 of 2)", "resumed at step"] {
        assert!(said.contains(words), "{said}");
    }
    training(&place, "alone.json").succeeds();
    assert_eq!(digest(&place.path("log.json")), digest(&place.path("alone.json")));

    // What would come again is not tried again.
    let launch = Run::new("launch").with(&["-n", "2", "--max-restarts", "1", "--", "train"]);
    let bad = place.path("bad.txt");
    std::fs::write(&bad, "no rows\n").unwrap();
    let folder = place.path("of bad rows");
    let failed = launch.clone().with(&["--resume"]).path("--data", &bad);
    let failed = failed.path("--checkpoint-dir", &folder).fails(1, &["bad.txt"]);
    assert!(!failed.stderr.contains("of 1)"), "{}", failed.stderr);
}

#[test]
fn twenty_kills_of_ranks_that_save() {
    survive(4, 20);
}

/// `cargo xtask soak` runs this and keeps what it prints.
#[test]
#[ignore = "minutes: cargo xtask soak"]
fn soak_200_kills_of_ranks_that_save() {
    survive(8, 200);
}

/// Kills one of so many ranks this often, each time while a checkpoint is half written, and
/// compares what every run that reaches its end has trained with one process that no one disturbed.
fn survive(ranks: usize, kills: usize) {
    let place = Place::new("rows.txt");
    let alone = |log: &str| training(&place, log).with(&["--set", "sum_blocks=8"]);
    alone("alone.json").succeeds();
    let expected = digest(&place.path("alone.json"));
    let random = CounterRng::new(ranks as u64, 11);
    let (mut killed, mut attempts, mut runs) = (0, 0, 0);
    while killed < kills {
        runs += 1;
        let (log, checkpoints) =
            (format!("log-{runs}.json"), place.path(&format!("checkpoints-{runs}")));
        let run = alone(&log).path("--checkpoint-dir", &checkpoints);
        let run = launched(&run.with(&["--save-every", "2", "--resume"]), ranks);
        loop {
            let mut launcher = run.start();
            let draw = |place: u64| random.uniform(attempts * 4 + place);
            let saves = 1 + (draw(0) * 3.0) as usize;
            let moment = (saves, Duration::from_secs_f32(draw(1) * 0.003));
            let victim = (draw(2) * ranks as f32) as usize;
            let struck = killed < kills
                && strike_a_save(&mut launcher, &checkpoints, moment, (victim, ranks), &mut killed);
            attempts += 1;
            let status = launcher.wait().unwrap();
            if status.success() {
                break;
            }
            assert!(struck, "the run failed by itself: {}", run.end().stderr);
            if let Some(newest) = checkpoint::newest(&checkpoints).unwrap() {
                newest.verify().expect("every byte as it was written");
            }
        }
        assert_eq!(
            digest(&place.path(&log)),
            expected,
            "run {runs}: other weights than one process"
        );
        let left = names(&checkpoints);
        assert!(!left.iter().any(|name| name.starts_with(".tmp")), "left behind: {left:?}");
        println!("run {runs} of {ranks} ranks ended as undisturbed, {killed} kills during a save");
    }
    println!("{killed} of {attempts} starts were killed while {ranks} ranks saved");
}

/// Kills one of so many ranks a moment after the beginning of the `saves`-th save from now on, and
/// counts it where the save had not ended. False: the job has ended before.
fn strike_a_save(
    job: &mut Child,
    checkpoints: &Path,
    (saves, moment): (usize, Duration),
    (victim, ranks): (usize, usize),
    killed: &mut usize,
) -> bool {
    let (mut seen, mut pids) = (0, Vec::new());
    // What the run before has left is there until this one begins.
    let mut before = half_written(checkpoints);
    while seen < saves {
        if job.try_wait().unwrap().is_some() {
            return false;
        }
        if pids.len() < ranks {
            pids = ranks_of(job);
        }
        let now = half_written(checkpoints);
        seen += usize::from(now.is_some() && now != before);
        before = now;
        std::thread::sleep(Duration::from_micros(200));
    }
    std::thread::sleep(moment);
    let victim = pids[victim];
    let pid = Pid::from_raw(victim).expect("a process has a number");
    // It may have ended by itself.
    let struck = rustix::process::kill_process(pid, Signal::KILL).is_ok();
    *killed += usize::from(struck && half_written(checkpoints).is_some());
    while ranks_of(job).contains(&victim) {
        std::thread::sleep(Duration::from_millis(1));
    }
    struck
}
