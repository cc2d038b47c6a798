//! `headlong bench p2p write|write_imm|read|atomic|send`: one verb between two NICs, as perftest
//! measures it.

use super::collectives::arguments::{Bind, Bytes, CollectiveArguments};
use super::collectives::backend::Backend;
use super::collectives::dtype::Dtype;
use super::collectives::job::{Answer, Job, Measured, Outcome, processes};
use super::collectives::measure::{Stopwatch, Timing};
use super::collectives::operation::{Operation, Place};
use super::collectives::statistics::{Distribution, known};
use crate::error::{Error, Result};
use crate::report::output::{self, JsonOutput};
use clap::{Args, ValueEnum};
use headlong_verbs::fake::{Fabric, NetworkModel};
use headlong_verbs::nic::Provider;
use headlong_verbs::pingpong::{PingPong, Verb};
use headlong_verbs::{VerbsSettings, available, sys};
use serde_json::json;
use std::fmt::Write as _;
use std::sync::Arc;

/// Arguments of `headlong bench p2p`.
#[derive(Debug, Args)]
pub struct P2pArguments {
    /// What goes back and forth
    #[arg(value_name = "write|write_imm|read|atomic|send", hide_possible_values = true)]
    pub verb: VerbChoice,
    /// Smallest message
    #[arg(short = 'b', long = "min-bytes", value_name = "BYTES", default_value = "2")]
    pub min_bytes: Bytes,
    /// Largest message
    #[arg(short = 'e', long = "max-bytes", value_name = "BYTES", default_value = "64K")]
    pub max_bytes: Bytes,
    /// From one size to the next
    #[arg(short = 'f', long = "step-factor", value_name = "X", default_value_t = 2)]
    pub factor: usize,
    /// Samples of each size
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000)]
    pub iterations: usize,
    /// Calls before the clock starts
    #[arg(short = 'w', long, value_name = "N", default_value_t = 100)]
    pub warmup: usize,
    /// NICs: of libibverbs (system), or of a fabric inside this process, for tests, whose times
    /// mean nothing (fake)
    #[arg(
        long,
        alias = "card",
        value_name = "system|fake",
        default_value = "system",
        hide_possible_values = true
    )]
    pub nic: NicSource,
    /// Device by its name, of both ranks or of each; the nearest by default
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub device: Vec<String>,
    /// How NICs are used, as for `train`: comm.verbs.timeout=19
    #[arg(long = "set", value_name = "comm.verbs.KEY=VALUE")]
    pub set: Vec<String>,
    /// Tie each rank to a core of its own where there are enough
    #[arg(long, value_name = "auto|off", default_value = "auto", hide_possible_values = true)]
    pub bind: Bind,
    /// An answer that does not come for this long ends the bench with exit code 3
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub deadline_s: f64,
    /// Processes on two machines may do without a secret: anyone who can reach rank 0 can join
    #[arg(long)]
    pub insecure: bool,
    /// One rank of a job that this command has started
    #[arg(long, hide = true)]
    pub worker: Option<Backend>,
    /// Where the JSON goes
    #[command(flatten)]
    pub json: JsonOutput,
}

/// A verb of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum VerbChoice {
    /// RDMA write, seen in memory.
    Write,
    /// RDMA write with an immediate.
    WriteImm,
    /// RDMA read.
    Read,
    /// Fetch-and-add.
    Atomic,
    /// Send and receive.
    Send,
}

impl VerbChoice {
    fn verb(self) -> (Verb, &'static str) {
        match self {
            VerbChoice::Write => (Verb::Write, "write"),
            VerbChoice::WriteImm => (Verb::WriteImmediate, "write_imm"),
            VerbChoice::Read => (Verb::Read, "read"),
            VerbChoice::Atomic => (Verb::Atomic, "atomic"),
            VerbChoice::Send => (Verb::Send, "send"),
        }
    }
}

/// Where NICs come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NicSource {
    /// libibverbs.
    System,
    /// A fabric of this process.
    Fake,
}

pub fn run(arguments: &P2pArguments) -> Result<()> {
    let collective = CollectiveArguments {
        ranks: 2,
        min_bytes: arguments.min_bytes,
        max_bytes: arguments.max_bytes,
        factor: arguments.factor,
        iterations: Some(arguments.iterations),
        warmup: arguments.warmup,
        deadline_s: arguments.deadline_s,
        insecure: arguments.insecure,
        bind: arguments.bind,
        worker: arguments.worker,
        set: arguments.set.clone(),
        ..CollectiveArguments::defaults()
    };
    collective.check()?;
    collective.check_memory(processes::ranks_here(&collective), "lower `-e` or `-n`")?;
    let mut settings = collective.nics()?;
    if !arguments.device.is_empty() {
        settings.devices.clone_from(&arguments.device);
    }
    let fabric =
        (arguments.nic == NicSource::Fake).then(|| Fabric::rails(0, NetworkModel::CALM, 2, 1));
    let system = if fabric.is_none() { Some(system_nics(&settings)?) } else { None };
    let provider = |rank: usize| -> Arc<dyn Provider> {
        match (&fabric, &system) {
            (Some(fabric), _) => fabric.provider(rank),
            (None, Some(system)) => system.clone(),
            (None, None) => unreachable!("one of both was made above"),
        }
    };
    let (verb, name) = arguments.verb.verb();
    // Several sizes that were asked for may be one that is sent.
    let mut sizes: Vec<usize> =
        collective.sizes().into_iter().map(|size| verb.bytes(size)).collect();
    sizes.dedup();
    let work = |stopwatch: &Stopwatch<'_>| {
        let communicator = stopwatch.communicator();
        let what = PingPong {
            verb,
            sizes: &sizes,
            warm_up: arguments.warmup,
            calls: arguments.iterations,
        };
        let samples = what.run(communicator, &settings, &*provider(communicator.rank().0))?;
        Ok(samples
            .into_iter()
            .zip(&sizes)
            .map(|(samples, &size)| measured(size, samples))
            .collect())
    };
    let backend = if fabric.is_some() { Backend::Local } else { Backend::Tcp };
    let job = Job {
        backend,
        operations: &[Operation::SendReceive],
        arguments: &collective,
        work: &work,
        worker_arguments: Vec::new(),
    };
    match job.run()? {
        Outcome::Measured(answer) => print(arguments, name, verb, &answer),
        Outcome::Skipped(reason) => Err(Error::Skipped(reason)),
        Outcome::Elsewhere => Ok(()),
    }
}

/// The system's NICs, of which one can be used.
fn system_nics(settings: &VerbsSettings) -> Result<Arc<dyn Provider>> {
    let nics = sys::Verbs::open().map_err(|error| Error::Skipped(error.to_string()))?;
    available(&*nics, settings, 0).map_err(Error::Skipped)?;
    Ok(nics)
}

fn measured(bytes: usize, samples: Vec<u64>) -> Measured {
    let timing = Timing { slowest: samples, ..Timing::default() };
    let places = vec![(Place::Out, timing)];
    Measured { operation: Operation::SendReceive, dtype: Dtype::Uint8, bytes, count: bytes, places }
}

/// perftest's columns, and what they are.
fn print(arguments: &P2pArguments, name: &str, verb: Verb, answer: &Answer) -> Result<()> {
    let meaning = if verb.is_answered() {
        "half of the round trip, as perftest"
    } else {
        "the whole operation up to its completion, as perftest"
    };
    let mut text = format!(
        "# headlong bench p2p {name}: {meaning}{}\n\
         #{:>9} {:>12} {:>12} {:>12} {:>15} {:>12} {:>13} {:>13} {:>15}\n",
        if arguments.nic == NicSource::Fake {
            "; a fabric inside this process: its times mean nothing"
        } else {
            ""
        },
        "bytes",
        "iterations",
        "t_min(us)",
        "t_max(us)",
        "t_typical(us)",
        "t_avg(us)",
        "t_stdev(us)",
        "99%(us)",
        "99.9%(us)"
    );
    let mut rows = Vec::new();
    for case in &answer.cases {
        let samples = &case.places[0].1.slowest;
        let latency = Distribution::new(samples.iter().copied());
        let mean = samples.iter().sum::<u64>() as f64 * 1e-3 / samples.len().max(1) as f64;
        let square = |ns: &u64| (*ns as f64 * 1e-3 - mean).powi(2);
        let deviation =
            (samples.iter().map(square).sum::<f64>() / samples.len().max(1) as f64).sqrt();
        let [typical, p99, p999] =
            [50.0, 99.0, 99.9].map(|percentile| latency.percentile(percentile));
        let _ = writeln!(
            text,
            "{:>10} {:>12} {:>12.2} {:>12.2} {:>15} {mean:>12.2} {deviation:>13.2} {:>13} {:>15}",
            case.bytes,
            samples.len(),
            latency.min(),
            latency.max(),
            known(typical),
            known(p99),
            known(p999)
        );
        rows.push(json!({
            "verb": name, "bytes": case.bytes, "reps": samples.len(), "min_us": latency.min(),
            "max_us": latency.max(),
            "p50_us": typical, "mean_us": mean, "stdev_us": deviation, "p99_us": p99,
            "p99_9_us": p999,
        }));
    }
    let document = json!({ "bench": "p2p", "schema": 1, "meaning": meaning, "rows": rows });
    output::answer(&arguments.json, &text, &document)
}
