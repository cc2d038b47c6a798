//! What becomes a graph, and what is refused while a stream is captured.

use super::{Code, Rig, args, driver, raw, raw_event, rig, says, sys, words_of};
use headlong_device::cuda::{CudaStream, Graph, Launch, Pinned};
use std::ptr::null_mut;

const THREAD_LOCAL: sys::CUstreamCaptureMode =
    sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

/// A graph of what `body` enqueues.
fn capture(on: &CudaStream, body: impl FnOnce()) -> Graph {
    let body = || {
        body();
        Ok(())
    };
    on.capture(body).expect("a graph")
}

fn begin(stream: &CudaStream) {
    says!(driver!(cuStreamBeginCapture_v2(raw(stream), THREAD_LOCAL)), Code::CUDA_SUCCESS);
}

/// Ends a capture whose graph no one wants; what the driver says.
fn end(stream: &CudaStream) -> Code {
    let mut graph = null_mut();
    let code = driver!(cuStreamEndCapture(raw(stream), &mut graph));
    if !graph.is_null() {
        says!(driver!(cuGraphDestroy(graph)), Code::CUDA_SUCCESS);
    }
    code
}

fn destroy(event: sys::CUevent) {
    says!(driver!(cuEventDestroy_v2(event)), Code::CUDA_SUCCESS);
}

fn current_context() -> usize {
    let mut context = null_mut();
    says!(driver!(cuCtxGetCurrent(&mut context)), Code::CUDA_SUCCESS);
    context as usize
}

#[test]
fn captured_work_runs_at_each_launch_and_not_before() {
    let Some(rig) = rig() else { return };
    let a = rig.words(&[1; 64]);
    let graph = capture(&rig.first, || {
        rig.scale(&rig.first, &a, &a, 1);
        rig.scale(&rig.first, &a, &a, 0);
    });
    rig.device.synchronize().unwrap();
    assert_eq!((words_of(&a)[0], graph.num_nodes(), graph.num_kernel_nodes()), (1, 2, 2));
    for want in [12, 111, 1002] {
        graph.launch(&rig.second);
        rig.second.synchronize().unwrap();
        assert_eq!(words_of(&a), [want; 64]);
    }
}

#[test]
fn launches_of_one_graph_follow_each_other() {
    let Some(rig) = rig() else { return };
    let (a, b) = (rig.zeros(64), rig.zeros(64));
    let graph = capture(&rig.first, || {
        rig.scale(&rig.first, &b, &a, 1);
        rig.first.copy(a.ptr(), b.ptr(), 256);
    });
    for _ in 0..5 {
        graph.launch(&rig.first);
    }
    rig.finish();
    assert_eq!(words_of(&a), [121; 64]);
}

#[test]
fn a_forked_and_joined_stream_becomes_part_of_the_graph() {
    let Some(rig) = rig() else { return };
    let (a, b, c) = (rig.words(&[1; 64]), rig.zeros(64), rig.zeros(64));
    let (fork, join) = (rig.event(), rig.event());
    let graph = capture(&rig.first, || {
        rig.scale(&rig.first, &b, &a, 1); // b = 4
        rig.first.record(&fork);
        rig.second.wait(&fork);
        rig.scale(&rig.second, &c, &b, 0); // c = 12
        rig.scale(&rig.first, &a, &b, 0); // a = 12
        rig.second.record(&join);
        rig.first.wait(&join);
        rig.scale(&rig.first, &b, &c, 0); // b = 36
    });
    assert_eq!(graph.num_nodes(), 4);
    graph.launch(&rig.first);
    rig.finish();
    assert_eq!([words_of(&a)[0], words_of(&b)[0], words_of(&c)[0]], [12, 36, 12]);
    // The second stream does not capture any more, and the events are free.
    assert!(!rig.second.is_capturing().unwrap());
    rig.second.record(&join);
    join.synchronize().unwrap();
}

#[test]
fn copies_and_fills_are_nodes_that_read_memory_at_the_replay() {
    let Some(rig) = rig() else { return };
    let (a, b) = (rig.zeros(64), rig.zeros(64));
    let from = Pinned::new(&rig.device, 256).unwrap();
    let to = Pinned::new(&rig.device, 256).unwrap();
    let graph = capture(&rig.first, || {
        rig.first.copy_to_device(a.ptr(), &from, 0..256);
        rig.first.copy(b.ptr(), a.ptr(), 256);
        rig.first.fill_bytes(b.ptr(), 0, 16);
        rig.first.copy_to_host(&to, 0..256, b.ptr());
    });
    assert_eq!((graph.num_nodes(), graph.num_kernel_nodes()), (4, 0));
    for value in [3_u32, 9] {
        from.put(0, &[value; 64]);
        graph.launch(&rig.first);
        rig.finish();
        assert_eq!(to.as_slice::<u32>()[3..5], [0, value]);
    }
}

#[test]
fn arguments_are_frozen_at_the_capture() {
    let Some(rig) = rig() else { return };
    let a = rig.zeros(1);
    let mut arguments = args(&a, &a, 21);
    let graph = capture(&rig.first, || rig.run("store", 32, arguments));
    arguments.value = 22;
    graph.launch(&rig.first);
    rig.finish();
    assert_eq!((words_of(&a)[0], arguments.value), (21, 22));
}

#[test]
fn an_instance_takes_new_arguments_from_a_graph_of_the_same_shape_only() {
    let Some(rig) = rig() else { return };
    let a = rig.zeros(1);
    let record = |values: &[u32]| {
        begin(&rig.first);
        values.iter().for_each(|&value| rig.run("store", 32, args(&a, &a, value)));
        let mut graph = null_mut();
        says!(driver!(cuStreamEndCapture(raw(&rig.first), &mut graph)), Code::CUDA_SUCCESS);
        graph
    };
    let (one, other, longer) = (record(&[1]), record(&[2]), record(&[3, 4]));
    let mut instance = null_mut();
    says!(driver!(cuGraphInstantiateWithFlags(&mut instance, one, 0)), Code::CUDA_SUCCESS);
    // SAFETY: plain numbers and null pointers.
    let mut info: sys::CUgraphExecUpdateResultInfo = unsafe { std::mem::zeroed() };
    says!(driver!(cuGraphExecUpdate_v2(instance, other, &mut info)), Code::CUDA_SUCCESS);
    let code = driver!(cuGraphExecUpdate_v2(instance, longer, &mut info));
    says!(code, Code::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    for graph in [one, other, longer] {
        says!(driver!(cuGraphDestroy(graph)), Code::CUDA_SUCCESS, "an instance stands by itself");
    }
    says!(driver!(cuGraphLaunch(instance, raw(&rig.first))), Code::CUDA_SUCCESS);
    rig.finish();
    assert_eq!(words_of(&a), [2]);
    says!(driver!(cuGraphExecDestroy(instance)), Code::CUDA_SUCCESS);
}

#[test]
fn a_stream_that_was_forked_off_must_be_joined() {
    let Some(rig) = rig() else { return };
    assert_eq!(fork(&rig, false), Code::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    assert!(!rig.second.is_capturing().unwrap(), "the capture is over for all of its streams");
    assert_eq!(fork(&rig, true), Code::CUDA_SUCCESS);
}

/// Captures a fork with work in it; what the driver says at the end.
pub fn fork(rig: &Rig, join: bool) -> Code {
    let a = rig.words(&[1; 32]);
    let (there, back) = (raw_event(), raw_event());
    begin(&rig.first);
    rig.scale(&rig.first, &a, &a, 0);
    says!(driver!(cuEventRecord(there, raw(&rig.first))), Code::CUDA_SUCCESS);
    says!(driver!(cuStreamWaitEvent(raw(&rig.second), there, 0)), Code::CUDA_SUCCESS);
    rig.scale(&rig.second, &a, &a, 0);
    if join {
        says!(driver!(cuEventRecord(back, raw(&rig.second))), Code::CUDA_SUCCESS);
        says!(driver!(cuStreamWaitEvent(raw(&rig.first), back, 0)), Code::CUDA_SUCCESS);
    }
    let code = end(&rig.first);
    destroy(there);
    destroy(back);
    code
}

#[test]
fn waiting_in_a_capture_for_work_outside_it_breaks_isolation() {
    let Some(rig) = rig() else { return };
    let outside = raw_event();
    says!(driver!(cuEventRecord(outside, raw(&rig.second))), Code::CUDA_SUCCESS);
    begin(&rig.first);
    let code = driver!(cuStreamWaitEvent(raw(&rig.first), outside, 0));
    says!(code, Code::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    assert_eq!(end(&rig.first), Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert!(!rig.first.is_capturing().unwrap());
    destroy(outside);
}

#[test]
fn two_captures_cannot_become_one() {
    let Some(rig) = rig() else { return };
    let event = raw_event();
    begin(&rig.first);
    begin(&rig.second);
    says!(driver!(cuEventRecord(event, raw(&rig.first))), Code::CUDA_SUCCESS);
    says!(
        driver!(cuStreamWaitEvent(raw(&rig.second), event, 0)),
        Code::CUDA_ERROR_STREAM_CAPTURE_MERGE
    );
    end(&rig.first);
    end(&rig.second);
    destroy(event);
}

#[test]
fn waiting_for_a_capturing_stream_is_refused_and_spoils_the_capture() {
    let Some(rig) = rig() else { return };
    begin(&rig.first);
    let code = driver!(cuStreamSynchronize(raw(&rig.first)));
    says!(code, Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(end(&rig.first), Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(&rig.first);
    says!(driver!(cuStreamQuery(raw(&rig.first))), Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(end(&rig.first), Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

#[test]
fn the_host_cannot_ask_for_an_event_of_a_capture() {
    let Some(rig) = rig() else { return };
    let event = raw_event();
    begin(&rig.first);
    says!(driver!(cuEventRecord(event, raw(&rig.first))), Code::CUDA_SUCCESS);
    says!(driver!(cuEventQuery(event)), Code::CUDA_ERROR_CAPTURED_EVENT);
    end(&rig.first);
    destroy(event);
}

#[test]
fn a_capture_ends_on_its_own_thread() {
    let Some(rig) = rig() else { return };
    begin(&rig.first);
    let (context, stream) = (current_context(), raw(&rig.first) as usize);
    let elsewhere = std::thread::spawn(move || {
        let mut graph = null_mut();
        says!(driver!(cuCtxSetCurrent(context as sys::CUcontext)), Code::CUDA_SUCCESS);
        driver!(cuStreamEndCapture(stream as sys::CUstream, &mut graph))
    });
    assert_eq!(elsewhere.join().unwrap(), Code::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    end(&rig.first);
}

#[test]
fn a_capture_ends_on_the_stream_it_began_on() {
    let Some(rig) = rig() else { return };
    let event = raw_event();
    begin(&rig.first);
    says!(driver!(cuEventRecord(event, raw(&rig.first))), Code::CUDA_SUCCESS);
    says!(driver!(cuStreamWaitEvent(raw(&rig.second), event, 0)), Code::CUDA_SUCCESS);
    assert_eq!(end(&rig.second), Code::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    end(&rig.first);
    destroy(event);
}

#[test]
fn a_thread_that_captures_must_not_allocate_and_another_may() {
    let Some(rig) = rig() else { return };
    begin(&rig.first);
    let context = current_context();
    let elsewhere = std::thread::spawn(move || {
        let mut address = 0;
        says!(driver!(cuCtxSetCurrent(context as sys::CUcontext)), Code::CUDA_SUCCESS);
        says!(driver!(cuMemAlloc_v2(&mut address, 4096)), Code::CUDA_SUCCESS);
        address
    });
    let address = elsewhere.join().unwrap();
    assert_eq!(end(&rig.first), Code::CUDA_SUCCESS);
    says!(driver!(cuMemFree_v2(address)), Code::CUDA_SUCCESS);
    begin(&rig.first);
    let mut address = 0;
    says!(driver!(cuMemAlloc_v2(&mut address, 4096)), Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(end(&rig.first), Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

#[test]
fn the_null_stream_is_never_captured() {
    let Some(_rig) = rig() else { return };
    let code = driver!(cuStreamBeginCapture_v2(null_mut(), THREAD_LOCAL));
    says!(code, Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

#[test]
fn the_null_stream_rests_while_a_blocking_stream_captures() {
    let Some(rig) = rig() else { return };
    let a = rig.zeros(4);
    let (mut blocking, mut graph) = (null_mut(), null_mut());
    says!(driver!(cuStreamCreate(&mut blocking, 0)), Code::CUDA_SUCCESS);
    says!(driver!(cuStreamBeginCapture_v2(blocking, THREAD_LOCAL)), Code::CUDA_SUCCESS);
    let code = driver!(cuMemsetD8Async(a.ptr().0, 1, 16, null_mut()));
    says!(code, Code::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    let code = driver!(cuStreamEndCapture(blocking, &mut graph));
    says!(code, Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    says!(driver!(cuStreamDestroy_v2(blocking)), Code::CUDA_SUCCESS);
}

#[test]
fn a_failed_body_leaves_no_capture_behind() {
    let Some(rig) = rig() else { return };
    let a = rig.words(&[1; 32]);
    let stream = CudaStream::new(&rig.device).unwrap();
    let shape = Launch::new(1, 4096);
    let broken = stream.capture(|| {
        stream.run(&super::KERNELS, &[], "store", shape, &args(&a, &a, 0));
        Ok(())
    });
    assert!(broken.is_err());
    assert!(!stream.is_capturing().unwrap());
}
