//! For tests of this crate and of others: ranks as threads, with every end accounted for.

pub mod sim;

use crate::communicator::Communicator;
use crate::error::CommError;
use crate::options::CommOptions;
use crate::topology::Topology;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

/// Runs `work` once for each rank, on threads of their own, and gives back what each returned, in
/// the order of ranks. A rank that panics ends the job for the others, and its panic is resumed
/// here. Nothing waits longer than 20 seconds for a rank.
///
/// # Panics
/// With the panic of the lowest rank that has one of its own.
pub fn run_ranks<R: Send>(topology: &Topology, work: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    let options = CommOptions { deadline: Duration::from_secs(20), ..CommOptions::default() };
    run_ranks_with(topology, options, work)
}

/// As [`run_ranks`], with other options.
///
/// # Panics
/// As [`run_ranks`].
pub fn run_ranks_with<R: Send>(
    topology: &Topology,
    options: CommOptions,
    work: impl Fn(&Communicator) -> R + Sync,
) -> Vec<R> {
    run_communicators(Communicator::local(topology, options), work)
}

/// As [`run_ranks`], over communicators of any transport, in the order of ranks.
///
/// # Panics
/// As [`run_ranks`].
pub fn run_communicators<R: Send>(
    communicators: Vec<Communicator>,
    work: impl Fn(&Communicator) -> R + Sync,
) -> Vec<R> {
    let work = &work;
    let ends: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = communicators
            .into_iter()
            .map(|communicator| scope.spawn(move || run_one(communicator, work)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(Err)).collect()
    });
    // The first panic is the cause; those of ranks that stumbled over the failed job came after it.
    let (mut results, mut panics) = (Vec::new(), Vec::new());
    for end in ends {
        match end {
            Ok(Ok(result)) => results.push(result),
            Ok(Err((was_first, panic))) => panics.push((!was_first, panic)),
            Err(panic) => panics.push((true, panic)),
        }
    }
    panics.sort_by_key(|(later, _)| *later);
    match panics.into_iter().next() {
        Some((_, panic)) => std::panic::resume_unwind(panic),
        None => results,
    }
}

type Panic = Box<dyn std::any::Any + Send>;

/// What the work returned, or its panic and whether the job was sound until then.
fn run_one<R>(
    communicator: Communicator,
    work: &(impl Fn(&Communicator) -> R + Sync),
) -> Result<Result<R, (bool, Panic)>, Panic> {
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| work(&communicator)));
    Ok(match result {
        Ok(result) => {
            // A test that ends the job on purpose has looked at the error itself.
            let _ = communicator.close();
            Ok(result)
        }
        Err(panic) => {
            let was_first = communicator.check().is_ok();
            let reason = "it has panicked".to_owned();
            communicator.abort(CommError::Aborted { culprit: communicator.rank(), reason });
            Err((was_first, panic))
        }
    })
}
