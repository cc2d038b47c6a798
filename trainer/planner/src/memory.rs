//! What the memory of a rank goes to.

use crate::count::Count;
use headlong_embedding::hybrid::split::{Split, TableSplit};
use serde::Serialize;

/// Bytes of one rank, by use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemoryUse {
    pub table_weight_bytes: Count,
    /// State of the sparse optimiser, and what tables need besides.
    pub table_state_bytes: Count,
    /// Dense weights, gradients and optimiser state.
    pub dense_bytes: Count,
    /// Vectors and gradients on their way between ranks, gradients of frequent rows among them.
    pub exchange_bytes: Count,
    /// Activations and their gradients, packed weights, and the batches that the iteration holds.
    pub activation_bytes: Count,
    /// Batches that stay on the device (`data.cache`).
    pub kept_batch_bytes: Count,
    /// Batches that are read ahead, the parser's blocks, data that stays in memory.
    pub reader_bytes: Count,
    /// The dictionary, or the admitted ids.
    pub id_map_bytes: Count,
    pub other_bytes: Count,
}

/// Bytes of work space of matrix products, of both streams that compute them.
const WORKSPACE_BYTES: u64 = 2 * (32 << 20);
/// Bytes of the library of matrix products, whose code is loaded when it is first used. Assumed:
/// the upper end of what is reported of cuBLASLt (100 to 500 MB).
const PRODUCTS_BYTES: u64 = 512 << 20;
/// Bytes of NCCL's buffers, where there are several ranks. Assumed: 4 MiB (the default of
/// `NCCL_BUFFSIZE`) for each of 32 channels, to and from two neighbours.
const NCCL_BYTES: u64 = 4 * 32 * (4 << 20);
/// Bytes of a CUDA context: what a process takes of a device before it takes memory. Assumed;
/// free memory is asked for within one.
pub(crate) const CONTEXT_BYTES: u64 = 512 << 20;

impl MemoryUse {
    pub fn total(&self) -> Count {
        self.of_model() + self.next_to_a_device()
    }

    /// What of it lies on the device of one of `ranks`, with what libraries take there.
    pub fn on_a_device(&self, ranks: usize) -> Count {
        let nccl = if ranks > 1 { NCCL_BYTES } else { 0 };
        self.of_model() + WORKSPACE_BYTES + PRODUCTS_BYTES + nccl
    }

    fn of_model(&self) -> Count {
        self.table_weight_bytes
            + self.table_state_bytes
            + self.dense_bytes
            + self.exchange_bytes
            + self.activation_bytes
            + self.kept_batch_bytes
    }

    /// What of it the host holds where the model lies on a device: batches pass through page-locked
    /// memory.
    pub fn next_to_a_device(&self) -> Count {
        self.reader_bytes + self.id_map_bytes + self.other_bytes
    }
}

/// What the rank that holds most has of the tables, where there are several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OfRank {
    /// Bytes of its rows and their states, with the gradients of frequent rows.
    pub bytes_of_rows: u64,
    /// Bytes of the gradients of frequent rows.
    pub frequent_bytes: u64,
    pub frequent_rows: u64,
    /// Bytes of vectors that it asks others for, and that others ask it for; none: as much as there
    /// is room for.
    pub exchanged_bytes: Option<u64>,
}

impl OfRank {
    /// What `split` gives it.
    pub fn of(split: &Split) -> Self {
        let frequent = |table: &TableSplit| table.frequent_rows * (table.dim as u64 * 4 + 4);
        Self {
            bytes_of_rows: split.bytes_per_rank,
            frequent_bytes: split.tables.iter().map(frequent).sum(),
            frequent_rows: split.tables.iter().map(|table| table.frequent_rows).sum(),
            exchanged_bytes: None,
        }
    }
}
