//! `headlong bench all_reduce` and its siblings: latency and bandwidth of collectives, in the columns of nccl-tests.

pub mod arguments;
pub mod measure;
mod processes;
pub mod table;

use crate::error::{Error, Result};
use crate::output;
use arguments::{Backend, CollectiveArguments};
use headlong_comm::{CommError, Communicator};
use measure::{Operation, Timing, measure};
use serde::{Deserialize, Serialize};
use table::Row;

/// Runs the command.
///
/// # Errors
/// Wrong usage; a transport that fails; with `--check`, wrong numbers.
pub fn run(operation: Operation, arguments: &CollectiveArguments) -> Result<()> {
    arguments.check()?;
    let mut rows = Vec::new();
    for &backend in &arguments.backend {
        let Some(answer) = measure_job(backend, &[operation], arguments)? else { return Ok(()) };
        let timings = answer.timings.iter().flatten();
        rows.extend(timings.map(|timing| Row::new(backend.name(), operation, answer.node_of.len(), timing)));
    }
    output::answer(&arguments.json, &table::text(&rows), &table::document(&rows))?;
    match rows.iter().filter_map(|row| row.wrong).sum::<u64>() {
        0 => Ok(()),
        wrong => Err(Error::Failed {
            context: format!("headlong bench {}", operation.name()),
            source: format!("{wrong} elements have arrived wrong").into(),
        }),
    }
}

/// What a job has measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Answer {
    /// The node of each rank.
    pub(super) node_of: Vec<usize>,
    /// For each operation, its sizes.
    pub(super) timings: Vec<Vec<Timing>>,
}

/// Measures operations over one transport, in this process or in others. None: another process prints what there is to
/// print.
///
/// # Errors
/// A transport that fails.
pub(super) fn measure_job(
    backend: Backend,
    operations: &[Operation],
    arguments: &CollectiveArguments,
) -> Result<Option<Answer>> {
    match backend {
        Backend::Local => over_threads(operations, arguments).map(Some),
        Backend::Tcp => processes::measure_job(operations, arguments),
    }
}

/// All operations and sizes on one rank.
fn on_one_rank(
    communicator: &Communicator,
    operations: &[Operation],
    arguments: &CollectiveArguments,
) -> Result<Answer, CommError> {
    arguments.bind.tie(communicator.rank().0, communicator.num_ranks());
    let sizes_of = |operation| if operation == Operation::Barrier { vec![0] } else { arguments.sizes() };
    let sizes = |&operation: &Operation| {
        let of_size = |bytes| measure(communicator, operation, bytes, &arguments.effort());
        sizes_of(operation).into_iter().map(of_size).collect::<Result<Vec<_>, _>>()
    };
    let timings = operations.iter().map(sizes).collect::<Result<Vec<_>, _>>()?;
    communicator.close()?;
    let topology = communicator.topology();
    Ok(Answer { node_of: topology.ranks().map(|rank| topology.node_of(rank)).collect(), timings })
}

/// Ranks are threads.
fn over_threads(operations: &[Operation], arguments: &CollectiveArguments) -> Result<Answer> {
    let ends = Communicator::local(&arguments.topology(), arguments.options());
    let results: Vec<_> = std::thread::scope(|scope| {
        let one = |end: Communicator| scope.spawn(move || on_one_rank(&end, operations, arguments));
        let threads: Vec<_> = ends.into_iter().map(one).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let results: Vec<_> = results
        .into_iter()
        .map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        .collect();
    let answers = results.into_iter().collect::<Result<Vec<_>, _>>().map_err(failed)?;
    Ok(answers.into_iter().next().expect("there is at least one rank"))
}

fn failed(error: CommError) -> Error {
    Error::Communication { context: "headlong bench".to_owned(), source: error.into() }
}
