//! `kill -9` at any moment, also in the middle of a save, loses nothing but the steps since the last checkpoint: the run goes
//! on with `--resume` and ends in the very same bits as a run that nobody disturbed.

mod run_support;

use headlong::checkpoint;
use headlong_device::rng::CounterRng;
use run_support::{Place, Run, digest, names, steps};
use std::path::{Path, PathBuf};
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
    let tallies: Vec<Tally> = [8, 8, 4].iter().zip(0..).map(|(&kills, kind)| survive(kind, kills)).collect();
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
        println!("  run {} ended after {} kills in all, weights as expected", tally.runs, tally.kills);
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
        let aside: Vec<String> =
            names(checkpoints).into_iter().filter(|name| name.starts_with(".tmp-")).collect();
        tally.during_saves += usize::from(!aside.is_empty());
        println!("  kill {} {moment}: {}; {}", tally.kills, newest(checkpoints), aside.join(" "));
    }
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
        let started = Instant::now();
        let choice = self.draw(3.0) as u64;
        let (moment, saves) = match choice {
            0 => ("after some time", 0),
            1 => ("while a checkpoint is written", 2 + self.draw(4.0) as usize),
            _ => ("when a checkpoint has its name", 1 + self.draw(4.0) as usize),
        };
        let time = match choice {
            0 => self.undisturbed.mul_f32(self.draw(1.2)),
            _ => Duration::from_secs_f32(self.draw(0.003)),
        };
        let prefix = if choice == 1 { ".tmp-step-" } else { "step-" };
        let mut seen: Vec<PathBuf> =
            steps(checkpoints).iter().map(|step| PathBuf::from(format!("step-{step:09}"))).collect();
        let before = seen.len();
        while seen.len() - before < saves && child.try_wait().unwrap().is_none() {
            for name in names(checkpoints).iter().filter(|name| name.starts_with(prefix)) {
                let name = PathBuf::from(name);
                if !seen.contains(&name) {
                    seen.push(name);
                }
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        while started.elapsed() < time && choice == 0 && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(500));
        }
        if choice != 0 {
            std::thread::sleep(time);
        }
        moment.to_owned()
    }

    fn draw(&mut self, up_to: f32) -> f32 {
        self.draws += 1;
        self.random.uniform(self.draws) * up_to
    }
}
