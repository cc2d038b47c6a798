//! Who carries what for whom, and where strips lie: pure arithmetic over the topology.

use crate::device::rail::{Hop, Route};
use crate::device::sum::MOST_OUTS;
use crate::plan::hierarchical::{carried_by, carrier};
use crate::topology::{Rank, Topology};

/// Bytes of a strip's header, as strips.cu has it.
pub(super) const HEADER_BYTES: usize = 128;

/// The most ranks of a node, as strips.cu has it.
pub(super) const MOST_PEERS: usize = MOST_OUTS;

#[derive(Debug, Clone)]
pub(super) struct Nodes {
    topology: Topology,
    rank: Rank,
}

/// Bytes of a strip of so many blocks of up to `capacity` bytes.
pub(super) fn strip_bytes(num_blocks: usize, capacity: usize) -> usize {
    HEADER_BYTES + num_blocks * capacity.next_multiple_of(16)
}

impl Nodes {
    pub(super) fn new(topology: &Topology, rank: Rank) -> Self {
        Self { topology: topology.clone(), rank }
    }

    pub(super) fn topology(&self) -> &Topology {
        &self.topology
    }

    pub(super) fn rank(&self) -> Rank {
        self.rank
    }

    /// The ranks of this node, rising.
    pub(super) fn peers(&self) -> &[Rank] {
        self.topology.ranks_of(self.node())
    }

    pub(super) fn node(&self) -> usize {
        self.topology.node_of(self.rank)
    }

    pub(super) fn local(&self) -> usize {
        self.topology.local_index(self.rank)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.topology.num_nodes()).filter(|&node| self.topology.node_size(node) > 0)
    }

    /// The other nodes that have ranks, rising.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + '_ {
        let own = self.node();
        self.all().filter(move |&node| node != own)
    }

    /// How far `node` is behind this one, around.
    fn distance(&self, node: usize) -> usize {
        let nodes = self.topology.num_nodes();
        (node + nodes - self.node()) % nodes
    }

    /// The ranks of other nodes that `rank` carries for, those of the next node first.
    pub(super) fn carried(&self, rank: Rank) -> Vec<Rank> {
        let of = Self::new(&self.topology, rank);
        let mut carried: Vec<Rank> = carried_by(&self.topology, rank).collect();
        carried.sort_by_key(|&destination| of.distance(self.topology.node_of(destination)));
        carried
    }

    pub(super) fn senders(&self) -> Vec<Rank> {
        self.others().map(|node| carrier(&self.topology, node, self.rank)).collect()
    }

    /// How many rails there are: places that every node has.
    pub(super) fn num_rails(&self) -> usize {
        self.all().map(|node| self.topology.node_size(node)).min().unwrap_or(1)
    }

    /// The ranks of the other nodes at this rank's place, node by node; none where not every node
    /// has one.
    pub(super) fn rail(&self) -> Vec<Rank> {
        match self.local() < self.num_rails() {
            true => self.others().map(|node| self.topology.ranks_of(node)[self.local()]).collect(),
            false => Vec::new(),
        }
    }

    /// The same, the next node first.
    pub(super) fn rail_by_distance(&self) -> Vec<Rank> {
        let mut rail = self.rail();
        rail.sort_by_key(|&peer| self.distance(self.topology.node_of(peer)));
        rail
    }

    /// Whether a node's sum is a part of the tree over all ranks.
    pub(super) fn sums_by_node(&self) -> bool {
        self.topology.aligned_node_size().is_some()
    }

    /// Blocks of the strip that `node` sends in an all-reduce: its sum, or the parts of all its
    /// ranks.
    pub(super) fn parts_of(&self, node: usize) -> usize {
        if self.sums_by_node() { 1 } else { self.topology.node_size(node) }
    }

    pub(super) fn exchange_route(&self, capacity: usize) -> Route {
        let blocks_of = |node: usize| self.topology.node_size(node);
        let own = strip_bytes(self.peers().len(), capacity);
        let sends = self.carried(self.rank).into_iter().enumerate().map(|(strip, peer)| Hop {
            peer,
            offset: strip * own,
            there: self.start_at(peer, capacity, &blocks_of),
            bytes: own,
        });
        let receives = self.others().map(|node| {
            let peer = carrier(&self.topology, node, self.rank);
            let strip = self.carried(peer).iter().position(|&destination| destination == self.rank);
            let bytes = strip_bytes(blocks_of(node), capacity);
            Hop {
                peer,
                offset: self.start_of(node, capacity, &blocks_of),
                there: strip.expect("its carrier carries for it") * bytes,
                bytes,
            }
        });
        Route { sends: sends.collect(), receives: receives.collect() }
    }

    /// The strips of an all-reduce whose segments have up to `capacity` bytes: one, that all of the
    /// rail are sent.
    pub(super) fn sum_route(&self, capacity: usize) -> Route {
        let parts = |node: usize| self.parts_of(node);
        let own = strip_bytes(parts(self.node()), capacity);
        let rail = self.rail();
        let sends = self.rail_by_distance().into_iter().map(|peer| Hop {
            peer,
            offset: 0,
            there: self.start_at(peer, capacity, &parts),
            bytes: own,
        });
        let receives = rail.iter().map(|&peer| {
            let node = self.topology.node_of(peer);
            let bytes = strip_bytes(parts(node), capacity);
            Hop { peer, offset: self.start_of(node, capacity, &parts), there: 0, bytes }
        });
        Route { sends: sends.collect(), receives: receives.collect() }
    }

    /// Strips of one block of up to `capacity` bytes, for each of the rail: in an exchange along
    /// it, and in the first of two steps of an all-reduce, where a node is sent its part of this
    /// node's sum. All send these back as in [`Nodes::sum_route`].
    pub(super) fn rail_route(&self, capacity: usize) -> Route {
        let bytes = strip_bytes(1, capacity);
        let sends = self.rail_by_distance().into_iter().enumerate().map(|(strip, peer)| Hop {
            peer,
            offset: strip * bytes,
            there: self.start_at(peer, capacity, &|_| 1),
            bytes,
        });
        let receives = self.rail().into_iter().map(|peer| {
            let strips = Self::new(&self.topology, peer).rail_by_distance();
            let strip = strips.iter().position(|&destination| destination == self.rank);
            Hop {
                peer,
                offset: self.start_of(self.topology.node_of(peer), capacity, &|_| 1),
                there: strip.expect("rails lead both ways") * bytes,
                bytes,
            }
        });
        Route { sends: sends.collect(), receives: receives.collect() }
    }

    /// Where the strip of `node` lies in this rank's slot of what it receives.
    fn start_of(&self, node: usize, capacity: usize, blocks: &dyn Fn(usize) -> usize) -> usize {
        self.others()
            .take_while(|&other| other != node)
            .map(|other| strip_bytes(blocks(other), capacity))
            .sum()
    }

    fn start_at(&self, peer: Rank, capacity: usize, blocks: &dyn Fn(usize) -> usize) -> usize {
        Self::new(&self.topology, peer).start_of(self.node(), capacity, blocks)
    }

    /// Bytes of a slot, for strips that are sent or received in either kind of exchange.
    pub(super) fn slot_bytes(&self, block: usize, segment: usize, rail: usize) -> usize {
        let mut routes = vec![self.exchange_route(block), self.sum_route(segment)];
        routes.extend((rail > 0).then(|| self.rail_route(rail)));
        let hops = routes.iter().flat_map(|route| route.sends.iter().chain(&route.receives));
        // Also a rank without a peer at the other end writes its own strip of a sum.
        let own = strip_bytes(self.parts_of(self.node()), segment);
        hops.map(|hop| hop.offset + hop.bytes).max().unwrap_or(0).max(own).next_multiple_of(256)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn topologies() -> impl Strategy<Value = Topology> {
        prop::collection::vec(0usize..5, 1..5).prop_filter_map("no rank", |sizes| {
            (sizes.iter().sum::<usize>() > 0).then(|| Topology::from_node_sizes(&sizes))
        })
    }

    proptest! {
        /// What one rank sends is what the other receives, at the same places; nothing overlaps,
        /// and all other nodes are heard.
        #[test]
        fn both_ends_of_a_hop_agree(topology in topologies(), capacity in 1usize..200) {
            let of = |rank| Nodes::new(&topology, rank);
            let kinds: [fn(&Nodes, usize) -> Route; 3] =
                [Nodes::exchange_route, Nodes::sum_route, Nodes::rail_route];
            for kind in kinds {
                for rank in topology.ranks() {
                    let (nodes, route) = (of(rank), kind(&of(rank), capacity));
                    for hop in &route.sends {
                        let back = Hop {
                            peer: rank,
                            offset: hop.there,
                            there: hop.offset,
                            bytes: hop.bytes,
                        };
                        prop_assert!(kind(&of(hop.peer), capacity).receives.contains(&back));
                    }
                    let mut end = 0;
                    for hop in &route.receives {
                        prop_assert!(hop.offset == end && hop.bytes > 0);
                        end += hop.bytes;
                        let back = Hop {
                            peer: rank,
                            offset: hop.there,
                            there: hop.offset,
                            bytes: hop.bytes,
                        };
                        prop_assert!(kind(&of(hop.peer), capacity).sends.contains(&back));
                    }
                    let room = nodes.slot_bytes(capacity, capacity, capacity);
                    prop_assert!(room >= end);
                    prop_assert!(route.sends.iter().all(|hop| hop.offset + hop.bytes <= room));
                }
            }
        }

        /// In an all-to-all every rank has one strip from each other node, and the carriers of a
        /// node share the work.
        #[test]
        fn every_other_node_sends_one_strip(topology in topologies()) {
            for rank in topology.ranks() {
                let nodes = Nodes::new(&topology, rank);
                let route = nodes.exchange_route(16);
                prop_assert_eq!(route.receives.len(), nodes.others().count());
                prop_assert_eq!(
                    route.receives.iter().map(|hop| hop.peer).collect::<Vec<_>>(),
                    nodes.senders()
                );
            }
        }
    }

    #[test]
    fn the_next_node_is_sent_to_first() {
        let topology = Topology::from_node_sizes(&[2, 2, 2]);
        let nodes = Nodes::new(&topology, Rank(3));
        assert_eq!(nodes.carried(Rank(3)), [Rank(5), Rank(1)]);
        assert_eq!(nodes.senders(), [Rank(1), Rank(5)]);
        assert_eq!((nodes.rail(), nodes.num_rails()), (vec![Rank(1), Rank(5)], 2));
    }
}
