//! Whole training steps under two thousand schedules: delays, orders, and in half of them a fault.
//! Where nothing fails, losses, weights and states have the bits of one rank; where something does,
//! all ranks end and name the culprit.

#![cfg(test)]

use crate::simulation::fault::Fault;
use crate::simulation::{Case, Wrong};
use headlong_comm::testing::sim::{Mutation, Report};
use std::process::Command;
use std::time::Instant;

/// Runs the cases of many seeds, half of them with a fault, on both cores.
fn run_all(seeds: std::ops::Range<u64>) -> Vec<Report> {
    let run = |seed: u64| {
        let case = Case::new(seed, seed % 2 == 1);
        case.run().map_err(|wrong| format!("{wrong}\nplay it again: {}", case.command()))
    };
    let half = |odd: u64| {
        seeds.clone().filter(|seed| seed / 2 % 2 == odd).map(run).collect::<Result<Vec<_>, _>>()
    };
    let halves = std::thread::scope(|scope| {
        let other = scope.spawn(|| half(1));
        [half(0), other.join().expect("no panic")]
    });
    halves.into_iter().flat_map(|half| half.unwrap_or_else(|wrong| panic!("{wrong}"))).collect()
}

#[test]
fn two_thousand_schedules() {
    let started = Instant::now();
    let reports = run_all(0..2000);
    let failed = reports.iter().filter(|report| report.first_error.is_some()).count();
    let exchanges: u64 = reports.iter().flat_map(|report| &report.exchanges).sum();
    println!(
        "2000 seeds in {:?}, {exchanges} exchanges, {failed} failed as they must",
        started.elapsed()
    );
    assert!(
        failed > 200,
        "{failed} of 500 faults were noticed: the others fell behind the end or do no harm"
    );
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..20 {
        let run = || Case::new(seed, seed % 2 == 1).run().unwrap();
        assert_eq!(run(), run(), "seed {seed}");
    }
}

#[test]
fn faults_are_found() {
    let kept = [
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
    for (wrong, faulty) in kept {
        let found = (0..300)
            .find_map(|seed| Some((seed, Case::new(seed, faulty).with(wrong).run().err()?)));
        let (seed, found) =
            found.unwrap_or_else(|| panic!("{wrong:?} is not noticed within 300 seeds"));
        println!("{wrong:?}: seed {seed}: {found:.200}");
    }
}

/// What a failing seed prints is a command that shows the same failure.
#[test]
fn the_printed_command_plays_the_case_again() {
    let wrong = Wrong::Transport(Mutation::SkipOnePeer);
    let find = |seed| {
        let case = Case::new(seed, false).with(wrong);
        let found = case.run().err()?;
        Some((case, found))
    };
    let (case, found) = (0..100).find_map(find).expect("a failing seed");
    let command = case.command();
    let (cargo, arguments) = command.split_once(" -- ").expect("cargo's words, then the example's");
    assert!(
        cargo.starts_with("cargo run --release ") && cargo.ends_with(" --example simulated_run"),
        "{command}"
    );
    // The example that was built with this test; `cargo run` would build all dependencies again
    // with this package's own features.
    let program = std::env::current_exe().expect("this test is a program");
    let example =
        program.parent().expect("it lies in a folder").with_file_name("examples/simulated_run");
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
