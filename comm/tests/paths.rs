//! The transport over paths: every message arrives by whichever way, sums have the bits of threads,
//! wrong messages are named.

use crate::memory_path;
use crate::tcp_support;
use headlong_comm::transport::paths::{Doorbells, Head, Path, PathError, PathTransport, Progress};
use headlong_comm::transport::{Expected, Incoming, Outgoing, StepId, Transport};
use headlong_comm::{AllReduce, CommError, CommOptions, Communicator, Rank, Topology};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// A job of threads in which every pair whose ranks `near` says so has a path through memory; the
/// others have TCP.
fn job(num_ranks: usize, near: impl Fn(usize, usize) -> bool) -> Vec<Arc<PathTransport>> {
    let mut paths: Vec<Vec<(Rank, Box<dyn Path>)>> = (0..num_ranks).map(|_| Vec::new()).collect();
    for low in 0..num_ranks {
        for high in (low + 1..num_ranks).filter(|&high| near(low, high)) {
            let (here, there) = memory_path::pair();
            paths[low].push((Rank(high), Box::new(here)));
            paths[high].push((Rank(low), Box::new(there)));
        }
    }
    let ends = tcp_support::job(num_ranks).into_iter().zip(paths);
    ends.map(|(control, paths)| {
        Arc::new(PathTransport::new(control, paths, Doorbells::default()).expect("paths"))
    })
    .collect()
}

fn sums(communicators: &[Communicator]) -> Vec<Vec<f32>> {
    thread::scope(|scope| {
        let run = |communicator: &Communicator| {
            let mut all = Vec::new();
            for len in [0, 1, 200, 5000] {
                let own = communicator.rank().0 as f32;
                let mut data: Vec<f32> =
                    (0..len).map(|at| (at as f32 * 0.37 + own).sin()).collect();
                communicator.all_reduce(&mut data).expect("all_reduce");
                all.extend(data);
            }
            communicator.barrier().expect("barrier");
            communicator.close().expect("goodbye");
            all
        };
        let runs: Vec<_> = communicators
            .iter()
            .map(|communicator| scope.spawn(move || run(communicator)))
            .collect();
        runs.into_iter().map(|run| run.join().expect("no panic")).collect()
    })
}

#[test]
fn sums_have_the_bits_of_threads_over_memory_tcp_and_both() {
    let ways: [&dyn Fn(usize, usize) -> bool; 3] =
        [&|_, _| true, &|_, _| false, &|low, high| low / 2 == high / 2];
    for (near, name) in ways.into_iter().zip(["paths", "tcp", "paths"]) {
        for one_step_bytes in [Some(0), Some(usize::MAX)] {
            let options = CommOptions {
                one_step_bytes,
                all_reduce: AllReduce::Flat,
                ..CommOptions::default()
            };
            let transports = job(4, near);
            assert_eq!(transports[0].name(), name);
            let over_paths: Vec<_> = transports
                .iter()
                .map(|end| Communicator::new(end.clone(), options.clone()))
                .collect();
            let local = Communicator::local(&Topology::one_node(4), options);
            assert_eq!(sums(&over_paths), sums(&local));
        }
    }
}

#[test]
fn messages_in_any_order_are_shown_in_that_order() {
    let ranks = job(3, |low, _| low == 0);
    let id = StepId { sequence: 3, step: 1, fingerprint: 5, operation: "test" };
    thread::scope(|scope| {
        for end in &ranks {
            scope.spawn(move || {
                let own = [end.rank().0 as u8; 40];
                let peers: Vec<Rank> =
                    (0..3).rev().map(Rank).filter(|&peer| peer != end.rank()).collect();
                let outgoing: Vec<_> =
                    peers.iter().map(|&to| Outgoing { to, bytes: &own }).collect();
                let expected: Vec<_> =
                    peers.iter().map(|&from| Expected { from, length: 40 }).collect();
                let mut shown = Vec::new();
                let reads = end.exchange_reading(&id, &outgoing, &expected, &mut |parts| {
                    shown.extend(parts.iter().map(|part| part.to_vec()));
                });
                assert_eq!(reads, Ok(()));
                let wanted: Vec<_> = peers.iter().map(|peer| vec![peer.0 as u8; 40]).collect();
                assert_eq!(shown, wanted);
            });
        }
    });
}

#[test]
fn another_message_is_named_with_both_operations() {
    for near in [true, false] {
        let ranks = job(2, |_, _| near);
        let errors: Vec<CommError> = thread::scope(|scope| {
            let talks: Vec<_> = ranks
                .iter()
                .map(|end| {
                    scope.spawn(move || {
                        let step = end.rank().0 as u32;
                        let id = StepId { sequence: 9, step, fingerprint: 5, operation: "test" };
                        let peer = Rank(1 - end.rank().0);
                        let mut room = [0; 4];
                        let mut incoming = [Incoming { from: peer, bytes: &mut room }];
                        end.exchange(&id, &[Outgoing { to: peer, bytes: &[1; 4] }], &mut incoming)
                            .expect_err("the steps differ")
                    })
                })
                .collect();
            talks.into_iter().map(|talk| talk.join().expect("no panic")).collect()
        });
        assert_eq!(errors[0], errors[1], "both report the same first error");
        let text = errors[0].to_string();
        assert!(matches!(errors[0], CommError::Mismatch { .. }), "{text}");
        assert!(
            text.contains("number 9 step 0, 4 bytes") && text.contains("number 9 step 1, 4 bytes"),
            "{text}"
        );
    }
}

/// A path that fails, and counts how often it was told to let go.
struct Failing(Arc<AtomicUsize>);

impl Path for Failing {
    fn name(&self) -> &'static str {
        "failing"
    }

    fn send(&mut self, _: &Head, _: &[u8], _: &mut usize) -> Result<Progress, PathError> {
        Ok(Progress::Idle)
    }

    fn receive(&mut self, _: &Head, _: &mut [u8], _: &mut usize) -> Result<Progress, PathError> {
        Err(PathError::Failed("broken on purpose".to_owned()))
    }

    fn withdraw(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn paths_let_go_of_an_exchange_that_has_failed() {
    for reads in [false, true] {
        let withdrawn: Vec<Arc<AtomicUsize>> = (0..2).map(|_| Arc::default()).collect();
        let ends = tcp_support::job(2).into_iter().zip(&withdrawn).enumerate();
        let ends = ends.map(|(rank, (control, withdrawn))| {
            let path = Box::new(Failing(Arc::clone(withdrawn))) as Box<dyn Path>;
            PathTransport::new(control, vec![(Rank(1 - rank), path)], Doorbells::default())
        });
        let ends: Vec<PathTransport> = ends.map(|end| end.expect("paths")).collect();
        let id = StepId { sequence: 0, step: 0, fingerprint: 5, operation: "test" };
        let mut room = [0; 4];
        let outgoing = [Outgoing { to: Rank(1), bytes: &[1; 4] }];
        let outcome = match reads {
            true => {
                let expected = [Expected { from: Rank(1), length: 4 }];
                ends[0].exchange_reading(&id, &outgoing, &expected, &mut |_| {})
            }
            false => {
                let mut incoming = [Incoming { from: Rank(1), bytes: &mut room }];
                ends[0].exchange(&id, &outgoing, &mut incoming)
            }
        };
        assert!(outcome.is_err_and(|error| error.to_string().contains("broken on purpose")));
        assert_eq!(withdrawn[0].load(Ordering::Relaxed), 1);
        assert_eq!(withdrawn[1].load(Ordering::Relaxed), 0, "it has exchanged nothing");
    }
}
