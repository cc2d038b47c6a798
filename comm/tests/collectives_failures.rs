//! What goes wrong between threads: everybody hears of it, in time, and the culprit is named.

use headlong_comm::testing::{run_ranks, run_ranks_with};
use headlong_comm::{CommError, CommOptions, Communicator, Rank, Result, Topology};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Large enough to be lent, not copied into a slot.
const LARGE: usize = 100_000;

fn short(deadline_ms: u64) -> CommOptions {
    CommOptions { deadline: Duration::from_millis(deadline_ms), ..CommOptions::default() }
}

/// All ranks must have failed with the same error, which is returned.
fn the_error(results: Vec<Result<()>>) -> CommError {
    let errors: Vec<CommError> =
        results.into_iter().map(|result| result.expect_err("every rank fails")).collect();
    assert!(errors.iter().all(|error| error == &errors[0]), "{errors:?}");
    errors[0].clone()
}

#[test]
fn different_operations() {
    for len in [1, LARGE] {
        let results = run_ranks(&Topology::one_node(3), |communicator| {
            let mut data = vec![1.0f32; len];
            match communicator.rank().0 {
                1 => communicator.all_reduce(&mut data),
                _ => {
                    communicator.broadcast(Rank(0), &mut data).and_then(|()| communicator.barrier())
                }
            }
        });
        let error = the_error(results);
        let CommError::Mismatch { expected, found, .. } = &error else { panic!("{error:?}") };
        let both = format!("{expected} {found}");
        // Who broadcasts a small message does not wait for its readers: it may notice in the
        // barrier after it.
        let other = ["broadcast of f32 from rank 0", "barrier"]
            .iter()
            .any(|&operation| both.contains(operation));
        assert!(both.contains("all_reduce of f32") && other, "{error}");
    }
}

#[test]
fn different_lengths_types_and_roots() {
    let mismatch = |work: &(dyn Fn(&Communicator) -> Result<()> + Sync)| {
        let error = the_error(run_ranks(&Topology::one_node(2), work));
        assert!(matches!(error, CommError::Mismatch { .. }), "{error}");
        error.to_string()
    };
    let lengths = mismatch(&|communicator| {
        communicator.all_reduce(&mut vec![0u32; 10 + communicator.rank().0])
    });
    assert!(lengths.contains("40 bytes") && lengths.contains("44 bytes"), "{lengths}");
    let types = mismatch(&|communicator| match communicator.rank().0 {
        0 => communicator.all_reduce(&mut [0u32; 4]),
        _ => communicator.all_reduce(&mut [0i32; 4]),
    });
    assert!(types.contains("of u32") && types.contains("of i32"), "{types}");
    let roots = mismatch(&|communicator| {
        let mut data = [0u8; 4];
        communicator.broadcast(communicator.rank(), &mut data)?;
        communicator.barrier()
    });
    assert!(roots.contains("broadcast"), "{roots}");
    let counts = mismatch(&|communicator| {
        let mine = 1 + communicator.rank().0;
        communicator.all_to_all_v(
            &vec![0u64; 2 * mine],
            &[mine; 2],
            &mut vec![0u64; 2 * mine],
            &[mine; 2],
        )
    });
    assert!(counts.contains("all_to_all_v of u64"), "{counts}");
}

#[test]
fn a_rank_that_panics_ends_the_job() {
    for len in [1, LARGE] {
        let started = Instant::now();
        let panic = catch_unwind(AssertUnwindSafe(|| {
            run_ranks(&Topology::one_node(4), |communicator| {
                let mut data = vec![1.0f32; len];
                communicator.all_reduce(&mut data).unwrap();
                assert!(communicator.rank() != Rank(2), "rank 2 is unwell");
                let error = communicator.all_reduce(&mut data).unwrap_err();
                assert_eq!(error.culprit(), Some(Rank(2)), "{error}");
            })
        }));
        let panic = panic.expect_err("the panic continues");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"rank 2 is unwell"));
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn a_rank_that_leaves_early_is_lost() {
    for closes in [true, false] {
        let ends = Communicator::local(&Topology::one_node(3), CommOptions::default());
        let results: Vec<Result<()>> = std::thread::scope(|scope| {
            let work = |communicator: Communicator| {
                let mut data = vec![1.0f32; LARGE];
                communicator.all_reduce(&mut data)?;
                if communicator.rank() == Rank(1) {
                    if closes {
                        communicator.close()?;
                    }
                    return Ok(());
                }
                communicator.all_reduce(&mut data)?;
                communicator.close()
            };
            let threads: Vec<_> =
                ends.into_iter().map(|end| scope.spawn(move || work(end))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(results[1], Ok(()));
        for result in [&results[0], &results[2]] {
            let error = result.as_ref().expect_err("rank 1 is missing");
            assert!(matches!(error, CommError::PeerLost { culprit: Rank(1), .. }), "{error}");
        }
    }
}

#[test]
fn leaving_after_the_last_operation_is_no_failure() {
    for _ in 0..50 {
        let results = run_ranks(&Topology::one_node(3), |communicator| {
            communicator.all_reduce(&mut [1u32; 3])?;
            communicator.close()
        });
        assert_eq!(results, [Ok(()), Ok(()), Ok(())]);
    }
}

#[test]
fn who_does_not_come_is_named() {
    for len in [1, LARGE] {
        let started = Instant::now();
        let results = run_ranks_with(&Topology::one_node(4), short(300), |communicator| {
            let mut data = vec![1.0f32; len];
            communicator.all_reduce(&mut data)?;
            if communicator.rank() == Rank(3) {
                std::thread::sleep(Duration::from_millis(900));
            }
            communicator.all_reduce(&mut data)
        });
        let error = the_error(results);
        let CommError::Timeout { culprit, operation, sequence, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(
            (*culprit, operation.as_str(), *sequence),
            (Rank(3), "all_reduce", 1),
            "{error}"
        );
        assert!(started.elapsed() < Duration::from_secs(3));
    }
}

/// The pending peer of rank 0 waits itself; the one to blame is the one that waits for no one.
#[test]
fn the_culprit_is_who_is_behind_not_who_is_waited_for() {
    let results = run_ranks_with(&Topology::one_node(3), short(200), |communicator| {
        let mut data = [0u8];
        let me = communicator.rank().0;
        if me == 2 {
            std::thread::sleep(Duration::from_millis(500));
        }
        // A chain: 0 waits for 1, 1 for 2.
        if me < 2 {
            communicator.send_receive(None, Some((Rank(me + 1), &mut data[..])))?;
        }
        communicator.barrier()
    });
    assert_eq!(the_error(results).culprit(), Some(Rank(2)));
}

#[test]
fn aborting_wakes_sleepers_with_the_first_error() {
    let started = Instant::now();
    let results = run_ranks(&Topology::one_node(3), |communicator| {
        if communicator.rank() == Rank(0) {
            std::thread::sleep(Duration::from_millis(50));
            for reason in ["the disk is full", "another reason"] {
                communicator
                    .abort(CommError::Aborted { culprit: Rank(0), reason: reason.to_owned() });
            }
        }
        communicator.all_reduce(&mut vec![0f32; LARGE])
    });
    assert_eq!(the_error(results).to_string(), "rank 0 has failed: the disk is full");
    assert!(started.elapsed() < Duration::from_secs(2));
}

/// Who waits gives his core away: thirty-two ranks on a few cores are slow, but not stuck.
#[test]
fn many_ranks_on_few_cores_do_not_collapse() {
    let started = Instant::now();
    let results = run_ranks(&Topology::one_node(32), |communicator| {
        for _ in 0..100 {
            communicator.all_reduce(&mut [1.0f32; 64])?;
            communicator.all_reduce(&mut [1.0f32; 8192])?;
        }
        Ok::<_, CommError>(())
    });
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

/// Ranks fail at random moments of exchanges of lent memory; their buffers are freed at once.
/// A rank that read on would crash or find another pattern.
#[test]
fn memory_has_no_other_user_after_an_error() {
    for round in 0..60u64 {
        run_ranks(&Topology::one_node(3), |communicator| {
            let me = communicator.rank().0;
            for step in 0.. {
                let send = vec![me as u8 + 1; 3 * 40_000];
                let mut recv = vec![0u8; 3 * 40_000];
                if me == 2 && step == round % 7 {
                    std::thread::sleep(Duration::from_micros(round * 13 % 300));
                    communicator.abort(CommError::Aborted {
                        culprit: Rank(2),
                        reason: "enough".to_owned(),
                    });
                }
                let result = communicator.all_to_all(&send, &mut recv);
                drop(vec![0xffu8; send.len()]);
                if result.is_err() {
                    return;
                }
                for from in 0..3 {
                    assert!(
                        recv[from * 40_000..][..40_000].iter().all(|&byte| byte == from as u8 + 1)
                    );
                }
            }
        });
    }
}
