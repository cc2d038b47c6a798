//! Collectives between the devices of one process: every rank writes into the others' memory.
//!
//! An operation is: a barrier, so that everybody's memory may be written; copies or the sum, straight into the peers' memory;
//! a barrier, so that everything has come. The barriers are between streams, the host waits for none of it. What the host does
//! wait for is that all ranks have *enqueued* the operation: there they learn each other's addresses, and who is not in the
//! same operation is found at once.
//!
//! Sums are those of [`crate::element`]: with the same bits as [`Communicator::all_reduce`], whatever the device.

mod flags;
mod world;

use super::DeviceCollectives;
use crate::communicator::Communicator;
use crate::error::{CommError, Result};
use crate::topology::Rank;
use crate::transport::Transport;
use flags::{Flags, GivingUp};
use headlong_device::Stream;
use headlong_device::cuda::{Build, CudaDevice, CudaStream, Define, DevicePtr, Launch, Source};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use world::{Part, World};

/// The most ranks of one process: the devices of one machine. The kernel has room for no more in its registers.
pub const MOST_RANKS: usize = 8;

static SUM: Source = Source { name: "comm/sum", text: include_str!("sum.cu") };

/// `struct SumArgs`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct SumArgs {
    data: [DevicePtr; MOST_RANKS],
    begin: u64,
    end: u64,
    groups: u64,
}

fn defines(num_ranks: usize) -> [Define; 1] {
    [Define::new("RANKS", num_ranks as i64)]
}

/// The kernels that `num_ranks` devices of one process need, for builds ahead of time.
pub fn kernels(num_ranks: usize) -> Vec<Build> {
    let needed = (2..=MOST_RANKS).contains(&num_ranks);
    needed.then(|| Build { source: &SUM, defines: defines(num_ranks).to_vec() }).into_iter().collect()
}

/// One rank's end of the collectives between devices of one process.
pub struct PeerCollectives {
    rank: Rank,
    world: Arc<World>,
    transport: Arc<dyn Transport>,
    device: CudaDevice,
    deadline: Duration,
    flags: Flags,
    /// Where each rank's flags are.
    all_flags: Vec<u64>,
    giving_up: Mutex<Option<GivingUp>>,
}

impl PeerCollectives {
    /// Whether all ranks are threads of this process, with devices of their own that can use each other's memory: the same
    /// answer on all ranks.
    pub(super) fn is_possible(communicator: &Communicator, cuda: &CudaStream) -> Result<bool> {
        let own = [world::process()?, u64::from(cuda.device().ordinal())];
        let mut all = vec![0_u64; 2 * communicator.num_ranks()];
        communicator.all_gather(&own, &mut all)?;
        let topology = communicator.topology();
        let mut can = topology.num_ranks() <= MOST_RANKS;
        for (rank, place) in all.chunks_exact(2).enumerate() {
            let is_me = rank == communicator.rank().0;
            can &= place[0] == own[0] && topology.same_node(Rank(rank), communicator.rank());
            can &= is_me || place[1] != own[1];
            let reaches = || {
                let peer = CudaDevice::open(place[1] as u32);
                peer.is_ok_and(|peer| cuda.device().can_access_peer(&peer))
            };
            can = can && (is_me || reaches());
        }
        let mut answers = vec![0_u8; communicator.num_ranks()];
        communicator.all_gather(&[u8::from(can)], &mut answers)?;
        Ok(answers.iter().all(|answer| *answer == 1))
    }

    /// Comes together with all ranks.
    pub(super) fn attach(communicator: &Communicator, cuda: &CudaStream) -> Result<Self> {
        let rank = communicator.rank();
        let mut id = [0_u64];
        let founded = (rank == Rank(0)).then(|| World::found(communicator.num_ranks()));
        if let Some((_, number)) = &founded {
            id[0] = *number;
        }
        communicator.broadcast(Rank(0), &mut id)?;
        let world = founded.map(|(world, _)| world).or_else(|| World::join(id[0]));
        let made = world.ok_or_else(|| "rank 0 is gone".to_owned());
        let made = made.and_then(|world| Ok((world, prepare(communicator, cuda)?)));
        communicator.agree("memory of peers", &made)?;
        let (world, flags) = made.map_err(|reason| CommError::Rendezvous { reason })?;
        let mut all_flags = vec![0_u64; communicator.num_ranks()];
        communicator.all_gather(&[flags.address()], &mut all_flags)?;
        Ok(Self {
            rank,
            world,
            transport: communicator.transport().clone(),
            device: cuda.device().clone(),
            deadline: communicator.options().deadline,
            flags,
            all_flags,
            giving_up: Mutex::new(None),
        })
    }

    /// Learns where `part` is on all ranks, and enqueues `body` between two barriers.
    fn enqueue(&self, stream: &Stream, part: Part, body: impl FnOnce(&CudaStream, &[Part])) -> Result<()> {
        self.transport.check()?;
        if part.size == 0 {
            return Ok(());
        }
        let cuda = stream.cuda_body();
        let ours = cuda.device().ordinal() == self.device.ordinal();
        assert!(ours, "{}: a stream of {}, not of {}", part.operation, cuda.device(), self.device);
        let parts = self.world.meet(self.rank, part, self.deadline, &|| self.transport.check());
        let parts = parts.or_else(|error| self.end(error))?;
        // Asking binds the device's context to this thread, which the driver's calls need.
        let bound = cuda.is_capturing().map(drop).map_err(|error| error.to_string());
        let enqueued = bound.and_then(|()| {
            self.flags.barrier(cuda, 0, &self.all_flags)?;
            body(cuda, &parts);
            self.flags.barrier(cuda, 1, &self.all_flags)?;
            cuda.check().map_err(|error| error.to_string())
        });
        enqueued.or_else(|reason| {
            let operation = part.operation.to_owned();
            self.end(CommError::Device { seen_by: self.rank, operation, reason })
        })
    }

    /// Ends the job with this error, unless another was first; the job's first error.
    fn end<T>(&self, error: CommError) -> Result<T> {
        self.abort(error.clone());
        self.transport.check()?;
        Err(error)
    }
}

/// What a rank needs besides: access to all peers, flags, and the kernel, because a captured call may not load it.
fn prepare(communicator: &Communicator, cuda: &CudaStream) -> Result<Flags, String> {
    let text = |error: headlong_device::error::DeviceError| error.to_string();
    for ordinal in 0..CudaDevice::count().map_err(text)? {
        let peer = CudaDevice::open(ordinal).map_err(text)?;
        if cuda.device().can_access_peer(&peer) {
            cuda.device().enable_peer_access(&peer).map_err(text)?;
        }
    }
    let ranks = communicator.num_ranks();
    if cuda.kernel(&SUM, &defines(ranks), "sum_segment").is_none() {
        cuda.check().map_err(text)?;
    }
    Flags::new(cuda.device(), communicator.rank().0, ranks)
}

impl DeviceCollectives for PeerCollectives {
    fn name(&self) -> &'static str {
        "peer memory"
    }

    fn rank(&self) -> Rank {
        self.rank
    }

    fn num_ranks(&self) -> usize {
        self.all_flags.len()
    }

    fn all_to_all(&self, stream: &Stream, from: DevicePtr, to: DevicePtr, bytes: usize) -> Result<()> {
        let part = Part { operation: "all_to_all", size: bytes as u64, root: 0, address: to.0 };
        let (rank, ranks) = (self.rank.0, self.num_ranks());
        self.enqueue(stream, part, |cuda, parts| {
            // Every rank begins with its neighbour, so that not all write to rank 0 first.
            for peer in (0..ranks).map(|step| (rank + step) % ranks) {
                let there = DevicePtr(parts[peer].address).offset(rank * bytes);
                cuda.copy(there, from.offset(peer * bytes), bytes);
            }
        })
    }

    fn all_reduce_f32(&self, stream: &Stream, data: DevicePtr, len: usize) -> Result<()> {
        let part = Part { operation: "all_reduce", size: len as u64, root: 0, address: data.0 };
        let (rank, ranks) = (self.rank.0 as u64, self.num_ranks() as u64);
        // Segments of whole groups of four, so that only the last one ends with single numbers.
        let each = (len as u64).div_ceil(ranks).next_multiple_of(4);
        let (begin, end) = ((rank * each).min(len as u64), ((rank + 1) * each).min(len as u64));
        self.enqueue(stream, part, |cuda, parts| {
            if begin == end {
                return;
            }
            let mut addresses = [DevicePtr(0); MOST_RANKS];
            addresses.iter_mut().zip(parts).for_each(|(at, part)| *at = DevicePtr(part.address));
            let is_aligned = parts.iter().all(|part| part.address.is_multiple_of(16));
            let groups = if is_aligned { (end - begin) / 4 } else { 0 };
            let args = SumArgs { data: addresses, begin, end, groups };
            let threads = if is_aligned { groups.max(1) } else { end - begin };
            let blocks = threads.div_ceil(256).min(4 * u64::from(cuda.device().multiprocessors()));
            cuda.run(&SUM, &defines(ranks as usize), "sum_segment", Launch::new(blocks as u32, 256), &args);
        })
    }

    fn all_gather(&self, stream: &Stream, from: DevicePtr, to: DevicePtr, bytes: usize) -> Result<()> {
        let part = Part { operation: "all_gather", size: bytes as u64, root: 0, address: to.0 };
        let (rank, ranks) = (self.rank.0, self.num_ranks());
        self.enqueue(stream, part, |cuda, parts| {
            for peer in (0..ranks).map(|step| (rank + step) % ranks) {
                let there = DevicePtr(parts[peer].address).offset(rank * bytes);
                if there.0 != from.0 {
                    cuda.copy(there, from, bytes);
                }
            }
        })
    }

    fn broadcast(&self, stream: &Stream, root: Rank, data: DevicePtr, bytes: usize) -> Result<()> {
        let (rank, ranks) = (self.rank, self.num_ranks());
        assert!(root.0 < ranks, "there are {ranks} ranks, no {root}");
        let part = Part { operation: "broadcast", size: bytes as u64, root: root.0, address: data.0 };
        self.enqueue(stream, part, |cuda, parts| {
            let peers = (0..ranks).filter(|peer| rank == root && *peer != rank.0);
            peers.for_each(|peer| cuda.copy(DevicePtr(parts[peer].address), data, bytes));
        })
    }

    fn check(&self) -> Result<()> {
        self.transport.check().or_else(|error| self.end(error))
    }

    fn abort(&self, error: CommError) {
        self.transport.abort(error);
        let mut giving_up = self.giving_up.lock().unwrap_or_else(PoisonError::into_inner);
        giving_up.get_or_insert_with(|| self.flags.give_up());
    }

    fn close(self: Box<Self>) -> Result<()> {
        // Flags and data are others' to write until everybody is done.
        let part = Part { operation: "close", size: 0, root: 0, address: 0 };
        self.world.meet(self.rank, part, self.deadline, &|| self.transport.check()).map(drop)
    }
}

#[cfg(test)]
mod cuda_tests {
    use super::*;
    use headlong_device::cuda::testing::layout_test;

    #[test]
    fn the_structs_of_both_languages_are_the_same() {
        layout_test!(SumArgs, &SUM, &defines(2); data, begin, end, groups);
    }

    #[test]
    fn kernels_are_listed_for_the_ranks_that_a_process_can_have() {
        assert_eq!([0, 1, 2, 8, 9].map(|ranks| kernels(ranks).len()), [0, 0, 1, 1, 0]);
    }
}
