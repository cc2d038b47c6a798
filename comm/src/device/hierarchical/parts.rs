//! Numbers that are divided among ranks. Where nodes are subtrees of the tree, a rank adds up
//! inside its node the parts of all ranks at its place, sends each of them along the rail to the
//! rank that has it, and adds up what comes for its own: the first step of two of an all-reduce
//! (`two_steps`). The way back is the second: a part goes along the rail, and from there to all of
//! the node. Strips are as long as the longest part.
//!
//! Else all numbers are added up for all ranks, and each part is broadcast.

use super::nodes::{HEADER_BYTES, MOST_PEERS};
use super::{HierarchicalCollectives, fixed};
use crate::device::sum::{Place, sum};
use crate::device::{DeviceCollectives, Parts};
use crate::error::Result;
use crate::topology::Rank;
use headlong_device::Stream;
use headlong_device::cuda::DevicePtr;

/// No strip says how long blocks are: the host knows.
const NO_LENGTHS: [DevicePtr; MOST_PEERS] = [DevicePtr::NULL; MOST_PEERS];

impl HierarchicalCollectives {
    pub(super) fn reduce_by_node(&self, stream: &Stream, parts: Parts<'_>) -> Result<()> {
        if !self.nodes.sums_by_node() {
            return self.all_reduce(stream, parts.data, parts.len_of(parts.bytes()));
        }
        let operation = "reduce_to_parts";
        self.check_part(operation, parts)?;
        self.enqueue(operation, stream, |cuda| {
            let capacity = parts.longest();
            let (mine, route) = (self.nodes.rank(), self.nodes.rail_route(capacity));
            let kernels = self.kernels(cuda, operation, parts.bytes(), capacity);
            let exchange = self.hand_over(&route);
            let brought = self.inside.open_parts(cuda, &self.nodes, operation, parts)?;
            let of_peers = |rank| fixed(&brought[self.nodes.topology().node_of(rank)]);
            self.rails.prepare(cuda, &exchange)?;
            kernels.seal((route.sends.len(), 1), NO_LENGTHS, [capacity as u32; MOST_PEERS]);
            for hop in &route.sends {
                let strip = self.strip(0, hop.offset);
                sum(cuda, &of_peers(hop.peer), &[strip], parts.len(hop.peer), self.turns());
            }
            let own = [Place::fixed(parts.at(mine))];
            sum(cuda, &of_peers(mine), &own, parts.len(mine), None);
            self.rails.begin(cuda, &exchange)?;
            self.rails.finish(cuda, &exchange)?;
            kernels.open();
            let leaves = self.leaves(own.to_vec(), &route, capacity);
            sum(cuda, &leaves, &own, parts.len(mine), self.turns());
            self.inside.close(cuda)
        })
    }

    pub(super) fn gather_by_node(&self, stream: &Stream, parts: Parts<'_>) -> Result<()> {
        if !self.nodes.sums_by_node() {
            return self.broadcast_parts(stream, parts);
        }
        let operation = "gather_parts";
        self.check_part(operation, parts)?;
        self.enqueue(operation, stream, |cuda| {
            let capacity = parts.longest();
            let (mine, route) = (self.nodes.rank(), self.nodes.sum_route(capacity));
            let kernels = self.kernels(cuda, operation, parts.bytes(), capacity);
            let exchange = self.hand_over(&route);
            let peers = self.inside.open_all(cuda, operation, parts)?;
            let outs = |rank: Rank| -> Vec<Place> {
                peers.iter().map(|&data| Place::fixed(parts.in_memory(data, rank))).collect()
            };
            let own = [Place::fixed(parts.at(mine))];
            self.rails.prepare(cuda, &exchange)?;
            kernels.seal((1, 1), NO_LENGTHS, [capacity as u32; MOST_PEERS]);
            // A sum of one part is a copy.
            sum(cuda, &own, &[self.own_sum()], parts.len(mine), self.turns());
            self.rails.begin(cuda, &exchange)?;
            if peers.len() > 1 {
                sum(cuda, &own, &outs(mine), parts.len(mine), None);
            }
            self.rails.finish(cuda, &exchange)?;
            kernels.open();
            for hop in &route.receives {
                let strip = self.strip(1, hop.offset);
                sum(cuda, &[strip], &outs(hop.peer), parts.len(hop.peer), self.turns());
            }
            self.inside.close_parts(cuda, &self.nodes, parts)
        })
    }

    /// The one block of the strip at `offset` of the slots that are sent from, or received into.
    fn strip(&self, side: usize, offset: usize) -> Place {
        Place::in_slot(self.room.slots[side].offset(offset + HEADER_BYTES))
    }

    fn check_part(&self, operation: &str, parts: Parts<'_>) -> Result<()> {
        let (bytes, room) = (parts.longest(), self.sizes.part_bytes());
        match bytes > room {
            true => super::end(
                self,
                operation,
                format!("parts of {bytes} bytes, and room was made for {room}"),
            ),
            false => self.check_transport(),
        }
    }

    /// Each part from its rank to all others, as much at a time as there is room for.
    fn broadcast_parts(&self, stream: &Stream, parts: Parts<'_>) -> Result<()> {
        let most = self.sizes.block_bytes.max(1);
        for rank in (0..parts.num_ranks()).map(Rank) {
            let (at, bytes) = (parts.at(rank), parts.range(rank).len());
            for start in (0..bytes).step_by(most) {
                self.broadcast(stream, rank, at.offset(start), most.min(bytes - start))?;
            }
        }
        Ok(())
    }
}
