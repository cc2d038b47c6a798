//! Collectives under thousands of schedules: delays, orders, and in half of them a fault.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sim_cases::playing::{KEPT, assert_plays_again};
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
        "{failed} of 1000 faults were noticed: the others came after the end or do no harm"
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
    let more = [(Wrong::Transport(Mutation::AcceptDuplicates), true)];
    for (wrong, faulty) in KEPT.into_iter().chain(more) {
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
    assert_plays_again(&case.command(), "sim_replay", &found);
}
