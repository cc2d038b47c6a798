//! What carries the payload of processes carries every message, of any length, and finds out ranks
//! that are not in step: TCP, shared memory, and both.

use crate::tcp_support::{self, Way, over_every_way};
use headlong_comm::transport::{Incoming, Outgoing, StepId, Transport};
use headlong_comm::{CommError, CommOptions, Communicator, Rank};
use std::thread;
use std::time::{Duration, Instant};

over_every_way!(
    messages_of_all_lengths_among_four_ranks,
    collectives_equal_those_between_threads,
    a_rank_in_another_operation_is_named_with_both_operations,
    an_own_failure_reaches_everybody_with_its_reason,
    a_rank_that_is_alive_but_never_comes_is_named_after_the_deadline,
    a_rank_that_leaves_without_goodbye_has_failed_and_dropping_is_quick,
);

fn step(sequence: u64) -> StepId {
    StepId { sequence, step: 0, fingerprint: 5, operation: "test" }
}

/// Everybody sends everybody `length(from, to)` bytes that depend on both and on the step.
fn talk(
    transport: &dyn Transport,
    id: &StepId,
    length: &dyn Fn(usize, usize) -> usize,
) -> Result<(), CommError> {
    let (own, ranks) = (transport.rank().0, transport.topology().num_ranks());
    let byte = |from: usize, to: usize, at: usize| {
        (from * 31 + to * 7 + at * 13 + id.sequence as usize) as u8
    };
    let message =
        |from, to| (0..length(from, to)).map(|at| byte(from, to, at)).collect::<Vec<u8>>();
    let peers: Vec<usize> = (0..ranks).filter(|peer| *peer != own).collect();
    let sent: Vec<Vec<u8>> = peers.iter().map(|peer| message(own, *peer)).collect();
    let mut received: Vec<Vec<u8>> = peers.iter().map(|peer| vec![0; length(*peer, own)]).collect();
    let outgoing: Vec<Outgoing> =
        peers.iter().zip(&sent).map(|(peer, bytes)| Outgoing { to: Rank(*peer), bytes }).collect();
    let pairs = peers.iter().zip(&mut received);
    let mut incoming: Vec<Incoming> =
        pairs.map(|(peer, bytes)| Incoming { from: Rank(*peer), bytes }).collect();
    transport.exchange(id, &outgoing, &mut incoming)?;
    for (peer, bytes) in peers.iter().zip(&received) {
        assert!(*bytes == message(*peer, own), "rank {own}: what came from rank {peer} differs");
    }
    Ok(())
}

fn messages_of_all_lengths_among_four_ranks(way: Way) {
    let ranks = way.job(4);
    assert_eq!(ranks[0].name(), way.name());
    let lengths: [&(dyn Fn(usize, usize) -> usize + Sync); 4] = [
        &|_, _| 0,
        &|from, to| from * 1000 + to,
        &|from, _| if from == 2 { 3 << 20 } else { 1 },
        &|_, _| 700_001,
    ];
    thread::scope(|scope| {
        for transport in &ranks {
            scope.spawn(move || {
                for sequence in 0..12 {
                    talk(&**transport, &step(sequence), lengths[sequence as usize % 4])
                        .expect("all is well");
                }
                transport.close().expect("all say goodbye");
            });
        }
    });
    assert!(ranks.iter().all(|transport| transport.check().is_ok()));
}

/// The collectives give the same bits as between threads.
fn collectives_equal_those_between_threads(way: Way) {
    let results = |communicators: Vec<Communicator>| -> Vec<Vec<f32>> {
        thread::scope(|scope| {
            let runs: Vec<_> = communicators
                .iter()
                .map(|communicator| {
                    scope.spawn(move || {
                        let own = communicator.rank().0 as f32;
                        let mut data: Vec<f32> =
                            (0..5000).map(|at| (at as f32 * 0.37 + own).sin()).collect();
                        communicator.all_reduce(&mut data).expect("all_reduce");
                        let mut swapped = vec![0.0; 5000];
                        communicator
                            .all_to_all(&data[..4998], &mut swapped[..4998])
                            .expect("all_to_all");
                        communicator.barrier().expect("barrier");
                        data.extend(swapped);
                        data
                    })
                })
                .collect();
            runs.into_iter().map(|run| run.join().expect("no panic")).collect()
        })
    };
    let options = CommOptions::default();
    let transports = way.job(3);
    let topology = transports[0].topology().clone();
    let ours =
        transports.iter().map(|transport| Communicator::new(transport.clone(), options.clone()));
    assert_eq!(results(ours.collect()), results(Communicator::local(&topology, options.clone())));
}

fn a_rank_in_another_operation_is_named_with_both_operations(way: Way) {
    let ranks = way.job(2);
    let errors: Vec<CommError> = thread::scope(|scope| {
        let talks: Vec<_> = ranks
            .iter()
            .map(|transport| {
                let length = 4 + transport.rank().0;
                scope.spawn(move || {
                    talk(&**transport, &step(9), &|_, _| length).expect_err("lengths differ")
                })
            })
            .collect();
        talks.into_iter().map(|talk| talk.join().expect("no panic")).collect()
    });
    assert_eq!(errors[0], errors[1], "both report the same first error");
    let text = errors[0].to_string();
    assert!(matches!(errors[0], CommError::Mismatch { .. }), "{text}");
    assert!(
        text.contains("number 9 step 0, 4 bytes") && text.contains("number 9 step 0, 5 bytes"),
        "{text}"
    );
}

fn an_own_failure_reaches_everybody_with_its_reason(way: Way) {
    let ranks = way.job(3);
    let failure =
        CommError::Aborted { culprit: Rank(2), reason: "part-00007.txt, line 12: bad row".into() };
    let begin = Instant::now();
    thread::scope(|scope| {
        for transport in &ranks[..2] {
            let failure = &failure;
            scope.spawn(move || {
                let error =
                    talk(&**transport, &step(0), &|_, _| 8).expect_err("rank 2 does not come");
                assert_eq!(&error, failure);
                assert_eq!(transport.check().as_ref(), Err(failure), "the first error stays");
                assert_eq!(transport.close().as_ref(), Err(failure));
            });
        }
        thread::sleep(Duration::from_millis(50));
        ranks[2].abort(failure.clone());
    });
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

fn a_rank_that_is_alive_but_never_comes_is_named_after_the_deadline(way: Way) {
    let port = tcp_support::reserve_port();
    let mut all = way.job_options(3, port.port);
    all.iter_mut().for_each(|options| options.deadlines.operation = Duration::from_millis(700));
    let ranks = way.join_all(all);
    // Rank 0 waits for rank 1 only, and rank 1 for rank 2: the one at the end of the chain is the
    // culprit.
    let wait_for = |transport: &dyn Transport, from: usize| {
        let mut bytes = [0; 8];
        let mut incoming = [Incoming { from: Rank(from), bytes: &mut bytes }];
        transport.exchange(&step(4), &[], &mut incoming).expect_err("no one sends")
    };
    thread::scope(|scope| {
        let wait_for = &wait_for;
        for (transport, from) in [(&ranks[0], 1), (&ranks[1], 2)] {
            scope.spawn(move || {
                let error = wait_for(&**transport, from);
                assert_eq!(error.culprit(), Some(Rank(2)), "{error}");
                assert!(matches!(error, CommError::Timeout { .. }), "{error}");
            });
        }
    });
}

fn a_rank_that_leaves_without_goodbye_has_failed_and_dropping_is_quick(way: Way) {
    let mut ranks = way.job(2);
    let begin = Instant::now();
    drop(ranks.remove(1));
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    let error = talk(&*ranks[0], &step(0), &|_, _| 8).expect_err("rank 1 is gone");
    assert_eq!(error.culprit(), Some(Rank(1)), "{error}");
    assert!(error.to_string().contains("left without a goodbye"), "{error}");
}
