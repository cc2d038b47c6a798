//! `headlong launch --elastic`: ranks are killed while the job trains and while it comes together
//! again, and it ends in the weights of a run that was never disturbed.

#![cfg(test)]

use crate::run_support::{Place, Run, digest, ranks_of, steps, wait_until};
use headlong_device::rng::CounterRng;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

/// Steps of a whole run, some passes over the data.
const STEPS: u64 = 190;

fn training(place: &Place, log: &str) -> Run {
    training_of(place, log, STEPS)
}

pub(crate) fn training_of(place: &Place, log: &str, steps: u64) -> Run {
    let run = Run::new("train").with(&["--threads", "1", "--seed", "5"]);
    let run = run.with(&["--steps", &steps.to_string()]);
    let settings = [
        "model.dim=8",
        "model.bottom=[16,8]",
        "model.top=[16,1]",
        "tables.rows=2000",
        "train.batch_size=64",
        "sum_blocks=8",
    ];
    let run = settings.iter().fold(run, |run, setting| run.with(&["--set", setting]));
    let run = run.path("--data", &place.train).path("--output-dir", &place.path("output"));
    run.path("--log-json", &place.path(log))
}

fn elastic(run: &Run, ranks: usize, options: &[&str]) -> Run {
    let command: Vec<&str> = run.arguments().iter().map(String::as_str).collect();
    let launch = Run::new("launch").with(&["-n", &ranks.to_string(), "--elastic"]);
    launch.with(&["--grace-s", "2"]).with(options).with(&["--"]).with(&command)
}

/// The folder that a launcher has made for snapshots.
fn folder_of(launcher: &Child) -> PathBuf {
    let name = format!("headlong-snapshots-{}-", launcher.id());
    let mut found = None;
    wait_until("a folder for snapshots", || {
        let folders = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().path());
        let is_named = |path: &PathBuf| path.to_str().is_some_and(|path| path.contains(&name));
        found = folders.into_iter().find(is_named);
        found.is_some()
    });
    found.unwrap()
}

pub(crate) fn newest(snapshots: &Path) -> Option<u64> {
    snapshots.exists().then(|| steps(snapshots).last().copied()).flatten()
}

fn kill(pid: i32) -> bool {
    let pid = Pid::from_raw(pid).expect("a process has a number");
    kill_process(pid, Signal::KILL).is_ok()
}

/// The ranks once all of them have started that are none of `before`; none where the job has ended.
fn new_ranks(launcher: &mut Child, ranks: usize, before: &[i32]) -> Option<Vec<i32>> {
    loop {
        if launcher.try_wait().unwrap().is_some() {
            return None;
        }
        let now = ranks_of(launcher);
        if now.len() == ranks && !now.iter().any(|pid| before.contains(pid)) {
            return Some(now);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// How often a run has begun to train, as its log says.
fn starts(log: &Path) -> usize {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().filter(|line| line.contains("\"event\":\"start\"")).count()
}

#[test]
fn twenty_kills_during_recovery() {
    survive(4, 20);
}

/// `cargo xtask soak` runs this and keeps what it prints.
#[test]
#[ignore = "minutes: cargo xtask soak"]
fn soak_200_kills_during_recovery() {
    survive(8, 200);
}

/// Kills a rank of a job that trains, then others before it trains again, so many in all, and
/// compares what each run has trained with one process that no one disturbed.
fn survive(ranks: usize, kills: usize) {
    let place = Place::new("rows.txt");
    training(&place, "alone.json").succeeds();
    let expected = digest(&place.path("alone.json"));
    let random = CounterRng::new(ranks as u64, 23);
    let (mut killed, mut first, mut draws, mut runs) = (0, 0, 0, 0);
    let mut draw = || {
        draws += 1;
        random.uniform(draws)
    };
    while killed < kills {
        runs += 1;
        let log = place.path(&format!("log-{runs}.json"));
        let run = training(&place, &format!("log-{runs}.json"));
        let run = run.with(&["--snapshot-every", "5"]);
        let run = elastic(&run, ranks, &["--max-restarts", "1000"]);
        // A pipe that no one reads would be full after some attempts.
        let words = place.path("words.txt");
        let mut command = run.command();
        command.stdout(Stdio::null()).stderr(File::create(&words).unwrap());
        let mut launcher = command.spawn().expect("starts");
        let folder = folder_of(&launcher);
        let snapshots = folder.join("snapshots");
        let mut pids = new_ranks(&mut launcher, ranks, &[]).expect("it has just begun");
        let mut seen = None;
        loop {
            // It trains: until the next snapshot, and for a moment more.
            let is_over = loop {
                let now = newest(&snapshots);
                if launcher.try_wait().unwrap().is_some() {
                    break true;
                }
                if now > seen {
                    seen = now;
                    break false;
                }
                std::thread::sleep(Duration::from_micros(500));
            };
            if is_over || killed >= kills {
                break;
            }
            std::thread::sleep(Duration::from_secs_f32(draw() * 0.02));
            let victim = (draw() * ranks as f32) as usize;
            first += usize::from(kill(pids[victim]));
            // It comes together: up to three more, each in another attempt.
            for _ in 0..1 + (draw() * 3.0) as usize {
                let Some(now) = new_ranks(&mut launcher, ranks, &pids) else { break };
                pids = now;
                let before = starts(&log);
                std::thread::sleep(Duration::from_secs_f32(draw() * 0.3));
                let victim = (draw() * ranks as f32) as usize;
                if starts(&log) == before && killed < kills {
                    killed += usize::from(kill(pids[victim]));
                } else {
                    break;
                }
            }
            match new_ranks(&mut launcher, ranks, &[]) {
                Some(now) => pids = now,
                None => break,
            }
        }
        let status = launcher.wait().expect("an own child");
        let said = std::fs::read_to_string(&words).unwrap();
        assert!(status.success(), "run {runs}: {said}");
        assert_eq!(digest(&log), expected, "run {runs}: other weights than one process");
        assert!(said.contains("from a snapshot"), "{said}");
        assert!(!folder.exists(), "{} is left", folder.display());
        println!("run {runs} of {ranks} ranks ended as undisturbed, {killed} kills in recovery");
    }
    println!("{first} ranks were killed in training, {killed} before the job trained again");
}

/// One process is killed; then there is a checkpoint of an earlier step, of the same, of a later.
#[test]
fn a_run_continues_from_the_newest_of_checkpoint_and_snapshot() {
    let place = Place::new("rows.txt");
    for (name, saved_later) in [("older", -10), ("same", 0), ("newer", 10)] {
        let [checkpoints, snapshots] =
            ["checkpoints", "snapshots"].map(|folder| place.path(&format!("{name} {folder}")));
        let saving = |steps| {
            let run = training_of(&place, "log.json", steps);
            run.path("--checkpoint-dir", &checkpoints)
        };
        let taking = |steps| {
            let run = saving(steps).path("--snapshot-dir", &snapshots);
            run.with(&["--snapshot-every", "10"])
        };
        let mut process = taking(1_000_000).start();
        wait_until("two snapshots", || newest(&snapshots) >= Some(20));
        process.kill().unwrap();
        process.wait().unwrap();
        let taken = newest(&snapshots).unwrap();
        let saved = taken.checked_add_signed(saved_later).unwrap();
        saving(saved).succeeds();
        let whole = taking(taken + 30);
        whole.fails(2, &["(newest: step", "go on with --resume"]);

        let said = whole.with(&["--resume"]).succeeds().stderr;
        assert!(said.contains(&format!("resumed at step {}", saved.max(taken))), "{name}: {said}");
        assert_eq!(said.contains("from a snapshot"), saved < taken, "{name}: {said}");
        assert!(said.contains("training stood still for"), "{name}: {said}");
        training_of(&place, "alone.json", taken + 30).succeeds();
        let [log, alone] = ["log.json", "alone.json"].map(|log| digest(&place.path(log)));
        assert_eq!(log, alone, "{name}: other weights");
        assert_eq!(steps(&snapshots), [0_u64; 0], "the end is saved: no snapshot is needed");
    }
}

/// The models of an ensemble have folders of their own, also for snapshots.
#[test]
fn an_ensemble_that_was_killed_continues_from_the_snapshot_of_its_model() {
    let place = Place::new("rows.txt");
    let [checkpoints, snapshots] = ["checkpoints", "snapshots"].map(|folder| place.path(folder));
    let run = training_of(&place, "log.json", 3000).with(&["--seeds", "2"]);
    let run = run.path("--checkpoint-dir", &checkpoints).path("--snapshot-dir", &snapshots);
    let run = run.with(&["--snapshot-every", "5"]);
    let mut process = run.start();
    wait_until("a snapshot of the second model", || newest(&snapshots.join("seed-6")).is_some());
    process.kill().unwrap();
    process.wait().unwrap();
    let said = run.with(&["--resume"]).succeeds().stderr;
    assert!(said.contains("from a snapshot"), "{said}");
}

#[test]
fn snapshots_are_counted_before_they_are_taken() {
    let place = Place::new("rows.txt");
    let run = training(&place, "log.json");
    let without = run.clone().with(&["--dry-run"]).succeeds().stdout;
    assert!(!without.contains("snapshots"), "{without}");
    let taking = run.clone().path("--snapshot-dir", &place.path("snapshots"));
    let with = taking.with(&["--dry-run", "--snapshot-every", "7"]).succeeds().stdout;
    assert!(with.contains("one every 7 steps") && with.contains("besides"), "{with}");
    // In a file system that never has room.
    let full = run.variable("HEADLONG_SNAPSHOT_DIR", "/proc/snapshots");
    full.fails(2, &["/proc/snapshots has 0 B free", "--shm-size"]);
}

/// A signal that comes while the other ranks end is not lost with them.
#[test]
fn a_job_that_is_asked_to_end_is_not_started_again() {
    let place = Place::new("rows.txt");
    let run = training_of(&place, "log.json", 100_000).with(&["--snapshot-every", "5"]);
    let run = elastic(&run, 2, &[]);
    let mut launcher = run.command().stderr(Stdio::piped()).spawn().expect("starts");
    let snapshots = folder_of(&launcher).join("snapshots");
    wait_until("a snapshot", || newest(&snapshots).is_some());
    let pids = new_ranks(&mut launcher, 2, &[]).expect("it trains");
    assert!(kill(pids[0]));
    let launcher_pid = Pid::from_raw(launcher.id() as i32).unwrap();
    kill_process(launcher_pid, Signal::TERM).unwrap();
    let output = launcher.wait_with_output().expect("an own child");
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(!output.status.success() && !said.contains("starting all ranks again"), "{said}");
    assert!(!snapshots.exists(), "the folder goes with the launcher");
}

#[test]
fn folders_and_flags_that_cannot_be_meant_are_refused() {
    let place = Place::new("rows.txt");
    let (checkpoints, snapshots) = (place.path("checkpoints"), place.path("snapshots"));
    let run = training_of(&place, "log.json", 20);
    run.clone().with(&["--snapshot-every", "5"]).fails(2, &["--snapshot-every needs a folder"]);
    let same = run.clone().path("--checkpoint-dir", &checkpoints);
    same.path("--snapshot-dir", &checkpoints).fails(2, &["name the same folder"]);

    // A run that keeps no checkpoint leaves its snapshot, and says so; it is no other run's.
    let first = run.path("--snapshot-dir", &snapshots).with(&["--snapshot-every", "5"]);
    let said = first.clone().succeeds().stderr;
    assert!(said.contains("the last snapshot stays in"), "{said}");
    let again = training_of(&place, "log.json", 30).path("--snapshot-dir", &snapshots);
    let other = again.clone().path("--checkpoint-dir", &checkpoints).with(&["--resume"]);
    other.fails(2, &["is a snapshot of another run (checkpoint.dir = "]);
    let said = again.with(&["--resume"]).succeeds().stderr;
    assert!(said.contains("resumed at step 15 (sample 960), from a snapshot"), "{said}");

    let launch = |command: &[&str], options: &[&str]| {
        let launch = Run::new("launch").with(&["-n", "2", "--elastic"]).with(options);
        launch.with(&["--"]).with(command)
    };
    launch(&["train"], &["--max-restarts", "0"]).fails(2, &["of no use without a restart"]);
    launch(&["bench", "barrier"], &[]).fails(2, &["`bench` takes no snapshots, `train` does"]);
}
