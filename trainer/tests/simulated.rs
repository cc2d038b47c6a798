//! Whole training steps under two thousand schedules: delays, orders, and in half of them a fault.
//! Where nothing fails, losses, weights and states have the bits of one rank; where something does,
//! all ranks end and name the culprit.

#![cfg(test)]

use crate::simulation::{Case, Wrong, playing};
use headlong_comm::testing::sim::{Mutation, Report};
use std::time::Instant;

/// Runs the cases of many seeds, half of them with a fault, on both cores.
fn run_all(seeds: std::ops::Range<u64>) -> Vec<Report> {
    playing::run_all(seeds, |seed| {
        let case = Case::new(seed, seed % 2 == 1);
        case.run().map_err(|wrong| format!("{wrong}\nplay it again: {}", case.command()))
    })
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
    for (wrong, faulty) in playing::KEPT {
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
    playing::assert_plays_again(&case.command(), "simulated_run", &found);
}
