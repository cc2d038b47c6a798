//! Two processes at once on one output, folder of data or folder of checkpoints: each ends with its
//! own right result or is refused by name, and what they leave is never damaged.

#![cfg(test)]

use crate::run_support::{Ended, Place, Run, events, rows, write};
use headlong_device::rng::CounterRng;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// What a refused process says, one of them.
const REFUSED: [&str; 5] = [
    "being written by another process",
    "in use by another run",
    "another process is making a dictionary",
    "another process is writing checkpoints",
    "holds an earlier run's checkpoints",
];

/// Rounds of each case in every run of the tests.
const FEW: usize = 2;

/// A command that two processes run at once.
struct Case {
    name: &'static str,
    /// The command of one of them (0 or 1) in a folder of the round.
    run: fn(&Place, &Path, usize) -> Run,
    leaves: Leaves,
    /// Whether none of them is refused.
    both_succeed: bool,
}

/// Where the result is looked for.
enum Leaves {
    /// In the last words: the digest of the weights. The folder serves another run afterwards.
    Digest,
    /// The same, in a folder of checkpoints, which must be sound afterwards.
    Checkpoints,
    /// In one file, which is that of a process that succeeded.
    File(&'static str),
    /// In one log, which is that of a process that succeeded, from its first line to its last.
    Log(&'static str),
}

fn data(place: &Place, which: usize) -> PathBuf {
    if which == 0 { place.train.clone() } else { place.path("other.txt") }
}

fn checkpoints(place: &Place, which: usize) -> PathBuf {
    place.path(if which == 0 { "checkpoints" } else { "other-checkpoints" })
}

fn seed(which: usize) -> String {
    format!("train.seed={}", which + 1)
}

fn synthetic(place: &Place, out: &Path, seed: usize) -> Run {
    let seed = format!("synthetic.seed={seed}");
    let rows =
        ["--set", "synthetic.train_rows=6400", "--set", "synthetic.valid_rows=640", "--set", &seed];
    place.train_into(out).with(&rows).with(&["--steps", "4", "--threads", "1"])
}

fn with_dictionary(place: &Place, out: &Path, which: usize) -> Run {
    let settings =
        ["--set", "data.ids=dictionary", "--set", "tables.rows=dictionary", "--steps", "4"];
    place
        .train_into(out)
        .path("--data", &data(place, which))
        .with(&settings)
        .with(&["--threads", "1"])
}

const CASES: [Case; 11] = [
    Case {
        name: "synthetic data of other seeds",
        run: |place, out, which| synthetic(place, out, which + 1),
        leaves: Leaves::Digest,
        both_succeed: false,
    },
    Case {
        name: "synthetic data of one seed",
        run: |place, out, which| synthetic(place, out, 1).with(&["--set", &seed(which)]),
        leaves: Leaves::Digest,
        both_succeed: true,
    },
    Case {
        name: "dictionaries of other data",
        run: with_dictionary,
        leaves: Leaves::Digest,
        both_succeed: true,
    },
    Case {
        name: "statistics of the same data",
        run: |place, out, which| {
            let run = place.train_into(out).path("--data", &place.train).with(&["--ranks", "2"]);
            run.with(&["--threads", "2", "--steps", "4", "--set", &seed(which)])
        },
        leaves: Leaves::Digest,
        both_succeed: true,
    },
    Case {
        name: "one folder of checkpoints",
        run: |place, out, which| {
            let run =
                place.train_into(&out.join(which.to_string())).path("--data", &data(place, which));
            let run = run.path("--checkpoint-dir", &out.join("checkpoints"));
            run.with(&["--steps", "8", "--save-every", "2", "--threads", "1"])
        },
        leaves: Leaves::Checkpoints,
        both_succeed: false,
    },
    Case {
        name: "one log",
        run: |place, out, which| {
            let run =
                place.train_into(&out.join(which.to_string())).path("--data", &data(place, which));
            run.path("--log-json", &out.join("log.json")).with(&["--steps", "8", "--threads", "1"])
        },
        leaves: Leaves::Log("log.json"),
        both_succeed: false,
    },
    Case {
        name: "data make",
        run: |place, out, which| {
            let make = Run::new("data").with(&["make", "--min-count", "2"]);
            make.path("--data", &data(place, which)).path("--output", &out.join("made"))
        },
        leaves: Leaves::File("made/dictionary.hld"),
        both_succeed: false,
    },
    Case {
        name: "data convert",
        run: |place, out, which| {
            let convert = Run::new("data").with(&["convert", "--to", "csv"]);
            convert.path("--data", &data(place, which)).path("--output", &out.join("rows.csv"))
        },
        leaves: Leaves::File("rows.csv"),
        both_succeed: false,
    },
    Case {
        name: "predict",
        run: |place, out, which| {
            let predict = Run::new("predict").path("--checkpoint", &checkpoints(place, 0));
            let predict = predict.path("--data", &data(place, which)).with(&["--threads", "1"]);
            predict.path("--output", &out.join("p.csv"))
        },
        leaves: Leaves::File("p.csv"),
        both_succeed: false,
    },
    Case {
        name: "checkpoint export",
        run: |place, out, which| {
            let folder = checkpoints(place, which);
            let export = Run::new("checkpoint").with(&["export", folder.to_str().unwrap()]);
            export.path("--output", &out.join("model.safetensors"))
        },
        leaves: Leaves::File("model.safetensors"),
        both_succeed: false,
    },
    Case {
        name: "--json-file",
        run: |place, out, which| {
            let folder = checkpoints(place, which);
            let inspect = Run::new("checkpoint").with(&["inspect", folder.to_str().unwrap()]);
            inspect.path("--json-file", &out.join("inspected.json"))
        },
        leaves: Leaves::File("inspected.json"),
        both_succeed: false,
    },
];

/// What a process that no one disturbs ends with.
struct Alone {
    results: [Vec<u8>; 2],
    took: Duration,
}

/// How often one of two was refused, over all rounds.
#[derive(Default)]
struct Tally {
    rounds: usize,
    refused: usize,
}

impl Case {
    /// The result of a process that succeeded, as far as it can be told by itself.
    fn result(&self, out: &Path, ended: &Ended) -> Vec<u8> {
        match self.leaves {
            Leaves::Digest | Leaves::Checkpoints => ended.digest().into_bytes(),
            Leaves::File(name) => std::fs::read(out.join(name)).unwrap(),
            Leaves::Log(name) => digest_of_log(&out.join(name)),
        }
    }

    fn alone(&self, place: &Place) -> Alone {
        let started = Instant::now();
        let results = [0, 1].map(|which| {
            let out = place.path("alone");
            std::fs::create_dir(&out).unwrap();
            let result = self.result(&out, &(self.run)(place, &out, which).succeeds());
            std::fs::remove_dir_all(out).unwrap();
            result
        });
        assert!(results[0] != results[1], "{}: the two cannot be told apart", self.name);
        Alone { results, took: started.elapsed() / 2 }
    }

    /// Starts both, the second one somewhat later, and looks at what they leave.
    fn round(&self, place: &Place, alone: &Alone, draw: f32, tally: &mut Tally) {
        let out = place.path("round");
        std::fs::create_dir(&out).unwrap();
        let order = if draw < 0.5 { [0, 1] } else { [1, 0] };
        let start = |which: usize| {
            let mut command = (self.run)(place, &out, which).command();
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let first = start(order[0]);
        std::thread::sleep(alone.took.mul_f32(2.0 * (draw % 0.5)));
        let second = start(order[1]);
        let ended = [first, second].map(|child| Ended::of(child.wait_with_output().unwrap()));
        let context = format!("{}, {draw}, {ended:?}", self.name);
        let succeeded: Vec<usize> = (0..2).filter(|&index| ended[index].code == Some(0)).collect();
        for index in (0..2).filter(|index| !succeeded.contains(index)) {
            let says = &ended[index].stderr;
            let by_name =
                REFUSED.iter().any(|words| says.contains(words)) && !says.contains("panicked");
            assert!(by_name && matches!(ended[index].code, Some(1 | 2)), "{context}");
        }
        assert!(!succeeded.is_empty() && (!self.both_succeed || succeeded.len() == 2), "{context}");
        let is_right =
            |index: &usize| self.result(&out, &ended[*index]) == alone.results[order[*index]];
        match self.leaves {
            Leaves::Digest | Leaves::Checkpoints => {
                assert!(succeeded.iter().all(is_right), "{context}")
            }
            // What came later has taken the place of what came before.
            Leaves::File(_) | Leaves::Log(_) => {
                assert!(succeeded.iter().any(is_right), "{context}")
            }
        }
        match self.leaves {
            Leaves::Digest => {
                let again = (self.run)(place, &out, 0).succeeds().digest().into_bytes();
                assert!(again == alone.results[0], "afterwards: {context}");
            }
            Leaves::Checkpoints => {
                let folder = out.join("checkpoints");
                Run::new("checkpoint").with(&["verify", folder.to_str().unwrap()]).succeeds();
            }
            Leaves::File(_) | Leaves::Log(_) => {}
        }
        assert_eq!(left_over(&out), [] as [PathBuf; 0], "{context}");
        std::fs::remove_dir_all(out).unwrap();
        tally.rounds += 1;
        tally.refused += 2 - succeeded.len();
    }
}

/// The digest in the last words of a log that holds one run and nothing else.
fn digest_of_log(log: &Path) -> Vec<u8> {
    let events = events(log);
    let named = |name: &str| events.iter().filter(|event| event["event"] == name).count();
    let ends = (&events[0]["event"], &events[events.len() - 1]["event"]);
    assert_eq!((named("start"), named("step"), named("done")), (1, 8, 1), "{}", log.display());
    assert_eq!((ends.0.as_str(), ends.1.as_str()), (Some("start"), Some("done")));
    events[events.len() - 1]["weights_digest"].as_str().unwrap().as_bytes().to_vec()
}

/// Files below `folder` that are in the making, or locks of such.
fn left_over(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with(".tmp-") || name != ".lock" && name.ends_with(".lock") {
            found.push(path);
        } else if path.is_dir() {
            found.extend(left_over(&path));
        }
    }
    found
}

/// Runs every case this often, each time with another delay, and says how often a process was
/// refused.
fn run_all(rounds: usize) {
    let place = Place::new("rows.txt");
    write(&place.path("other.txt"), &rows(1100, 9));
    for which in 0..2 {
        let train = place.train().with(&["--steps", "2", "--set", &seed(which)]);
        train.path("--checkpoint-dir", &checkpoints(&place, which)).succeeds();
    }
    for (number, case) in CASES.iter().enumerate() {
        let started = Instant::now();
        let alone = case.alone(&place);
        let random = CounterRng::new(number as u64 + 1, 11);
        let mut tally = Tally::default();
        for round in 0..rounds {
            case.round(&place, &alone, random.uniform(round as u64), &mut tally);
        }
        println!(
            "{}: {} rounds, {} times one of two was refused by name, no result damaged, {:.1} s",
            case.name,
            tally.rounds,
            tally.refused,
            started.elapsed().as_secs_f64()
        );
    }
}

#[test]
fn two_processes_never_mix_what_they_write() {
    run_all(FEW);
}

/// `cargo xtask soak` runs this and keeps what it prints.
#[test]
#[ignore = "minutes: cargo xtask soak"]
fn soak_two_processes() {
    run_all(50);
}
