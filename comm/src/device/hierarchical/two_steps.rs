//! Sums of several nodes in two steps. The sum of each node is divided into a part for each node;
//! a node is sent its part of all sums, adds them up, and sends the total to all. So n nodes send
//! 2 (n − 1) / n of a sum each, where in one step, each to each, they send n − 1 of it. The
//! additions are the same, and so are the bits.

use super::inside::for_peers;
use super::launch::{Kernels, Picked};
use super::nodes::{MOST_PEERS, Nodes};
use super::{HierarchicalCollectives, Stop, fixed, segment};
use crate::device::SumLen;
use crate::device::rail::Route;
use crate::device::sum::{Place, sum};
use crate::topology::{Rank, Topology};
use headlong_device::cuda::{CudaStream, DevicePtr};

/// Bytes that a rank must be spared to send for the second step to be worth its wait: what
/// 200 Gbit/s carry in 30 µs.
const WORTHWHILE_BYTES: usize = 750_000;

/// Whether devices of these ranks, which exchange inside their nodes first, add up so many bytes of
/// numbers in two steps between nodes, where [`CommOptions::one_step_bytes`](crate::CommOptions)
/// does not say.
pub fn sums_in_two_steps(topology: &Topology, bytes: usize) -> bool {
    let (nodes, each) = (topology.num_nodes(), topology.node_size(0));
    let spared = || (bytes / each).saturating_mul((nodes - 1) * (nodes - 2)) / nodes;
    are_possible(topology) && spared() > WORTHWHILE_BYTES
}

fn takes_two_steps(topology: &Topology, one_step_bytes: Option<usize>, bytes: usize) -> bool {
    match one_step_bytes {
        Some(most) => are_possible(topology) && bytes > most,
        None => sums_in_two_steps(topology, bytes),
    }
}

/// The most bytes that a block of a strip has of a sum of up to `bytes`: a rank has room for a
/// strip from each node, of one block where nodes are subtrees of the tree, else one for a rank. A
/// long sum has blocks that are shorter by the number of nodes, so the longest may be that of a sum
/// in one step. `one_step_bytes` is that of [`CommOptions`](crate::CommOptions).
pub fn longest_block_of_sums(
    topology: &Topology,
    one_step_bytes: Option<usize>,
    bytes: usize,
) -> usize {
    let nodes = Nodes::new(topology, Rank(0));
    let of_rank = |bytes| segment(0, nodes.num_rails(), bytes).len();
    // Sums in one step are shorter than those in two.
    let (mut in_one, mut above) = (0, bytes.saturating_add(1));
    while above - in_one > 1 {
        let middle = in_one + (above - in_one) / 2;
        match takes_two_steps(topology, one_step_bytes, middle) {
            true => above = middle,
            false => in_one = middle,
        }
    }
    let in_two = if in_one < bytes { bytes } else { 0 };
    of_rank(in_one).max(segment(0, nodes.all().count(), of_rank(in_two)).len())
}

/// From three nodes on; and a node's sum must be a part of the tree.
fn are_possible(topology: &Topology) -> bool {
    topology.aligned_node_size().is_some() && topology.num_nodes() > 2
}

impl HierarchicalCollectives {
    /// Whether a sum of so many bytes is made so: the same on all ranks.
    pub(super) fn takes_two_steps(&self, bytes: usize) -> bool {
        takes_two_steps(self.nodes.topology(), self.one_step_bytes, bytes)
    }

    /// This rank's segment of the sum, of the numbers at `own`, from `parts` of its own node to
    /// `outs`.
    pub(super) fn sum_in_two_steps(
        &self,
        cuda: &CudaStream,
        [parts, outs]: [&[DevicePtr]; 2],
        (own, len): (DevicePtr, SumLen),
    ) -> Result<(), Stop> {
        let end = len.bytes();
        let capacity = segment(0, self.nodes.all().count(), end).len();
        let mine = segment(self.nodes.node(), self.nodes.all().count(), end);
        let place = Place::fixed(own.offset(mine.start));
        let whole = [Place::fixed(own)];
        sum(cuda, &fixed(parts), &whole, len, None);

        let route = self.nodes.rail_route(capacity);
        let kernels = self.kernels(cuda, "all_reduce, parts", end, capacity);
        let positions = self.room.tables.nodes();
        let to_each = Picked { positions, stride: capacity, limit: end };
        self.exchange_sums(&kernels, &route, (own, to_each))?;
        let leaves = self.leaves(vec![place], &route, capacity);
        sum(cuda, &leaves, &[place], len.part(&mine), self.turns());

        let route = self.nodes.sum_route(capacity);
        let kernels = self.kernels(cuda, "all_reduce, totals", end, capacity);
        self.exchange_sums(&kernels, &route, (place.at, self.the_only_block(mine.len())))?;
        kernels.unpack(own, capacity, end);
        if outs.len() > 1 {
            sum(cuda, &whole, &fixed(outs), len, self.turns());
        }
        Ok(())
    }

    /// One block in each strip that `route` sends, from `from` on.
    fn exchange_sums(
        &self,
        kernels: &Kernels<'_>,
        route: &Route,
        (from, picked): (DevicePtr, Picked),
    ) -> Result<(), Stop> {
        let (cuda, capacity) = (kernels.cuda, kernels.send.capacity);
        // Strips that lie at one place are one strip.
        let strips = match route.sends.iter().any(|hop| hop.offset > 0) {
            true => route.sends.len(),
            false => 1,
        };
        let exchange = self.hand_over(route);
        self.rails.prepare(cuda, &exchange)?;
        kernels.seal((strips, 1), [DevicePtr::NULL; MOST_PEERS], [capacity; MOST_PEERS]);
        kernels.pack((strips, 1), for_peers(std::iter::once(from)), picked);
        self.rails.begin(cuda, &exchange)?;
        self.rails.finish(cuda, &exchange)?;
        kernels.open();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_sum_has_a_longer_block(
            (nodes, each) in (1_usize..70, 1_usize..5),
            asked in prop::option::of(0_usize..1 << 20),
            most in 0_usize..1 << 30,
            share in 0.0..=1.0,
        ) {
            let topology = Topology::from_node_sizes(&vec![each; nodes]);
            let bytes = (most as f64 * share) as usize;
            let of_rank = segment(0, each, bytes).len();
            let block = match takes_two_steps(&topology, asked, bytes) {
                true => segment(0, nodes, of_rank).len(),
                false => of_rank,
            };
            let longest = longest_block_of_sums(&topology, asked, most);
            prop_assert!(block <= longest, "{block} of {longest}");
            prop_assert!(longest <= segment(0, each, most).len());
        }
    }

    /// As many bytes as sums have, and not those times the number of nodes.
    #[test]
    fn room_for_long_sums_does_not_grow_with_nodes() {
        let topology = Topology::from_node_sizes(&[8; 512]);
        let gibibyte = 1 << 30;
        let block = longest_block_of_sums(&topology, None, gibibyte);
        assert!(512 * block < gibibyte / 7, "{block}");
    }
}
