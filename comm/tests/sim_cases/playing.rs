//! How cases of the simulated network are run by the thousand, and one is played again.

#![allow(dead_code, reason = "each program uses a part")]

use super::fault::{self, Fault};
use headlong_comm::testing::sim::{Mutation, Report};
use std::ops::Range;
use std::process::{Command, ExitCode};

/// A fault, in the transport or in its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    Transport(Mutation),
    Caller(Fault),
}

impl Wrong {
    /// Its name on the command line.
    pub fn name(self) -> String {
        match self {
            Wrong::Transport(mutation) => format!("{mutation:?}"),
            Wrong::Caller(fault) => format!("{fault:?}"),
        }
    }

    /// All of them.
    fn all() -> impl Iterator<Item = Wrong> {
        let transport = Mutation::ALL.into_iter().map(Wrong::Transport);
        transport.chain(fault::ALL.into_iter().map(Wrong::Caller))
    }
}

/// Faults that some seed must show, with a fault of the network or without.
pub const KEPT: [(Wrong, bool); 11] = [
    (Wrong::Transport(Mutation::AcceptAnyStep), false),
    (Wrong::Transport(Mutation::MixSources), false),
    (Wrong::Transport(Mutation::SkipOnePeer), false),
    (Wrong::Transport(Mutation::ReuseBeforeDelivery), false),
    (Wrong::Transport(Mutation::ShowInOrderOfArrival), false),
    (Wrong::Caller(Fault::SequenceStays), false),
    (Wrong::Caller(Fault::MixStrips), false),
    (Wrong::Caller(Fault::ForgetLastStrip), false),
    (Wrong::Transport(Mutation::KeepErrorToItself), true),
    (Wrong::Transport(Mutation::BlameNeighbour), true),
    (Wrong::Caller(Fault::FailQuietly), true),
];

/// Runs many seeds on both cores.
///
/// # Panics
/// With the first that ends wrongly.
pub fn run_all(
    seeds: Range<u64>,
    run: impl Fn(u64) -> Result<Report, String> + Sync,
) -> Vec<Report> {
    let half = |odd: u64| {
        let mine = seeds.clone().filter(|seed| seed / 2 % 2 == odd);
        mine.map(&run).collect::<Result<Vec<_>, _>>()
    };
    let halves = std::thread::scope(|scope| {
        let other = scope.spawn(|| half(1));
        [half(0), other.join().expect("no panic")]
    });
    halves.into_iter().flat_map(|half| half.unwrap_or_else(|wrong| panic!("{wrong}"))).collect()
}

/// What the command that plays a case is given.
#[derive(Default)]
pub struct Arguments {
    pub job: Option<String>,
    pub seed: u64,
    pub faulty: bool,
    pub fault: Option<Wrong>,
}

/// The program that plays the case of its arguments.
pub fn main(
    usage: &str,
    play: impl FnOnce(Arguments) -> Result<Result<Report, String>, String>,
) -> ExitCode {
    let has_jobs = usage.contains("--job");
    match parse(std::env::args().skip(1), has_jobs).and_then(play) {
        Err(reason) => {
            eprintln!("{reason}\n{usage}");
            ExitCode::from(2)
        }
        Ok(Err(wrong)) => {
            println!("WRONG: {wrong}");
            ExitCode::FAILURE
        }
        Ok(Ok(_)) => {
            println!("nothing is wrong");
            ExitCode::SUCCESS
        }
    }
}

fn parse(mut words: impl Iterator<Item = String>, has_jobs: bool) -> Result<Arguments, String> {
    let mut arguments = Arguments::default();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--job" if has_jobs => arguments.job = Some(value()?),
            "--seed" => {
                arguments.seed = value()?.parse().map_err(|error| format!("--seed: {error}"))?;
            }
            "--faulty" => arguments.faulty = true,
            "--fault" => {
                let name = value()?;
                let found = Wrong::all().find(|wrong| wrong.name() == name);
                arguments.fault = Some(found.ok_or_else(|| format!("no fault `{name}`"))?);
            }
            other => return Err(format!("what is `{other}`?")),
        }
    }
    Ok(arguments)
}

/// What a failing seed prints is a command that shows the same failure.
///
/// # Panics
/// When it is not.
pub fn assert_plays_again(command: &str, example: &str, found: &str) {
    let (cargo, arguments) = command.split_once(" -- ").expect("cargo's words, then the example's");
    assert!(
        cargo.starts_with("cargo run --release ")
            && cargo.ends_with(&format!(" --example {example}")),
        "{command}"
    );
    // The example that was built with this test; `cargo run` would build all dependencies again
    // with this package's own features.
    let program = std::env::current_exe().expect("this test is a program");
    let folder = program.parent().expect("it lies in a folder");
    let example = folder.with_file_name(format!("examples/{example}"));
    let output = Command::new(&example)
        .args(arguments.split(' '))
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", example.display()));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "the case fails");
    assert!(
        text.contains(&format!("WRONG: {found}")),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
