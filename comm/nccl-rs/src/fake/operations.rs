//! What is asked of the library, and with which settings.

use super::{Script, library, quick};
use crate::config::{Config, Feature};
use crate::error::{Error, Result};
use crate::group::{Data, Group};
use crate::kinds::{DataType, ReduceOp};
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
            group.reduce(floats(7), ReduceOp::SUM, 1)?;
            group.all_gather(Data { kind: DataType::U8, ..floats(3) })?;
            group.broadcast(floats(2), 2)
        }
    });
    let expected = [
        "all_reduce 8 of 7 op 0",
        "reduce 7 of 7 op 0 root 1",
        "all_gather 3 of 1",
        "broadcast 2 of 7 root 2",
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
fn what_an_old_library_lacks_is_told() {
    let capabilities = |number, has_later| library(number, has_later).capabilities().to_string();
    let (old, new) = (capabilities(21903, false), capabilities(23100, true));
    assert!(old.starts_with("the basics; without all-to-all in one call, registered"), "{old}");
    assert!(new.starts_with("all-to-all in one call, CollNet per communicator, NVLS"), "{new}");
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
