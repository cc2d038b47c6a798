//! How a communicator begins, fails and ends.

use super::{FOREVER, Script, library, quick};
use crate::error::Error;
use crate::group::Data;
use crate::kinds::DataType;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const ABORT: &str = "abort by the watchdog";
const LONG: u64 = 60_000;

fn data() -> Data {
    Data { from: 0, to: 0, count: 1, kind: DataType::F32, stream: null_mut() }
}

/// Within two seconds, however busy the machine is.
fn soon(mut condition: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !condition() && started.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(2));
    }
    condition()
}

#[test]
fn what_is_in_progress_succeeds() {
    let script = Script::new();
    let comm = script.init(&library(22809, true), quick(LONG)).unwrap();
    assert_eq!(script.looks.load(SeqCst), 0);
    script.group_end.store(7, SeqCst);
    script.looks.store(4, SeqCst);
    // SAFETY: the fake looks at neither addresses nor streams, here and below.
    comm.group(|group| unsafe { group.send(data(), 0) }).unwrap();
    assert_eq!(script.looks.load(SeqCst), 0);
    comm.check().unwrap();
    script.looks.store(4, SeqCst);
    comm.close().unwrap();
    let log = script.take_log();
    assert_eq!(
        log,
        ["init", "send 1 of 7 at 0 with 0", "end", "finalize", "destroy by the watchdog"]
    );
}

#[test]
fn an_error_while_ranks_come_together_has_the_calls_name_and_aborts() {
    let script = Script::new();
    script.state.store(6, SeqCst);
    let error = script.init(&library(22809, true), quick(LONG)).unwrap_err();
    assert!(error.is_remote(), "{error}");
    assert!(error.to_string().starts_with("ncclCommInitRankConfig: some error"), "{error}");
    assert_eq!(script.count(ABORT), 1);
}

#[test]
fn a_communicator_that_was_never_made_is_not_aborted() {
    let script = Script::new();
    script.makes_none.store(true, SeqCst);
    script.init.store(2, SeqCst);
    let error = script.init(&library(22809, true), quick(LONG)).unwrap_err();
    assert!(
        matches!(error, Error::Call { function: "ncclCommInitRankConfig", code: 2, .. }),
        "{error}"
    );
    script.init.store(0, SeqCst);
    let error = script.init(&library(22809, true), quick(LONG)).unwrap_err();
    assert!(error.to_string().contains("made no communicator"), "{error}");
    assert_eq!(script.take_log(), ["init", "init"]);
}

#[test]
fn a_later_error_is_found_and_ended_between_calls() {
    let script = Script::new();
    let comm = script.init(&library(22809, true), quick(LONG)).unwrap();
    script.state.store(6, SeqCst);
    assert!(soon(|| script.count(ABORT) == 1), "the watchdog has not looked");
    let first = comm.check().unwrap_err();
    assert!(first.is_remote(), "{first}");
    // Use after failure: the cause, not its consequence.
    assert_eq!(comm.group(|_| Ok(())), Err(first.clone()));
    assert_eq!(comm.close(), Err(first));
    assert_eq!(script.count(ABORT), 1);
}

#[test]
fn ranks_that_never_come_are_given_up_at_the_deadline() {
    let script = Script::new();
    script.looks.store(FOREVER, SeqCst);
    let error = script.init(&library(22809, true), quick(60)).unwrap_err();
    assert!(
        matches!(error, Error::Timeout { function: "ncclCommInitRankConfig", waited_ms: 60.. }),
        "{error}"
    );
    assert_eq!(script.count(ABORT), 1);
}

#[test]
fn an_abort_from_another_thread_frees_the_one_that_waits() {
    let script = Script::new();
    let comm = script.init(&library(22809, true), quick(LONG)).unwrap();
    script.group_end.store(7, SeqCst);
    script.looks.store(FOREVER, SeqCst);
    std::thread::scope(|scope| {
        // SAFETY: see above.
        let waits = scope.spawn(|| comm.group(|group| unsafe { group.send(data(), 0) }));
        assert!(soon(|| script.count("end") == 1));
        let started = Instant::now();
        comm.abort().unwrap();
        assert_eq!(waits.join().unwrap(), Err(Error::Aborted { function: "ncclGroupEnd" }));
        assert!(started.elapsed() < Duration::from_secs(2));
    });
    comm.abort().unwrap();
    assert_eq!(comm.check(), Err(Error::Aborted { function: "ncclCommGetAsyncError" }));
    drop(comm);
    assert_eq!(script.count(ABORT), 1);
}

#[test]
fn an_abort_frees_a_thread_that_is_stuck_inside_the_library() {
    let script = Script::new();
    let config = crate::Config { end_within: Duration::from_secs(2), ..quick(LONG) };
    let comm = script.init(&library(22809, true), config).unwrap();
    script.is_stuck.store(true, SeqCst);
    script.group_end.store(7, SeqCst);
    std::thread::scope(|scope| {
        // SAFETY: see above.
        let stuck = scope.spawn(|| comm.group(|group| unsafe { group.send(data(), 0) }));
        assert!(soon(|| script.count("end") == 1));
        // No look waits for it either.
        comm.check().unwrap();
        comm.abort().unwrap();
        assert!(matches!(stuck.join().unwrap(), Err(Error::Aborted { .. })));
    });
    assert_eq!(script.count(ABORT), 1);
}

#[test]
fn what_is_to_come_before_an_abort_comes_before_the_watchdogs_own() {
    let script = Script::new();
    let comm = script.init(&library(22809, true), quick(LONG)).unwrap();
    let told = Arc::new(AtomicBool::new(false));
    let tells = told.clone();
    comm.before_abort(move || tells.store(true, SeqCst));
    // Nothing comes after it.
    script.aborts_hang.store(true, SeqCst);
    script.state.store(6, SeqCst);
    assert!(soon(|| script.count(ABORT) == 1) && told.load(SeqCst));
    script.aborts_hang.store(false, SeqCst);
}

#[test]
fn dropping_neither_panics_nor_waits_for_an_abort_that_hangs() {
    let script = Script::new();
    let comm = script.init(&library(22809, true), quick(LONG)).unwrap();
    script.aborts_hang.store(true, SeqCst);
    let started = Instant::now();
    assert!(matches!(comm.abort(), Err(Error::Timeout { function: "ncclCommAbort", .. })));
    drop(comm);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    script.aborts_hang.store(false, SeqCst);
    assert_eq!(crate::Config::default().end_within, Duration::from_secs(2));
}

#[test]
fn a_panic_inside_a_group_ends_the_group() {
    let script = Script::new();
    let comm = script.init(&library(22809, true), quick(LONG)).unwrap();
    let panics = std::panic::AssertUnwindSafe(|| comm.group(|_| panic!("the body")));
    assert!(std::panic::catch_unwind(panics).is_err());
    assert_eq!(script.count("end"), 1);
    comm.group(|_| Ok(())).unwrap();
}

#[test]
fn a_call_waits_for_its_turn_only_until_the_deadline() {
    let script = Script::new();
    let comm = script.init(&library(22809, true), quick(50)).unwrap();
    let outcome = comm.group(|_| comm.group(|_| Ok(())));
    assert!(
        matches!(outcome, Err(Error::Timeout { function: "ncclGroupStart", .. })),
        "{outcome:?}"
    );
    // Nothing was in progress: it stays usable.
    comm.group(|_| Ok(())).unwrap();
}

#[test]
fn a_wrong_argument_leaves_the_communicator_usable_and_any_other_failure_does_not() {
    for (code, usable) in
        [(4, true), (1, false), (2, false), (3, false), (5, false), (6, false), (99, false)]
    {
        let script = Script::new();
        let comm = script.init(&library(22809, true), quick(LONG)).unwrap();
        script.group_end.store(code, SeqCst);
        let error = comm.group(|_| Ok(())).unwrap_err();
        assert!(matches!(
            error, Error::Call { function: "ncclGroupEnd", code: found, .. } if found == code
        ));
        script.group_end.store(0, SeqCst);
        let after = comm.group(|_| Ok(()));
        assert_eq!(after, if usable { Ok(()) } else { Err(error) }, "code {code}");
        assert!(usable || soon(|| script.count(ABORT) == 1), "code {code}");
    }
}
