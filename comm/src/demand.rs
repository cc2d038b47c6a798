//! What a job of processes takes of each of its ranks where payload goes over TCP: connections,
//! descriptors, memory, messages. `headlong plan` prints it, and jobs of many ranks are held
//! against it (`trainer/examples/many_ranks.rs`).
//!
//! With `n` ranks on each of `m` nodes, aligned
//! ([`Topology::aligned_node_size`](crate::Topology::aligned_node_size)) and more than 64 in all, a
//! rank exchanges with the `n - 1` others of its node and the `m - 1` of its rail; else with all.
//! Rank 0 shares the control channel with all others, which share it with rank 0.

use crate::collectives::group::Group;
use crate::options::AllToAll;
use crate::plan::hierarchical;
use crate::rendezvous::descriptors;
use crate::topology::{Rank, Topology};

/// Descriptors of a rank besides its connections and ports: the event that wakes its control
/// thread.
const EVENTS: usize = 1;
/// Bytes of a rank by itself, for each rank of its job, and for each of its connections, as
/// measured with 128 to 1,024 ranks. What the system keeps of a connection comes on top.
const BYTES: [usize; 3] = [118_000, 230, 500];

/// What one rank takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Ranks with which it exchanges.
    pub data_connections: usize,
    /// Ranks with which it shares the control channel.
    pub control_connections: usize,
    /// Ports at which it listens.
    pub ports: usize,
    /// Bytes of memory.
    pub bytes: usize,
    parts: Messages,
    sum: usize,
}

/// Messages of an exchange of parts, counts included where they go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Messages {
    of_one_length: usize,
    of_any_length: usize,
}

/// The exchanges of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepExchanges {
    /// From each rank to each a part of one length.
    pub of_one_length: usize,
    /// From each rank to each a part of any length.
    pub of_any_length: usize,
    /// Large sums over all ranks, each in one piece.
    pub sums: usize,
}

impl Demand {
    /// Of a rank whose job exchanges parts like this.
    pub fn of(topology: &Topology, rank: Rank, exchange: AllToAll) -> Self {
        let (ranks, inside) =
            (topology.num_ranks(), topology.node_size(topology.node_of(rank)) - 1);
        let is_by_node = exchange != AllToAll::Flat && hierarchical::is_useful(topology);
        let parts = match is_by_node {
            false => Messages { of_one_length: ranks - 1, of_any_length: ranks - 1 },
            true => {
                let of_one_length = 2 * inside + hierarchical::carried_by(topology, rank).count();
                Messages { of_one_length, of_any_length: of_one_length + inside }
            }
        };
        let peers = Group::levels(topology, rank).peers().len();
        let data_connections = if is_by_node { peers } else { ranks - 1 };
        let control_connections = descriptors::control_connections(rank, ranks);
        let [own, each_rank, each_connection] = BYTES;
        let connections = data_connections + control_connections;
        Self {
            data_connections,
            control_connections,
            ports: if rank == Rank(0) { 2 } else { 1 },
            bytes: own + ranks * each_rank + connections * each_connection,
            parts,
            sum: 2 * peers,
        }
    }

    /// Descriptors that it has open for all that.
    pub fn descriptors(&self) -> usize {
        self.data_connections + self.control_connections + self.ports + EVENTS
    }

    /// Messages that it sends in a step.
    pub fn messages(&self, step: StepExchanges) -> usize {
        step.of_one_length * self.parts.of_one_length
            + step.of_any_length * self.parts.of_any_length
            + step.sums * self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_jobs_need_as_many_connections_as_nodes() {
        let of = |ranks, per_node, rank| {
            let topology = Topology::with_ranks_per_node(ranks, per_node);
            let demand = Demand::of(&topology, Rank(rank), AllToAll::Auto);
            (demand.data_connections, demand.control_connections, demand.descriptors())
        };
        assert_eq!(of(1024, 8, 5), (7 + 127, 1, 137));
        assert_eq!(of(16_384, 8, 0), (7 + 2047, 16_383, 18_440));
        // Small ones, and nodes that allow no levels, have one for each pair.
        assert_eq!(of(64, 8, 1), (63, 1, 66));
        assert_eq!(of(96, 6, 1), (95, 1, 98));
        let flat = Demand::of(&Topology::with_ranks_per_node(1024, 8), Rank(1), AllToAll::Flat);
        assert_eq!(flat.data_connections, 1023);
    }

    #[test]
    fn messages_are_those_that_the_exchanges_send() {
        let demand = Demand::of(&Topology::with_ranks_per_node(128, 8), Rank(3), AllToAll::Auto);
        let step = |of_one_length, of_any_length, sums| {
            demand.messages(StepExchanges { of_one_length, of_any_length, sums })
        };
        assert_eq!((step(1, 0, 0), step(0, 1, 0), step(0, 0, 1)), (29, 36, 44));
    }
}
