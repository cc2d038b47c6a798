//! Bytes that travel in a step: what is needed, and what is sent.

use crate::placement::{even_hops, on_its_way};
use crate::practice::{Packing, Practice, Sums};
use crate::strips::Pairs;
use crate::work::Works;
use headlong_embedding::hybrid::cost::{StepSizes, StepTimes};
use headlong_embedding::hybrid::traffic::{
    Hops, ID_BYTES, IdSource, Merge, Traffic, all_reduce, count_bytes,
};
use serde::Serialize;

/// Bytes of a word in a slot between devices: a row, a count.
const WORD_BYTES: f64 = 4.0;
/// Words before the counts of tables in such a slot, and in that of a node's proxy.
const HEAD_WORDS: f64 = 2.0;
const HEAD_WORDS_OF_PROXY: f64 = 4.0;

/// Bytes that travel in a step, over all ranks, by distance.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ExchangeBytes {
    /// What is sent inside nodes.
    pub intra_node: f64,
    pub inter_node: f64,
    /// Of that, what is needed: vectors and gradients of rows, their ids, sums.
    pub needed_intra_node: f64,
    pub needed_inter_node: f64,
}

impl ExchangeBytes {
    pub(crate) fn new(sent: &Traffic, needed: &Traffic) -> Self {
        let (sent, needed) = (sent.total(), needed.total());
        Self {
            intra_node: sent.intra,
            inter_node: sent.inter,
            needed_intra_node: needed.intra,
            needed_inter_node: needed.inter,
        }
    }
}

/// Sent over needed on links that carry strips.
#[derive(Clone, Copy)]
struct Lengthened {
    vectors: f64,
    ids: f64,
}

impl Works<'_> {
    /// Bytes that a step must send, over all ranks.
    pub fn needed(&self) -> Traffic {
        let (shape, wire) = (self.cluster.shape(), self.wire);
        let (replicated, dense) = (self.replicated_bytes(), self.dense_bytes());
        let summed = |bytes: f64| {
            let is_apart = self.practice.sums == Sums::RowsFirst;
            let together = if is_apart { bytes } else { self.buffer_bytes() };
            all_reduce(&shape, self.costs.all_reduce_way(&shape, together), bytes)
        };
        Traffic {
            ids: self.needed_ids(),
            vectors: self.rows.travelling * wire,
            gradients: self.rows.travelling * wire,
            frequent: summed(replicated),
            dense: match self.practice.shards_optimizer {
                false => summed(dense),
                // One half of an all-reduce of gradients, the other of one of weights.
                true => {
                    let weights = self.workload.dense_parameters * 4.0;
                    all_reduce(&shape, self.costs.parts_way(&shape), (dense + weights) / 2.0)
                }
            },
        }
    }

    /// Bytes that it sends.
    pub fn sent(&self) -> Traffic {
        self.travelling(1.0)
    }

    fn needed_ids(&self) -> Hops {
        let Practice { variant, packing, .. } = self.practice;
        let rows = self.rows.requests_travelling;
        match packing {
            Packing::Slots { .. } => rows * WORD_BYTES,
            Packing::None => {
                let known = variant.ids == IdSource::Known;
                let ids = if known { Hops::default() } else { rows * ID_BYTES };
                ids + count_bytes(&self.cluster.shape(), *variant, self.workload.tables.len())
            }
        }
    }

    /// What is sent, where links that carry what counts carry `busy` times as much.
    fn travelling(&self, busy: f64) -> Traffic {
        let (needed, [inside, between]) = (self.needed(), self.lengthened());
        let strips = self.practice.strips;
        let longer = |hops: Hops, ratio: fn(&Lengthened) -> f64| Hops {
            intra: hops.intra * if strips.inside { ratio(&inside) } else { busy },
            inter: hops.inter * if strips.between { ratio(&between) } else { busy },
        };
        let heads = self.heads();
        let heads = Hops {
            intra: if strips.inside { 0.0 } else { heads.intra },
            inter: if strips.between { 0.0 } else { heads.inter },
        };
        Traffic {
            ids: longer(needed.ids, |ratios| ratios.ids) + heads,
            vectors: longer(needed.vectors, |ratios| ratios.vectors),
            gradients: longer(needed.gradients, |ratios| ratios.vectors),
            ..needed
        }
    }

    /// Heads and counts of the slots of ids; in strips they are part of the length.
    fn heads(&self) -> Hops {
        let Packing::Slots { .. } = self.practice.packing else { return Hops::default() };
        let shape = self.cluster.shape();
        let (ranks, nodes) = (self.ranks, shape.num_nodes() as f64);
        if self.merges_in_nodes() {
            return Hops {
                intra: ranks * (ranks / nodes - 1.0) * WORD_BYTES * self.words_after(HEAD_WORDS),
                inter: ranks * (nodes - 1.0) * WORD_BYTES * self.words_after(HEAD_WORDS_OF_PROXY),
            };
        }
        let pairs = even_hops(&shape, ranks * ranks);
        on_its_way(&shape, self.practice.variant.exchange, pairs)
            * (WORD_BYTES * self.words_after(HEAD_WORDS))
    }

    pub(crate) fn merges_in_nodes(&self) -> bool {
        self.practice.variant.merge == Merge::Node
    }

    /// Words before the numbers of rows, behind so many.
    fn words_after(&self, head: f64) -> f64 {
        head + (self.workload.tables.len() + self.practice.num_pooled()) as f64
    }

    /// Inside nodes and between them.
    fn lengthened(&self) -> [Lengthened; 2] {
        let (ranks, rows, nodes) = (self.ranks, self.rows, self.cluster.shape().num_nodes() as f64);
        let words = rows.requests + rows.pooled_lookups;
        // Where nodes merge, a rank asks another of its node for the rows of an owner in each.
        let owners = if self.merges_in_nodes() { nodes } else { 1.0 };
        let peers = ranks / owners;
        let of_ranks = self.longer_than_needed(
            (rows.vector_bytes, rows.vector_variance * owners),
            (words, rows.request_variance * owners),
            peers,
            HEAD_WORDS,
        );
        if !self.merges_in_nodes() {
            return [of_ranks; 2];
        }
        let of_nodes = rows.of_nodes;
        let of_proxies = self.longer_than_needed(
            (of_nodes.vector_bytes, of_nodes.vector_variance),
            (of_nodes.requests, of_nodes.request_variance),
            nodes,
            HEAD_WORDS_OF_PROXY,
        );
        [of_ranks, of_proxies]
    }

    /// Where every rank asks so many peers, itself among them: for vectors of so many bytes and
    /// with so many words, of all ranks, and with which variances between pairs.
    fn longer_than_needed(
        &self,
        (vector_bytes, vector_variance): (f64, f64),
        (words, word_variance): (f64, f64),
        peers: f64,
        head: f64,
    ) -> Lengthened {
        let (pairs, number) = (self.ranks * peers, self.ranks * (peers - 1.0));
        let imbalance = self.rows.imbalance;
        let (mean, variance) = (vector_bytes / 4.0 / pairs, vector_variance);
        let vectors = Pairs { mean, busiest: mean * imbalance, variance, number };
        let (mean, variance) = (words / pairs, word_variance);
        let busiest = mean * imbalance + self.words_after(head);
        let ids = Pairs { mean, busiest, variance, number };
        Lengthened { vectors: vectors.of_vectors(), ids: ids.of_requests() }
    }

    /// Bytes of one rank's buffer where all is summed at once; dense gradients of which each rank
    /// wants a part are summed apart.
    pub(crate) fn buffer_bytes(&self) -> f64 {
        let dense = if self.practice.shards_optimizer { 0.0 } else { self.dense_bytes() };
        self.replicated_bytes() + dense
    }

    /// Bytes of one rank's gradients of replicated rows, as they are summed.
    pub(crate) fn replicated_bytes(&self) -> f64 {
        self.rows.reduced_bytes * self.sum
    }

    /// Bytes of its dense gradients, likewise.
    pub(crate) fn dense_bytes(&self) -> f64 {
        self.workload.dense_parameters * 4.0 * self.sum
    }

    /// Times of exchanges, of the busiest owner's bytes.
    pub(crate) fn exchange_times(&self) -> StepTimes {
        let step = StepSizes::default();
        let exchange = self.practice.variant;
        debug_assert!(exchange.merge <= Merge::Node);
        let traffic = self.travelling(self.rows.imbalance);
        self.costs.step_times(&self.cluster.shape(), exchange, &traffic, &step)
    }

    /// Bytes that the busiest rank sends between nodes in one exchange of vectors.
    pub(crate) fn crossing_of_rank(&self) -> f64 {
        self.travelling(self.rows.imbalance).vectors.inter / self.ranks
    }
}
