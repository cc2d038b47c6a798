//! `headlong bench all_reduce` and its siblings: latency and bandwidth of collectives, in the columns of nccl-tests.

pub mod arguments;
pub mod measure;
pub mod table;

use crate::error::{Error, Result};
use crate::output;
use arguments::{Backend, CollectiveArguments};
use headlong_comm::{CommError, Communicator};
use measure::{Operation, Timing, measure};
use table::Row;

/// Runs the command.
///
/// # Errors
/// Wrong usage; a transport that fails; with `--check`, wrong numbers.
pub fn run(operation: Operation, arguments: &CollectiveArguments) -> Result<()> {
    arguments.check()?;
    let mut rows = Vec::new();
    for &backend in &arguments.backend {
        let timings = match backend {
            Backend::Local => over_threads(operation, arguments)?,
            Backend::Tcp => over_processes(operation, arguments)?,
        };
        let row = |timing: &Timing| Row::new(backend.name(), operation, arguments.ranks, timing);
        rows.extend(timings.iter().map(row));
    }
    output::answer(&arguments.json, &table::text(&rows), &table::document(&rows))?;
    match rows.iter().filter_map(|row| row.wrong).sum::<u64>() {
        0 => Ok(()),
        wrong => Err(Error::Communication {
            context: format!("headlong bench {}", operation.name()),
            source: format!("{wrong} elements have arrived wrong").into(),
        }),
    }
}

/// All sizes on one rank.
fn on_one_rank(
    communicator: &Communicator,
    operation: Operation,
    arguments: &CollectiveArguments,
) -> Result<Vec<Timing>, CommError> {
    let sizes = if operation == Operation::Barrier { vec![0] } else { arguments.sizes() };
    let of_size = |&bytes: &usize| measure(communicator, operation, bytes, &arguments.effort());
    let timings = sizes.iter().map(of_size).collect::<Result<Vec<_>, _>>()?;
    communicator.close()?;
    Ok(timings)
}

/// Ranks are threads.
fn over_threads(operation: Operation, arguments: &CollectiveArguments) -> Result<Vec<Timing>> {
    let ends = Communicator::local(&arguments.topology(), arguments.options());
    let results: Vec<_> = std::thread::scope(|scope| {
        let one = |end: Communicator| scope.spawn(move || on_one_rank(&end, operation, arguments));
        let threads: Vec<_> = ends.into_iter().map(one).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let mut of_first_rank = None;
    for result in results {
        let timings = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let timings = timings.map_err(failed(operation))?;
        of_first_rank.get_or_insert(timings);
    }
    Ok(of_first_rank.unwrap_or_default())
}

/// Ranks are processes.
fn over_processes(operation: Operation, _arguments: &CollectiveArguments) -> Result<Vec<Timing>> {
    Err(Error::unsupported(
        format!("`headlong bench {} --backend tcp`", operation.name()),
        "it is not in this build",
    ))
}

fn failed(operation: Operation) -> impl FnOnce(CommError) -> Error {
    move |error| Error::Communication {
        context: format!("headlong bench {}", operation.name()),
        source: error.into(),
    }
}
