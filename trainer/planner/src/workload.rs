//! What a step has to do, on any rank and anywhere: tables and how their rows are asked for,
//! the dense network, the batch.

use crate::count::Count;
use crate::frequencies::Frequencies;
use crate::memory::{MemoryUse, OfRank};
use crate::practice::Practice;
use crate::schedule::Stage;
use headlong_embedding::hybrid::split::PlacementChoice;
use headlong_embedding::hybrid::traffic::Cluster;
use std::fmt::Debug;
use std::sync::Arc;

#[derive(Debug, Clone)]
pub struct TableLoad {
    pub name: String,
    pub rows: u64,
    /// Elements of a row.
    pub dim: usize,
    /// Bytes of a row's weights.
    pub weight_bytes: u64,
    /// Bytes of a row's optimiser state.
    pub state_bytes: u64,
    /// Bytes of all rows with their states, where they lie: of tables whose rows share storage less
    /// than rows times bytes of a row.
    pub held_bytes: Count,
    /// Lookups of a sample.
    pub hotness: f64,
    /// How often its rows are asked for.
    pub frequencies: Frequencies,
    /// What the user wants of its placement.
    pub choice: PlacementChoice,
}

impl TableLoad {
    /// Bytes of one row with its state.
    pub fn row_bytes(&self) -> u64 {
        self.weight_bytes + self.state_bytes
    }

    /// Bytes of some of its rows, where they lie.
    pub fn bytes_of(&self, rows: u64) -> Count {
        self.held_bytes.part(rows, self.rows)
    }
}

/// Which network a layer is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Bottom,
    /// The cross network: two layers for each of its own.
    Cross,
    /// Behind it.
    Top,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// Where it stands.
    pub part: Part,
    pub inputs: usize,
    pub outputs: usize,
}

/// What dense layers compute with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    F32,
    /// Single precision with products of 19-bit operands.
    Tf32,
    /// bfloat16 products, f32 sums.
    Bf16,
    /// Half precision products, f32 sums.
    F16,
}

/// The program that trains: what a plan takes from it, so that both say the same.
pub trait Program: Debug + Send + Sync {
    /// The stages of a training step of `workload`, with what each waits for.
    fn step(&self, workload: &Workload, shape: &Cluster, on_device: bool) -> Vec<Stage>;

    /// Those that predict for a batch; their names begin with `eval_`.
    fn evaluation(&self, workload: &Workload, shape: &Cluster, on_device: bool) -> Vec<Stage>;

    /// How it does a step on ranks of this shape.
    fn practice(&self, workload: &Workload, shape: &Cluster, on_device: bool) -> Practice;

    /// Memory of the rank that needs most, which holds `of` the tables: what it refuses with.
    fn memory(
        &self,
        workload: &Workload,
        shape: &Cluster,
        on_device: bool,
        of: OfRank,
    ) -> MemoryUse;

    /// Samples that are trained on between two evaluations; none where there is one alone, at the
    /// end, or nothing is known of an epoch.
    fn samples_between_evaluations(&self, workload: &Workload) -> Option<f64>;
}

/// A step.
#[derive(Debug, Clone)]
pub struct Workload {
    /// What trains it.
    pub program: Arc<dyn Program>,
    pub tables: Vec<TableLoad>,
    pub dim: usize,
    /// The layers, bottom first.
    pub layers: Vec<Layer>,
    /// Weights and biases of the dense network.
    pub dense_parameters: f64,
    /// Bytes of their optimiser's state.
    pub dense_state_bytes: f64,
    pub num_dense: usize,
    /// Whether vectors of all features are multiplied in pairs.
    pub has_dot_products: bool,
    /// Elements that go into the top network.
    pub top_input_width: usize,
    /// What dense layers compute with.
    pub precision: Precision,
    /// Samples of a batch, over all ranks.
    pub batch_size: usize,
    /// Batches of a step.
    pub micro_batches: usize,
    /// Samples of a step, over all ranks.
    pub samples: f64,
    /// Samples of an evaluation's batch.
    pub eval_batch_size: usize,
    /// Samples of one epoch, where known.
    pub data_rows: Option<u64>,
    /// Samples of one evaluation, where known.
    pub eval_rows: Option<u64>,
    /// Decides all chance.
    pub seed: u64,
}

/// Where the frequencies of rows come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// Criteo's Terabyte logs, by published figures.
    Terabyte,
    /// The row of rank k has a share in proportion to k^-alpha.
    PowerLaw(f64),
    /// Given, one for each table; of all lookups, not of one-hot ids that more are made of.
    Given(Vec<Frequencies>),
}

impl Source {
    /// The frequencies of tables of `rows` rows, of which a sample looks `hotness` up.
    pub fn frequencies(&self, rows: &[u64], hotness: impl Fn(usize) -> f64) -> Vec<Frequencies> {
        match self {
            Self::Given(given) => given.clone(),
            Self::PowerLaw(alpha) => {
                rows.iter().map(|&rows| Frequencies::power_law(rows, *alpha)).collect()
            }
            Self::Terabyte => {
                let one_hot = Frequencies::terabyte(rows).into_iter().zip(rows).enumerate();
                one_hot.map(|(column, (law, &rows))| law.multi_hot(hotness(column), rows)).collect()
            }
        }
    }
}

/// Samples of one epoch of MLPerf's Terabyte data, and of its evaluation (mlcommons/training).
pub const TERABYTE_ROWS: (u64, u64) = (4_195_197_692, 89_137_319);

impl Workload {
    /// The same with another batch.
    pub fn with_batch(&self, batch_size: usize) -> Self {
        let samples = (batch_size * self.micro_batches) as f64;
        Self { batch_size, samples, ..self.clone() }
    }

    /// Bytes of an element of activations.
    pub fn activation_bytes(&self) -> f64 {
        match self.precision {
            Precision::F32 | Precision::Tf32 => 4.0,
            Precision::F16 | Precision::Bf16 => 2.0,
        }
    }

    /// Lookups of one sample.
    pub fn lookups_per_sample(&self) -> f64 {
        self.tables.iter().map(|table| table.hotness).sum()
    }

    /// Bytes of a sample in a file of records: label, dense values and ids of four bytes each.
    pub fn stored_sample_bytes(&self) -> f64 {
        4.0 * (1.0 + self.num_dense as f64 + self.lookups_per_sample())
    }
}
