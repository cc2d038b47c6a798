//! How a program does a step, apart from what the step is: what plans are compared by.

use crate::schedule::Steps;
use headlong_embedding::hybrid::PoolAt;
use headlong_embedding::hybrid::split::{HybridMode, PoolChoice};
use headlong_embedding::hybrid::traffic::{AllReduce, Exchange, IdSource, Merge, Variant};
use serde::Serialize;

/// The choices of a program.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Practice {
    /// Its name in tables.
    pub name: &'static str,
    /// Where equal infrequent rows become one, and how ids get known.
    pub variant: Variant,
    /// Which links carry strips of one length; others carry what counts.
    pub strips: Strips,
    /// How what exchanges send is prepared.
    pub packing: Packing,
    /// Bytes of one element of a vector on its way.
    pub wire_bytes: f64,
    /// Bytes of one element of the all-reduce on its way.
    pub sum_bytes: f64,
    /// How gradients are summed over ranks.
    pub all_reduce: AllReduce,
    /// In how many all-reduces that is, and when replicated rows move.
    pub sums: Sums,
    /// Whether an owner pools the bags of its table and sends one vector a bag, not one a row.
    pub pools_at_owner: bool,
    /// Where bags become vectors, of tables of several ids a sample; others on the rank.
    pub bags: Vec<Bags>,
    /// Which rows may be replicated.
    #[serde(skip)]
    pub hybrid: HybridMode,
    /// Tables of at most this many bytes are replicated wholly, whatever their rows' frequencies.
    pub whole_table_bytes: u64,
    pub captured: Captured,
    /// Whether lanes run at the same time; else one stage after the other.
    pub overlapped: bool,
    pub border: Steps,
    /// Whether every node reads the whole batch from its disks, not its own slice.
    pub reads_whole_batch: bool,
    /// Whether the dense optimiser's work and state are divided among the ranks.
    pub shards_optimizer: bool,
}

/// Which links carry strips: as long as the fullest pair of ranks needs, rounded up to a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Strips {
    pub inside: bool,
    pub between: bool,
}

/// How ranks bring what they exchange into shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Packing {
    /// Vectors are sent from where the lookup puts them.
    None,
    /// Between devices: requests have a head and a count for each table and rank, ids of four
    /// bytes.
    Slots {
        /// Whether peers of a node fill strips for other nodes, and take them apart.
        by_node: bool,
    },
}

/// How gradients of replicated rows are summed, and the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sums {
    /// All in one all-reduce, in which these rows move.
    WithRows,
    /// All in one, after which these rows move.
    ThenRows,
    /// Those of replicated rows first; the rows move while the others are summed.
    RowsFirst,
}

/// What of a step is a graph; the host enqueues every other operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Captured {
    None,
    /// The dense network alone.
    Dense,
    Step,
}

/// Where the bags of a table of several ids a sample become vectors.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bags {
    /// Which table it is.
    pub table: usize,
    pub at: PoolAt,
    /// What either way sends, and what `"auto"` takes.
    pub choice: PoolChoice,
}

impl Practice {
    /// Whether owners of rows pool the bags of table `table`, each what it has of them.
    pub fn pools(&self, table: usize) -> bool {
        self.bags.iter().any(|bags| bags.table == table && bags.at == PoolAt::Owner)
    }

    /// Tables of which [`Self::pools`] is true.
    pub fn num_pooled(&self) -> usize {
        self.bags.iter().filter(|bags| bags.at == PoolAt::Owner).count()
    }

    /// A captured step in f32 whose exchanges carry what counts, along rails where there are
    /// several nodes; all else is said by who takes it as a beginning.
    pub fn plain() -> Self {
        Self {
            name: "headlong",
            variant: Variant {
                merge: Merge::Rank,
                exchange: Exchange::Hierarchical,
                ids: IdSource::Exchange,
            },
            strips: Strips::default(),
            packing: Packing::None,
            wire_bytes: 4.0,
            sum_bytes: 4.0,
            all_reduce: AllReduce::Hierarchical,
            sums: Sums::WithRows,
            pools_at_owner: false,
            bags: Vec::new(),
            hybrid: HybridMode::Auto,
            whole_table_bytes: 0,
            captured: Captured::Step,
            overlapped: true,
            border: Steps::of(true, true),
            reads_whole_batch: false,
            shards_optimizer: false,
        }
    }

    /// HugeCTR's DLRM of MLPerf v1.0 to v2.1: hybrid embedding, one vector a lookup of an
    /// infrequent row, all nodes read everything, one graph.
    pub fn hugectr_hybrid() -> Self {
        let ids = IdSource::Known;
        Self {
            name: "hugectr-hybrid",
            variant: Variant { merge: Merge::Off, exchange: Exchange::Hierarchical, ids },
            wire_bytes: 2.0,
            sum_bytes: 2.0,
            reads_whole_batch: true,
            ..Self::plain()
        }
    }

    /// HugeCTR's DCNv2 of MLPerf v3.0 on: whole small tables replicated, the others divided by
    /// rows, owners pool, only the dense network is a graph. `num_nodes` chooses the limit of small
    /// tables as its submissions did.
    pub fn hugectr_collection(num_nodes: usize) -> Self {
        let limit_gib = if num_nodes > 1 { 0.0125 } else { 0.008 };
        let ids = IdSource::Exchange;
        Self {
            name: "hugectr-collection",
            variant: Variant { merge: Merge::Off, exchange: Exchange::Hierarchical, ids },
            wire_bytes: 2.0,
            sum_bytes: 2.0,
            pools_at_owner: true,
            hybrid: HybridMode::Off,
            whole_table_bytes: (limit_gib * (1_u64 << 30) as f64) as u64,
            captured: Captured::Dense,
            ..Self::plain()
        }
    }
}
