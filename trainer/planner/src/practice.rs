//! How a program does a step, apart from what the step is: what plans are compared by.

use crate::schedule::{BORDER, Steps};
use headlong_embedding::hybrid::traffic::{IdSource, Merge, Variant};
use serde::Serialize;

/// The choices of a program.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Practice {
    /// Its name in tables.
    pub name: &'static str,
    /// Where equal infrequent rows become one, and how ids get known.
    pub variant: Variant,
    /// Bytes of one element of a vector on its way.
    pub wire_bytes: f64,
    /// Bytes of one element of the all-reduce on its way.
    pub sum_bytes: f64,
    /// Whether an owner pools the bags of its table and sends one vector a bag, not one a row.
    pub pools_at_owner: bool,
    /// Whether frequent rows may be replicated.
    pub hybrid: bool,
    /// Tables of at most this many bytes are replicated wholly, whatever their rows' frequencies.
    pub whole_table_bytes: u64,
    /// Whether a step is one graph; else the host enqueues every operation outside of the dense
    /// network.
    pub captured: bool,
    pub border: Steps,
    /// Whether every node reads the whole batch from its disks, not its own slice.
    pub reads_whole_batch: bool,
    /// Whether the dense optimiser's work and state are divided among the ranks.
    pub shards_optimizer: bool,
}

use headlong_embedding::hybrid::traffic::Exchange::Hierarchical;

impl Practice {
    /// What Headlong does today on devices: between nodes along rails, where there are any.
    pub fn headlong() -> Self {
        Self {
            name: "headlong",
            variant: Variant {
                merge: Merge::Rank,
                exchange: Hierarchical,
                ids: IdSource::Exchange,
            },
            wire_bytes: 4.0,
            sum_bytes: 4.0,
            pools_at_owner: false,
            hybrid: true,
            whole_table_bytes: 0,
            captured: true,
            border: BORDER,
            reads_whole_batch: false,
            shards_optimizer: false,
        }
    }

    /// HugeCTR's DLRM of MLPerf v1.0 to v2.1: hybrid embedding, one vector a lookup of an
    /// infrequent row, all nodes read everything, one graph.
    pub fn hugectr_hybrid() -> Self {
        Self {
            name: "hugectr-hybrid",
            variant: Variant { merge: Merge::Off, exchange: Hierarchical, ids: IdSource::Known },
            wire_bytes: 2.0,
            sum_bytes: 2.0,
            border: Steps::Overlap,
            reads_whole_batch: true,
            ..Self::headlong()
        }
    }

    /// HugeCTR's DCNv2 of MLPerf v3.0 on: whole small tables replicated, the others divided by
    /// rows, owners pool, only the dense network is a graph. `num_nodes` chooses the limit of small
    /// tables as its submissions did.
    pub fn hugectr_collection(num_nodes: usize) -> Self {
        let limit_gib = if num_nodes > 1 { 0.0125 } else { 0.008 };
        Self {
            name: "hugectr-collection",
            variant: Variant { merge: Merge::Off, exchange: Hierarchical, ids: IdSource::Exchange },
            wire_bytes: 2.0,
            sum_bytes: 2.0,
            pools_at_owner: true,
            hybrid: false,
            whole_table_bytes: (limit_gib * (1_u64 << 30) as f64) as u64,
            captured: false,
            border: Steps::Overlap,
            ..Self::headlong()
        }
    }
}
