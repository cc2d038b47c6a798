//! The halves of an exchange, one after the other: among the ranks of a node, and along a rail. What
//! is worked on between them is the caller's.

use super::inside::Inside;
use super::{HierarchicalCollectives, Stop};
use crate::device::nccl::Piece;
use crate::device::{Blocks, ByNode, end};
use crate::error::Result;
use headlong_device::Stream;

impl ByNode for HierarchicalCollectives {
    fn all_to_all_inside(&self, stream: &Stream, blocks: Blocks) -> Result<()> {
        let Blocks { from, to, stride, bytes_per_peer: bytes, .. } = blocks;
        let brought = match &self.inside {
            Inside::Memory(peers) => return peers.all_to_all_v(stream, blocks),
            Inside::Nccl(brought) => brought,
        };
        self.enqueue("all_to_all_inside", stream, |cuda| {
            let peers = || self.nodes.peers().iter().enumerate();
            let sends = peers().map(|(i, &peer)| Piece::new(peer, from.offset(i * stride), bytes));
            let receives = peers().map(|(i, &peer)| Piece::new(peer, to.offset(i * stride), bytes));
            Ok(brought.nccl.exchange(cuda, sends, receives)?)
        })
    }

    fn sends_what_counts_inside(&self) -> bool {
        matches!(self.inside, Inside::Memory(_))
    }

    fn all_to_all_across(&self, stream: &Stream, blocks: Blocks) -> Result<()> {
        let (operation, bytes) = ("all_to_all_across", blocks.bytes_per_peer);
        if bytes == 0 {
            return self.transport.check();
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
