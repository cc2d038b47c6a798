//! What a step has to do, on any rank and anywhere: tables and how their rows are asked for,
//! the dense network, the batch.

use super::frequencies::Frequencies;
use crate::Registry;
use crate::config::{Config, Interaction, Precision};
use crate::error::{Error, Result};
use crate::plan::{self, Count};
use headlong_embedding::hybrid::split::PlacementChoice;

/// One table.
#[derive(Debug, Clone)]
pub struct TableLoad {
    /// Its name.
    pub name: String,
    /// Rows.
    pub rows: u64,
    /// Elements of a row.
    pub dim: usize,
    /// Bytes of a row's weights.
    pub weight_bytes: u64,
    /// Bytes of its optimiser state.
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

    /// Bytes of all of it, where it lies.
    pub fn bytes(&self) -> Count {
        self.held_bytes
    }

    /// Bytes of some of its rows, where they lie.
    pub fn bytes_of(&self, rows: u64) -> Count {
        self.held_bytes.part(rows, self.rows)
    }
}

/// Which network a layer is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Before the interaction.
    Bottom,
    /// The cross network: two layers for each of its own.
    Cross,
    /// Behind it.
    Top,
}

/// One dense layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// Where it stands.
    pub part: Part,
    /// Elements that go in.
    pub inputs: usize,
    /// Elements that come out.
    pub outputs: usize,
}

/// A step.
#[derive(Debug, Clone)]
pub struct Workload {
    /// What the user has configured: what memory is planned from.
    pub config: Config,
    /// The tables.
    pub tables: Vec<TableLoad>,
    /// The layers, bottom first.
    pub layers: Vec<Layer>,
    /// Samples of a step, over all ranks.
    pub samples: f64,
    /// Samples of one epoch, where known.
    pub data_rows: Option<u64>,
    /// Samples of one evaluation, where known.
    pub eval_rows: Option<u64>,
    /// The kinds of tables, which know what theirs take.
    pub registry: Registry,
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

/// Samples of one epoch of MLPerf's Terabyte data, and of its evaluation (mlcommons/training).
pub const TERABYTE_ROWS: (u64, u64) = (4_195_197_692, 89_137_319);

impl Workload {
    /// The step that `config` describes, with `rows` rows in each table.
    ///
    /// # Errors
    /// Frequencies of another number of tables.
    pub fn new(config: &Config, rows: &[u64], source: &Source) -> Result<Self> {
        let hotness = |column: usize| config.max_ids_per_sample(column) as f64;
        let frequencies = match source {
            Source::Given(given) => given.clone(),
            Source::PowerLaw(alpha) => {
                rows.iter().map(|&rows| Frequencies::power_law(rows, *alpha)).collect()
            }
            Source::Terabyte => {
                let one_hot = Frequencies::terabyte(rows).into_iter().zip(rows).enumerate();
                one_hot.map(|(column, (law, &rows))| law.multi_hot(hotness(column), rows)).collect()
            }
        };
        if frequencies.len() != rows.len() {
            let (found, expected) = (frequencies.len(), rows.len());
            return Err(Error::Usage(format!(
                "frequencies of {found} tables, expected {expected}"
            )));
        }
        let (optimizer, choices) =
            (config.optimizer.sparse.optimizer(), config.placement_choices());
        let tables =
            rows.iter().zip(frequencies).enumerate().map(|(column, (&rows, frequencies))| {
                let spec = config.table_spec(column, rows);
                TableLoad {
                    weight_bytes: (spec.dim * spec.dtype.bytes()) as u64,
                    state_bytes: optimizer.state_bytes(1, spec.dim),
                    held_bytes: spec.dense_memory(&optimizer).total_bytes().into(),
                    name: spec.name,
                    rows,
                    dim: spec.dim,
                    hotness: hotness(column),
                    frequencies,
                    choice: choices.get(column).copied().unwrap_or_default(),
                }
            });
        let is_terabyte = matches!(source, Source::Terabyte);
        Ok(Self {
            tables: tables.collect(),
            layers: layers(config),
            samples: (config.train.batch_size * config.train.accumulate) as f64,
            data_rows: is_terabyte.then_some(TERABYTE_ROWS.0),
            eval_rows: is_terabyte.then_some(TERABYTE_ROWS.1),
            config: config.clone(),
            registry: Registry::default(),
        })
    }

    /// The same with tables that take what their kinds say.
    pub fn with_kinds(mut self, registry: &Registry) -> Self {
        for (column, table) in self.tables.iter_mut().enumerate() {
            let spec = self.config.table_spec(column, table.rows);
            table.held_bytes =
                plan::table_needs(&self.config, &spec, registry).total_bytes().into();
        }
        self.registry = registry.clone();
        self
    }

    /// The same with another batch.
    pub fn with_batch(&self, batch_size: usize) -> Self {
        let mut other = self.clone();
        other.config.train.batch_size = batch_size;
        other.samples = (batch_size * other.config.train.accumulate) as f64;
        other
    }

    /// Weights and biases of the dense network.
    pub fn dense_parameters(&self) -> f64 {
        plan::dense_parameters(&self.config).as_f64()
    }

    /// Bytes of an element of activations.
    pub fn activation_bytes(&self) -> f64 {
        match self.config.train.precision {
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
        4.0 * (1.0 + self.config.data.num_dense as f64 + self.lookups_per_sample())
    }

    /// Whether vectors of all features are multiplied in pairs.
    pub fn has_dot_products(&self) -> bool {
        self.config.model.interaction == Interaction::Dot
    }
}

fn layers(config: &Config) -> Vec<Layer> {
    let all = plan::layers(config);
    let bottom = if config.data.num_dense > 0 { config.model.bottom.len() } else { 0 };
    let top = all.len() - config.model.top.len();
    let part = |index: usize| match index {
        _ if index < bottom => Part::Bottom,
        _ if index < top => Part::Cross,
        _ => Part::Top,
    };
    all.iter()
        .enumerate()
        .map(|(index, &(inputs, outputs))| Layer { part: part(index), inputs, outputs })
        .collect()
}
