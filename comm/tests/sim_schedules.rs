//! Collectives under thousands of schedules: delays, orders, and in half of them a fault.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sim_cases::fault::Fault;
use crate::sim_cases::{Case, Wrong, assert_found, collectives, run_all};
use headlong_comm::testing::sim::Mutation;
use headlong_comm::transport::Transport;
use headlong_comm::transport::local::LocalTransport;

#[test]
fn collectives_are_right_under_every_schedule() {
    let started = Instant::now();
    let reports = run_all(&collectives::JOB, 0..2000, |seed| seed % 2 == 1);
    let failed = reports.iter().filter(|report| report.first_error.is_some()).count();
    println!("2000 seeds in {:?}, {failed} failed as they must", started.elapsed());
    assert!(
        failed > 400,
        "{failed} of 1000 faults were noticed: the others fell behind the end or do no harm"
    );
}

/// The oracles inside the job are those of the default transport too: without a fault its results
/// are the same bits.
#[test]
fn the_local_transport_gives_the_same_results() {
    for seed in (0..100).step_by(2) {
        let case = Case::new(&collectives::JOB, seed, false);
        let ends = LocalTransport::world(&case.topology, Duration::from_secs(20));
        std::thread::scope(|scope| {
            let case = &case;
            let threads: Vec<_> = ends
                .into_iter()
                .map(|end| scope.spawn(move || case.body(Arc::new(end) as Arc<dyn Transport>)))
                .collect();
            for thread in threads {
                assert_eq!(thread.join().expect("no panic"), Ok(()), "seed {seed}");
            }
        });
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
        (Wrong::Transport(Mutation::AcceptDuplicates), true),
        (Wrong::Transport(Mutation::KeepErrorToItself), true),
        (Wrong::Transport(Mutation::BlameNeighbour), true),
        (Wrong::Caller(Fault::FailQuietly), true),
    ];
    for (wrong, faulty) in kept {
        assert_found(&collectives::JOB, wrong, faulty, 1000);
    }
}

/// What a failing seed prints is a command that shows the same failure.
#[test]
fn the_printed_command_plays_the_case_again() {
    let wrong = Wrong::Transport(Mutation::SkipOnePeer);
    let find = |seed| {
        let case = Case::new(&collectives::JOB, seed, false).with(wrong);
        let found = case.run().err()?;
        Some((case, found))
    };
    let (case, found) = (0..100).find_map(find).expect("a failing seed");
    let command = case.command();
    let (cargo, arguments) = command.split_once(" -- ").expect("cargo's words, then the example's");
    assert!(
        cargo.starts_with("cargo run --release ") && cargo.ends_with(" --example sim_replay"),
        "{command}"
    );
    // The example that was built with this test; `cargo run` would build all dependencies again
    // with this package's own features.
    let program = std::env::current_exe().expect("this test is a program");
    let example =
        program.parent().expect("it lies in a folder").with_file_name("examples/sim_replay");
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
