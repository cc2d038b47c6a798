//! Plans for clusters that are not here, by [`headlong_planner`]: what it is given of a
//! configuration, and its answer as text and picture.

pub mod picture;
mod practice;
pub mod text;

use super::evaluation::samples_between;
use super::memory::{Sharing, of_rank};
use crate::Registry;
use crate::config::preset::preset;
use crate::config::{self, Config, DeviceChoice, Interaction, keys};
use crate::data::DeviceRows;
use crate::error::{Error, Result};
use crate::iteration::schedule::{Features, Schedule};
use crate::system::input::read_text;
use headlong_embedding::hybrid::traffic::Cluster;
use headlong_planner::description::{ClusterDescription, PRESETS};
use headlong_planner::memory::{MemoryUse, OfRank};
use headlong_planner::practice::Practice;
use headlong_planner::published::Models;
use headlong_planner::schedule::Stage;
use headlong_planner::workload::{
    Layer, Part, Precision, Program, Source, TERABYTE_ROWS, TableLoad, Workload,
};
use std::path::Path;
use std::sync::Arc;

/// What trains a configuration: its list of stages, and the memory that it refuses with.
#[derive(Debug)]
struct Configured {
    config: Config,
    registry: Registry,
}

impl Configured {
    /// The configuration with what a plan has changed of its step.
    fn of(&self, workload: &Workload) -> Config {
        let mut config = self.config.clone();
        config.train.batch_size = workload.batch_size;
        config.eval.batch_size = workload.eval_batch_size;
        config.train.precision = match workload.precision {
            Precision::F32 => config::Precision::F32,
            Precision::Tf32 => config::Precision::Tf32,
            Precision::Bf16 => config::Precision::Bf16,
            Precision::F16 => config::Precision::F16,
        };
        config
    }

    fn features(&self, workload: &Workload, shape: &Cluster, on_device: bool) -> Features {
        let (ranks, nodes) = (shape.num_ranks(), shape.num_nodes());
        Features::of(&self.of(workload), ranks, nodes, on_device)
    }
}

impl Program for Configured {
    fn step(&self, workload: &Workload, shape: &Cluster, on_device: bool) -> Vec<Stage> {
        Schedule::step(self.features(workload, shape, on_device)).described()
    }

    fn evaluation(&self, workload: &Workload, shape: &Cluster, on_device: bool) -> Vec<Stage> {
        Schedule::evaluation(self.features(workload, shape, on_device)).described()
    }

    fn practice(&self, workload: &Workload, shape: &Cluster, on_device: bool) -> Practice {
        practice::decided(&on(&self.of(workload), on_device), workload, shape).0
    }

    fn memory(
        &self,
        workload: &Workload,
        shape: &Cluster,
        on_device: bool,
        of: OfRank,
    ) -> MemoryUse {
        let config = on(&self.of(workload), on_device);
        let (_, config) = practice::decided(&config, workload, shape);
        let (ranks, nodes) = (shape.num_ranks(), shape.num_nodes());
        let rows: Vec<u64> = workload.tables.iter().map(|table| table.rows).collect();
        let tables = super::tables(&config, &rows, &self.registry);
        let sharing = Sharing {
            ranks,
            nodes,
            // What a process has once is counted as of all ranks of a node; on devices, ranks of
            // several nodes are processes.
            separate: on_device && nodes > 1,
            on_device,
            rows: (ranks > 1).then_some(of),
            kept_bytes: 0,
            data_rows: workload.data_rows,
            device_rows: DeviceRows::NONE,
        };
        of_rank(&config, &tables, config.run.threads.unwrap_or(1), &sharing)
    }

    fn samples_between_evaluations(&self, workload: &Workload) -> Option<f64> {
        samples_between(&self.of(workload), workload.data_rows)
    }
}

/// `config` on devices, or on processors.
pub fn on(config: &Config, on_device: bool) -> Config {
    let mut config = config.clone();
    config.run.device = if on_device { DeviceChoice::Cuda } else { DeviceChoice::Cpu };
    config
}

/// The step that `config` describes, with `rows` rows in each table.
///
/// # Errors
/// Frequencies of another number of tables.
pub fn workload(
    config: &Config,
    rows: &[u64],
    source: &Source,
    registry: &Registry,
) -> Result<Workload> {
    let hotness = |column: usize| config.max_ids_per_sample(column) as f64;
    let frequencies = source.frequencies(rows, hotness);
    if frequencies.len() != rows.len() {
        let (found, expected) = (frequencies.len(), rows.len());
        return Err(Error::Usage(format!("frequencies of {found} tables, expected {expected}")));
    }
    let (optimizer, choices) = (config.optimizer.sparse.optimizer(), config.placement_choices());
    let tables = rows.iter().zip(frequencies).enumerate().map(|(column, (&rows, frequencies))| {
        let spec = config.table_spec(column, rows);
        TableLoad {
            weight_bytes: (spec.dim * spec.dtype.bytes()) as u64,
            state_bytes: optimizer.state_bytes(1, spec.dim),
            held_bytes: super::table_needs(config, &spec, registry).total_bytes().into(),
            name: spec.name,
            rows,
            dim: spec.dim,
            hotness: hotness(column),
            frequencies,
            choice: choices.get(column).copied().unwrap_or_default(),
        }
    });
    let parameters = super::dense_parameters(config).as_f64();
    let known = matches!(source, Source::Terabyte).then_some(TERABYTE_ROWS);
    Ok(Workload {
        program: Arc::new(Configured { config: config.clone(), registry: registry.clone() }),
        tables: tables.collect(),
        dim: config.model.dim,
        layers: layers(config),
        dense_parameters: parameters,
        dense_state_bytes: config.optimizer.dense.optimizer().state_bytes(1, parameters as usize)
            as f64,
        num_dense: config.data.num_dense,
        has_dot_products: config.model.interaction == Interaction::Dot,
        top_input_width: config.top_input_width(),
        precision: match config.train.precision {
            config::Precision::F32 => Precision::F32,
            config::Precision::Tf32 => Precision::Tf32,
            config::Precision::Bf16 => Precision::Bf16,
            config::Precision::F16 => Precision::F16,
        },
        batch_size: config.train.batch_size,
        micro_batches: config.train.accumulate,
        samples: (config.train.batch_size * config.train.accumulate) as f64,
        eval_batch_size: config.eval.batch_size,
        data_rows: known.map(|(training, _)| training),
        eval_rows: known.map(|(_, evaluation)| evaluation),
        seed: config.train.seed,
    })
}

fn layers(config: &Config) -> Vec<Layer> {
    let all = super::layers(config);
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

/// The steps of the published points, of the built-in configurations.
///
/// # Errors
/// None that the built-in configurations have.
pub fn models() -> Result<Models> {
    let workload = |name: &str| {
        let mut config = preset(name)?;
        config.train.precision = config::Precision::F16;
        let rows = config.table_rows(None)?;
        workload(&config, &rows, &Source::Terabyte, &Registry::default())
    };
    Ok(Models {
        dlrm: workload("criteo-terabyte-dlrm")?,
        dcnv2: workload("criteo-terabyte-dcnv2")?,
    })
}

/// The built-in description `source`, or that of the file `source`.
///
/// # Errors
/// [`Error::Io`] and [`Error::Config`], which names file and key.
pub fn find(source: impl AsRef<Path>) -> Result<ClusterDescription> {
    let path = source.as_ref();
    let source = &*path.to_string_lossy();
    if let Some(found) = ClusterDescription::built_in(source) {
        return Ok(found);
    }
    if !path.exists() && !source.contains(['.', '/']) {
        let names: Vec<_> = PRESETS.iter().map(|(name, _)| *name).collect();
        let hint = keys::nearest(source, names.iter().copied());
        let hint = hint.map_or(String::new(), |nearest| format!("; did you mean \"{nearest}\"?"));
        let message =
            format!("expected a file or one of {}, found \"{source}\"{hint}", names.join(", "));
        return Err(Error::config("--cluster", message));
    }
    let text = read_text(path).map_err(Error::io("read", path))?;
    Ok(ClusterDescription::parse(&text, source)?)
}

#[cfg(test)]
mod tests;
