//! How many bytes travel in a step: the exchange, planned without sending anything.
//!
//! # What is counted
//!
//! Payload that leaves a rank, summed over all ranks, in one step of the global batch: `inter`
//! crosses between nodes, `intra` stays inside one. What a rank keeps for itself counts as nothing.
//! `N` ranks stand on `n` nodes; a row that comes `λ` times in a step is in a part `φ` of the batch
//! with chance `q(φ) = 1 − exp(−λφ)` (from counts: `1 − (1 + φ/E)^(−λE)`, where the rate comes from
//! `E` steps). Each rank has `1/N` of the batch and, on average over rows, owns `1/N` of the rows.
//! Vectors that travel for one infrequent row, in one direction, on nodes of equal size:
//!
//! | equal rows are merged | between nodes | inside nodes |
//! |---|---|---|
//! | nowhere | `λ (n−1)/n` | `λ (N/n − 1)/N` |
//! | on the rank | `N q(1/N) (n−1)/n` | `q(1/N) (N/n − 1)` |
//! | on the node | `n q(1/n) (n−1)/n` | `N q(1/N) (1 − n/N)`: between the peer that merges and those who request |
//!
//! A hierarchical exchange moves `1 − n/N` of what crosses between nodes once more inside one.
//! Gradients take the way back. A row's id goes before it, 8 bytes, unless all ranks know the whole
//! batch. A frequent row costs an all-reduce of its gradient (and of 4 bytes that say how often it
//! was touched), of `Z` bytes:
//!
//! | all-reduce | between nodes | inside nodes |
//! |---|---|---|
//! | direct: everybody sends everything to all | `Z N (N − N/n)` | `Z N (N/n − 1)` |
//! | two steps: each rank adds up `1/N` and sends the sum to all | `2 Z (N − N/n)` | `2 Z (N/n − 1)` |
//! | hierarchical: inside the node, once across, inside the node | `2 Z (n − 1)` | `2 Z (N − n)` |
//! | the same between devices: a node's sums go to every other node | `Z n (n − 1)` | `2 Z (N − n)` |
//!
//! # The optimum
//!
//! Between nodes, both ways, an infrequent row that is merged nowhere costs `2 λ (n−1)/n` vectors,
//! a frequent row in the hierarchical all-reduce `2 (n−1)`. The least that any choice of frequent
//! rows sends is therefore, from each node, `2 (n−1)/n · Σ min(λ/n, 1)` vectors: [`optimum`].
//! Merging equal rows sends less than that: on the node `2 (n−1)/n · Σ q(1/n)`, as
//! `1 − exp(−x) < min(x, 1)`.

mod count;

pub use count::{RankRows, count_vectors};

use serde::{Deserialize, Serialize};
use std::ops::{Add, AddAssign, Mul, Sub};

/// Bytes of a row index on its way.
pub const ID_BYTES: f64 = 8.0;
/// Bytes of one number of the counts that go before ids.
const COUNT_BYTES: f64 = 4.0;
/// Bytes of the counts that ranks of a node tell each other before a hierarchical exchange.
const CARRIED_COUNT_BYTES: f64 = 8.0;
/// Bytes of the number that says how often a frequent row was touched.
pub const TOUCHED_BYTES: f64 = 4.0;

/// Bytes, or vectors, by distance.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Hops {
    /// Between ranks of one node.
    pub intra: f64,
    /// Between nodes.
    pub inter: f64,
}

impl Hops {
    /// Both.
    pub fn total(&self) -> f64 {
        self.intra + self.inter
    }
}

/// An operation on both parts.
macro_rules! by_part {
    ($trait:ident<$other:ty>, $op:ident, $a:ident, $b:ident => $intra:expr, $inter:expr) => {
        impl $trait<$other> for Hops {
            type Output = Self;
            fn $op(self, $b: $other) -> Self {
                let $a = self;
                Self { intra: $intra, inter: $inter }
            }
        }
    };
}
by_part!(Add<Hops>, add, a, b => a.intra + b.intra, a.inter + b.inter);
by_part!(Sub<Hops>, sub, a, b => a.intra - b.intra, a.inter - b.inter);
by_part!(Mul<f64>, mul, a, factor => a.intra * factor, a.inter * factor);

impl AddAssign for Hops {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::iter::Sum for Hops {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), Add::add)
    }
}

/// Nodes by the number of their ranks; ranks are numbered node by node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    node_sizes: Vec<usize>,
}

impl Cluster {
    /// Nodes of these sizes; empty ones do not count.
    ///
    /// # Panics
    /// When there is no rank.
    pub fn new(node_sizes: &[usize]) -> Self {
        let node_sizes: Vec<_> = node_sizes.iter().copied().filter(|&size| size > 0).collect();
        assert!(!node_sizes.is_empty(), "a cluster has at least one rank");
        Self { node_sizes }
    }

    /// `num_nodes` nodes of `ranks_per_node` ranks.
    pub fn even(num_nodes: usize, ranks_per_node: usize) -> Self {
        Self::new(&vec![ranks_per_node; num_nodes])
    }

    /// Number of ranks.
    pub fn num_ranks(&self) -> usize {
        self.node_sizes.iter().sum()
    }

    /// Number of nodes.
    pub fn num_nodes(&self) -> usize {
        self.node_sizes.len()
    }

    /// Ranks of the largest node.
    pub fn largest_node(&self) -> usize {
        self.node_sizes.iter().copied().max().unwrap_or(1)
    }

    /// The node of a rank.
    pub fn node_of(&self, rank: usize) -> usize {
        let mut end = 0;
        self.node_sizes
            .iter()
            .take_while(|&&size| {
                end += size;
                end <= rank
            })
            .count()
    }

    /// Place of a rank on its node.
    pub fn local_index(&self, rank: usize) -> usize {
        rank - self.node_sizes[..self.node_of(rank)].iter().sum::<usize>()
    }

    /// Ranks of a node.
    pub fn node_size(&self, node: usize) -> usize {
        self.node_sizes[node]
    }

    /// Whether an exchange can go inside the node first: several nodes, one of them with several
    /// ranks.
    pub fn has_levels(&self) -> bool {
        self.num_nodes() > 1 && self.largest_node() > 1
    }

    /// Whether the ranks of each node are a subtree of the tree that sums gradients over ranks, so
    /// that a node may sum for itself: nodes of one power of two.
    pub fn nodes_are_subtrees(&self) -> bool {
        let size = self.node_sizes[0];
        size.is_power_of_two() && self.node_sizes.iter().all(|&other| other == size)
    }

    fn sizes(&self) -> impl Iterator<Item = f64> {
        self.node_sizes.iter().map(|&size| size as f64)
    }

    /// Pairs of ranks, in order: on one node, and on two.
    fn pairs(&self) -> Hops {
        let ranks = self.num_ranks() as f64;
        self.sizes()
            .map(|size| Hops { intra: size * (size - 1.0), inter: size * (ranks - size) })
            .sum()
    }

    /// What a hierarchical exchange adds inside nodes to vectors that cross between them.
    fn carried_share(&self) -> f64 {
        let ranks = self.num_ranks() as f64;
        // From a rank of a node of `from` ranks to one of `to`: the carrier is the source itself
        // once in `from`.
        let crossing: f64 = self.pairs().inter;
        let carried: f64 = self.sizes().map(|from| (ranks - from) * (from - 1.0)).sum();
        if crossing == 0.0 { 0.0 } else { carried / crossing }
    }
}

/// Where equal rows of a batch become one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Merge {
    /// Nowhere: one vector a lookup.
    Off,
    /// On each rank.
    Rank,
    /// On each rank, then on each node.
    Node,
}

/// How vectors travel between nodes. Merging on the node has its own way: to the peer on the
/// owner's rail, and along the rail, flat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exchange {
    /// Every rank sends to every other.
    Flat,
    /// Inside the node to the peer with the destination's local rank, then once across.
    Hierarchical,
}

/// How an owner learns which rows are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdSource {
    /// Every rank asks for the rows of its slice.
    Exchange,
    /// Every rank holds the ids of the whole batch and finds out for itself.
    Known,
}

/// How gradients of frequent rows and of dense weights are summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllReduce {
    /// Everybody sends everything to all, and all add alike.
    Direct,
    /// Each rank adds up one segment and sends the sum to all.
    TwoSteps,
    /// Summed inside the node, segment by segment across nodes, and shared inside the node.
    Hierarchical,
    /// Summed inside the node; of a segment every node sends its sum to all others, or what its
    /// ranks have where nodes are no subtrees of the tree; shared inside the node. As a setting:
    /// what devices do, which is this for small sums.
    HierarchicalDirect,
}

/// A way to exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    /// Where equal rows are merged.
    pub merge: Merge,
    /// How vectors travel.
    pub exchange: Exchange,
    /// How ids get known.
    pub ids: IdSource,
}

/// How often a row comes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Expected lookups in a step.
    pub lambda: f64,
    /// Steps whose counts the rate comes from; infinite where it is known, or known to be alike for
    /// the rows it stands for.
    pub evidence_steps: f64,
}

impl Rate {
    /// A rate that is known.
    pub fn known(lambda: f64) -> Self {
        Self { lambda, evidence_steps: f64::INFINITY }
    }

    /// Chance that a part of the step has the row: `part` of all samples.
    pub fn chance_in(&self, part: f64) -> f64 {
        if self.evidence_steps.is_infinite() {
            return -(-self.lambda * part).exp_m1();
        }
        let shape = self.lambda * self.evidence_steps;
        -(-shape * (part / self.evidence_steps).ln_1p()).exp_m1()
    }
}

/// Vectors that travel in one direction for one infrequent row.
pub fn vectors(cluster: &Cluster, merge: Merge, exchange: Exchange, rate: Rate) -> Hops {
    let ranks = cluster.num_ranks() as f64;
    let by_pair = match merge {
        Merge::Off => rate.lambda / ranks,
        Merge::Rank | Merge::Node => rate.chance_in(1.0 / ranks),
    };
    if merge == Merge::Node {
        let crossing =
            cluster.sizes().map(|size| rate.chance_in(size / ranks) * (ranks - size) / ranks);
        // Of the ranks of a node, the one that merges or owns need not be told.
        let inside: f64 = cluster.sizes().map(|size| size - 1.0).sum();
        return Hops { intra: by_pair * inside, inter: crossing.sum() };
    }
    anywhere(cluster, exchange, by_pair * ranks)
}

/// `number` things on their way, each from any rank to any rank with equal chance.
pub fn anywhere(cluster: &Cluster, exchange: Exchange, number: f64) -> Hops {
    let ranks = cluster.num_ranks() as f64;
    let direct = cluster.pairs() * (number / (ranks * ranks));
    match exchange {
        Exchange::Flat => direct,
        Exchange::Hierarchical => {
            direct + Hops { intra: direct.inter * cluster.carried_share(), inter: 0.0 }
        }
    }
}

/// Bytes of an all-reduce of `bytes`, and of none at one rank.
pub fn all_reduce(cluster: &Cluster, how: AllReduce, bytes: f64) -> Hops {
    let (ranks, nodes) = (cluster.num_ranks() as f64, cluster.num_nodes() as f64);
    match how {
        AllReduce::Direct => cluster.pairs() * bytes,
        AllReduce::TwoSteps => cluster.pairs() * (2.0 * bytes / ranks),
        AllReduce::Hierarchical => {
            Hops { intra: 2.0 * bytes * (ranks - nodes), inter: 2.0 * bytes * (nodes - 1.0) }
        }
        AllReduce::HierarchicalDirect => {
            let parts = if cluster.nodes_are_subtrees() { nodes } else { ranks };
            Hops { intra: 2.0 * bytes * (ranks - nodes), inter: bytes * parts * (nodes - 1.0) }
        }
    }
}

/// Bytes of counts that go before the data of one step: a number for each rank and table whose
/// rows may be requested, and what ranks of a node tell those who carry for them.
pub fn count_bytes(cluster: &Cluster, variant: Variant, num_tables: usize) -> Hops {
    let requests = match variant.ids {
        IdSource::Known => Hops::default(),
        IdSource::Exchange => cluster.pairs() * (num_tables as f64 * COUNT_BYTES),
    };
    let (ranks, nodes) = (cluster.num_ranks() as f64, cluster.num_nodes() as f64);
    if variant.merge == Merge::Node && variant.ids == IdSource::Exchange {
        // To each peer for all owners of its rail; from there to each owner.
        let one = num_tables as f64 * COUNT_BYTES;
        return Hops {
            intra: cluster.pairs().intra * nodes * one,
            inter: ranks * (nodes - 1.0) * one,
        };
    }
    if variant.exchange == Exchange::Flat || !cluster.has_levels() {
        return requests;
    }
    let told: f64 = cluster.sizes().map(|size| (ranks - size) * (size - 1.0)).sum();
    // Vectors, gradients, and ids where they travel, each tell their carriers how much is to come.
    let exchanges = if variant.ids == IdSource::Known { 2.0 } else { 3.0 };
    let carried = Hops { intra: requests.inter * cluster.carried_share(), inter: 0.0 };
    requests + carried + Hops { intra: told * exchanges * CARRIED_COUNT_BYTES, inter: 0.0 }
}

/// Bytes of one step, by what they are for.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Traffic {
    /// Ids of requested rows, and counts.
    pub ids: Hops,
    /// Vectors to those who requested them.
    pub vectors: Hops,
    /// Their gradients back.
    pub gradients: Hops,
    /// All-reduce of the gradients of frequent rows.
    pub frequent: Hops,
    /// All-reduce of dense gradients.
    pub dense: Hops,
}

impl Traffic {
    /// Before and during the forward pass.
    pub fn forward(&self) -> Hops {
        self.ids + self.vectors
    }

    /// During the backward pass.
    pub fn backward(&self) -> Hops {
        self.gradients + self.frequent + self.dense
    }

    /// Everything.
    pub fn total(&self) -> Hops {
        self.forward() + self.backward()
    }

    /// What embeddings cause: everything except the dense gradients.
    pub fn of_embeddings(&self) -> Hops {
        self.total() - self.dense
    }
}

/// The least vectors that leave one node in a step, forward and backward, with any choice of
/// frequent rows, when nothing is merged: `2 (n−1)/n · Σ min(λ/n, 1)`. `rows` gives (λ, number of
/// such rows).
pub fn optimum(cluster: &Cluster, rows: impl Iterator<Item = (f64, f64)>) -> f64 {
    let nodes = cluster.num_nodes() as f64;
    2.0 * (nodes - 1.0) / nodes
        * rows.map(|(lambda, number)| number * (lambda / nodes).min(1.0)).sum::<f64>()
}

#[cfg(test)]
mod tests;
