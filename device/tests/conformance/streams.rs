//! Order within and between streams.

use super::{
    Code, driver, in_a_child, is_child, raw, raw_event, rig, sanitizer, says, sys, words_of,
};

#[test]
fn work_of_one_stream_runs_in_the_order_of_enqueueing() {
    let Some(rig) = rig() else { return };
    let a = rig.words(&[1; 128]);
    for value in 0..4 {
        rig.scale(&rig.first, &a, &a, value);
    }
    rig.finish();
    assert_eq!(words_of(&a), [((3 * 3 + 1) * 3 + 2) * 3 + 3; 128]);
}

#[test]
fn a_stream_that_waits_for_an_event_sees_what_came_before_it() {
    let Some(rig) = rig() else { return };
    let (a, b, ready) = (rig.words(&[1; 128]), rig.zeros(128), rig.event());
    rig.scale(&rig.first, &a, &a, 1);
    rig.first.record(&ready);
    rig.second.wait(&ready);
    rig.scale(&rig.second, &b, &a, 2);
    rig.second.synchronize().unwrap();
    assert_eq!(words_of(&b), [14; 128]);
}

#[test]
fn an_event_that_was_never_recorded_holds_no_one_up() {
    let Some(rig) = rig() else { return };
    let (a, never) = (rig.words(&[1; 32]), rig.event());
    assert!(never.query().unwrap());
    never.synchronize().unwrap();
    rig.first.wait(&never);
    rig.scale(&rig.first, &a, &a, 0);
    rig.finish();
    assert_eq!(words_of(&a), [3; 32]);
}

#[test]
fn a_wait_is_for_the_record_before_it_not_for_a_later_one() {
    let Some(rig) = rig() else { return };
    let (a, e, back) = (rig.words(&[1; 32]), rig.event(), rig.event());
    rig.first.record(&e);
    rig.second.wait(&e);
    rig.scale(&rig.second, &a, &a, 0);
    rig.second.record(&back);
    rig.first.wait(&back);
    // If the second stream waited for this record, the two would wait for each other for ever.
    rig.first.record(&e);
    rig.finish();
    assert_eq!(words_of(&a), [3; 32]);
}

#[test]
fn a_query_comes_true_without_any_synchronisation() {
    let Some(rig) = rig() else { return };
    let (a, done) = (rig.words(&[1; 32]), rig.event());
    rig.scale(&rig.first, &a, &a, 0);
    rig.first.record(&done);
    while !done.query().unwrap() {
        std::thread::yield_now();
    }
    assert_eq!(words_of(&a), [3; 32]);
}

#[test]
fn an_event_may_be_destroyed_while_its_record_is_pending() {
    let Some(rig) = rig() else { return };
    let (a, event) = (rig.words(&[1; 32]), raw_event());
    rig.scale(&rig.first, &a, &a, 0);
    says!(driver!(cuEventRecord(event, raw(&rig.first))), Code::CUDA_SUCCESS);
    says!(driver!(cuStreamWaitEvent(raw(&rig.second), event, 0)), Code::CUDA_SUCCESS);
    says!(driver!(cuEventDestroy_v2(event)), Code::CUDA_SUCCESS);
    rig.scale(&rig.second, &a, &a, 1);
    rig.second.synchronize().unwrap();
    assert_eq!(words_of(&a), [10; 32]);
}

#[test]
fn an_illegal_address_is_an_error_that_stays() {
    if let Some(sanitizer) = sanitizer() {
        return eprintln!("skipped, because the {sanitizer} sanitizer reports it");
    }
    if !is_child() {
        return in_a_child("streams::an_illegal_address_is_an_error_that_stays", &[], "");
    }
    let Some(rig) = rig() else { return };
    let a = rig.zeros(1);
    rig.run("wild_store", 32, super::args(&a, &a, 0));
    let error = rig.first.synchronize().unwrap_err().to_string();
    assert!(error.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
    let mut address = 0;
    says!(driver!(cuMemAlloc_v2(&mut address, 4096)), Code::CUDA_ERROR_ILLEGAL_ADDRESS);
    says!(driver!(cuStreamSynchronize(raw(&rig.second))), Code::CUDA_ERROR_ILLEGAL_ADDRESS);
}
