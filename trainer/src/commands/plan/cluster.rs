//! `headlong plan --cluster`: plans for machines that are not here.

use crate::Registry;
use crate::commands::plan::{ClusterArguments, PlanArguments};
use crate::config::ranges::range_of;
use crate::config::validate::quoted;
use crate::config::{Config, DeviceChoice, TableRows};
use crate::error::{Error, Result};
use crate::iteration::trace::{Record, Recorder, write_trace};
use crate::plan::Division;
use crate::plan::cluster::{self, picture, text};
use crate::plan::placement::check_merging;
use crate::report::output::{self, JsonOutput};
use crate::run::outlook::Outlook;
use headlong_comm::Topology;
use headlong_planner::description::{ClusterDescription, DeviceKind, PRESETS};
use headlong_planner::placement::Placing;
use headlong_planner::report::{self, ClusterReport};
use headlong_planner::workload::{Source, Workload};
use headlong_planner::{published, tables};
use std::path::Path;

/// Frequencies of data that no one has described: what recommendation data look like (notes of
/// FBGEMM's benchmarks).
const DEFAULT_ALPHA: f64 = 1.05;
/// Ranks and steps of a simulated trace, at most.
const TRACED_RANKS: usize = 16;
const TRACED_STEPS: usize = 4;

/// Prints the best plan of a configuration on a described cluster.
///
/// # Errors
/// Wrong descriptions and configurations, by file and key; [`Error::DoesNotFit`]; files that cannot
/// be written.
pub(super) fn run(arguments: &PlanArguments, name: &Path, registry: &Registry) -> Result<()> {
    let asked = &arguments.on_cluster;
    if name == Path::new("show") {
        let texts: Vec<_> = PRESETS.iter().map(|(_, text)| *text).collect();
        return output::print(&texts.join("\n"));
    }
    let described = described(asked, name)?;
    // What a run on such devices refuses, its plan refuses.
    let (config, options) =
        arguments.train.resolve_on(registry, &|config| on_devices_of(&described, &config))?;
    super::of_plan(arguments, &config).check()?;
    let topology = Topology::from_node_sizes(&vec![described.devices_per_node; described.nodes]);
    check_merging(&on_devices_of(&described, &config)?, &topology)?;
    let outlook = Outlook::of(&config)?;
    let (rows, note) = (&outlook.rows, outlook.note());
    config.check_tables(rows, registry)?;
    let mut workload = cluster::workload(&config, rows, &source(asked, &config)?, registry)?;
    workload.data_rows = arguments.data_rows.or(workload.data_rows);
    let (report, workload) = report::report(&workload, &described, &asked.batch_sizes)?;
    if let Some(path) = &options.flags.trace {
        trace(path, &report, &workload)?;
    }
    if let Some(path) = &asked.plot {
        let practice = report::practice(&workload, &described);
        let placing = Placing { workload: &workload, cluster: &described, practice: &practice };
        output::write_file(path, &picture::svg(&placing, &report.best))?;
    }
    let division = workload.data_rows.map(|rows| {
        let mut config = config.clone();
        config.train.batch_size = workload.batch_size;
        Division::new(&config, rows)
    });
    let mut document = serde_json::to_value(&report).expect("a plan has a JSON form");
    document["division"] = serde_json::to_value(division).expect("a division has a JSON form");
    let (origin, on, precision) =
        (&options.origin, &described.name, quoted(&config.train.precision));
    let plan = text::to_text(&report, division);
    let apart = config.run.evaluating().map_or(String::new(), |evaluating| {
        format!("{}: they evaluate besides, and are not in this plan\n", evaluating.setting())
    });
    let text =
        format!("plan of {origin} for {on}, train.precision = {precision}\n{note}{plan}{apart}");
    output::answer(&arguments.json, &text, &document)
}

/// `config` on the devices of a cluster.
fn on_devices_of(described: &ClusterDescription, config: &Config) -> Result<Config> {
    let on_gpus = described.device.kind == DeviceKind::Gpu;
    let other = if on_gpus { DeviceChoice::Cpu } else { DeviceChoice::Cuda };
    if config.run.device == other {
        let what = if on_gpus { "CUDA devices" } else { "processors" };
        return Err(Error::contradiction(
            format!("run.device = {}", quoted(&other)),
            format!("--cluster {}", described.name),
            format!("ranks of that cluster are on {what}"),
        ));
    }
    Ok(cluster::on(config, on_gpus))
}

fn described(asked: &ClusterArguments, name: &Path) -> Result<ClusterDescription> {
    let mut cluster = cluster::find(name)?;
    cluster.nodes = asked.nodes.unwrap_or(cluster.nodes);
    cluster.devices_per_node = asked.devices_per_node.unwrap_or(cluster.devices_per_node);
    cluster.check_size("--nodes, --devices-per-node")?;
    let range = range_of("train.batch_size").expect("a batch size is a whole number");
    match asked.batch_sizes.iter().find(|&&size| !range.contains(size as u64)) {
        Some(size) => {
            Err(Error::Usage(format!("--batch-sizes: expected numbers of {range}, found {size}")))
        }
        None => Ok(cluster),
    }
}

/// Frequencies as asked for; by default those of Criteo's logs for tables of Criteo's columns.
fn source(asked: &ClusterArguments, config: &Config) -> Result<Source> {
    let is_terabyte = matches!(
        &config.tables.rows, TableRows::Named(name) if name.starts_with("criteo-terabyte")
    );
    match asked.frequencies.as_deref() {
        None if is_terabyte => Ok(Source::Terabyte),
        None => Ok(Source::PowerLaw(DEFAULT_ALPHA)),
        Some("terabyte") if config.data.num_sparse == 26 => Ok(Source::Terabyte),
        Some("terabyte") => {
            let found = config.data.num_sparse;
            Err(Error::Usage(format!(
                "--frequencies terabyte is of 26 tables, the configuration has {found}"
            )))
        }
        Some(alpha) => match alpha.parse() {
            Ok(alpha) if (0.0..=4.0).contains(&alpha) => Ok(Source::PowerLaw(alpha)),
            _ => Err(Error::Usage(format!(
                "--frequencies: expected terabyte or a number from 0 to 4, found `{alpha}`"
            ))),
        },
    }
}

/// Writes the simulated steps as a trace like those of real ones.
fn trace(path: &Path, report: &ClusterReport, workload: &Workload) -> Result<()> {
    let practice = report::practice(workload, &report.cluster);
    let placing = Placing { workload, cluster: &report.cluster, practice: &practice };
    let ranks = report.cluster.num_devices().min(TRACED_RANKS);
    let run = report::simulate(&placing, &report.best, ranks, TRACED_STEPS);
    let mut recorders: Vec<_> =
        (0..ranks).map(|_| Recorder::new(Record { spans: true, ..Record::default() })).collect();
    let stages = placing.stages();
    for span in &run.spans {
        recorders[span.rank].add_simulated(&stages[span.stage], span.start_us, span.end_us);
    }
    write_trace(path, recorders.iter().enumerate())
}

/// Prints how far predictions are from what was published.
///
/// # Errors
/// Where the answer cannot be written.
pub(super) fn check_published(json: &JsonOutput) -> Result<()> {
    let checked = published::check(&cluster::models()?);
    let document = serde_json::to_value(&checked).expect("points have a JSON form");
    output::answer(json, &tables::published(&checked), &document)
}
