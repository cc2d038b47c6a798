//! Collectives between devices that cannot go on end on every rank, with a reason. Each test has
//! devices of its own, because a failure stays with the device.

mod device_support;

use device_support::{WAYS, has_devices, on_devices, on_nodes, stream_on, upload};
use headlong_comm::testing::run_ranks;
use headlong_comm::{BetweenDevices, CommError, Communicator, Rank, Topology};
use headlong_device::Stream;
use headlong_device::cuda::{CudaDevice, DeviceMemory, Event, Library};
use std::ffi::c_void;
use std::sync::Barrier;
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

/// An operation that is enqueued after another rank has ended the job is refused, and those before
/// it, which wait for that rank on the device, wait no longer: memory can be freed.
#[test]
fn what_was_enqueued_before_the_end_waits_no_longer() {
    if !has_software_devices(4) {
        return;
    }
    for way in WAYS {
        let all = Barrier::new(2);
        on_devices(way, 2, 0, |communicator, stream| {
            one_ends_in_between(communicator, stream, &all)
        });
        let all = Barrier::new(4);
        on_nodes(way, &[2, 2], |communicator, stream| {
            one_ends_in_between(communicator, stream, &all);
        });
    }
}

/// What the stream does from here on waits for the host, until it has written 1 into `held`.
fn hold(stream: &Stream, held: &DeviceMemory) {
    // SAFETY: the driver's function of this name has this type since CUDA 12; the stream is alive,
    // and the memory is there until the stream is done.
    unsafe {
        type Wait = unsafe extern "C" fn(*mut c_void, u64, u32, u32) -> i32;
        let wait = Library::Driver.symbol(c"cuStreamWaitValue32_v2").expect("the driver has it");
        let wait = std::mem::transmute::<*mut c_void, Wait>(wait);
        assert_eq!(wait(stream.cuda_body().raw(), held.ptr().0, 1, 1), 0);
    }
}

fn one_ends_in_between(communicator: &Communicator, stream: Stream, all: &Barrier) {
    let collectives = communicator.attach_device(&stream).expect("attached");
    let device = stream.cuda_body().device().clone();
    let [memory, held] = [(); 2].map(|()| upload(&stream, &[0.0; 8]));
    if communicator.rank() == Rank(1) {
        hold(&stream, &held);
    }
    let done = Event::new(&device).expect("an event");
    collectives.all_reduce_f32(&stream, memory.ptr(), 8).expect("enqueued");
    stream.cuda_body().record(&done);
    communicator.barrier().expect("all have enqueued");
    let reason = "its disk is full".to_owned();
    if communicator.rank() == Rank(1) {
        std::thread::sleep(Duration::from_millis(50));
        communicator.abort(CommError::Aborted { culprit: Rank(1), reason });
    } else {
        while communicator.check().is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let error = collectives.all_reduce_f32(&stream, memory.ptr(), 8).expect_err("ended");
        assert_eq!(error, CommError::Aborted { culprit: Rank(1), reason });
    }
    let started = Instant::now();
    let is_waiting = || done.query().is_ok_and(|is_done| !is_done);
    while communicator.rank() != Rank(1) && is_waiting() {
        assert!(started.elapsed() < Duration::from_secs(10), "{} still waits", communicator.rank());
        std::thread::sleep(Duration::from_millis(1));
    }
    all.wait();
    // Its device reads what is theirs.
    held.write_unordered(0, &1_u32.to_le_bytes()).expect("written");
    collectives.abort(CommError::Aborted { culprit: Rank(1), reason: "it ends".to_owned() });
    while is_waiting() {
        std::thread::sleep(Duration::from_millis(1));
    }
    all.wait();
}

/// NCCL hears by itself that a rank has gone, and ends itself alone. What waits meanwhile for a
/// rank of the own node, in its memory, ends with that.
#[test]
fn what_only_nccl_has_heard_frees_what_waits_for_peers() {
    if !has_software_devices(4) {
        return;
    }
    let all = Barrier::new(4);
    on_nodes(BetweenDevices::Auto, &[2, 2], |communicator, stream| {
        let collectives = communicator.attach_device(&stream).expect("attached");
        assert_eq!(collectives.name(), "hierarchical: peer memory, nccl");
        let device = stream.cuda_body().device().clone();
        let [memory, held] = [(); 2].map(|()| upload(&stream, &[0.0; 8]));
        let done = Event::new(&device).expect("an event");
        match communicator.rank() {
            Rank(2) => hold(&stream, &held),
            Rank(1) => {
                // It goes without a word to the others.
                all.wait();
                drop(collectives);
                all.wait();
                all.wait();
                return;
            }
            _ => {}
        }
        if communicator.rank() >= Rank(2) {
            collectives.all_reduce_f32(&stream, memory.ptr(), 8).expect("enqueued");
            stream.cuda_body().record(&done);
        }
        all.wait();
        let hears = || collectives.check().is_err();
        let is_free = match communicator.rank() {
            Rank(3) => soon(hears) && soon(|| done.query().unwrap_or(true)),
            _ => true,
        };
        // Should it wait all the same, it must not take the others with it.
        all.wait();
        held.write_unordered(0, &1_u32.to_le_bytes()).expect("written");
        collectives.check().expect_err("ended");
        stream.synchronize().expect("nothing waits");
        // Rank 2 reads what is rank 3's.
        all.wait();
        assert!(is_free, "{} waits", communicator.rank());
    });
}

/// It asks no more once it has been told.
fn soon(happens: impl Fn() -> bool) -> bool {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(5) {
        if happens() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}
