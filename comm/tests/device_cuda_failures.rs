//! Collectives between devices that cannot go on end on every rank, with a reason. Each test has
//! devices of its own, because a failure stays with the device.

mod device_support;

use device_support::{WAYS, has_devices, on_devices, stream_on, upload};
use headlong_comm::testing::run_ranks;
use headlong_comm::{BetweenDevices, CommError, Rank, Topology};
use headlong_device::cuda::{CudaDevice, Event};
use std::time::{Duration, Instant};

/// Real devices would hang where the software device notices a misuse.
fn has_software_devices(count: u32) -> bool {
    let there =
        has_devices(count as usize) && CudaDevice::open(0).is_ok_and(|device| device.is_software());
    if !there {
        println!(
            "skipped, because it needs {count} devices of softcuda (HEADLONG_CUDA_LIBS, \
             SOFTCUDA_DEVICES)"
        );
    }
    there
}

#[test]
fn two_ranks_on_one_device_are_refused_with_a_reason() {
    if !has_software_devices(1) {
        return;
    }
    let answers = run_ranks(&Topology::one_node(2), |communicator| {
        communicator.attach_device(&stream_on(0)).map(|_| ()).unwrap_err().to_string()
    });
    for answer in answers {
        assert!(answer.contains("ranks 0 and 1 are on one device"), "{answer}");
    }
}

#[test]
fn lengths_that_do_not_fit_are_an_error_on_both_ranks() {
    if !has_software_devices(4) {
        return;
    }
    let answers = on_devices(BetweenDevices::Nccl, 2, 2, |communicator, stream| {
        let collectives = communicator.attach_device(&stream).unwrap();
        let memory = upload(&stream, &[1.0; 8]);
        let len = 4 + communicator.rank().0;
        // A rank may hear of it as early as here, where the other has come first.
        let enqueued = collectives.all_reduce_f32(&stream, memory.ptr(), len);
        let _ = stream.synchronize();
        enqueued.and_then(|()| collectives.check()).unwrap_err()
    });
    for error in answers {
        let text = error.to_string();
        assert!(
            text.contains("all-reduce of 4 elements") && text.contains("all-reduce of 5"),
            "{text}"
        );
        assert!(matches!(error, CommError::Device { .. }), "{text}");
    }
}

#[test]
fn a_rank_that_ends_frees_the_ones_that_wait_for_it() {
    if !has_software_devices(6) {
        return;
    }
    WAYS.into_iter().for_each(one_ends);
}

fn one_ends(way: BetweenDevices) {
    let started = Instant::now();
    let answers = on_devices(way, 2, 4, |communicator, stream| {
        let collectives = communicator.attach_device(&stream).expect("attached");
        if communicator.rank() == Rank(1) {
            communicator
                .abort(CommError::Aborted { culprit: Rank(1), reason: "its disk is full".into() });
            return None;
        }
        let memory = upload(&stream, &[1.0; 8]);
        let enqueued = collectives.all_reduce_f32(&stream, memory.ptr(), 8);
        let device = stream.cuda_body().device().clone();
        let done = Event::new(&device).expect("an event");
        stream.cuda_body().record(&done);
        let waited = collectives.wait(&done, Duration::from_secs(10));
        enqueued.and(waited).err()
    });
    let expected = CommError::Aborted { culprit: Rank(1), reason: "its disk is full".into() };
    assert_eq!(answers, [Some(expected), None]);
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn lengths_are_compared_before_anything_is_written_into_a_peers_memory() {
    if !has_software_devices(4) {
        return;
    }
    let answers = on_devices(BetweenDevices::Auto, 2, 0, |communicator, stream| {
        let collectives = communicator.attach_device(&stream).unwrap();
        let memory = upload(&stream, &[1.0; 8]);
        let len = 4 + communicator.rank().0;
        let error = collectives.all_reduce_f32(&stream, memory.ptr(), len).unwrap_err();
        stream.synchronize().unwrap();
        error.to_string()
    });
    for text in answers {
        assert!(
            text.contains("all_reduce of 16 bytes") && text.contains("all_reduce of 20 bytes"),
            "{text}"
        );
    }
}

#[test]
fn a_rank_that_never_enqueues_ends_the_wait_at_the_deadline() {
    if !has_software_devices(8) {
        return;
    }
    let answers = on_devices(BetweenDevices::Nccl, 2, 6, |communicator, stream| {
        let collectives = communicator.attach_device(&stream).unwrap();
        if communicator.rank() == Rank(1) {
            // It lives, and does something else, until it hears of the failure.
            while communicator.check().is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
            return communicator.check().unwrap_err();
        }
        let memory = upload(&stream, &[1.0; 8]);
        collectives.all_reduce_f32(&stream, memory.ptr(), 8).unwrap();
        let done = Event::new(stream.cuda_body().device()).unwrap();
        stream.cuda_body().record(&done);
        let error = collectives.wait(&done, Duration::from_millis(200)).unwrap_err();
        // What was enqueued has been given up: the stream comes to its end.
        let _ = stream.synchronize();
        error
    });
    assert_eq!(answers[0], answers[1]);
    let text = answers[0].to_string();
    assert!(text.starts_with("rank 0: waiting for the device: it was not done within"), "{text}");
}
