//! The plan: what a configuration means on a machine, decided before any memory is taken.
//!
//! A pure function of the configuration, the number of rows of each table, the number of rows of
//! the data where it is known, and the machine's facts ([`Machine`]). It answers three questions:
//! does it fit, what does a step cost, what would be left over. `headlong plan` prints it,
//! `headlong train` prints it first and refuses what does not fit.

pub mod advice;
mod between;
mod choices;
pub mod cluster;
mod cost;
mod device;
mod division;
pub mod evaluation;
pub mod hybrid;
mod memory;
mod network;
pub mod placement;
mod snapshots;
mod summary;
pub mod text;
pub mod tuned;

pub use choices::Choice;
pub use cost::StepCost;
pub use device::DevicePlan;
pub use division::Division;
pub use evaluation::EvalRanksPlan;
pub use headlong_planner::count::Count;
pub use headlong_planner::memory::{MemoryUse, OfRank};
pub use memory::READER_BLOCK_BYTES;
pub use network::NetworkPlan;
pub use snapshots::SnapshotPlan;

use crate::config::{Config, EvalRanksAre, Interaction};
use crate::data::DeviceRows;
use crate::iteration::model::{dense_choice, table_specs};
use crate::system::machine::{Machine, has_devices_besides};
use headlong_device::DType;
use headlong_embedding::hybrid::split::Split;
use headlong_embedding::{MemoryNeeds, Registry, TableSpec};
use memory::Sharing;
use serde::Serialize;

/// What a plan is made from, besides the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// Rows of each table ([`Config::table_rows`]).
    pub table_rows: &'a [u64],
    /// Rows of the training data, where known.
    pub data_rows: Option<u64>,
    pub machine: &'a Machine,
    /// How the rows are split among the ranks, where that is known; else evenly.
    pub split: Option<&'a Split>,
    /// The kinds of tables, which know what theirs take.
    pub registry: &'a Registry,
    /// Ranks that share this machine; none: all of them.
    pub ranks_here: Option<usize>,
    /// Processes that only evaluate and share this machine; none: all.
    pub evaluating_here: Option<usize>,
    /// Nodes that the ranks are on.
    pub nodes: usize,
    /// Whether each rank is a process of its own.
    pub separate: bool,
    /// Bytes of validation data that stay in memory.
    pub kept_bytes: u64,
    /// Bytes of training data that stay in memory (`data.cache`).
    pub cached_bytes: u64,
    /// Rows whose batches stay on the devices of ranks (`data.cache`).
    pub device_rows: DeviceRows,
}

impl<'a> Facts<'a> {
    /// Nothing is known of data and split; ranks are threads of one process.
    pub fn new(table_rows: &'a [u64], machine: &'a Machine, registry: &'a Registry) -> Self {
        Self {
            table_rows,
            data_rows: None,
            machine,
            split: None,
            registry,
            ranks_here: None,
            evaluating_here: None,
            nodes: 1,
            separate: false,
            kept_bytes: 0,
            cached_bytes: 0,
            device_rows: DeviceRows::NONE,
        }
    }

    /// The same for ranks that evaluate: threads of rank 0's process, which share what of the data
    /// it has in memory, or processes.
    fn of_eval_ranks(self, evaluating: EvalRanksAre) -> Self {
        let device_rows = DeviceRows { train: 0, ..self.device_rows };
        let (split, ranks_here) = (None, None);
        let alone = Self { split, ranks_here, nodes: 1, cached_bytes: 0, device_rows, ..self };
        match evaluating {
            EvalRanksAre::Threads(_) => Self { separate: false, kept_bytes: 0, ..alone },
            EvalRanksAre::Processes(_) => Self { separate: true, ..alone },
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TablePlan {
    /// `C1`, `C2`, …
    pub name: String,
    pub rows: u64,
    /// Elements of a row.
    pub dim: usize,
    /// Rows that every rank holds. 0 at one rank, which owns every row.
    pub frequent_rows: u64,
    /// Share of all lookups that the frequent rows serve, 0 to 1.
    pub covered_share: f64,
    /// Bytes of weights and optimiser state.
    pub bytes: Count,
    /// Bytes of weights.
    pub weight_bytes: Count,
    /// Bytes of optimiser state, and of what a table needs besides: an index of ids, room for the
    /// vectors of a batch.
    pub state_bytes: Count,
}

/// Bytes that travel in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Exchange {
    /// Vectors to the ranks that need them.
    pub forward: u64,
    pub backward: u64,
}

/// Bytes that travel in a step, by distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ExchangePlan {
    /// Between ranks of one machine.
    pub intra_node: Exchange,
    pub inter_node: Exchange,
}

/// Whether each rank moves a part of the dense weights, and why.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DenseOptimizerPlan {
    pub is_divided: bool,
    pub reason: String,
}

impl DenseOptimizerPlan {
    /// None where it is not asked for.
    fn new(config: &Config, on_device: bool) -> Option<Self> {
        let choice = dense_choice(config, config.run.ranks, on_device);
        Some(Self { is_divided: choice.norms.is_some(), reason: choice.reason? })
    }

    /// In words.
    fn to_text(&self) -> String {
        let how = if self.is_divided { "divided among the ranks" } else { "whole on every rank" };
        format!("dense optimizer {how}: {}", self.reason)
    }
}

/// What a configuration means on a machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    pub tables: Vec<TablePlan>,
    /// Weights and biases of the dense network.
    pub dense_parameters: Count,
    pub embedding_parameters: Count,
    pub top_input_width: usize,
    /// Samples of one step: batch × accumulate.
    pub samples_per_step: Count,
    /// What the memory goes to, per rank.
    pub memory: MemoryUse,
    /// Bytes of one rank, all together.
    pub bytes_per_rank: Count,
    /// Bytes this machine can give.
    pub available_bytes: u64,
    /// The device of a rank, where ranks train on devices; then `bytes_per_rank` is what the host
    /// holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_device: Option<DevicePlan>,
    /// What ranks of their own that evaluate take besides, where there are such
    /// (`run.eval_ranks`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_ranks: Option<EvalRanksPlan>,
    /// What snapshots take besides, where some are taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<SnapshotPlan>,
    /// Whether everything fits where it is to lie.
    pub fits: bool,
    #[serde(flatten)]
    pub cost: StepCost,
    /// Bytes that travel in a step; none at one rank.
    pub exchange_bytes_per_step: ExchangePlan,
    /// What ranks take of a network where they are processes that TCP joins; none at one rank, and
    /// on devices, which exchange otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkPlan>,
    /// Whether the dense optimiser is divided among the ranks; none where it is not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense_optimizer: Option<DenseOptimizerPlan>,
    /// Which rows are replicated, and what that saves; where there are several ranks and
    /// statistics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hybrid: Option<hybrid::HybridPlan>,
    /// How the data divides, where its rows are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub division: Option<Division>,
    pub ranks: usize,
    /// Of these, the ones that share this machine.
    pub ranks_here: usize,
    pub threads: usize,
    /// `"cpu"` or `"cuda"`.
    pub device: &'static str,
    /// What is done where the configuration leaves a choice.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<Choice>,
}

/// Layers of the cross network; 0 where there is none.
fn cross_layers(config: &Config) -> usize {
    if config.model.interaction == Interaction::Cross { config.model.cross_layers } else { 0 }
}

/// `(inputs, outputs)` of every dense layer, bottom first; a layer of the cross network is two.
pub fn layers(config: &Config) -> Vec<(usize, usize)> {
    let model = &config.model;
    let pairs = |first: usize, widths: &[usize]| -> Vec<(usize, usize)> {
        std::iter::once(first).chain(widths.iter().copied()).zip(widths.iter().copied()).collect()
    };
    // Without dense columns there is no bottom network.
    let bottom = if config.data.num_dense > 0 { &model.bottom[..] } else { &[] };
    let mut layers = pairs(config.data.num_dense, bottom);
    let width = config.top_input_width();
    let crossed = [(width, model.cross_rank), (model.cross_rank, width)];
    layers.extend((0..cross_layers(config)).flat_map(|_| crossed));
    layers.extend(pairs(width, &model.top));
    layers
}

/// Weights and biases of the dense network.
pub fn dense_parameters(config: &Config) -> Count {
    let with_biases =
        layers(config).into_iter().map(|(inputs, outputs)| Count::from(inputs + 1) * outputs);
    // The first factor of a cross layer has no bias.
    with_biases.sum::<Count>() - Count::from(cross_layers(config)) * config.model.cross_rank
}

impl Plan {
    /// Makes the plan. It does not judge: [`Plan::check`] does.
    ///
    /// # Panics
    /// If `facts.table_rows` has another length than `data.num_sparse`, which
    /// [`Config::table_rows`] prevents.
    pub fn new(config: &Config, facts: &Facts<'_>) -> Self {
        let division = facts.data_rows.map(|rows| Division::new(config, rows));
        Self { division, ..Self::without_division(config, facts) }
    }

    /// The same without how the data divides, which takes long to find for a plan that is only
    /// tried.
    fn without_division(config: &Config, facts: &Facts<'_>) -> Self {
        assert_eq!(
            facts.table_rows.len(),
            config.data.num_sparse,
            "one number of rows for each categorical column"
        );
        let tables = match facts.split {
            Some(split) => split_tables(tables(config, facts.table_rows, facts.registry), split),
            None => tables(config, facts.table_rows, facts.registry),
        };
        let dense_parameters = dense_parameters(config);
        let threads = config.run.threads.unwrap_or(facts.machine.cores);
        let memory = memory::of_rank(config, &tables, threads, &sharing(config, facts));
        let on_device = facts
            .machine
            .device
            .as_ref()
            .map(|device| DevicePlan::new(device, &memory, config.run.ranks));
        let network = NetworkPlan::new(config, facts.nodes, on_device.is_some());
        let locked = network.filter(|network| network.locks).map(|network| network.locked_bytes);
        let bytes_per_rank = match on_device {
            Some(_) => memory.next_to_a_device(),
            None => memory.total(),
        } + Count::from(locked.unwrap_or(0));
        let ranks_here = facts.ranks_here.unwrap_or(config.run.ranks);
        let plan = Self {
            embedding_parameters: embedding_parameters(config, &tables),
            cost: StepCost::new(config, dense_parameters, facts.machine, threads)
                .with_exchange(facts.split),
            hybrid: facts.split.map(hybrid::HybridPlan::new),
            division: None,
            top_input_width: config.top_input_width(),
            samples_per_step: config.samples_per_step(),
            exchange_bytes_per_step: facts.split.map(ExchangePlan::of).unwrap_or_default(),
            network,
            dense_optimizer: DenseOptimizerPlan::new(config, on_device.is_some()),
            eval_ranks: EvalRanksPlan::new(config, facts),
            snapshots: SnapshotPlan::new(config, &tables, dense_parameters, facts.nodes),
            fits: false,
            ranks: config.run.ranks,
            ranks_here,
            device: if on_device.is_some() { "cuda" } else { "cpu" },
            on_device,
            tables,
            dense_parameters,
            memory,
            bytes_per_rank,
            available_bytes: facts.machine.usable_bytes(),
            threads,
            choices: choices::of(config, facts),
        };
        Self { fits: plan.fits_on_host() && plan.fits_on_device(), ..plan }
    }

    /// Bytes of this machine's memory: all ranks on it, those that evaluate, and snapshots.
    fn bytes_here(&self) -> Count {
        self.bytes_per_rank * self.ranks_here
            + self.eval_ranks.as_ref().map_or(Count::ZERO, |others| others.bytes)
            + self.snapshots.map_or(Count::ZERO, |snapshots| snapshots.bytes)
    }

    /// Bytes of the device that has most to hold: ranks that evaluate have devices of their own
    /// where there are so many.
    fn bytes_on_device(&self) -> Count {
        let Some(mine) = &self.on_device else { return Count::ZERO };
        match self.eval_ranks.as_ref().map(|others| (others.ranks, others.bytes_on_device)) {
            None => mine.needed_bytes,
            Some((ranks, theirs)) if has_devices_besides(mine.count, self.ranks_here, ranks) => {
                mine.needed_bytes.max(theirs)
            }
            Some((_, theirs)) => mine.needed_bytes + theirs,
        }
    }

    fn fits_on_host(&self) -> bool {
        self.bytes_here().fits(self.available_bytes)
    }

    fn fits_on_device(&self) -> bool {
        self.on_device.as_ref().is_none_or(|device| self.bytes_on_device().fits(device.free_bytes))
    }
}

/// How the ranks of `config` divide what they need.
fn sharing(config: &Config, facts: &Facts<'_>) -> Sharing {
    Sharing {
        ranks: config.run.ranks,
        nodes: facts.nodes,
        separate: facts.separate,
        on_device: facts.machine.device.is_some(),
        rows: facts.split.filter(|_| config.run.ranks > 1).map(OfRank::of),
        kept_bytes: facts.kept_bytes.saturating_add(facts.cached_bytes),
        device_rows: match config.run.evaluating() {
            // They keep what they evaluate.
            Some(_) => DeviceRows { valid: 0, ..facts.device_rows },
            None => facts.device_rows,
        },
        // Where rows are not counted: no more than what is kept of them, a label and numbers each.
        data_rows: facts.data_rows.or_else(|| {
            let row_bytes = 4 * (1 + config.data.num_dense as u64);
            (facts.cached_bytes > 0).then(|| facts.cached_bytes.div_ceil(row_bytes))
        }),
    }
}

/// What a table takes, as its kind says; a kind that is not registered is refused before there is a
/// plan.
pub(crate) fn table_needs(config: &Config, spec: &TableSpec, registry: &Registry) -> MemoryNeeds {
    let optimizer = config.optimizer.sparse.optimizer();
    registry
        .kind(spec)
        .map_or_else(|_| spec.dense_memory(&optimizer), |kind| kind.memory(spec, &optimizer))
}

pub(crate) fn tables(config: &Config, rows: &[u64], registry: &Registry) -> Vec<TablePlan> {
    let batch = config.samples_per_step().max(Count::from(config.eval.batch_size));
    let specs = table_specs(config, rows).into_iter().enumerate();
    let tables = specs.map(|(column, spec)| {
        let needs = table_needs(config, &spec, registry);
        // A table that hides its rows copies the vectors of a batch.
        let hides_rows = registry.kind(&spec).is_ok_and(|kind| !kind.shows_rows());
        let ids = if hides_rows { batch * config.max_ids_per_sample(column) } else { Count::ZERO };
        let vectors = ids * spec.dim * DType::F32.bytes();
        let weight_bytes = Count::from(needs.weight_bytes);
        let state_bytes = vectors + needs.state_bytes + needs.work_bytes;
        TablePlan {
            name: spec.name,
            rows: spec.rows,
            dim: spec.dim,
            frequent_rows: 0,
            covered_share: 0.0,
            bytes: weight_bytes + state_bytes,
            weight_bytes,
            state_bytes,
        }
    });
    tables.collect()
}

/// Elements of weights. Tables whose rows share storage have fewer than one vector for each row.
fn embedding_parameters(config: &Config, tables: &[TablePlan]) -> Count {
    let element_bytes = |column| config.table_spec(column, 1).dtype.bytes() as u64;
    tables
        .iter()
        .enumerate()
        .map(|(column, table)| table.weight_bytes / element_bytes(column))
        .sum()
}

/// What the split says of each table. `bytes` stays that of the whole table, wherever its rows lie.
fn split_tables(mut tables: Vec<TablePlan>, split: &Split) -> Vec<TablePlan> {
    for (table, split) in tables.iter_mut().zip(&split.tables) {
        (table.frequent_rows, table.covered_share) = (split.frequent_rows, split.covered_share);
    }
    tables
}

impl ExchangePlan {
    fn of(split: &Split) -> Self {
        let (forward, backward) = (split.traffic.forward(), split.traffic.backward());
        let exchange = |forward: f64, backward: f64| Exchange {
            forward: forward.round() as u64,
            backward: backward.round() as u64,
        };
        Self {
            intra_node: exchange(forward.intra, backward.intra),
            inter_node: exchange(forward.inter, backward.inter),
        }
    }
}

#[cfg(test)]
mod tests;
