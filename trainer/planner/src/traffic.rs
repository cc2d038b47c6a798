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
/// Words before the counts of tables in such a slot.
const HEAD_WORDS: f64 = 2.0;

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
        let (needed, Lengthened { vectors, ids }) = (self.needed(), self.lengthened());
        let strips = self.practice.strips;
        let longer = |hops: Hops, ratio: f64| Hops {
            intra: hops.intra * if strips.inside { ratio } else { busy },
            inter: hops.inter * if strips.between { ratio } else { busy },
        };
        let heads = self.heads();
        let heads = Hops {
            intra: if strips.inside { 0.0 } else { heads.intra },
            inter: if strips.between { 0.0 } else { heads.inter },
        };
        Traffic {
            ids: longer(needed.ids, ids) + heads,
            vectors: longer(needed.vectors, vectors),
            gradients: longer(needed.gradients, vectors),
            ..needed
        }
    }

    /// Heads and counts of the slots of ids; in strips they are part of the length.
    fn heads(&self) -> Hops {
        let Packing::Slots { .. } = self.practice.packing else { return Hops::default() };
        let shape = self.cluster.shape();
        let pairs = even_hops(&shape, self.ranks * self.ranks);
        on_its_way(&shape, self.practice.variant.exchange, pairs)
            * (WORD_BYTES * self.words_before_ids())
    }

    fn words_before_ids(&self) -> f64 {
        HEAD_WORDS + (self.workload.tables.len() + self.practice.num_pooled()) as f64
    }

    fn lengthened(&self) -> Lengthened {
        let pairs = self.ranks * self.ranks;
        let (rows, number) = (self.rows, self.ranks * (self.ranks - 1.0));
        let (mean, variance) = (rows.vector_bytes / 4.0 / pairs, rows.vector_variance);
        let vectors = Pairs { mean, busiest: mean * rows.imbalance, variance, number };
        let words = rows.requests + rows.pooled_lookups;
        let (mean, variance) = (words / pairs, rows.request_variance);
        let busiest = mean * rows.imbalance + self.words_before_ids();
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
