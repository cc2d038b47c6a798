//! From scores to metrics, on a thread during training.
//!
//! ```text
//! ranks of one process     start ── all scores sorted and added up ───────────────────────────── finish
//! ranks of processes       start ── own scores sorted ── exchange ── own range added up ── finish (tallies are gathered)
//! ```

use super::exchange::{add_up, exchange};
use crate::error::{Error, Result, exchange_failed};
use crate::metrics::EvalMetrics;
use crate::metrics::runs::Runs;
use crate::metrics::scores::{Scores, Tally};
use headlong_comm::Communicator;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// The scores of one evaluation on their way to its metrics.
#[derive(Debug)]
pub struct Scoring {
    work: Work,
    /// The scores' memory, to be used again, once no one works on it.
    memory: Vec<Scores>,
}

#[derive(Debug)]
enum Work {
    /// Everything, where this process has all scores.
    All(Worker<(Tally, Vec<Scores>)>),
    /// Sorts the scores of this process's rank.
    Sort(Link, Worker<(Runs, Vec<Scores>)>),
    /// Adds up the range of logits that this rank has been given.
    Merge(Link, Worker<Tally>),
}

/// The way to the ranks of other processes. Exchanges of scores take their turn among those of
/// training, on its thread.
#[derive(Clone)]
struct Link(Arc<Communicator>);

impl std::fmt::Debug for Link {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Link(rank {})", self.0.rank().0)
    }
}

impl Scoring {
    /// Begins with the scores of this process's ranks. `others` leads to the ranks of other
    /// processes, where there are some: then this process has one rank.
    pub fn start(mut scores: Vec<Scores>, others: Option<Arc<Communicator>>) -> Result<Self> {
        let work = match others {
            None => Work::All(Worker::start("scoring", move || {
                let (first, rest) = scores.split_first_mut().expect("a process has a rank");
                rest.iter().for_each(|other| first.absorb(other));
                (first.tally(), scores)
            })?),
            Some(communicator) => Work::Sort(
                Link(communicator),
                Worker::start("scoring", move || {
                    let runs = scores[0].runs();
                    (runs, scores)
                })?,
            ),
        };
        Ok(Self { work, memory: Vec::new() })
    }

    /// Exchanges sorted scores with the ranks of other processes, for which it waits until they are
    /// sorted. All ranks call it between the same two steps; where this process has all scores, or
    /// has exchanged them, there is nothing to do.
    pub fn exchange(&mut self) -> Result<()> {
        let Work::Sort(link, worker) = &mut self.work else { return Ok(()) };
        let busy = link.0.busy("sorts its scores");
        let (runs, memory) = worker.result();
        drop(busy);
        let received = exchange(&link.0, runs).map_err(exchange_failed("the scores"))?;
        self.memory = memory;
        let merging = Worker::start("scoring", move || received.in_groups(Tally::of))?;
        self.work = Work::Merge(link.clone(), merging);
        Ok(())
    }

    /// The metrics, for which it waits, and the scores' memory. All ranks call it between the same
    /// two steps.
    pub fn finish(self) -> Result<(EvalMetrics, Vec<Scores>)> {
        let (tally, memory) = self.tally()?;
        Ok((EvalMetrics::of(&tally), memory))
    }

    /// What the metrics follow from, as [`Scoring::finish`].
    pub(crate) fn tally(mut self) -> Result<(Tally, Vec<Scores>)> {
        self.exchange()?;
        let tally = match &mut self.work {
            Work::All(worker) => {
                let (tally, memory) = worker.result();
                self.memory = memory;
                tally
            }
            Work::Merge(link, worker) => {
                let busy = link.0.busy("adds up its scores");
                let tally = worker.result();
                drop(busy);
                add_up(&link.0, tally).map_err(exchange_failed("the metrics"))?
            }
            Work::Sort(..) => unreachable!("what is sorted has been exchanged"),
        };
        Ok((tally, self.memory))
    }
}

#[derive(Debug)]
pub(crate) struct Worker<T>(Option<JoinHandle<T>>);

impl<T: Send + 'static> Worker<T> {
    pub(crate) fn start(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<Self> {
        let started = thread::Builder::new().name(name.to_owned()).spawn(work);
        started
            .map(|thread| Self(Some(thread)))
            .map_err(Error::failed(format!("the system gives no thread for {name}")))
    }

    /// Waits for the result; a panic resumes here.
    ///
    /// # Panics
    /// When it is asked for twice.
    pub(crate) fn result(&mut self) -> T {
        let thread = self.0.take().expect("the result is asked for once");
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // No one wants the result any more, nor what it panicked of.
            drop(thread.join());
        }
    }
}
