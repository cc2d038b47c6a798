//! `headlong bench tune`: measures the collectives every way that this program can do them, and
//! writes what it has found.
//!
//! A file `FILE.json` maps operation, bytes and nodes to the fastest backend and algorithm
//! (`comm.tuning`); its times are also what the hybrid split counts with. A file `FILE.toml` holds
//! the costs of one backend alone, to be edited by hand (`hybrid.latency_table`).

use super::collectives::arguments::{Bytes, CollectiveArguments, Places};
use super::collectives::backend::Backend;
use super::collectives::device::supports;
use super::collectives::dtype::Dtype;
use super::collectives::job::{self, Answer, Outcome};
use super::collectives::operation::{Operation, Place};
use super::collectives::statistics::Distribution;
use crate::config::ranges::time;
use crate::config::{AllToAll, DeviceChoice};
use crate::error::{Error, Result};
use crate::plan::tuned;
use crate::report::output::{self, say};
use crate::system::machine::Machine;
use clap::Args;
use headlong_comm::tuning::{Measurement, Tuning};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Arguments of `headlong bench tune`.
#[derive(Debug, Args)]
pub struct TuneArguments {
    /// Whose memory is exchanged: cpu, or that of CUDA devices (cuda), one a rank
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,
    /// What to measure: local (threads), shm, tcp, verbs, ucx (processes: those of a launcher, or
    /// some that this command starts), or between devices peer and nccl (devices of one process).
    /// Default: local; with --device cuda peer and nccl
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub backend: Vec<Backend>,
    /// Ranks
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub ranks: usize,
    /// Ranks of a node, as far as algorithms go; 0: all on one
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub ranks_per_node: usize,
    /// Time for each size
    #[arg(long, value_name = "S", default_value_t = 0.2, value_parser = time)]
    pub seconds_per_size: f64,
    /// Smallest buffer of a rank
    #[arg(short = 'b', long = "min-bytes", value_name = "BYTES", default_value = "1K")]
    pub min_bytes: Bytes,
    /// Largest buffer of a rank
    #[arg(short = 'e', long = "max-bytes", value_name = "BYTES", default_value = "64M")]
    pub max_bytes: Bytes,
    /// The file to write: everything as JSON, or as .toml the costs of one backend; standard output
    /// by default
    #[arg(long, value_name = "FILE.json|FILE.toml")]
    pub output: Option<PathBuf>,
    /// One rank of a job that this command has started
    #[arg(long, hide = true)]
    pub worker: Option<Backend>,
    /// Which way the job measures
    #[arg(long, hide = true)]
    pub way: Option<usize>,
}

struct Variation {
    operation: Operation,
    name: &'static str,
    algorithm: &'static str,
    set: fn(&mut CollectiveArguments),
    /// It takes several nodes.
    crosses: bool,
}

const fn way(
    operation: Operation,
    (name, algorithm): (&'static str, &'static str),
    crosses: bool,
    set: fn(&mut CollectiveArguments),
) -> Variation {
    Variation { operation, name, algorithm, set, crosses }
}

impl Variation {
    /// Between devices there is one way of each operation, and not each operation.
    fn is_of(&self, backend: Backend) -> bool {
        !backend.on_devices()
            || self.algorithm != "two_steps" && supports(self.operation, Dtype::Float).is_ok()
    }
}

/// Everything that has a choice, or whose time somebody counts with.
const WAYS: [Variation; 10] = [
    way(Operation::AllReduce, ("all_reduce", "direct"), false, |to| {
        to.one_step_bytes = Some(Bytes(usize::MAX));
    }),
    way(Operation::AllReduce, ("all_reduce", "two_steps"), false, |to| {
        (to.one_step_bytes, to.flat_sums) = (Some(Bytes(0)), true);
    }),
    way(Operation::AllReduce, ("all_reduce", "hierarchical"), true, |to| {
        to.one_step_bytes = Some(Bytes(0));
    }),
    way(Operation::AllToAll, ("all_to_all", "flat"), false, |to| to.exchange = AllToAll::Flat),
    way(Operation::AllToAll, ("all_to_all", "hierarchical"), true, |to| {
        to.exchange = AllToAll::Hierarchical
    }),
    way(Operation::AllToAllV, ("all_to_all_v", "flat"), false, |to| to.exchange = AllToAll::Flat),
    way(Operation::AllToAllV, ("all_to_all_v", "hierarchical"), true, |to| {
        to.exchange = AllToAll::Hierarchical
    }),
    way(Operation::AllGather, ("all_gather", "direct"), false, |_| {}),
    way(Operation::ReduceScatter, ("reduce_scatter", "direct"), false, |_| {}),
    way(Operation::Broadcast, ("broadcast", "direct"), false, |_| {}),
];

impl TuneArguments {
    /// What is measured, as asked for.
    fn backends(&self) -> Result<Vec<Backend>> {
        let on_devices = self.device.map(|device| device == DeviceChoice::Cuda);
        let backends = match (self.backend.is_empty(), on_devices) {
            (true, Some(true)) => vec![Backend::Peer, Backend::Nccl],
            (true, _) => vec![Backend::Local],
            (false, _) => self.backend.clone(),
        };
        let other =
            |backend: &&Backend| on_devices.is_some_and(|asked| asked != backend.on_devices());
        if let Some(backend) = backends.iter().find(other) {
            let [device, others] = match on_devices {
                Some(true) => ["cuda", "peer and nccl"],
                _ => ["cpu", "local, shm, tcp, verbs and ucx"],
            };
            let name = backend.name();
            return Err(Error::Usage(format!(
                "--backend {name} with --device {device}: what carries there is {others}"
            )));
        }
        if self.ranks_per_node > 0 && backends.iter().any(|backend| backend.on_devices()) {
            return Err(Error::Usage(
                "--ranks-per-node: devices of one process are on one node".to_owned(),
            ));
        }
        Ok(backends)
    }
}

/// The name of the devices that a backend joins.
fn device_name(backend: Backend) -> Result<Option<String>> {
    if !backend.on_devices() {
        return Ok(None);
    }
    Ok(Machine::detect_with(DeviceChoice::Cuda)?.device.map(|device| device.name))
}

pub fn run(arguments: &TuneArguments) -> Result<()> {
    let backends = arguments.backends()?;
    let collective = collective_arguments(arguments);
    collective.check()?;
    if arguments.ranks < 2 {
        return Err(Error::Usage("one rank exchanges nothing: --ranks is at least 2".to_owned()));
    }
    let as_costs = arguments
        .output
        .as_ref()
        .is_some_and(|path| path.extension().is_some_and(|end| end == "toml"));
    if as_costs && backends.len() != 1 {
        return Err(Error::Usage(
            "a .toml file holds the costs of one backend; .json holds all".to_owned(),
        ));
    }
    if let (Some(backend), Some(way)) = (arguments.worker, arguments.way) {
        let way = WAYS.get(way).ok_or_else(|| Error::Usage(format!("--way {way}")))?;
        return measure(backend, way, &collective, 0).map(drop);
    }
    let Some((tuning, skipped)) = measure_all(&backends, &collective)? else {
        return Ok(());
    };
    if tuning.measurements.is_empty() {
        let mut reasons: Vec<String> = skipped.into_iter().map(|(_, reason)| reason).collect();
        reasons.dedup();
        return Err(Error::Skipped(reasons.join("; ")));
    }
    skipped.iter().for_each(|(what, reason)| say(format!("{what}: skipped: {reason}")));
    let text = if as_costs { costs_text(&tuning, backends[0])? } else { tuning.write() + "\n" };
    match &arguments.output {
        Some(path) => {
            output::write_file(path, &text)?;
            output::print(&summary(&tuning))
        }
        None => output::print(&text),
    }
}

fn collective_arguments(arguments: &TuneArguments) -> CollectiveArguments {
    CollectiveArguments {
        ranks: arguments.ranks,
        ranks_per_node: arguments.ranks_per_node,
        seconds_per_size: arguments.seconds_per_size,
        min_bytes: arguments.min_bytes,
        max_bytes: arguments.max_bytes,
        worker: arguments.worker,
        ..CollectiveArguments::defaults()
    }
}

/// What was not measured, and why.
type Skipped = (String, String);

/// Every way over every backend, and what was not to be had. None: another process has the answer.
fn measure_all(
    backends: &[Backend],
    collective: &CollectiveArguments,
) -> Result<Option<(Tuning, Vec<Skipped>)>> {
    let about =
        format!("headlong {}, bench tune: medians of completion", env!("CARGO_PKG_VERSION"));
    let (mut tuning, mut skipped) = (Tuning::new(about), Vec::new());
    let has_levels = collective.topology().num_nodes() > 1;
    let mut is_elsewhere = false;
    for &backend in backends {
        let can = |way: &Variation| (has_levels || !way.crosses) && way.is_of(backend);
        for (number, way) in WAYS.iter().enumerate().filter(|(_, way)| can(way)) {
            match measure(backend, way, collective, number)? {
                Outcome::Measured(answer) => {
                    tuning.measurements.push(measurement(backend, way, &answer)?)
                }
                Outcome::Skipped(reason) => {
                    skipped.push((format!("{}, {}", backend.name(), way.name), reason));
                }
                Outcome::Elsewhere => is_elsewhere = true,
            }
        }
    }
    Ok((!is_elsewhere).then_some((tuning, skipped)))
}

fn measure(
    backend: Backend,
    way: &Variation,
    collective: &CollectiveArguments,
    number: usize,
) -> Result<Outcome> {
    let mut arguments = collective.clone();
    (way.set)(&mut arguments);
    let is_own_form_in_place = way.operation.places()[0] == Place::In;
    arguments.place = if is_own_form_in_place { Places::In } else { Places::Out };
    job::run_with(
        backend,
        &[way.operation],
        &arguments,
        &["--way".into(), number.to_string().into()],
    )
}

fn measurement(backend: Backend, way: &Variation, answer: &Answer) -> Result<Measurement> {
    let nodes = answer.node_of.iter().max().map_or(1, |last| last + 1);
    let name = match backend {
        Backend::Verbs if nodes > 1 && answer.node_of.len() > nodes => "shm+verbs",
        other => other.name(),
    };
    let points = answer.cases.iter().map(|case| {
        let latency = Distribution::new(case.places[0].1.slowest.iter().copied());
        (case.bytes as u64, (latency.nearest_rank(50.0) * 1000.0).round() / 1000.0)
    });
    Ok(Measurement {
        operation: way.name.to_owned(),
        backend: name.to_owned(),
        device: device_name(backend)?,
        algorithm: way.algorithm.to_owned(),
        nodes,
        ranks: answer.node_of.len(),
        points: points.collect(),
    })
}

/// The fastest way of each operation and size, for people.
fn summary(tuning: &Tuning) -> String {
    let mut text =
        format!("# {:<14} {:>12}  {:<24} {:>10}\n", "operation", "bytes", "fastest", "p50 (us)");
    for way in WAYS.iter().filter(|way| !way.crosses) {
        let Some(first) = tuning.measurements.iter().find(|known| known.operation == way.name)
        else {
            continue;
        };
        if first.algorithm != way.algorithm {
            continue;
        }
        for &(bytes, _) in &first.points {
            let Some(best) = tuning.fastest(way.name, bytes, first.nodes, first.ranks) else {
                continue;
            };
            let name = format!("{} {}", best.backend, best.algorithm);
            let _ = writeln!(
                text,
                "  {:<14} {bytes:>12}  {name:<24} {:>10.2}",
                way.name,
                best.micros(bytes)
            );
        }
    }
    text
}

/// The defaults of the transport, with what was measured in place of what was assumed.
fn costs_text(tuning: &Tuning, backend: Backend) -> Result<String> {
    let device = device_name(backend)?;
    let costs = tuned::costs(tuning, backend.name(), device.as_deref()).ok_or_else(|| {
        Error::Usage(
            "tune measures one kind of link: all ranks on one node, or one rank on each".to_owned(),
        )
    })?;
    let measured = toml::to_string(&costs).map_err(Error::failed("writing the costs as TOML"))?;
    Ok(format!(
        "# headlong bench tune: all-reduce and all-to-all over {}, {} ranks on {} nodes, were \
         measured; points are\n\
         # (bytes, microseconds). All else is assumed: edit what you know better. For \
         `hybrid.latency_table`.\n\
         {measured}",
        backend.name(),
        tuning.measurements[0].ranks,
        tuning.measurements[0].nodes
    ))
}
