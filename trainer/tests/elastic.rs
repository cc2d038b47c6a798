//! `headlong launch --elastic`: ranks are killed while the job trains and while it comes together
//! again, and it ends in the weights of a run that was never disturbed.

#![cfg(test)]

use crate::run_support::{Place, Run, digest, ranks_of, steps};
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

fn training_of(place: &Place, log: &str, steps: u64) -> Run {
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
    PathBuf::from(format!("/dev/shm/headlong-snapshots-{}", launcher.id()))
}

fn newest(snapshots: &Path) -> Option<u64> {
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

/// By one process, which ends by itself: without a folder for checkpoints its snapshot stays.
#[test]
fn a_run_continues_from_the_newest_of_checkpoint_and_snapshot() {
    let place = Place::new("rows.txt");
    training(&place, "alone.json").succeeds();
    let folders = |name: &str| (place.path(name), place.path(&format!("{name} in memory")));
    for (name, saved, words) in [
        ("older", 10, "resumed at step 20 (sample 1280), from a snapshot"),
        ("same", 20, "resumed at step 20 (sample 1280)\n"),
        ("newer", 30, "resumed at step 30 (sample 1884)\n"),
    ] {
        let (checkpoints, snapshots) = folders(name);
        let run = |steps| training_of(&place, "log.json", steps).with(&["--snapshot-every", "10"]);
        let first = run(25).path("--snapshot-dir", &snapshots);
        let said = first.clone().succeeds().stderr;
        assert!(said.contains("the first of one every 10 steps"), "{said}");
        assert!(said.contains("training stood still for 2 snapshots"), "{said}");
        assert_eq!(steps(&snapshots), [20], "the newest is enough");
        run(saved).path("--checkpoint-dir", &checkpoints).succeeds();
        first.fails(2, &["--snapshot-dir", "(newest: step 20): go on with --resume"]);

        let run = run(STEPS).path("--checkpoint-dir", &checkpoints).with(&["--resume"]);
        let resumed = run.path("--snapshot-dir", &snapshots).succeeds();
        assert!(resumed.stderr.contains(words), "{name}: {}", resumed.stderr);
        let log = place.path("log.json");
        assert_eq!(digest(&log), digest(&place.path("alone.json")), "{name}: other weights");
        assert_eq!(steps(&snapshots), [0_u64; 0], "the end is saved: no snapshot is needed");
    }
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
