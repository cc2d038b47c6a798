//! The halves of an exchange, one after the other: among the ranks of a node, and along a rail.
//! What is worked on between them is the caller's.

use super::inside::Inside;
use super::{HierarchicalCollectives, Stop};
use crate::communicator::Communicator;
use crate::device::nccl::Piece;
use crate::device::{Blocks, ByNode, end};
use crate::error::Result;
use crate::topology::Rank;
use headlong_device::Stream;
use headlong_device::cuda::DevicePtr;

/// What one rank has and another has not would have them wait for each other.
pub(super) fn all_have_some_or_none(communicator: &Communicator) -> Result<()> {
    let own = communicator.rails().is_some();
    let mut first = [u8::from(own)];
    communicator.broadcast(Rank(0), &mut first)?;
    let same = match (own, first[0] == 1) {
        (true, false) => Err("it was given rails, rank 0 was not".to_owned()),
        (false, true) => Err("it was given no rails, rank 0 was".to_owned()),
        _ => Ok(()),
    };
    communicator.agree("hierarchical exchanges", same)
}

impl HierarchicalCollectives {
    fn move_inside(&self, stream: &Stream, blocks: Blocks, to_stride: usize) -> Result<()> {
        let Blocks { from, to, stride, bytes_per_peer: bytes, .. } = blocks;
        let brought = match &self.inside {
            Inside::Memory(peers) => return peers.all_to_all_v(stream, blocks, to_stride),
            Inside::Nccl(brought) => brought,
        };
        self.enqueue("all_to_all_inside", stream, |cuda| {
            let peers = || self.nodes.peers().iter().enumerate();
            let pieces = |at: DevicePtr, stride: usize| {
                peers().map(move |(i, &peer)| Piece::new(peer, at.offset(i * stride), bytes))
            };
            Ok(brought.nccl.exchange(cuda, pieces(from, stride), pieces(to, to_stride))?)
        })
    }
}

impl ByNode for HierarchicalCollectives {
    fn all_to_all_inside(&self, stream: &Stream, blocks: Blocks) -> Result<()> {
        self.move_inside(stream, blocks, blocks.stride)
    }

    fn all_gather_inside(
        &self,
        stream: &Stream,
        from: DevicePtr,
        to: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        let (stride, bytes_per_peer, lengths) = (0, bytes, DevicePtr::NULL);
        self.move_inside(stream, Blocks { from, to, stride, bytes_per_peer, lengths }, bytes)
    }

    fn sends_what_counts_inside(&self) -> bool {
        matches!(self.inside, Inside::Memory(_))
    }

    fn all_to_all_across(&self, stream: &Stream, blocks: Blocks) -> Result<()> {
        let (operation, bytes) = ("all_to_all_across", blocks.bytes_per_peer);
        if bytes == 0 {
            return self.check_transport();
        }
        if bytes > self.sizes.rail_bytes {
            let room = self.sizes.rail_bytes;
            let reason = format!("blocks of {bytes} bytes, and room was made for {room}");
            return end(self, operation, reason);
        }
        let route = self.nodes.rail_route(bytes);
        self.enqueue(operation, stream, |cuda| -> Result<(), Stop> {
            let kernels = self.kernels(cuda, operation, bytes, bytes);
            let exchange = self.hand_over(&route);
            self.rails.prepare(cuda, &exchange)?;
            kernels.send_along_rail(self.nodes.node(), &blocks);
            self.rails.begin(cuda, &exchange)?;
            self.rails.finish(cuda, &exchange)?;
            kernels.receive_strips(true, blocks.to, blocks.stride);
            Ok(())
        })
    }
}
