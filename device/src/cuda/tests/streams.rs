//! Kernels on streams: launches, order by events, graphs, errors that stay.

use super::STREAM_TEST;
use crate::cuda::testing::{download, stream, upload};
use crate::cuda::{CudaDevice, CudaStream, DeviceMemory, DevicePtr, Event, Launch, Source};
use crate::{DeviceError, layout_test};

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct ScaleArgs {
    from: DevicePtr,
    to: DevicePtr,
    n: u64,
    factor: f32,
    term: f32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct SharedArgs {
    out: DevicePtr,
    words: u32,
}

fn scale(stream: &CudaStream, from: &DeviceMemory, to: &DeviceMemory, factor: f32, term: f32) {
    let n = (from.bytes() / 4) as u64;
    let args = ScaleArgs { from: from.ptr(), to: to.ptr(), n, factor, term };
    stream.run(&STREAM_TEST, &[], "scale", Launch::new(2, 128), &args);
}

#[test]
fn layouts_are_those_of_the_kernels() {
    layout_test!(ScaleArgs, &STREAM_TEST, &[]; from, to, n, factor, term);
    layout_test!(SharedArgs, &STREAM_TEST, &[]; out, words);
}

#[test]
fn kernels_of_one_stream_run_in_order() {
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    let a = upload(stream.device(), &[1.0_f32, 2.0, 3.0]).unwrap();
    scale(stream, &a, &a, 2.0, 0.0);
    scale(stream, &a, &a, 1.0, 1.0);
    stream.synchronize().unwrap();
    assert_eq!(download::<f32>(&a).unwrap(), [3.0, 5.0, 7.0]);
}

#[test]
fn a_grid_of_no_blocks_is_no_work() {
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    let a = upload(stream.device(), &[1.0_f32]).unwrap();
    let args = ScaleArgs { from: a.ptr(), to: a.ptr(), n: 1, factor: 5.0, term: 0.0 };
    stream.run(&STREAM_TEST, &[], "scale", Launch::new(0, 128), &args);
    stream.synchronize().unwrap();
    assert_eq!(download::<f32>(&a).unwrap(), [1.0]);
}

#[test]
fn much_shared_memory_is_allowed_when_asked_for() {
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    let out = DeviceMemory::new(stream.device(), "sum", 4).unwrap();
    let words = 20_000;
    let args = SharedArgs { out: out.ptr(), words };
    stream.run(&STREAM_TEST, &[], "fill_shared", Launch::new(1, 128).with_shared(4 * words), &args);
    stream.synchronize().unwrap();
    assert_eq!(download::<u32>(&out).unwrap(), [words * (words - 1) / 2]);
}

#[test]
fn events_order_streams() {
    let Some(stream) = stream() else { return };
    let first = stream.cuda_body();
    let second = CudaStream::with_priority(first.device(), true).unwrap();
    let a = upload(first.device(), &[1.0_f32; 64]).unwrap();
    let b = upload(first.device(), &[0.0_f32; 64]).unwrap();
    let (there, back) = (Event::new(first.device()).unwrap(), Event::new(first.device()).unwrap());
    for round in 1..=5 {
        scale(first, &a, &a, 1.0, 1.0);
        first.record(&there);
        second.wait(&there);
        scale(&second, &a, &b, 10.0, 0.0);
        second.record(&back);
        first.wait(&back);
        second.synchronize().unwrap();
        assert_eq!(download::<f32>(&b).unwrap(), [10.0 * (1.0 + round as f32); 64]);
    }
}

#[test]
fn timed_events_measure() {
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    let a = upload(stream.device(), &[1.0_f32; 64]).unwrap();
    let start = Event::with_timing(stream.device()).unwrap();
    let end = Event::with_timing(stream.device()).unwrap();
    stream.record(&start);
    scale(stream, &a, &a, 1.0, 1.0);
    stream.record(&end);
    end.synchronize().unwrap();
    assert!(end.elapsed_us(&start).unwrap() >= 0.0);
}

#[test]
fn a_captured_fork_and_join_replays() {
    let Some(stream) = stream() else { return };
    let first = stream.cuda_body();
    let device = first.device();
    let second = CudaStream::new(device).unwrap();
    let a = upload(device, &[1.0_f32; 8]).unwrap();
    let b = upload(device, &[0.0_f32; 8]).unwrap();
    let (fork, join) = (Event::new(device).unwrap(), Event::new(device).unwrap());
    let step = || {
        scale(first, &a, &a, 1.0, 1.0);
        first.record(&fork);
        second.wait(&fork);
        scale(&second, &a, &b, 10.0, 0.0);
        second.record(&join);
        first.wait(&join);
        scale(first, &b, &b, 1.0, 0.5);
        second.check()
    };
    step().unwrap();
    first.synchronize().unwrap();
    let graph = first.capture(step).unwrap();
    assert_eq!(graph.num_kernel_nodes(), 3);
    assert!(graph.num_nodes() >= 3);
    assert_eq!(download::<f32>(&a).unwrap(), [2.0; 8], "capturing runs nothing");
    for round in 0..4 {
        // Any stream of the device may launch it.
        graph.launch(if round % 2 == 0 { first } else { &second });
        first.synchronize().unwrap();
        second.synchronize().unwrap();
    }
    assert_eq!(download::<f32>(&a).unwrap(), [6.0; 8]);
    assert_eq!(download::<f32>(&b).unwrap(), [60.5; 8]);
}

/// A launch waits for what an event marked when the host launched it, and what waits for an event
/// of a graph waits for its last launch.
#[test]
fn graphs_on_two_streams_take_turns_by_events() {
    let Some(stream) = stream() else { return };
    let device = stream.cuda_body().device();
    let a = upload(device, &[1.0_f32; 8]).unwrap();
    let turn = |term: f32| {
        let (stream, passed) = (CudaStream::new(device).unwrap(), Event::new(device).unwrap());
        scale(&stream, &a, &a, 1.0, 0.0);
        (stream, passed, term)
    };
    let turns = [turn(1.0), turn(-5.0)];
    turns.iter().for_each(|(stream, ..)| stream.synchronize().unwrap());
    let graph = |own: usize| {
        let ((stream, passed, term), (_, awaited, _)) = (&turns[own], &turns[1 - own]);
        let captured = stream.capture(|| {
            stream.wait_in_graph(awaited);
            scale(stream, &a, &a, 3.0, *term);
            stream.record_in_graph(passed);
            stream.check()
        });
        captured.unwrap()
    };
    let graphs = [graph(0), graph(1)];
    let mut expected = 1.0;
    for round in 0..10 {
        let (stream, _, term) = &turns[round % 2];
        graphs[round % 2].launch(stream);
        expected = 3.0 * expected + term;
    }
    // A stream that no graph runs on.
    stream.cuda_body().wait(&turns[1].1);
    scale(stream.cuda_body(), &a, &a, 1.0, 0.5);
    stream.synchronize().unwrap();
    assert_eq!(download::<f32>(&a).unwrap(), [expected + 0.5; 8]);
}

#[test]
fn a_capture_ends_when_its_body_fails_or_panics() {
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    let a = upload(stream.device(), &[1.0_f32; 8]).unwrap();
    scale(stream, &a, &a, 1.0, 0.0);
    stream.synchronize().unwrap();
    let refused = stream.capture(|| {
        scale(stream, &a, &a, 1.0, 1.0);
        Err(DeviceError::Misuse { what: "stage".to_owned(), reason: "on purpose".to_owned() })
    });
    assert!(refused.unwrap_err().to_string().contains("on purpose"));
    assert!(!stream.is_capturing().unwrap());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        stream.capture(|| panic!("in the body")).map(drop)
    }));
    assert!(panicked.is_err());
    assert!(!stream.is_capturing().unwrap());
    scale(stream, &a, &a, 1.0, 1.0);
    stream.synchronize().unwrap();
    assert_eq!(download::<f32>(&a).unwrap(), [2.0; 8]);
}

#[test]
fn loading_a_kernel_while_capturing_is_refused_with_advice() {
    static LATE: Source = Source {
        name: "device/late",
        text: "struct A { u64 n; };\nextern \"C\" __global__ void late(const A a) {}\n",
    };
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    let error = stream.capture(|| {
        stream.run(&LATE, &[], "late", Launch::new(1, 32), &0_u64);
        Ok(())
    });
    let message = error.unwrap_err().to_string();
    assert!(message.contains("device/late:late") && message.contains("once before"), "{message}");
}

#[test]
fn launch_errors_stay_and_name_the_kernel() {
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    let a = upload(stream.device(), &[1.0_f32; 8]).unwrap();
    let args = ScaleArgs { from: a.ptr(), to: a.ptr(), n: 8, factor: 2.0, term: 0.0 };
    stream.run(&STREAM_TEST, &[], "scale", Launch::new(1, 4096), &args);
    let message = stream.check().unwrap_err().to_string();
    assert!(message.contains("device/stream-test:scale") && message.contains("code "), "{message}");
    // What comes later is skipped, and the first failure is what is reported.
    scale(stream, &a, &a, 2.0, 0.0);
    stream.run(&STREAM_TEST, &[], "no_such_kernel", Launch::new(1, 32), &args);
    assert_eq!(stream.synchronize().unwrap_err().to_string(), message);
    assert_eq!(download::<f32>(&a).unwrap(), [1.0; 8]);
    // Another stream is not affected.
    let other = CudaStream::new(stream.device()).unwrap();
    other.run(&STREAM_TEST, &[], "no_such_kernel", Launch::new(1, 32), &args);
    assert!(other.check().unwrap_err().to_string().contains("no_such_kernel"));
}

/// Runs the test once more as the only one of another process, with so many software devices. True
/// there.
fn in_a_process_of_its_own(test: &str, devices: u32) -> bool {
    if std::env::args().any(|argument| argument == "--exact") {
        return true;
    }
    let own = std::process::Command::new(std::env::current_exe().unwrap())
        .args([&format!("cuda::tests::streams::{test}"), "--exact", "--nocapture"])
        .env("SOFTCUDA_DEVICES", devices.to_string())
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&own.stdout).into_owned() + &String::from_utf8_lossy(&own.stderr);
    assert!(own.status.success() && said.contains("1 passed"), "{said}");
    false
}

#[test]
fn two_devices_copy_and_wait_for_each_other() {
    let Some(stream) = stream() else { return };
    let software = stream.cuda_body().device().is_software();
    if software && !in_a_process_of_its_own("two_devices_copy_and_wait_for_each_other", 2) {
        return;
    }
    if CudaDevice::count().unwrap() < 2 {
        eprintln!("skipped, because there is one device");
        return;
    }
    let (near, far) = (CudaDevice::open(0).unwrap(), CudaDevice::open(1).unwrap());
    if !near.can_access_peer(&far) {
        eprintln!("skipped, because {near} cannot reach {far}");
        return;
    }
    for (one, other) in [(&near, &far), (&far, &near), (&near, &far)] {
        one.enable_peer_access(other).unwrap();
    }
    let (on_near, on_far) = (CudaStream::new(&near).unwrap(), CudaStream::new(&far).unwrap());
    let a = upload(&near, &[1.0_f32; 8]).unwrap();
    let b = upload(&far, &[0.0_f32; 8]).unwrap();
    let (scaled, copied) = (Event::new(&near).unwrap(), Event::new(&far).unwrap());
    scale(&on_near, &a, &a, 3.0, 0.0);
    on_near.record(&scaled);
    on_far.wait(&scaled);
    on_far.copy(b.ptr(), a.ptr(), 32);
    on_far.record(&copied);
    on_near.wait(&copied);
    scale(&on_near, &a, &a, 0.0, 0.0);
    scale(&on_far, &b, &b, 1.0, 1.0);
    on_near.synchronize().unwrap();
    on_far.synchronize().unwrap();
    assert_eq!(download::<f32>(&a).unwrap(), [0.0; 8]);
    assert_eq!(download::<f32>(&b).unwrap(), [4.0; 8]);
}

#[test]
fn a_failing_kernel_is_named_where_somebody_waits() {
    // A failure of the device spoils its context for good: on a GPU for all other tests, so only
    // the software device is asked.
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    if !stream.device().is_software() {
        return;
    }
    // In a process of its own, for the same reason.
    if !in_a_process_of_its_own("a_failing_kernel_is_named_where_somebody_waits", 1) {
        return;
    }
    let a = upload(stream.device(), &[1.0_f32; 8]).unwrap();
    scale(stream, &a, &a, 1.0, 1.0);
    stream.run(&STREAM_TEST, &[], "trap", Launch::new(1, 32), &a.ptr());
    let message = stream.synchronize().unwrap_err().to_string();
    assert!(
        message.contains("after device/stream-test:trap") && message.contains("code "),
        "{message}"
    );
}

#[test]
fn one_device_serves_many_threads() {
    let Some(stream) = stream() else { return };
    let device = stream.cuda_body().device();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let stream = CudaStream::new(device).unwrap();
                let a = upload(device, &[thread as f32; 32]).unwrap();
                (0..10).for_each(|_| scale(&stream, &a, &a, 1.0, 1.0));
                stream.synchronize().unwrap();
                assert_eq!(download::<f32>(&a).unwrap(), [thread as f32 + 10.0; 32]);
            });
        }
    });
}
