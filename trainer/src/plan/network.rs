//! What a rank takes of a network where ranks are processes that TCP joins.

use super::dense_parameters;
use crate::config::{Config, IdsChoice, TransportChoice};
use crate::iteration::model::SUM_PIECE;
use crate::report::{bytes, count, some};
use headlong_comm::demand::{Demand, StepExchanges};
use headlong_comm::{Rank, Topology};
use serde::Serialize;

/// What the network takes of a rank, and of rank 0, to which all others report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct NetworkPlan {
    /// Ranks with which each exchanges.
    pub connections: usize,
    pub descriptors: usize,
    pub descriptors_of_rank_0: usize,
    /// Bytes of memory that connections and the table of all ranks take.
    pub bytes: usize,
    pub bytes_of_rank_0: usize,
    /// Where NICs join nodes, or are asked for inside of one: the most ranks that one reaches so,
    /// and the memory that it locks for them.
    pub queue_pairs: usize,
    pub locked_bytes: usize,
    /// Whether NICs are asked for: then this memory counts.
    pub locks: bool,
    /// Messages that a rank sends in a step, ids exchanged unless `comm.ids` is "known". Sums of
    /// more than a MiB are done in pieces, which are counted for the dense network. Devices have
    /// none.
    pub messages_per_step: Option<usize>,
}

impl NetworkPlan {
    /// Of ranks on so many nodes; `comm.ranks_per_node`, where it is set, comes first. None for a
    /// job of one rank.
    pub(super) fn new(config: &Config, nodes: usize, on_device: bool) -> Option<Self> {
        let ranks = config.run.ranks;
        if ranks == 1 {
            return None;
        }
        let per_node = match config.comm.ranks_per_node {
            0 => ranks.div_ceil(nodes.max(1)),
            given => given,
        };
        let topology = Topology::with_ranks_per_node(ranks, per_node);
        let of = |rank| Demand::of(&topology, Rank(rank), config.comm.exchange);
        let (first, other) = (of(0), of(1));
        let locks = config.run.transport == TransportChoice::Verbs;
        // Of the ranks with which one exchanges, those of its own node share memory. The last node
        // may be smaller, and have more elsewhere.
        let pairs_of = |rank: usize| {
            let inside = match locks && topology.num_nodes() == 1 {
                true => 0,
                false => topology.node_size(topology.node_of(Rank(rank))) - 1,
            };
            of(rank).data_connections - inside
        };
        let by_nics =
            matches!(config.run.transport, TransportChoice::Auto | TransportChoice::Verbs);
        let queue_pairs = if by_nics { pairs_of(1).max(pairs_of(ranks - 1)) } else { 0 };
        let asks = usize::from(config.comm.ids != IdsChoice::Known);
        let pieces = dense_parameters(config).get().div_ceil(SUM_PIECE as u64).max(1);
        let step = StepExchanges {
            of_one_length: asks,
            of_any_length: asks + 2,
            sums: usize::try_from(pieces).unwrap_or(usize::MAX),
        };
        Some(Self {
            connections: other.data_connections,
            descriptors: other.descriptors(),
            descriptors_of_rank_0: first.descriptors(),
            bytes: other.bytes,
            bytes_of_rank_0: first.bytes,
            queue_pairs,
            locked_bytes: config.comm.verbs.locked_bytes(queue_pairs),
            locks,
            messages_per_step: (!on_device).then(|| other.messages(step)),
        })
    }

    /// A line, and another where there are several nodes.
    pub(super) fn to_text(self) -> String {
        let over_nics = match self.queue_pairs {
            0 => String::new(),
            pairs => format!(
                "\nover NICs (verbs), a rank: up to {}, {} of locked memory (ulimit -l)",
                some(pairs, "queue pair"),
                bytes(self.locked_bytes as u64)
            ),
        };
        let messages = self
            .messages_per_step
            .map(|messages| format!(", {} a step", some(messages, "message")));
        format!(
            "as processes over TCP, a rank: {}, {} descriptors, {}{}; rank 0: {} descriptors, \
             {}{over_nics}",
            some(self.connections, "connection"),
            count(self.descriptors as u64),
            bytes(self.bytes as u64),
            messages.unwrap_or_default(),
            count(self.descriptors_of_rank_0 as u64),
            bytes(self.bytes_of_rank_0 as u64)
        )
    }
}
