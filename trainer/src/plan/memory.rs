//! What the memory of a run goes to.

use super::{TablePlan, cross_layers, layers, samples_per_step, top_input_width};
use crate::config::{Config, Ids};
use headlong_embedding::hybrid::split::Split;
use serde::Serialize;

/// Bytes of text that one parsing thread holds: a decoded block and its parsed rows.
pub const READER_BLOCK_BYTES: u64 = 8 << 20;

/// Bytes of everything that no other line counts: the program, stacks, file buffers, the evaluation's scores.
const PROGRAM_BYTES: u64 = 48 << 20;

/// Bytes of one entry of the maps that hold a dictionary or admitted ids: key, row, count, at 7/8 occupancy at worst
/// after doubling.
const MAP_ENTRY_BYTES: u64 = 37;

/// Bytes of one looked-up row in a routing plan: keys twice for sorting, unique rows, samples, starts.
const ROUTE_ENTRY_BYTES: u64 = 32;

/// Batches that the iteration holds: of now, of next, of an evaluation.
const BATCH_SLOTS: u64 = 3;

/// Bytes of one rank, by use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemoryUse {
    /// Embedding weights.
    pub table_weight_bytes: u64,
    /// State of the sparse optimiser, and what tables need besides.
    pub table_state_bytes: u64,
    /// Dense weights, gradients and optimiser state.
    pub dense_bytes: u64,
    /// Vectors and gradients on their way between ranks, gradients of frequent rows among them.
    pub exchange_bytes: u64,
    /// Activations and their gradients, and the batches that the iteration holds.
    pub activation_bytes: u64,
    /// Batches that are read ahead, the parser's blocks, and what an evaluation collects.
    pub reader_bytes: u64,
    /// The dictionary, or the admitted ids.
    pub id_map_bytes: u64,
    /// Everything else.
    pub other_bytes: u64,
}

/// What the rank that holds most has of the tables, where there are several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OfRank {
    /// Bytes of its rows and their states, with the gradients of frequent rows.
    pub bytes_of_rows: u64,
    /// Bytes of the gradients of frequent rows.
    pub frequent_bytes: u64,
    /// Bytes of vectors that it asks others for, and that others ask it for.
    pub exchanged_bytes: u64,
}

impl OfRank {
    /// Of a split: no more than one vector a row of its lookups each way.
    pub(super) fn of(split: &Split, ranks: usize) -> Self {
        let vectors = split.traffic.vectors.total() / ranks as f64;
        let frequent = split.tables.iter().map(|table| table.frequent_rows * (table.dim as u64 * 4 + 4));
        Self {
            bytes_of_rows: split.bytes_per_rank,
            frequent_bytes: frequent.sum(),
            exchanged_bytes: (2.0 * vectors) as u64,
        }
    }
}

impl MemoryUse {
    pub(super) fn new(config: &Config, tables: &[TablePlan], dense_parameters: u64, threads: usize) -> Self {
        let dense_state = config.optimizer.dense.optimizer().state_bytes(1, dense_parameters as usize);
        // Each block of a batch sums its own gradients before they are added (docs/numerics.md).
        let gradients = if config.sum_blocks() > 1 { 1 + config.sum_blocks() as u64 } else { 1 };
        let table_rows: Vec<u64> = tables.iter().map(|table| table.rows).collect();
        let rows: u64 = table_rows.iter().sum();
        Self {
            table_weight_bytes: tables.iter().map(|table| table.weight_bytes).sum(),
            table_state_bytes: tables.iter().map(|table| table.state_bytes).sum(),
            dense_bytes: dense_parameters * 4 * (1 + gradients) + dense_state,
            exchange_bytes: 0,
            activation_bytes: activation_bytes(config),
            reader_bytes: reader_bytes(config, threads) + config.multi_hot_bytes(&table_rows),
            id_map_bytes: if config.data.ids == Ids::Hash { 0 } else { rows * MAP_ENTRY_BYTES },
            other_bytes: PROGRAM_BYTES,
        }
    }

    /// One rank's part, where the rows are split among several: its rows, and its share of each batch. What the process has once is
    /// counted to each rank in equal parts.
    pub(super) fn of_rank(self, of: Option<&OfRank>, ranks: usize) -> Self {
        let Some(of) = of else { return self };
        let all_rows = self.table_weight_bytes + self.table_state_bytes;
        let own_rows = of.bytes_of_rows.saturating_sub(of.frequent_bytes);
        let part = own_rows as f64 / all_rows.max(1) as f64;
        let ranks = ranks as u64;
        Self {
            table_weight_bytes: (self.table_weight_bytes as f64 * part) as u64,
            table_state_bytes: (self.table_state_bytes as f64 * part) as u64,
            exchange_bytes: of.frequent_bytes + of.exchanged_bytes,
            activation_bytes: self.activation_bytes / ranks,
            reader_bytes: self.reader_bytes / ranks,
            id_map_bytes: self.id_map_bytes / ranks,
            other_bytes: self.other_bytes / ranks,
            ..self
        }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.table_weight_bytes
            + self.table_state_bytes
            + self.dense_bytes
            + self.exchange_bytes
            + self.activation_bytes
            + self.reader_bytes
            + self.id_map_bytes
            + self.other_bytes
    }
}

/// Elements that one sample passes through: inputs, layer outputs, pooled vectors, the interaction's output.
pub(super) fn activations_per_sample(config: &Config) -> u64 {
    let outputs: usize = layers(config).iter().map(|&(_, outputs)| outputs).sum();
    let pooled = config.data.num_sparse * config.model.dim;
    (config.data.num_dense + outputs + pooled + top_input_width(config)) as u64
}

/// Samples of the largest batch, of training or of evaluation.
fn largest_batch(config: &Config) -> u64 {
    samples_per_step(config).max(config.eval.batch_size as u64)
}

/// Bytes of one sample as the reader delivers it: a label, the dense values, per table a row index and an offset.
fn sample_bytes(config: &Config) -> u64 {
    4 + config.data.num_dense as u64 * 4 + ids_per_sample(config) * 8 + config.data.num_sparse as u64 * 4
}

fn ids_per_sample(config: &Config) -> u64 {
    (0..config.data.num_sparse).map(|column| config.max_ids_per_sample(column) as u64).sum()
}

fn activation_bytes(config: &Config) -> u64 {
    let (micro, step, largest) =
        (config.train.batch_size as u64, samples_per_step(config), largest_batch(config));
    let outputs: u64 = layers(config).iter().map(|&(_, outputs)| outputs as u64).sum();
    // Layers and the interaction work on one micro-batch: outputs and their gradients.
    let layers = micro * 2 * (outputs + top_input_width(config) as u64) * 4;
    // A cross network has one gradient for all its layers, and one of what it makes of them.
    let crossed = if cross_layers(config) > 0 { micro * 2 * top_input_width(config) as u64 * 4 } else { 0 };
    let vectors = (largest + step) * (config.data.num_sparse * config.model.dim) as u64 * 4;
    let slot = sample_bytes(config)
        + config.data.num_dense as u64 * 4
        + 4
        + ids_per_sample(config) * ROUTE_ENTRY_BYTES;
    layers + crossed + vectors + BATCH_SLOTS * largest * slot
}

fn reader_bytes(config: &Config, threads: usize) -> u64 {
    let ahead = (config.data.prefetch_batches as u64 + 2) * largest_batch(config) * sample_bytes(config);
    ahead + threads as u64 * READER_BLOCK_BYTES
}
