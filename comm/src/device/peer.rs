//! Collectives between the devices of one node: every rank writes into the others' memory, which
//! between processes CUDA's IPC maps.
//!
//! An operation is: a barrier, so that everybody's memory may be written; what counts or the sum,
//! straight into the peers' memory; a barrier, so that everything has come. The barriers are
//! between streams, the host waits for none of it. What the host does wait for is that all ranks
//! have *enqueued* the operation: there they learn each other's addresses, and who is not in the
//! same operation is found at once.
//!
//! Sums are those of [`crate::element`]: with the same bits as [`Communicator::all_reduce`],
//! on any device.

mod flags;
mod meeting;
mod peers;

use super::push::{self, push};
use super::sum::{self, Place, sum};
use super::{Blocks, DeviceCollectives, DeviceSizes, Parts, SumLen};
use crate::communicator::Communicator;
use crate::error::{CommError, Result};
use crate::topology::Rank;
use crate::transport::Transport;
use headlong_device::Stream;
use headlong_device::cuda::{Build, CudaStream, DevicePtr};
pub(super) use meeting::Part;
pub(super) use peers::{Peers, bind};
use std::sync::Arc;

/// The most ranks of one node: the devices of the largest machines.
pub const MOST_RANKS: usize = sum::MOST_OUTS;

/// Bytes that a kernel pushes at a time: they are counted in 32 bits.
const MOST_PUSHED: usize = 1 << 31;

/// The kernels that `num_ranks` devices of one node need, for builds ahead of time.
pub fn kernels(num_ranks: usize) -> Vec<Build> {
    let needed = (2..=MOST_RANKS).contains(&num_ranks);
    let mut builds = if needed { sum::builds(num_ranks).to_vec() } else { Vec::new() };
    builds.extend(needed.then(push::build));
    builds
}

/// One rank's end of the collectives between devices of one node.
pub struct PeerCollectives {
    peers: Peers,
}

impl PeerCollectives {
    /// Whether all ranks are on one node, with devices of their own that can use each other's
    /// memory: the same answer on all ranks.
    pub(super) fn is_possible(communicator: &Communicator, cuda: &CudaStream) -> Result<bool> {
        let everybody: Vec<Rank> = communicator.topology().ranks().collect();
        Peers::are_possible(communicator, cuda, &[&everybody])
    }

    pub(super) fn attach(
        communicator: &Communicator,
        cuda: &CudaStream,
        sizes: DeviceSizes,
    ) -> Result<Self> {
        let everybody: Vec<Rank> = communicator.topology().ranks().collect();
        let load = || {
            sum::load(cuda, everybody.len(), sizes.have_narrow_sums())?;
            push::load(cuda)
        };
        Ok(Self { peers: Peers::attach(communicator, cuda, &[&everybody], load)? })
    }
}

fn part(operation: &'static str, size: usize, address: DevicePtr) -> Part {
    Part { operation, size: size as u64, root: 0, addresses: [address.0, 0] }
}

impl DeviceCollectives for PeerCollectives {
    fn name(&self) -> &'static str {
        "peer memory"
    }

    fn transport(&self) -> &Arc<dyn Transport> {
        self.peers.transport()
    }

    /// The kernel knows how much of each block counts, and copies that.
    fn all_to_all_v(&self, stream: &Stream, blocks: Blocks) -> Result<()> {
        self.peers.all_to_all_v(stream, blocks, blocks.stride)
    }

    fn sends_what_counts(&self) -> bool {
        true
    }

    fn all_reduce(&self, stream: &Stream, data: DevicePtr, len: SumLen) -> Result<()> {
        len.check(data);
        // Only this rank touches its segment, on any device, between the two barriers.
        let segment = super::segment(self.rank().0, self.num_ranks(), len.bytes());
        self.peers.enqueue(stream, part("all_reduce", len.bytes(), data), |cuda, parts| {
            let place = |part: &Part| Place::fixed(part.first().offset(segment.start));
            let places: Vec<Place> = parts.iter().map(place).collect();
            sum(cuda, &places, &places, len.part(&segment), None);
        })
    }

    fn reduce_to_parts(&self, stream: &Stream, parts: Parts<'_>) -> Result<()> {
        parts.check(self.num_ranks());
        let (rank, operation) = (self.rank(), "reduce_to_parts");
        self.peers.enqueue(stream, part(operation, parts.bytes(), parts.data), |cuda, there| {
            let place = |part: &Part| Place::fixed(parts.in_memory(part.first(), rank));
            let places: Vec<Place> = there.iter().map(place).collect();
            sum(cuda, &places, &[Place::fixed(parts.at(rank))], parts.len(rank), None);
        })
    }

    fn gather_parts(&self, stream: &Stream, parts: Parts<'_>) -> Result<()> {
        parts.check(self.num_ranks());
        let (rank, ranks, operation) = (self.rank(), self.num_ranks(), "gather_parts");
        self.peers.enqueue(stream, part(operation, parts.bytes(), parts.data), |cuda, there| {
            let own = parts.range(rank);
            for start in own.clone().step_by(MOST_PUSHED) {
                let blocks = Blocks {
                    from: parts.data.offset(start),
                    to: parts.data,
                    stride: 0,
                    bytes_per_peer: MOST_PUSHED.min(own.end - start),
                    lengths: DevicePtr::NULL,
                };
                let to = there.iter().map(|part| part.first().offset(start));
                push(cuda, &blocks, &to.collect::<Vec<_>>(), (rank.0 + 1) % ranks);
            }
        })
    }

    fn all_gather(
        &self,
        stream: &Stream,
        from: DevicePtr,
        to: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        let (rank, ranks) = (self.rank().0, self.num_ranks());
        self.peers.enqueue(stream, part("all_gather", bytes, to), |cuda, parts| {
            for peer in (0..ranks).map(|step| (rank + step) % ranks) {
                let there = parts[peer].first().offset(rank * bytes);
                if there.0 != from.0 {
                    cuda.copy(there, from, bytes);
                }
            }
        })
    }

    fn broadcast(&self, stream: &Stream, root: Rank, data: DevicePtr, bytes: usize) -> Result<()> {
        let (rank, ranks) = (self.rank(), self.num_ranks());
        assert!(root.0 < ranks, "there are {ranks} ranks, no {root}");
        let part = Part { root: root.0, ..part("broadcast", bytes, data) };
        self.peers.enqueue(stream, part, |cuda, parts| {
            let peers = (0..ranks).filter(|peer| rank == root && *peer != rank.0);
            peers.for_each(|peer| cuda.copy(parts[peer].first(), data, bytes));
        })
    }

    fn check(&self) -> Result<()> {
        self.peers.check()
    }

    fn believe(&self) -> Result<()> {
        self.peers.believe()
    }

    fn abort(&self, error: CommError) {
        self.peers.abort(error);
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.peers.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_listed_for_the_ranks_that_a_process_can_have() {
        assert_eq!([0, 1, 2, 16, 17].map(|ranks| kernels(ranks).len()), [0, 0, 3, 3, 0]);
    }
}
