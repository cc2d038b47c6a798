//! The simulated network keeps a transport's promises, and notices when one is broken.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::sim_cases::{Case, Wrong, assert_found, messages, run_all};
use headlong_comm::testing::sim::{Fault, FaultPlan, Moment, Mutation, SimOptions, World};
use headlong_comm::transport::{Incoming, Outgoing, StepId, Transport};
use headlong_comm::{CommError, Rank, Topology};

const ID: StepId = StepId { sequence: 0, step: 0, fingerprint: 0, operation: "all_to_all" };

/// One byte from every rank to every other.
fn all_to_all(end: &dyn Transport, id: &StepId) -> Result<Vec<u8>, CommError> {
    let others: Vec<Rank> =
        (0..end.topology().num_ranks()).map(Rank).filter(|&other| other != end.rank()).collect();
    let mine = [end.rank().0 as u8];
    let outgoing: Vec<Outgoing> = others.iter().map(|&to| Outgoing { to, bytes: &mine }).collect();
    let mut bytes = vec![0; others.len()];
    let buffers = others.iter().zip(bytes.chunks_mut(1));
    let mut incoming: Vec<Incoming> =
        buffers.map(|(&from, bytes)| Incoming { from, bytes }).collect();
    end.exchange(id, &outgoing, &mut incoming)?;
    Ok(bytes)
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let run =
        |seed: u64| Case::new(&messages::JOB, seed, seed % 2 == 1).run().expect("nothing is wrong");
    let first: Vec<_> = (0..100).map(run).collect();
    let again: Vec<_> = (0..100).map(run).collect();
    assert_eq!(first, again);
    let hashes: HashSet<u64> = first.iter().map(|report| report.trace_hash).collect();
    assert_eq!(hashes.len(), 100, "every seed has a history of its own");
}

#[test]
fn without_faults_every_byte_arrives() {
    let started = Instant::now();
    let reports = run_all(&messages::JOB, 0..1000, |_| false);
    assert!(reports.iter().all(|report| report.first_error.is_none() && report.messages > 0));
    println!("1000 seeds in {:?}", started.elapsed());
}

#[test]
fn with_a_fault_all_ranks_name_the_culprit() {
    let reports = run_all(&messages::JOB, 0..2000, |_| true);
    let failed = reports.iter().filter(|report| report.first_error.is_some()).count();
    assert!(
        failed > 800,
        "{failed} of 2000 faults were noticed: the others came after the end or do no harm"
    );
    let seen = |test: fn(&Fault) -> bool| {
        reports.iter().flat_map(|report| &report.faults).filter(|f| test(f)).count()
    };
    assert!(seen(|fault| matches!(fault, Fault::Death { moment: Moment::Before, .. })) > 50);
    assert!(seen(|fault| matches!(fault, Fault::Death { moment: Moment::Inside, .. })) > 50);
    assert!(seen(|fault| matches!(fault, Fault::Death { moment: Moment::After, .. })) > 50);
    assert!(seen(|fault| matches!(fault, Fault::LinkLoss { .. })) > 50);
    assert!(seen(|fault| matches!(fault, Fault::Stall { .. })) > 50);
    assert!(seen(|fault| matches!(fault, Fault::Duplicate { .. })) > 50);
}

#[test]
fn a_circle_of_waits_is_found_at_once() {
    let started = Instant::now();
    let (results, report) =
        World::run(&Topology::from_node_sizes(&[3]), SimOptions::new(5), |end| {
            let mut byte = [0];
            let from = Rank((end.rank().0 + 1) % 3);
            end.exchange(&ID, &[], &mut [Incoming { from, bytes: &mut byte }])
        });
    let deadlock = report.deadlock.expect("it is described");
    assert!(
        deadlock.contains("rank 2 is in all_to_all number 0 step 0, waits for messages from [0]"),
        "{deadlock}"
    );
    assert!(results.iter().all(|result| result.as_ref().err() == report.first_error.as_ref()));
    assert!(
        matches!(report.first_error, Some(CommError::Timeout { .. })),
        "{:?}",
        report.first_error
    );
    assert!(report.virtual_time >= Duration::from_secs(20), "{:?}", report.virtual_time);
    assert!(started.elapsed() < Duration::from_secs(4), "no real time is waited");
}

#[test]
fn ranks_in_different_operations_notice() {
    for seed in 0..50 {
        let (results, report) =
            World::run(&Topology::from_node_sizes(&[2, 2]), SimOptions::new(seed), |end| {
                let id = StepId { fingerprint: u32::from(end.rank() == Rank(2)), ..ID };
                all_to_all(&*end, &id)
            });
        let first = report.first_error.expect("they notice");
        let CommError::Mismatch { culprit, seen_by, .. } = &first else { panic!("{first}") };
        assert!(*culprit == Rank(2) || *seen_by == Rank(2), "{first}");
        assert!(results.iter().all(|result| result.as_ref().err() == Some(&first)), "{results:?}");
    }
}

#[test]
fn a_thread_that_ends_without_goodbye_is_missed_and_one_that_closes_is_not() {
    for seed in 0..50 {
        let leave = |close: bool| {
            World::run(&Topology::from_node_sizes(&[3]), SimOptions::new(seed), move |end| {
                all_to_all(&*end, &ID)?;
                if end.rank() == Rank(1) {
                    return if close { end.close() } else { Ok(()) };
                }
                // The others go on without it.
                let peer = Rank(2 - end.rank().0);
                let mut byte = [0];
                let mut incoming = [Incoming { from: peer, bytes: &mut byte }];
                for step in 1..50 {
                    let id = StepId { step, ..ID };
                    end.exchange(&id, &[Outgoing { to: peer, bytes: &[1] }], &mut incoming)?;
                }
                end.close()
            })
        };
        let (results, report) = leave(true);
        assert!(results.iter().all(Result::is_ok) && report.first_error.is_none(), "{results:?}");
        let (results, report) = leave(false);
        if let Some(first) = report.first_error {
            assert_eq!(first.culprit(), Some(Rank(1)));
            assert!(
                [0, 2]
                    .iter()
                    .all(|&rank| results[rank].as_ref().err().is_none_or(|error| *error == first))
            );
        }
    }
}

#[test]
fn a_rank_that_panics_does_not_leave_the_others_waiting() {
    let (world, ends) = World::new(&Topology::from_node_sizes(&[3]), &SimOptions::new(9));
    let threads = ends.into_iter().map(|end| {
        std::thread::spawn(move || {
            assert!(end.rank() != Rank(0), "this panic belongs to the test");
            all_to_all(&*end, &ID)
        })
    });
    let threads: Vec<_> = threads.collect();
    let results: Vec<_> = threads.into_iter().map(std::thread::JoinHandle::join).collect();
    assert!(results[0].is_err());
    for result in &results[1..] {
        let error = result.as_ref().expect("no panic").as_ref().expect_err("rank 0 is missing");
        assert_eq!(error.culprit(), Some(Rank(0)), "{error}");
        assert_eq!(Some(error), world.report().first_error.as_ref());
    }
}

#[test]
fn a_silent_death_is_found_by_the_deadline_alone() {
    let fault = Fault::Death { rank: Rank(1), exchange: 0, moment: Moment::Before, silent: true };
    let options = SimOptions { faults: FaultPlan { faults: vec![fault] }, ..SimOptions::new(3) };
    let (results, report) =
        World::run(&Topology::from_node_sizes(&[2]), options, |end| all_to_all(&*end, &ID));
    let first = report.first_error.expect("it is found");
    let expected = "rank 1 has not come to all_to_all number 0 within 20000 ms (seen from rank 0)";
    assert_eq!(first.to_string(), expected);
    assert_eq!(results[0].as_ref().err(), Some(&first));
    assert!(
        report.virtual_time >= Duration::from_secs(20)
            && report.virtual_time < Duration::from_secs(21)
    );
}

/// Every mistake the transport can be told to make is noticed by the judge of ordinary runs.
#[test]
fn mistakes_of_the_transport_are_found() {
    let kept = [
        (Mutation::AcceptAnyStep, false),
        (Mutation::MixSources, false),
        (Mutation::SkipOnePeer, false),
        (Mutation::ReuseBeforeDelivery, false),
        (Mutation::AcceptDuplicates, true),
        (Mutation::KeepErrorToItself, true),
        (Mutation::BlameNeighbour, true),
    ];
    for (mutation, faulty) in kept {
        assert_found(&messages::JOB, Wrong::Transport(mutation), faulty, 1000);
    }
}
