//! `kill -9` at any moment, also in the middle of a save, loses nothing but the steps since the
//! last checkpoint: the run continues with `--resume` and ends in the very same bits as a run that
//! no one disturbed.

#![cfg(test)]

use crate::run_support::{Place, Run, digest, names, steps};
use headlong::state::checkpoint;
use headlong_device::rng::CounterRng;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

/// What is trained on: the file's name decides the compression, the arguments how ids become rows.
const KINDS: [(&str, &[&str]); 3] = [
    ("rows.txt", &["--set", "data.ids=hash"]),
    ("rows.txt.gz", &["--set", "data.ids=admitted", "--optimizer", "adam"]),
    ("rows.txt.gz", &["--set", "data.ids=dictionary", "--set", "tables.rows=dictionary"]),
];

#[test]
fn twenty_kills() {
    let tallies: Vec<Tally> =
        [8, 8, 4].iter().zip(0..).map(|(&kills, kind)| survive(kind, kills)).collect();
    let during_saves: usize = tallies.iter().map(|tally| tally.during_saves).sum();
    assert!(during_saves >= 3, "only {during_saves} kills hit a save");
}

/// `cargo xtask soak` runs this and keeps what it prints.
#[test]
#[ignore = "minutes: cargo xtask soak"]
fn soak_200() {
    let mut during_saves = 0;
    for (kind, kills) in [80, 80, 40].into_iter().enumerate() {
        let tally = survive(kind, kills);
        during_saves += tally.during_saves;
    }
    println!("200 kills, {during_saves} of them during a save");
    assert!(during_saves >= 30, "only {during_saves} kills hit a save");
}

#[derive(Default)]
struct Tally {
    kills: usize,
    during_saves: usize,
    runs: usize,
}

/// Kills runs on one kind of data this often, and compares every run that reaches its end.
fn survive(kind: usize, kills: usize) -> Tally {
    let (name, arguments) = KINDS[kind];
    let place = Place::new(name);
    let reference = place.path("reference.json");
    let train = place.train().with(arguments).with(&["--epochs", "2", "--eval-every", "7"]);
    let train = train.path("--valid", &place.valid);
    let started = Instant::now();
    train.clone().path("--log-json", &reference).succeeds();
    let undisturbed = started.elapsed();
    let expected = digest(&reference);
    println!("{name} {arguments:?}: undisturbed in {undisturbed:.2?}, weights {expected}");

    let mut tally = Tally::default();
    let mut killer = Killer { random: CounterRng::new(kind as u64 + 1, 9), draws: 0, undisturbed };
    while tally.kills < kills {
        tally.runs += 1;
        let log = place.path(&format!("log-{}.json", tally.runs));
        let checkpoints = place.path(&format!("checkpoints-{}", tally.runs));
        let run = train.clone().path("--log-json", &log).path("--checkpoint-dir", &checkpoints);
        let run = run.with(&["--save-every", "3", "--resume"]);
        one_run(&run, &checkpoints, kills, &mut killer, &mut tally);
        assert_eq!(digest(&log), expected, "{name}: a resumed run ended in other weights");
        let left: Vec<String> = names(&checkpoints)
            .into_iter()
            .filter(|name| !name.starts_with("step-") && name != ".lock")
            .collect();
        assert_eq!(left, [] as [String; 0], "left behind by crashes, and not cleaned");
        println!(
            "  run {} ended after {} kills in all, weights as expected",
            tally.runs, tally.kills
        );
    }
    tally
}

/// One run to its end, however often it is killed on the way.
fn one_run(run: &Run, checkpoints: &Path, kills: usize, killer: &mut Killer, tally: &mut Tally) {
    loop {
        if tally.kills == kills {
            run.succeeds();
            return;
        }
        let mut child = run.start();
        let moment = killer.wait(&mut child, checkpoints);
        let ended = child.try_wait().unwrap();
        if let Some(status) = ended {
            assert!(status.success(), "the run failed by itself: {status}; {}", run.end().stderr);
            return;
        }
        child.kill().unwrap();
        if child.wait().unwrap().success() {
            return;
        }
        tally.kills += 1;
        let (newest, aside) = (newest(checkpoints), being_written(checkpoints));
        tally.during_saves += usize::from(aside.is_some());
        let aside = aside.map_or(String::new(), |step| format!(", step {step} half written"));
        println!("  kill {} {moment}: {newest}{aside}", tally.kills);
    }
}

/// The step of the checkpoint that is or was being written. Older steps aside are being removed.
fn being_written(checkpoints: &Path) -> Option<u64> {
    let newest = steps(checkpoints).last().copied().unwrap_or(0);
    let aside = names(checkpoints);
    let aside =
        aside.iter().filter_map(|name| name.strip_prefix(".tmp-step-")?.parse::<u64>().ok());
    aside.filter(|step| *step > newest).max()
}

/// The newest checkpoint, every byte of which must be as it was written.
fn newest(checkpoints: &Path) -> String {
    match checkpoint::newest(checkpoints).unwrap() {
        None => "no checkpoint yet".to_owned(),
        Some(checkpoint) => {
            checkpoint.verify().unwrap();
            format!("newest checkpoint step {}, whole", checkpoint.manifest().state.step)
        }
    }
}

/// Chooses the moments.
struct Killer {
    random: CounterRng,
    draws: u64,
    undisturbed: Duration,
}

impl Killer {
    /// Waits for the chosen moment, or for the end of the run, and says which moment it was.
    fn wait(&mut self, child: &mut Child, checkpoints: &Path) -> String {
        let (choice, number) = (self.draw(3.0) as u64, self.draw(4.0) as usize);
        let (moment, time) = match choice {
            0 => ("after some time", self.undisturbed.mul_f32(self.draw(1.2))),
            1 => ("while a checkpoint is written", Duration::from_secs_f32(self.draw(0.003))),
            _ => ("when a checkpoint has its name", Duration::from_secs_f32(self.draw(0.003))),
        };
        // Note: two saves at least, so that one of them gets to its end and the run comes on.
        let saves = if choice == 1 { 2 + number } else { 1 + number };
        let before = steps(checkpoints).last().copied().unwrap_or(0);
        let mut seen = Vec::new();
        while choice != 0 && seen.len() < saves && child.try_wait().unwrap().is_none() {
            let found = if choice == 1 {
                being_written(checkpoints)
            } else {
                steps(checkpoints).last().copied()
            };
            seen.extend(found.filter(|step| *step > before && !seen.contains(step)));
            std::thread::sleep(Duration::from_micros(100));
        }
        let until = Instant::now() + time;
        while Instant::now() < until && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(200));
        }
        moment.to_owned()
    }

    fn draw(&mut self, up_to: f32) -> f32 {
        self.draws += 1;
        self.random.uniform(self.draws) * up_to
    }
}
