//! `headlong bench exchange`: what the ranks of a planned run send each other in a step, measured
//! with the run's real sizes.
//!
//! The plan says where every row lies; batches of the data say which rows each rank asks whom for.
//! From both follow the sizes of every message of every batch. They travel as the trainer sends
//! them: ids to owners, vectors back, gradients to owners, one all-reduce of frequent rows and
//! dense gradients; call after call goes through the batches.

mod count;
mod report;
mod subject;

use super::collectives::arguments::{Bind, Bytes, CollectiveArguments};
use super::collectives::backend::Backend;
use super::collectives::job::{Job, Measured, Outcome};
use super::collectives::operation::{self, Operation};
use crate::Registry;
use crate::commands::train_arguments::{TrainArguments, of_training};
use crate::config::{AllToAll, Compress, Config, DeduplicateChoice, ranges};
use crate::error::{Error, Result};
use crate::iteration::ranks::local_topology;
use crate::plan::Plan;
use crate::report::Reporter;
use crate::report::output::{self, JsonOutput};
use crate::run::outlook::{Outlook, Place};
use crate::run::prepare::Prepared;
use crate::system::machine::Machine;
use clap::Args;
use count::Counted;
use headlong_embedding::hybrid::split::Split;
use headlong_embedding::hybrid::traffic::Exchange;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use subject::{Messages, Step};

/// Arguments of `headlong bench exchange`.
#[derive(Debug, Args)]
pub struct ExchangeArguments {
    /// The run, as for `train`: configuration, data, ranks
    #[command(flatten)]
    pub train: TrainArguments,
    /// What to compare, one after the other: local (threads), shm, tcp, verbs, ucx (processes,
    /// which this command starts)
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "local",
        help_heading = "Bench"
    )]
    pub backend: Vec<Backend>,
    /// Batches of the data whose messages are sent, in turn
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        value_parser = ranges::count(10_000),
        help_heading = "Bench"
    )]
    pub batches: usize,
    /// Samples of each kind of message; as many as fit into --seconds-per-size by default
    #[arg(short = 'n', long, value_name = "N", help_heading = "Bench")]
    pub iterations: Option<usize>,
    /// Time for each kind of message
    #[arg(
        long,
        value_name = "S",
        default_value_t = 1.0,
        value_parser = ranges::time,
        help_heading = "Bench"
    )]
    pub seconds_per_size: f64,
    /// Tie each rank to a core of its own where there are enough
    #[arg(
        long,
        value_name = "auto|off",
        default_value = "auto",
        hide_possible_values = true,
        help_heading = "Bench"
    )]
    pub bind_ranks: Bind,
    /// One rank of a job that this command has started
    #[arg(long, hide = true)]
    pub worker: Option<Backend>,
    /// Where the command that has started this one has left the messages
    #[arg(long, hide = true)]
    pub messages: Option<PathBuf>,
    /// Where the JSON goes
    #[command(flatten)]
    pub json: JsonOutput,
}

pub fn run(arguments: &ExchangeArguments, registry: &Registry) -> Result<()> {
    let (mut config, _) = arguments.train.resolve(registry)?;
    prepare(&mut config)?;
    if let (Some(backend), Some(file)) = (arguments.worker, &arguments.messages) {
        let text = std::fs::read_to_string(file).map_err(Error::io("read", file))?;
        let messages: Messages =
            serde_json::from_str(&text).map_err(Error::failed("the messages of the bench"))?;
        return measure(
            backend,
            &messages,
            &collective_arguments(&config, arguments, &messages),
            file,
        )
        .map(drop);
    }
    let files =
        of_training(&arguments.train, &config).writes("--json-file", &arguments.json.json_file);
    files.check_for_one_process()?;
    check_memory(&config, registry)?;
    let threads = config.threads();
    let prepared = Prepared::new(&config, None, threads, &Reporter::quiet(None))?;
    let placement = prepared.placement(&config, &local_topology(&config), registry)?;
    let split = placement.split.as_ref().ok_or_else(too_few_ranks)?;
    let counted = count::count(&config, &prepared, &placement, arguments.batches, threads)?;
    // For the processes that measure; removed when it is dropped.
    let file = tempfile::NamedTempFile::new().map_err(Error::failed("a file for the messages"))?;
    let text = serde_json::json!(counted.messages).to_string();
    file.as_file().write_all(text.as_bytes()).map_err(Error::io("write", file.path()))?;
    let answers = measure_all(arguments, &config, &counted, file.path())?;
    answer(arguments, &config, split, &counted, answers)
}

/// Refuses batches that do not fit into memory, as the plan counts them. Nothing else of the run is
/// held here.
fn check_memory(config: &Config, registry: &Registry) -> Result<()> {
    let machine = Machine::detect();
    let place = Place {
        machine: &machine,
        ranks_here: None,
        evaluating_here: None,
        separate: false,
        registry,
    };
    let mut config = config.clone();
    // Nothing is evaluated.
    config.eval.batch_size = 1;
    let outlook = Outlook::of(&config)?;
    let memory = Plan::new(&config, &outlook.facts(&outlook.least_rows, &place)).memory;
    let held = (memory.reader_bytes + memory.id_map_bytes) * config.run.ranks;
    Ok(held.must_fit(machine.usable_bytes(), || "lower train.batch_size".to_owned())?)
}

fn too_few_ranks() -> Error {
    Error::Usage("one rank exchanges nothing: --ranks is at least 2".to_owned())
}

/// What the messages are made for: equal rows merged on each rank.
fn prepare(config: &mut Config) -> Result<()> {
    if config.run.ranks < 2 {
        return Err(too_few_ranks());
    }
    match config.comm.deduplicate {
        DeduplicateChoice::Auto => config.comm.deduplicate = DeduplicateChoice::Rank,
        DeduplicateChoice::Node => {
            let reason =
                "its messages are those of rows merged on each rank: leave comm.deduplicate away";
            return Err(Error::unsupported(
                "`headlong bench exchange` with comm.deduplicate = \"node\"",
                reason,
            ));
        }
        _ => {}
    }
    Ok(())
}

fn collective_arguments(
    config: &Config,
    arguments: &ExchangeArguments,
    messages: &Messages,
) -> CollectiveArguments {
    CollectiveArguments {
        ranks: config.run.ranks,
        ranks_per_node: config.comm.ranks_per_node,
        // Its messages are those of the data.
        min_bytes: Bytes(1),
        max_bytes: Bytes(1),
        iterations: arguments.iterations,
        seconds_per_size: arguments.seconds_per_size,
        deadline_s: config.comm.deadline_s,
        insecure: config.comm.insecure,
        encrypt_data: config.comm.encrypt_data,
        exchange: if messages.hierarchical { AllToAll::Hierarchical } else { AllToAll::Flat },
        verbs: Some(config.comm.verbs.clone()),
        compress: config.compress() != Compress::None,
        bind: arguments.bind_ranks,
        worker: arguments.worker,
        ..CollectiveArguments::defaults()
    }
}

fn measure_all(
    arguments: &ExchangeArguments,
    config: &Config,
    counted: &Counted,
    file: &Path,
) -> Result<Vec<(Backend, Outcome)>> {
    let collective = collective_arguments(config, arguments, &counted.messages);
    collective.check()?;
    let ranks_here = super::collectives::job::processes::ranks_here(&collective);
    collective.check_memory(ranks_here, "lower `-n` or `--ranks`")?;
    let one = |&backend| Ok((backend, measure(backend, &counted.messages, &collective, file)?));
    arguments.backend.iter().map(one).collect()
}

fn measure(
    backend: Backend,
    messages: &Messages,
    arguments: &CollectiveArguments,
    file: &Path,
) -> Result<Outcome> {
    let work = |stopwatch: &super::collectives::measure::Stopwatch<'_>| {
        let communicator = stopwatch.communicator();
        let steps = messages.steps().into_iter();
        let one = |step: Step| {
            let mut subject = messages.subject(communicator, step);
            let place = operation::Place::Out;
            let timing = stopwatch.measure(subject.as_mut(), place)?;
            Ok(Measured { places: vec![(place, timing)], ..messages.describe(step) })
        };
        steps.map(one).collect()
    };
    let messages_at = ["--messages".into(), file.into()];
    let job = Job {
        backend,
        operations: &[Operation::AllToAllV, Operation::AllReduce],
        arguments,
        work: &work,
        worker_arguments: messages_at.to_vec(),
    };
    job.run()
}

fn answer(
    arguments: &ExchangeArguments,
    config: &Config,
    split: &Split,
    counted: &Counted,
    outcomes: Vec<(Backend, Outcome)>,
) -> Result<()> {
    let (mut answers, mut skipped) = (Vec::new(), Vec::new());
    for (backend, outcome) in outcomes {
        match outcome {
            Outcome::Measured(answer) => answers.push((backend, answer)),
            Outcome::Skipped(reason) => skipped.push((backend, reason)),
            Outcome::Elsewhere => return Ok(()),
        }
    }
    let report = report::Report { config, split, counted, answers: &answers, skipped: &skipped };
    output::answer(&arguments.json, &report.text(), &report.document())?;
    let reasons =
        || skipped.iter().map(|(backend, reason)| format!("{}: {reason}", backend.name()));
    match answers.is_empty() {
        true => Err(Error::Skipped(reasons().collect::<Vec<_>>().join("; "))),
        false => report.check(),
    }
}

fn is_hierarchical(split: &Split) -> bool {
    split.variant.exchange == Exchange::Hierarchical
}
