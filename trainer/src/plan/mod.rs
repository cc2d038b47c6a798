//! The plan: what a configuration means on a machine, decided before any memory is taken.
//!
//! A pure function of the configuration, the number of rows of each table, the number of rows of the data where it is
//! known, and the machine's facts ([`Machine`]). It answers three questions: does it fit, what does a step cost, what
//! would be left over. `headlong plan` prints it, `headlong train` prints it first and refuses what does not fit.

pub mod cluster;
mod cost;
mod device;
pub mod evaluation;
pub mod hybrid;
mod memory;
mod summary;
pub mod text;
pub mod tuned;

pub use cost::StepCost;
pub use device::DevicePlan;
pub use memory::{MemoryUse, OfRank, READER_BLOCK_BYTES};

use crate::build::table_specs;
use crate::config::{Config, Interaction};
use crate::error::{Error, Result};
use crate::machine::{Machine, has_devices_beside};
use headlong_device::DType;
use headlong_embedding::hybrid::split::Split;
use headlong_embedding::{MemoryNeeds, Registry, TableSpec};
use serde::Serialize;

/// With less memory than this, multi-hot ids would be made again at every turn.
const LEAST_DRAWS_MIB: u64 = 256;

/// What a plan is made from, besides the configuration.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// Rows of each table ([`Config::table_rows`]).
    pub table_rows: &'a [u64],
    /// Rows of the training data, where known.
    pub data_rows: Option<u64>,
    /// The machine.
    pub machine: &'a Machine,
    /// How the rows are split among the ranks, where that is known.
    pub split: Option<&'a Split>,
    /// The kinds of tables, which know what theirs take.
    pub registry: &'a Registry,
}

/// One table of a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TablePlan {
    /// `C1`, `C2`, …
    pub name: String,
    /// Rows.
    pub rows: u64,
    /// Elements of a row.
    pub dim: usize,
    /// Rows that every rank holds. 0 at one rank, which owns every row.
    pub frequent_rows: u64,
    /// Share of all lookups that the frequent rows serve, 0 to 1.
    pub covered_share: f64,
    /// Bytes of weights and optimiser state.
    pub bytes: u64,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Bytes of optimiser state, and of what a table needs besides: an index of ids, room for the vectors of a batch.
    pub state_bytes: u64,
}

/// Bytes that travel in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Exchange {
    /// Vectors to the ranks that need them.
    pub forward: u64,
    /// Gradients back.
    pub backward: u64,
}

/// Bytes that travel in a step, by distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ExchangePlan {
    /// Between ranks of one machine.
    pub intra_node: Exchange,
    /// Between machines.
    pub inter_node: Exchange,
}

/// How the data divides into batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Division {
    /// Rows of the training data.
    pub data_rows: u64,
    /// Steps of one epoch, the last one included.
    pub steps_per_epoch: u64,
    /// Samples of the last step of an epoch; a full step where the batch divides the data.
    pub last_step_samples: u64,
    /// Samples that are never trained on: 0, because the last step takes what is left.
    pub samples_lost: u64,
    /// The batch size nearest to the configured one that divides the data into full steps.
    pub nearest_dividing_batch_size: u64,
}

/// What a configuration means on a machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The tables, in column order.
    pub tables: Vec<TablePlan>,
    /// Weights and biases of the dense network.
    pub dense_parameters: u64,
    /// Elements of all tables.
    pub embedding_parameters: u64,
    /// Width of the top network's input.
    pub top_input_width: usize,
    /// Samples of one step: batch × accumulate.
    pub samples_per_step: u64,
    /// What the memory goes to, per rank.
    pub memory: MemoryUse,
    /// Bytes of one rank, all together.
    pub bytes_per_rank: u64,
    /// Bytes this machine can give.
    pub available_bytes: u64,
    /// The device of a rank, where ranks train on devices; then `bytes_per_rank` is what the host holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_device: Option<DevicePlan>,
    /// Whether everything fits where it is to lie.
    pub fits: bool,
    /// What one step costs.
    #[serde(flatten)]
    pub cost: StepCost,
    /// Bytes that travel in a step; none at one rank.
    pub exchange_bytes_per_step: ExchangePlan,
    /// Which rows are replicated, and what that saves; where there are several ranks and statistics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hybrid: Option<hybrid::HybridPlan>,
    /// How the data divides, where its rows are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub division: Option<Division>,
    /// Ranks.
    pub ranks: usize,
    /// Threads of this process.
    pub threads: usize,
    /// `"cpu"` or `"cuda"`.
    pub device: &'static str,
}

/// Width of the top network's input: `dim + n(n−1)/2` for the dot interaction over n vectors, the sum of all widths
/// for `cat` and `cross`.
pub fn top_input_width(config: &Config) -> usize {
    let model = &config.model;
    let bottom = model.bottom.last().copied().unwrap_or(0);
    let vectors = config.data.num_sparse + 1;
    match model.interaction {
        Interaction::Dot => bottom + vectors * (vectors - 1) / 2,
        Interaction::Cat | Interaction::Cross => bottom + config.data.num_sparse * model.dim,
    }
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
    let width = top_input_width(config);
    let crossed = [(width, model.cross_rank), (model.cross_rank, width)];
    layers.extend((0..cross_layers(config)).flat_map(|_| crossed));
    layers.extend(pairs(width, &model.top));
    layers
}

/// Weights and biases of the dense network.
pub fn dense_parameters(config: &Config) -> u64 {
    let with_biases: usize = layers(config).iter().map(|&(inputs, outputs)| (inputs + 1) * outputs).sum();
    // The first factor of a cross layer has no bias.
    (with_biases - cross_layers(config) * config.model.cross_rank) as u64
}

impl Plan {
    /// Makes the plan. It does not judge: [`Plan::check`] does.
    ///
    /// # Panics
    /// If `facts.table_rows` has another length than `data.num_sparse`, which [`Config::table_rows`] prevents.
    pub fn new(config: &Config, facts: &Facts<'_>) -> Self {
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
        let of_rank = facts.split.map(|split| OfRank::of(split, config.run.ranks));
        let memory = MemoryUse::new(config, &tables, dense_parameters, threads)
            .of_rank(of_rank.as_ref(), config.run.ranks);
        let on_device = facts.machine.device.as_ref().map(|device| DevicePlan::new(device, &memory));
        let bytes_per_rank = match on_device {
            Some(_) => memory.beside_a_device(),
            None => memory.total(),
        };
        let ranks_here = config.run.ranks as u64;
        let available_bytes = facts.machine.usable_bytes();
        Self {
            embedding_parameters: embedding_parameters(config, &tables),
            cost: StepCost::new(config, dense_parameters, facts.machine, threads).with_exchange(facts.split),
            hybrid: facts.split.map(hybrid::HybridPlan::new),
            division: facts.data_rows.map(|rows| Division::new(config, rows)),
            top_input_width: top_input_width(config),
            samples_per_step: samples_per_step(config),
            exchange_bytes_per_step: facts.split.map(ExchangePlan::of).unwrap_or_default(),
            fits: bytes_per_rank * ranks_here <= available_bytes
                && on_device.as_ref().is_none_or(DevicePlan::fits),
            ranks: config.run.ranks,
            device: if on_device.is_some() { "cuda" } else { "cpu" },
            on_device,
            tables,
            dense_parameters,
            memory,
            bytes_per_rank,
            available_bytes,
            threads,
        }
    }

    /// Refuses what does not fit, naming the key that would help and a value for it.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`].
    pub fn check(&self, config: &Config, registry: &Registry) -> Result<()> {
        if self.fits {
            return Ok(());
        }
        let rows: Vec<u64> = self.tables.iter().map(|table| table.rows).collect();
        let fits = |cap: u64| {
            let capped: Vec<u64> = rows.iter().map(|rows| (*rows).min(cap)).collect();
            let memory = MemoryUse::new(
                config,
                &tables(config, &capped, registry),
                self.dense_parameters,
                self.threads,
            );
            match &self.on_device {
                Some(device) => device.with(&memory).fits(),
                None => memory.total() * config.run.ranks as u64 <= self.available_bytes,
            }
        };
        let largest = rows.iter().copied().max().unwrap_or(1);
        let help = if let Some(help) = self.bounded_draws(config, &rows, registry) {
            help
        } else if fits(2) {
            // Two figures are enough, and leave room.
            let cap = round_down(largest_that(2, largest, fits));
            format!("`tables.max_rows` = {cap} would fit (--set tables.max_rows={cap})")
        } else {
            "lower `train.batch_size`, `eval.batch_size`, `data.prefetch_batches` or `model.dim`".to_owned()
        };
        let (needed_bytes, available_bytes) = match &self.on_device {
            Some(device) if !device.fits() => (device.needed_bytes, device.free_bytes),
            _ => (self.bytes_per_rank * config.run.ranks as u64, self.available_bytes),
        };
        Err(Error::DoesNotFit { needed_bytes, available_bytes, help })
    }
}

impl Plan {
    /// The bound on what is drawn for multi-hot ids with which a plan on processors would fit: it changes no result, so it is named first.
    fn bounded_draws(&self, config: &Config, rows: &[u64], registry: &Registry) -> Option<String> {
        let mut unbounded = config.clone();
        unbounded.multi_hot.memory_mib = 0;
        let all_mib = unbounded.multi_hot_bytes(rows) >> 20;
        let fits = |memory_mib: u64| {
            let mut bounded = config.clone();
            bounded.multi_hot.memory_mib = memory_mib;
            let memory = MemoryUse::new(
                &bounded,
                &tables(&bounded, rows, registry),
                self.dense_parameters,
                self.threads,
            );
            memory.total() * config.run.ranks as u64 <= self.available_bytes
        };
        if self.on_device.is_some() || all_mib < LEAST_DRAWS_MIB || !fits(LEAST_DRAWS_MIB) {
            return None;
        }
        let mib = round_down(largest_that(LEAST_DRAWS_MIB, all_mib, fits));
        Some(format!("`multi_hot.memory_mib` = {mib} would fit (--set multi_hot.memory_mib={mib})"))
    }

    /// Refuses ranks that evaluate, as `others` plans them, where they do not fit beside those that train.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`].
    pub fn check_beside(&self, others: &Self) -> Result<()> {
        let of_hosts = [self, others].map(|plan| plan.bytes_per_rank * plan.ranks as u64).iter().sum();
        let mut memories = vec![(of_hosts, self.available_bytes)];
        if let (Some(mine), Some(theirs)) = (&self.on_device, &others.on_device) {
            let shared = !has_devices_beside(mine.count, self.ranks, others.ranks);
            let beside = if shared { mine.needed_bytes } else { 0 };
            memories.push((theirs.needed_bytes + beside, mine.free_bytes));
        }
        let help = "ranks that evaluate hold the model once more: leave --eval-ranks away".to_owned();
        match memories.into_iter().find(|(needed, available)| needed > available) {
            Some((needed_bytes, available_bytes)) => {
                Err(Error::DoesNotFit { needed_bytes, available_bytes, help })
            }
            None => Ok(()),
        }
    }
}

/// The largest number from `low`, which holds, to `high` for which `holds`, where smaller ones hold too.
fn largest_that(mut low: u64, mut high: u64, holds: impl Fn(u64) -> bool) -> u64 {
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if holds(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

/// Keeps the first two figures.
fn round_down(number: u64) -> u64 {
    let mut unit = 1;
    while number / unit >= 100 {
        unit *= 10;
    }
    (number / unit * unit).max(2)
}

pub(crate) fn samples_per_step(config: &Config) -> u64 {
    config.train.batch_size as u64 * config.train.accumulate as u64
}

/// What a table takes, as its kind says; a kind that is not registered is refused before there is a plan.
pub(crate) fn table_needs(config: &Config, spec: &TableSpec, registry: &Registry) -> MemoryNeeds {
    let optimizer = config.optimizer.sparse.optimizer();
    registry.kind(spec).map_or_else(|_| spec.dense_memory(&optimizer), |kind| kind.memory(spec, &optimizer))
}

pub(crate) fn tables(config: &Config, rows: &[u64], registry: &Registry) -> Vec<TablePlan> {
    let batch = samples_per_step(config).max(config.eval.batch_size as u64);
    let specs = table_specs(config, rows).into_iter().enumerate();
    let tables = specs.map(|(column, spec)| {
        let needs = table_needs(config, &spec, registry);
        // A table that hides its rows copies the vectors of a batch.
        let hides_rows = registry.kind(&spec).is_ok_and(|kind| !kind.shows_rows());
        let ids = if hides_rows { batch.saturating_mul(config.max_ids_per_sample(column) as u64) } else { 0 };
        let vectors = ids.saturating_mul((spec.dim * DType::F32.bytes()) as u64);
        let state_bytes = needs.state_bytes.saturating_add(needs.work_bytes).saturating_add(vectors);
        TablePlan {
            name: spec.name,
            rows: spec.rows,
            dim: spec.dim,
            frequent_rows: 0,
            covered_share: 0.0,
            bytes: needs.weight_bytes.saturating_add(state_bytes),
            weight_bytes: needs.weight_bytes,
            state_bytes,
        }
    });
    tables.collect()
}

/// Elements of weights. Tables whose rows share storage have fewer than one vector for each row.
fn embedding_parameters(config: &Config, tables: &[TablePlan]) -> u64 {
    let element_bytes = |column| config.table_spec(column, 1).dtype.bytes() as u64;
    tables.iter().enumerate().map(|(column, table)| table.weight_bytes / element_bytes(column)).sum()
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

impl Division {
    fn new(config: &Config, data_rows: u64) -> Self {
        let step = samples_per_step(config);
        let remainder = data_rows % step;
        Self {
            data_rows,
            steps_per_epoch: data_rows.div_ceil(step),
            last_step_samples: if remainder == 0 { step.min(data_rows) } else { remainder },
            samples_lost: 0,
            nearest_dividing_batch_size: nearest_divisor(
                data_rows / config.train.accumulate as u64,
                config.train.batch_size as u64,
            ),
        }
    }
}

/// The divisor of `number` nearest to `target`; the smaller of two equally near ones.
fn nearest_divisor(number: u64, target: u64) -> u64 {
    if number == 0 {
        return target;
    }
    let mut best = 1;
    let mut divisor = 1;
    // Divisors come in pairs around the root.
    while divisor * divisor <= number {
        if number.is_multiple_of(divisor) {
            for candidate in [divisor, number / divisor] {
                let (distance, best_distance) = (candidate.abs_diff(target), u64::abs_diff(best, target));
                if distance < best_distance || (distance == best_distance && candidate < best) {
                    best = candidate;
                }
            }
        }
        divisor += 1;
    }
    best
}

#[cfg(test)]
mod tests;
