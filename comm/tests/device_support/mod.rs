//! What the tests of collectives between devices have in common.
#![allow(dead_code, reason = "each test uses a part")]

use headlong_comm::testing::run_ranks_with;
use headlong_comm::{
    BetweenDevices, CommError, CommOptions, Communicator, DeviceCollectives, Rank, Topology,
};
use headlong_device::Stream;
pub use headlong_device::cuda::testing::has_devices;
use headlong_device::cuda::{CudaDevice, DeviceMemory, Event, testing};
use headlong_device::pool::Pool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A stream of a device.
pub fn stream_on(ordinal: u32) -> Stream {
    let device = CudaDevice::open(ordinal).expect("a device");
    Stream::cuda(&device, Arc::new(Pool::new(1))).expect("a stream")
}

/// Waiting for a whole device, as reading its memory does, waits for what every test of the process
/// has enqueued there: tests whose ranks wait for each other take turns.
pub static TURN: Mutex<()> = Mutex::new(());

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

/// As [`on_devices`], for ranks of several nodes that exchange inside the node first, unasked.
pub fn on_nodes<R: Send>(
    way: BetweenDevices,
    nodes: &[usize],
    work: impl Fn(&Communicator, Stream) -> R + Sync,
) -> Vec<R> {
    on_nodes_with(CommOptions { between_devices: way, ..CommOptions::default() }, nodes, work)
}

/// As [`on_nodes`], with these options except the deadline.
pub fn on_nodes_with<R: Send>(
    options: CommOptions,
    nodes: &[usize],
    work: impl Fn(&Communicator, Stream) -> R + Sync,
) -> Vec<R> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let options = CommOptions { deadline: Duration::from_secs(20), ..options };
    run_ranks_with(&Topology::from_node_sizes(nodes), options, |communicator| {
        work(communicator, stream_on(communicator.rank().0 as u32))
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

/// Waits until the stream's work is done, at most 20 s. A device that has failed already makes no
/// event to wait for.
pub fn finish(collectives: &dyn DeviceCollectives, stream: &Stream) -> headlong_comm::Result<()> {
    let done = Event::new(stream.cuda_body().device()).map_err(|error| CommError::Device {
        seen_by: collectives.rank(),
        operation: "making an event".to_owned(),
        reason: error.to_string(),
    })?;
    stream.cuda_body().record(&done);
    collectives.wait(&done, Duration::from_secs(20))
}

/// Captures all four operations once, and checks what they give at each of `rounds` replays.
pub fn replay_all(collectives: Box<dyn DeviceCollectives>, stream: &Stream, rounds: usize) {
    let (rank, ranks, len) = (collectives.rank().0, collectives.num_ranks(), 1031);
    let memory = Memory::new(stream, ranks, len);
    let body = || {
        memory.enqueue(&*collectives, stream, len).expect("enqueued");
        Ok(())
    };
    let graph = stream.cuda_body().capture(body).expect("a graph");
    for round in 0..rounds {
        memory.fill(rank, round, ranks, len);
        graph.launch(stream.cuda_body());
        finish(&*collectives, stream).expect("done");
        stream.check().expect("no kernel has failed");
        memory.verify(rank, round, ranks, len);
    }
    collectives.close().expect("closed");
}

/// Small whole numbers, whose sums are exact in any order.
fn value(rank: usize, round: usize, index: usize) -> f32 {
    ((rank * 131 + round * 17 + index * 7) % 251) as f32 - 125.0
}

fn values(rank: usize, round: usize, len: usize) -> Vec<f32> {
    (0..len).map(|index| value(rank, round, index)).collect()
}

/// One rank's memory for all four operations on `len` values (of each rank, where there is one part
/// for each).
pub struct Memory {
    parts: DeviceMemory,
    exchanged: DeviceMemory,
    sum: DeviceMemory,
    own: DeviceMemory,
    gathered: DeviceMemory,
    told: DeviceMemory,
}

impl Memory {
    pub fn new(stream: &Stream, ranks: usize, len: usize) -> Self {
        let zeros = |count: usize| upload(stream, &vec![0.0; count]);
        Self {
            parts: zeros(ranks * len),
            exchanged: zeros(ranks * len),
            sum: zeros(len),
            own: zeros(len),
            gathered: zeros(ranks * len),
            told: zeros(len),
        }
    }

    pub fn fill(&self, rank: usize, round: usize, ranks: usize, len: usize) {
        let write = |memory: &DeviceMemory, values: &[f32]| {
            memory.write(0, testing::bytes_of(values)).expect("a write");
        };
        write(&self.parts, &values(rank, round, ranks * len));
        write(&self.sum, &values(rank, round, len));
        write(&self.own, &values(rank, round + 3, len));
        write(&self.told, &values(rank, round + 5, len));
    }

    pub fn enqueue(
        &self,
        collectives: &dyn DeviceCollectives,
        stream: &Stream,
        len: usize,
    ) -> headlong_comm::Result<()> {
        let bytes = len * 4;
        let root = Rank(collectives.num_ranks() - 1);
        collectives.all_to_all(stream, self.parts.ptr(), self.exchanged.ptr(), bytes)?;
        collectives.all_reduce_f32(stream, self.sum.ptr(), len)?;
        collectives.all_gather(stream, self.own.ptr(), self.gathered.ptr(), bytes)?;
        collectives.broadcast(stream, root, self.told.ptr(), bytes)
    }

    pub fn verify(&self, rank: usize, round: usize, ranks: usize, len: usize) {
        let of_all = |value: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
            (0..ranks * len).map(|index| value(index / len, index % len)).collect()
        };
        let exchanged = of_all(&|from, index| value(from, round, rank * len + index));
        assert_eq!(download(&self.exchanged), exchanged, "all_to_all");
        let sum = |index| (0..ranks).map(|rank| value(rank, round, index)).sum::<f32>();
        assert_eq!(download(&self.sum), (0..len).map(sum).collect::<Vec<_>>(), "all_reduce");
        assert_eq!(download(&self.gathered), of_all(&|from, index| value(from, round + 3, index)));
        assert_eq!(download(&self.told), values(ranks - 1, round + 5, len), "broadcast");
    }
}

/// Numbers whose sum depends on the order of addition.
pub fn uneven(rank: usize) -> Vec<f32> {
    (0..97).map(|index| (rank as f32 + 1.1).powf(index as f32 / 9.0) / 3.0).collect()
}
