//! What is asked of the library, and with which settings.

use super::{Script, library, quick};
use crate::config::{Config, Feature};
use crate::error::{Error, Result};
use crate::group::{Data, Group, Parts};
use crate::kinds::{DataType, ReduceOp};
use crate::library::Capabilities;
use crate::memory::Allocation;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::SeqCst;

fn floats(count: usize) -> Data {
    Data { from: 1000, to: 2000, count, kind: DataType::F32, stream: null_mut() }
}

/// What a group of `body` asks the fake for.
fn asked(has_later: bool, body: impl Fn(&Group<'_>) -> Result<()>) -> Vec<String> {
    let script = Script::new();
    let comm = script.init(&library(22809, has_later), quick(10_000)).unwrap();
    script.take_log();
    comm.group(&body).unwrap();
    let mut log = script.take_log();
    assert_eq!(log.pop().as_deref(), Some("end"));
    log
}

// SAFETY, of all operations below: the fake looks at neither addresses nor streams.
#[test]
fn collectives_are_listed_with_their_numbers() {
    let log = asked(true, |group| {
        // SAFETY: see above.
        unsafe {
            group.all_reduce(floats(8), ReduceOp::SUM)?;
            group.reduce_scatter(Data { kind: DataType::BF16, ..floats(4) }, ReduceOp::MAX)?;
            group.all_gather(Data { kind: DataType::U8, ..floats(3) })?;
            group.broadcast(floats(2), 2)?;
            group.reduce(floats(1), ReduceOp::MIN, 1)
        }
    });
    let expected = [
        "all_reduce 8 of 7 op 0",
        "reduce_scatter 4 of 9 op 2",
        "all_gather 3 of 1",
        "broadcast 2 of 7 root 2",
        "reduce 1 of 7 op 3 root 1",
    ];
    assert_eq!(log, expected);
}

#[test]
fn an_all_to_all_is_one_call_or_sends_and_receives() {
    // SAFETY: see above.
    let all_to_all = |group: &Group<'_>| unsafe { group.all_to_all(floats(5)) };
    assert_eq!(asked(true, all_to_all), ["all_to_all 5 of 7"]);
    // Rank 1 of 3 begins with itself.
    let expected = [
        "send 5 of 7 at 1020 with 1",
        "receive 5 of 7 at 2020 with 1",
        "send 5 of 7 at 1040 with 2",
        "receive 5 of 7 at 2040 with 2",
        "send 5 of 7 at 1000 with 0",
        "receive 5 of 7 at 2000 with 0",
    ];
    assert_eq!(asked(false, all_to_all), expected);
}

#[test]
fn parts_of_nothing_do_not_travel() {
    let log = asked(true, |group| {
        let sends = Parts { counts: &[0, 2, 7], offsets: &[0, 0, 2] };
        let receives = Parts { counts: &[3, 2, 0], offsets: &[4, 0, 0] };
        // SAFETY: see above.
        unsafe { group.all_to_all_v(floats(0), sends, receives) }
    });
    let expected = [
        "send 2 of 7 at 1000 with 1",
        "receive 2 of 7 at 2000 with 1",
        "send 7 of 7 at 1008 with 2",
        "receive 3 of 7 at 2016 with 0",
    ];
    assert_eq!(log, expected);
}

#[test]
fn parts_that_cannot_be_are_refused_before_anything_is_listed() {
    let script = Script::new();
    let comm = script.init(&library(22809, true), quick(10_000)).unwrap();
    script.take_log();
    let good = Parts { counts: &[1; 3], offsets: &[0; 3] };
    let cases = [
        (
            Parts { counts: &[1; 2], offsets: &[0; 3] },
            floats(0),
            "2 counts and 3 offsets for 3 ranks",
        ),
        (
            Parts { counts: &[usize::MAX, 0, 0], offsets: &[1; 3] },
            floats(0),
            "beyond the last address",
        ),
        (
            Parts { counts: &[1 << 62, 0, 0], offsets: &[0; 3] },
            floats(0),
            "beyond the last address",
        ),
        (good, Data { kind: DataType(77), ..floats(0) }, "elements of unknown size: DataType(77)"),
    ];
    for (bad, data, words) in cases {
        // SAFETY: see above.
        let refused =
            comm.group(|group| unsafe { group.all_to_all_v(data, good, bad) }).unwrap_err();
        assert!(refused.to_string().contains(words), "{refused}");
        assert!(matches!(refused, Error::Argument { .. }));
    }
    comm.check().unwrap();
}

#[test]
fn parts_of_a_communicator_live_and_end_by_themselves() {
    let (script, child) = (Script::new(), Script::new());
    let comm = script.init(&library(22809, true), quick(10_000)).unwrap();
    script.splits.lock().unwrap().push(child);
    let part = comm.split(Some(4), 9, quick(10_000)).unwrap().unwrap();
    assert_eq!((part.rank(), part.num_ranks()), (0, 2));
    assert!(comm.split(None, 0, quick(10_000)).unwrap().is_none());
    assert_eq!(script.count("split 4 9") + script.count("split -1 0"), 2);
    part.abort().unwrap();
    assert_eq!(child.count("abort by the watchdog"), 1);
    comm.check().unwrap();
    comm.close().unwrap();
    let refused = Script::new().init(&library(22809, true), quick(10_000)).unwrap();
    let refused = refused.split(Some(u32::MAX), 0, quick(10_000)).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("at most 2147483647, found 4294967295"), "{refused}");
}

#[test]
fn scaled_sums_and_registrations_are_given_back() {
    let script = Script::new();
    let library = library(22809, true);
    let comm = script.init(&library, quick(10_000)).unwrap();
    script.take_log();
    {
        let half = comm.scaled_sum_f32(0.5).unwrap();
        assert_eq!(half.op(), ReduceOp(17));
        let memory = Allocation::new(&library, 64).unwrap();
        // SAFETY: see above.
        let _known = unsafe { comm.register(memory.address(), 64) }.unwrap();
        // SAFETY: see above.
        let _window = unsafe { comm.register_window(memory.address(), 64) }.unwrap();
    }
    let expected = [
        "create op 0.5 of 7 residence 1",
        "register 64",
        "window 64 flags 1",
        "deregister 4096",
        "deregister 4096",
        "destroy op 17",
    ];
    assert_eq!(script.take_log(), expected);
    let half = comm.scaled_sum_f32(0.5).unwrap();
    comm.abort().unwrap();
    drop(half);
    assert_eq!(script.count("destroy op 17"), 0, "an aborted communicator is not called");
}

#[test]
fn what_an_old_library_lacks_is_refused_by_name() {
    let library = library(21903, false);
    let comm = Script::new().init(&library, quick(10_000)).unwrap();
    let refused = [
        Allocation::new(&library, 1).map(|_| ()).unwrap_err(),
        // SAFETY: see above.
        unsafe { comm.register(0, 1) }.map(|_| ()).unwrap_err(),
        // SAFETY: see above.
        unsafe { comm.register_window(0, 1) }.map(|_| ()).unwrap_err(),
        comm.split(Some(0), 0, quick(10_000)).map(|_| ()).unwrap_err(),
        comm.scaled_sum_f32(2.0).map(|_| ()).unwrap_err(),
        // SAFETY: see above.
        comm.group(|group| unsafe { group.reduce(floats(1), ReduceOp::SUM, 0) }).unwrap_err(),
    ];
    let names = [
        "ncclMemAlloc",
        "ncclCommRegister",
        "ncclCommWindowRegister",
        "ncclCommSplit",
        "ncclRedOpCreatePreMulSum",
        "ncclReduce",
    ];
    for (error, name) in refused.iter().zip(names) {
        assert!(error.to_string().starts_with(&format!("{name} is not in NCCL 2.19.3")), "{error}");
    }
    let nothing = Capabilities {
        all_to_all: false,
        registration: false,
        windows: false,
        memory: false,
        collnet: false,
        nvls: false,
    };
    assert_eq!(library.capabilities(), nothing);
    assert!(
        nothing.to_string().starts_with("the basics; without all-to-all in one call, "),
        "{nothing}"
    );
}

#[test]
fn features_are_set_for_one_communicator_or_refused() {
    let settings = |number, collnet, nvls| {
        let script = Script::new();
        let config = Config { collnet, nvls, ..quick(10_000) };
        script.init(&library(number, true), config)?;
        let settings = script.settings.lock().unwrap().take().unwrap();
        Ok::<_, Error>((settings.collnet_enable, settings.nvls_host_mode))
    };
    use Feature::{Auto, Off, Require};
    const UNSET: i32 = i32::MIN;
    assert_eq!(settings(21903, Auto, Auto), Ok((UNSET, UNSET)));
    assert_eq!(settings(22809, Off, Auto), Ok((0, UNSET)));
    assert_eq!(settings(22809, Require, Auto), Ok((1, UNSET)));
    assert_eq!(settings(23100, Require, Off), Ok((1, i32::MAX)));
    assert_eq!(settings(23100, Off, Require), Ok((0, 0)));
    let refused = settings(21903, Require, Auto).unwrap_err().to_string();
    assert!(refused.contains("CollNet for one communicator is not in NCCL 2.19.3"), "{refused}");
    assert!(refused.contains("set NCCL_COLLNET_ENABLE=1 for the whole process"), "{refused}");
    let refused = settings(22809, Auto, Off).unwrap_err();
    assert!(
        refused.to_string().contains("NCCL 2.31.0 is needed; with this one set NCCL_NVLS_ENABLE=0")
    );
    assert_eq!(
        settings(22902, Auto, Require),
        Ok((UNSET, UNSET)),
        "on by default, and asked after"
    );
    assert!(settings(22809, Auto, Require).is_err(), "neither to be set nor to be asked after");
}

#[test]
fn a_communicator_without_the_nvls_that_is_required_is_refused_with_what_is_missing() {
    for (number, nvls, is_there) in
        [(22902, true, false), (23100, true, false), (23100, true, true), (23100, false, false)]
    {
        let script = Script::new();
        script.has_nvls.store(is_there, SeqCst);
        let nvls = if nvls { Feature::Require } else { Feature::Auto };
        let made = script.init(&library(number, true), Config { nvls, ..quick(10_000) });
        let is_required = nvls == Feature::Require;
        assert_eq!(script.count("properties"), usize::from(is_required), "asked where it matters");
        let expected = !is_required || is_there;
        assert_eq!(made.is_ok(), expected, "{made:?}");
        if let Err(error) = made {
            let text = error.to_string();
            assert!(
                text.starts_with("NVLS is required, but NCCL 2.")
                    && text.contains("multimemSupport is 0"),
                "{text}"
            );
            assert_eq!(script.count("abort by the watchdog"), 1, "it is given back");
        }
    }
}
