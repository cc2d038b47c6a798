//! `headlong bench tune`: measures the collectives and writes the table of costs that the hybrid split reads
//! (`hybrid.latency_table`).

use super::collectives::arguments::{Backend, Bytes, CollectiveArguments};
use super::collectives::measure::{Operation, Timing};
use super::collectives::table::Row;
use super::collectives::{Answer, measure_job};
use crate::atomic_file::AtomicFile;
use crate::error::{Error, Result};
use crate::output;
use clap::{Args, Parser};
use headlong_comm::CommOptions;
use headlong_embedding::hybrid::cost::{Costs, LatencyTable, LinkCosts};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Arguments of `headlong bench tune`.
#[derive(Debug, Args)]
pub struct TuneArguments {
    /// Transport: local (threads) or tcp (processes: those of a launcher, or some that this command starts)
    #[arg(long, value_name = "local|tcp", default_value = "local")]
    pub backend: Backend,
    /// Ranks
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub ranks: usize,
    /// Time for each size
    #[arg(long, value_name = "S", default_value_t = 0.2)]
    pub seconds_per_size: f64,
    /// Largest buffer of a rank
    #[arg(short = 'e', long = "max-bytes", value_name = "BYTES", default_value = "64M")]
    pub max_bytes: Bytes,
    /// The file to write; standard output by default
    #[arg(long, value_name = "FILE.toml")]
    pub output: Option<PathBuf>,
    /// One rank of a job that this command has started
    #[arg(long, hide = true)]
    pub worker: bool,
}

/// Runs the command.
///
/// # Errors
/// Wrong usage; a transport that fails; a file that cannot be written.
pub fn run(arguments: &TuneArguments) -> Result<()> {
    let collective = collective_arguments(arguments);
    collective.check()?;
    if arguments.ranks < 2 {
        return Err(Error::Usage("one rank exchanges nothing: --ranks is at least 2".to_owned()));
    }
    let operations = [Operation::AllReduce, Operation::AllToAll];
    let Some(answer) = measure_job(arguments.backend, &operations, &collective)? else { return Ok(()) };
    let text = to_toml(arguments.backend, &answer)?;
    match &arguments.output {
        Some(path) => write(path, &text).map_err(Error::io("write", path)),
        None => output::print(&text),
    }
}

fn collective_arguments(arguments: &TuneArguments) -> CollectiveArguments {
    #[derive(Parser)]
    struct Defaults {
        #[command(flatten)]
        arguments: CollectiveArguments,
    }
    let defaults = Defaults::parse_from(["tune"]).arguments;
    CollectiveArguments {
        backend: vec![arguments.backend],
        ranks: arguments.ranks,
        seconds_per_size: arguments.seconds_per_size,
        max_bytes: arguments.max_bytes,
        worker: arguments.worker,
        ..defaults
    }
}

/// The defaults of the transport, with what was measured in place of what was assumed.
fn to_toml(backend: Backend, answer: &Answer) -> Result<String> {
    let ranks = answer.node_of.len();
    let nodes = answer.node_of.iter().max().map_or(1, |last| last + 1);
    let mut costs = Costs::of_transport(backend.name());
    let which = match nodes {
        1 => "between ranks of one node",
        nodes if nodes == ranks => "between nodes",
        _ => {
            return Err(Error::Usage(
                "tune measures one kind of link: all ranks on one node, or one rank on each".to_owned(),
            ));
        }
    };
    let link = if nodes == 1 || backend == Backend::Local { &mut costs.intra } else { &mut costs.inter };
    // Of its buffer each rank sends what it does not keep for itself; in an all-reduce twice.
    let sent = (ranks - 1) as f64 / ranks as f64;
    *link = LinkCosts {
        all_reduce: table(Operation::AllReduce, &answer.timings[0], ranks, 2.0 * sent)?,
        all_to_all: table(Operation::AllToAll, &answer.timings[1], ranks, sent)?,
        message_us: link.message_us,
    };
    if backend == Backend::Local {
        // Nodes of threads are nodes by name alone.
        costs.inter = costs.intra.clone();
    }
    costs.direct_bytes = CommOptions::default().one_step_bytes_of(backend.name(), ranks) as f64;
    let measured = toml::to_string(&costs).map_err(Error::failed("writing the costs as TOML"))?;
    Ok(format!(
        "# headlong bench tune: all-reduce and all-to-all {which} were measured, {ranks} ranks over {}; points are\n\
         # (bytes, microseconds). All else is assumed: edit what you know better. For `hybrid.latency_table`.\n{measured}",
        backend.name()
    ))
}

/// Medians by size; `share` of a rank's buffer counts.
fn table(operation: Operation, timings: &[Timing], ranks: usize, share: f64) -> Result<LatencyTable> {
    let point = |timing: &Timing| {
        let row = Row::new("", operation, ranks, timing);
        ((timing.bytes as f64 * share).round(), (row.p50_us() * 1000.0).round() / 1000.0)
    };
    LatencyTable::new(timings.iter().map(point).collect()).map_err(Error::failed(operation.name()))
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let file = AtomicFile::create(path)?;
    file.file().write_all(text.as_bytes())?;
    file.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let timing = |bytes: usize, us: u64| Timing {
            bytes,
            first_rank_ns: vec![us * 1000],
            slowest_ns: vec![us * 1000],
            wrong: None,
        };
        let timings = vec![vec![timing(1024, 5), timing(4096, 9)], vec![timing(1024, 3), timing(4096, 4)]];
        let answer = Answer { node_of: vec![0, 0], timings };
        let costs: Costs = toml::from_str(&to_toml(Backend::Tcp, &answer).unwrap()).unwrap();
        assert_eq!(costs.intra.all_reduce.points(), [(1024.0, 5.0), (4096.0, 9.0)]);
        assert_eq!(costs.intra.all_to_all.points(), [(512.0, 3.0), (2048.0, 4.0)]);
        assert_eq!(costs.inter, Costs::tcp().inter);
        let between = Answer { node_of: vec![0, 1], ..answer.clone() };
        let costs: Costs = toml::from_str(&to_toml(Backend::Tcp, &between).unwrap()).unwrap();
        assert_eq!(costs.inter.all_reduce.us(1024.0), 5.0);
        let mixed = Answer { node_of: vec![0, 0, 1], ..answer };
        assert!(matches!(to_toml(Backend::Tcp, &mixed), Err(Error::Usage(_))));
    }
}
