//! What a step on one device has to move and compute, kernel by kernel, and what that takes at
//! least: a table of predictions. Copies of the batch and of learning rates are not in it.
//!
//! Bytes are the distinct bytes that a kernel reads and writes, each once a launch: what memory
//! must carry where caches keep what is read again. A test of the trainer holds them against what
//! the software device's meter counts (`trainer/tests/cuda_meter.rs`).
//!
//! **Nothing here was measured on a GPU but the two ceilings**: 4.3 TB/s between two places of the
//! memory of an H200, and 790 TFLOP/s of its products in bf16.

mod render;
mod stages;

pub use render::{Kept, render, summary};
pub(crate) use stages::{optimizer_bytes, product_bytes};

use crate::frequencies::Frequencies;
use crate::terabyte::{Batches, Law};

/// Bytes a microsecond that a copy within an H200's memory reaches.
const BYTES_PER_US: f64 = 4.3e6;
/// Operations a microsecond that its large products in bf16 reach.
const FLOP_PER_US: f64 = 790e6;
/// Microseconds from the end of a node of a graph to the begin of the next, assumed.
const GAP_US: f64 = 1.3;

/// What a kernel is like: which part of the ceilings kernels of its kind have been published to
/// reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Reads or writes rows at random places, streams the rest.
    Rows,
    /// Streams.
    Stream,
    /// A matrix product of a library.
    Product,
    /// Small products of each sample, bound by memory.
    Interaction,
    /// Sorts or lists ids; its data stay in the second-level cache.
    Ids,
}

impl Kind {
    /// Part of the roofline that is expected, and who has reached it.
    pub fn efficiency(self) -> (f64, &'static str) {
        match self {
            Self::Rows => (0.8, "FBGEMM's table-batched embeddings: 75 to 80 % of bandwidth"),
            Self::Stream => (0.9, "STREAM-like kernels: 90 % and more of what a copy reaches"),
            Self::Product => (0.9, "FlashAttention-3 (2024): 740 of 989 TFLOP/s on an H100"),
            Self::Interaction => (0.8, "as rows: loads of whole lines, products in their shadow"),
            Self::Ids => (
                0.3,
                "onesweep (Adinets and Merrill 2022) is bound by memory; small \
                                 launches are not",
            ),
        }
    }
}

/// Launches of one kernel in one stage.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// As the schedule calls it.
    pub stage: &'static str,
    /// As the device calls it; products all have one name.
    pub kernel: &'static str,
    /// What tells rows of one kernel apart.
    pub part: String,
    pub kind: Kind,
    pub launches: f64,
    pub read: f64,
    pub written: f64,
    pub flops: f64,
}

impl Row {
    pub fn bytes(&self) -> f64 {
        self.read + self.written
    }

    /// No kernel is faster.
    pub fn roofline_us(&self) -> f64 {
        (self.bytes() / BYTES_PER_US).max(self.flops / FLOP_PER_US)
    }

    pub fn expected_us(&self) -> f64 {
        self.roofline_us() / self.kind.efficiency().0 + self.launches * GAP_US
    }

    /// Why more than 1.3 times the roofline is expected, where it is.
    pub fn reason(&self) -> Option<&'static str> {
        let (roofline, expected) = (self.roofline_us(), self.expected_us());
        let gaps = self.launches * GAP_US;
        match expected > 1.3 * roofline {
            false => None,
            true if self.kind == Kind::Ids && gaps < expected - roofline - gaps => {
                Some("tiles wait for each other, short runs of a digit")
            }
            true => Some("gaps between launches"),
        }
    }
}

/// A table of a model.
#[derive(Debug, Clone)]
pub struct Table {
    pub rows: u64,
    /// Ids of a sample.
    pub hotness: f64,
    pub frequencies: Frequencies,
}

/// What is trained, and how: one rank.
#[derive(Debug, Clone)]
pub struct Model {
    pub name: &'static str,
    pub batch: f64,
    pub dim: f64,
    pub num_dense: f64,
    /// Widths after the input; empty: only the embedding step.
    pub bottom: Vec<f64>,
    pub top: Vec<f64>,
    /// Layers and rank of a cross network in place of dot products.
    pub cross: Option<(usize, f64)>,
    pub tables: Vec<Table>,
    /// Numbers of optimiser state for each weight.
    pub states: f64,
    /// Bytes of an element of activations, of pooled vectors, and of their gradients.
    pub element: f64,
    pub vector: f64,
    pub d_vector: f64,
}

/// Stages that run at one time, in the order of the critical path.
pub type Path = Vec<Vec<&'static str>>;

/// All rows of a step.
#[derive(Debug, Clone)]
pub struct Ledger {
    pub name: String,
    pub rows: Vec<Row>,
    /// What one stage after another waits for; the others are hidden under it.
    pub path: Path,
    /// What the critical path may take, where there is a target.
    pub target_us: Option<f64>,
}

impl Ledger {
    pub fn of(model: &Model) -> Self {
        let (rows, path) = stages::of(model);
        let name = match model.bottom.is_empty() {
            true => format!("{}, {} ids a table", model.name, model.batch),
            false => format!("{} at {}", model.name, model.batch),
        };
        Self { name, rows, path, target_us: None }
    }

    /// The sum over the critical path. Stages that run at one time share memory and
    /// multiprocessors: they take the sum of their times at the resource that is busiest.
    pub fn critical_us(&self) -> f64 {
        self.path.iter().map(|stages| self.together_us(stages)).sum()
    }

    fn together_us(&self, stages: &[&str]) -> f64 {
        let of = |stage: &str, us: fn(&Row) -> f64| -> f64 {
            self.rows.iter().filter(|row| row.stage == stage).map(us).sum()
        };
        let longest = stages.iter().map(|stage| of(stage, Row::expected_us)).fold(0.0, f64::max);
        let memory: f64 = stages
            .iter()
            .map(|stage| of(stage, |row| row.bytes() / BYTES_PER_US / row.kind.efficiency().0))
            .sum();
        let products: f64 = stages
            .iter()
            .map(|stage| of(stage, |row| row.flops / FLOP_PER_US / row.kind.efficiency().0))
            .sum();
        longest.max(memory).max(products)
    }

    /// Launches, bytes read and written by kernel.
    pub fn of_kernel(&self, kernel: &str) -> (f64, f64, f64) {
        self.rows.iter().filter(|row| row.kernel == kernel).fold((0.0, 0.0, 0.0), |sum, row| {
            (sum.0 + row.launches, sum.1 + row.read, sum.2 + row.written)
        })
    }
}

/// The tables of Criteo's Terabyte logs in MLPerf, with the benches' law of ids.
pub fn tables(rows: &[u64], hotness: &[u32], alpha: f64) -> Vec<Table> {
    let of = |(&rows, &hotness): (&u64, &u32)| Table {
        rows,
        hotness: f64::from(hotness),
        frequencies: Frequencies::power_law(rows, alpha),
    };
    rows.iter().zip(hotness).map(of).collect()
}

/// Ids of a sample in each of DCNv2's tables (MLPerf): the reader's list, which this crate does not
/// see.
pub const DCNV2_HOTNESS: [u32; 26] =
    [3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1];

/// The ledgers that are kept: two batch sizes of each model.
pub fn all() -> Vec<Ledger> {
    let rows: Vec<u64> = Law::all(Batches::FromAllDays).iter().map(|law| law.rows).collect();
    let c1 = [65_536, 6_912].map(|batch| Ledger::of(&Model::c1(batch, &rows)));
    let c3 = [65_536, 6_912].map(|batch| Ledger::of(&Model::c3(batch, &rows, &DCNV2_HOTNESS)));
    let embedding = [104_857, 6_912].map(|ids| Ledger::of(&Model::embedding_step(ids)));
    let mut all: Vec<Ledger> = c1.into_iter().chain(c3).chain(embedding).collect();
    all[0].target_us = Some(3300.0);
    all[4].target_us = Some(500.0);
    all
}

impl Model {
    /// MLPerf's DLRM: the benches' C1, in bf16 with SGD.
    pub fn c1(batch: usize, rows: &[u64]) -> Self {
        Self {
            name: "C1",
            batch: batch as f64,
            dim: 128.0,
            num_dense: 13.0,
            bottom: vec![512.0, 256.0, 128.0],
            top: vec![1024.0, 1024.0, 512.0, 256.0, 1.0],
            cross: None,
            tables: tables(rows, &vec![1; rows.len()], 1.05),
            states: 0.0,
            element: 2.0,
            vector: 2.0,
            d_vector: 2.0,
        }
    }

    /// MLPerf's DLRM-DCNv2: the benches' C3, in bf16 with Adagrad.
    pub fn c3(batch: usize, rows: &[u64], hotness: &[u32]) -> Self {
        Self {
            name: "C3",
            cross: Some((3, 512.0)),
            tables: tables(rows, hotness, 1.05),
            states: 1.0,
            vector: 4.0,
            d_vector: 4.0,
            ..Self::c1(batch, rows)
        }
    }

    /// Lookup and update without a dense network: 10 tables of 1.68 M rows, one id a sample, SGD in
    /// f32, as published for FBGEMM (recsys-examples).
    pub fn embedding_step(ids: usize) -> Self {
        Self {
            name: "embedding step",
            bottom: Vec::new(),
            top: Vec::new(),
            tables: tables(&[1_677_721; 10], &[1; 10], 1.05),
            vector: 4.0,
            d_vector: 4.0,
            ..Self::c1(ids, &[])
        }
    }
}
