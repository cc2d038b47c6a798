//! What the tests of collectives between devices have in common.
#![allow(dead_code, reason = "each test uses a part")]

use headlong_comm::testing::run_ranks_with;
use headlong_comm::{BetweenDevices, CommOptions, Communicator, Topology};
use headlong_device::Stream;
use headlong_device::cuda::{CudaDevice, DeviceMemory, testing};
use headlong_device::pool::Pool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Whether there are `count` devices; a line that says why not.
pub fn has_devices(count: u32) -> bool {
    let Some(_) = testing::device() else { return false };
    let there = CudaDevice::count().unwrap_or(0);
    if there < count {
        println!("skipped, because it needs {count} CUDA devices and there are {there}");
    }
    there >= count
}

/// A stream of a device.
pub fn stream_on(ordinal: u32) -> Stream {
    let device = CudaDevice::open(ordinal).expect("a device");
    Stream::cuda(&device, Arc::new(Pool::new(1))).expect("a stream")
}

/// Waiting for a whole device, as reading its memory does, waits for what every test of the process has enqueued there: tests
/// whose ranks wait for each other take turns.
static TURN: Mutex<()> = Mutex::new(());

/// Runs `work` once for each rank, with a stream of a device of its own, from device `first` on.
pub fn on_devices<R: Send>(
    way: BetweenDevices,
    ranks: u32,
    first: u32,
    work: impl Fn(&Communicator, Stream) -> R + Sync,
) -> Vec<R> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let deadline = Duration::from_secs(20);
    let options = CommOptions { deadline, between_devices: way, ..CommOptions::default() };
    run_ranks_with(&Topology::one_node(ranks as usize), options, |communicator| {
        let stream = stream_on(first + communicator.rank().0 as u32);
        work(communicator, stream)
    })
}

/// Device memory that holds `values`.
pub fn upload(stream: &Stream, values: &[f32]) -> DeviceMemory {
    testing::upload(stream.cuda_body().device(), values).expect("device memory")
}

/// What device memory holds after all work of the device.
pub fn download(memory: &DeviceMemory) -> Vec<f32> {
    testing::download(memory).expect("what the device has done")
}

/// Both ways between the devices of one process.
pub const WAYS: [BetweenDevices; 2] = [BetweenDevices::Auto, BetweenDevices::Nccl];
