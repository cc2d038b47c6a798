//! A job of ranks over one backend: what it measures, in which order, and how its ranks come to be.

pub mod processes;

use super::arguments::CollectiveArguments;
use super::backend::{Backend, RankIs};
use super::device::OnDevice;
use super::dtype::Dtype;
use super::measure::{Stopwatch, Timing};
use super::operation::{Case, Operation, Place};
use crate::error::{Error, Result};
use headlong_comm::{CommError, Communicator, Rank};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answer {
    pub node_of: Vec<usize>,
    pub cases: Vec<Measured>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    pub operation: Operation,
    pub dtype: Dtype,
    /// The column `size`: bytes.
    pub bytes: usize,
    /// The column `count`: elements.
    pub count: usize,
    /// Each place that was asked for, the library's own form first.
    pub places: Vec<(Place, Timing)>,
}

impl Answer {
    /// Adds the samples of another round of the same job.
    pub fn append(&mut self, other: Answer) {
        for (case, more) in self.cases.iter_mut().zip(other.cases) {
            for ((_, timing), (_, other)) in case.places.iter_mut().zip(more.places) {
                timing.append(other);
            }
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Outcome {
    Measured(Answer),
    /// It could not begin: the backend is not to be had, for this reason.
    Skipped(String),
    /// Another process of the job has the answer.
    Elsewhere,
}

/// What a rank does whose buffers lie in the host's memory.
pub type Work<'a> = dyn Fn(&Stopwatch<'_>) -> Result<Vec<Measured>, CommError> + Sync + 'a;

#[derive(Clone)]
pub struct Job<'a> {
    /// What carries bytes.
    pub backend: Backend,
    pub operations: &'a [Operation],
    pub arguments: &'a CollectiveArguments,
    pub work: &'a Work<'a>,
    /// What its processes are told besides this command's own arguments.
    pub worker_arguments: Vec<OsString>,
}

pub fn run(
    backend: Backend,
    operations: &[Operation],
    arguments: &CollectiveArguments,
) -> Result<Outcome> {
    run_with(backend, operations, arguments, &[])
}

/// The same, with arguments for processes that this command starts.
pub fn run_with(
    backend: Backend,
    operations: &[Operation],
    arguments: &CollectiveArguments,
    worker_arguments: &[OsString],
) -> Result<Outcome> {
    let remedy = "lower `-e`, `-n` or `--ranks`";
    arguments.check_memory(processes::ranks_here(arguments), remedy)?;
    let work = |stopwatch: &Stopwatch<'_>| {
        let communicator = stopwatch.communicator();
        let one = |(dtype, case): (Dtype, Case)| {
            let mut buffers = dtype.host_buffers(communicator, case);
            let place = |place| Ok((place, stopwatch.measure(buffers.as_mut(), place)?));
            let places: Result<Vec<_>, CommError> =
                places_of(case.operation, arguments).map(place).collect();
            Ok(measured(dtype, &case, places?))
        };
        cases_of(communicator, operations, arguments).map(one).collect()
    };
    Job { backend, operations, arguments, work: &work, worker_arguments: worker_arguments.to_vec() }
        .run()
}

impl Job<'_> {
    /// Measures, in this process or in others.
    pub fn run(&self) -> Result<Outcome> {
        if let Err(reason) = self.arguments.can_measure(self.backend, self.operations) {
            return Ok(Outcome::Skipped(reason));
        }
        match self.backend.rank_is() {
            RankIs::Process(wanted) => processes::run(self, wanted),
            _ if processes::is_one_of_several() => Ok(Outcome::Skipped(
                "its ranks are threads, and a launcher has started processes: name a backend of \
                 processes, such as --backend shm or tcp"
                    .to_owned(),
            )),
            _ => self.over_threads(),
        }
    }

    fn over_threads(&self) -> Result<Outcome> {
        let ends =
            Communicator::local(&self.arguments.topology(), self.arguments.options(self.backend));
        let results: Vec<_> = std::thread::scope(|scope| {
            let one = |end: Communicator| {
                scope.spawn(move || match self.backend.rank_is() {
                    RankIs::Device(_) => self.on_one_device(&end),
                    _ => Ok(self.on_one_rank(&end)?),
                })
            };
            let threads: Vec<_> = ends.into_iter().map(one).collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        let results: Vec<_> = results
            .into_iter()
            .map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        let mut answers = Vec::new();
        for result in results {
            match result {
                Ok(answer) => answers.push(answer),
                Err(Stop::Skipped(reason)) => return Ok(Outcome::Skipped(reason)),
                Err(Stop::Failed(error)) => return Err(failed(error)),
            }
        }
        Ok(Outcome::Measured(answers.swap_remove(0)))
    }

    /// Everything on one rank whose buffers lie in the host's memory.
    pub fn on_one_rank(&self, communicator: &Communicator) -> Result<Answer, CommError> {
        self.arguments.bind.tie(communicator.rank().0, communicator.num_ranks());
        let cases = (self.work)(&Stopwatch::new(communicator, self.arguments.effort())?)?;
        communicator.close()?;
        Ok(answer(communicator, cases))
    }

    /// Everything on one rank whose buffers lie on a device.
    fn on_one_device(&self, communicator: &Communicator) -> Result<Answer, Stop> {
        let arguments = self.arguments;
        let captured = (arguments.graph > 0).then_some(arguments.aggregate);
        let device = OnDevice::attach(communicator, captured).map_err(|error| match error {
            CommError::Rendezvous { reason } => Stop::Skipped(reason),
            other => Stop::Failed(other),
        })?;
        let stopwatch = Stopwatch::new(communicator, arguments.effort())?;
        let mut cases = Vec::new();
        for (dtype, case) in cases_of(communicator, self.operations, arguments) {
            let mut buffers = device.buffers(communicator, case)?;
            let mut places = Vec::new();
            for place in places_of(case.operation, arguments) {
                places.push((place, stopwatch.measure(&mut buffers, place)?));
            }
            // Peers write into these buffers: no one gives them back before all have ended.
            communicator.barrier()?;
            cases.push(measured(dtype, &case, places));
        }
        device.close()?;
        communicator.close()?;
        Ok(answer(communicator, cases))
    }
}

enum Stop {
    Skipped(String),
    Failed(CommError),
}

impl From<CommError> for Stop {
    fn from(error: CommError) -> Self {
        Stop::Failed(error)
    }
}

fn answer(communicator: &Communicator, cases: Vec<Measured>) -> Answer {
    let topology = communicator.topology();
    Answer { node_of: topology.ranks().map(|rank| topology.node_of(rank)).collect(), cases }
}

fn measured(dtype: Dtype, case: &Case, places: Vec<(Place, Timing)>) -> Measured {
    let (bytes, count) = (case.size_len() * dtype.size(), case.call_count());
    Measured { operation: case.operation, dtype, bytes, count, places }
}

/// Everything that is to be measured, in order.
fn cases_of<'a>(
    communicator: &Communicator,
    operations: &'a [Operation],
    arguments: &'a CollectiveArguments,
) -> impl Iterator<Item = (Dtype, Case)> + 'a {
    let (ranks, me) = (communicator.num_ranks(), communicator.rank().0);
    operations.iter().flat_map(move |&operation| {
        let sizes = if operation == Operation::Barrier { vec![0] } else { arguments.sizes() };
        arguments.dtypes().into_iter().flat_map(move |dtype| {
            let case = move |bytes: usize| {
                let count = bytes / dtype.size();
                (dtype, Case { operation, count, root: Rank(arguments.root), ranks, me })
            };
            sizes.clone().into_iter().map(case)
        })
    })
}

fn places_of(
    operation: Operation,
    arguments: &CollectiveArguments,
) -> impl Iterator<Item = Place> + '_ {
    let is_barrier = operation == Operation::Barrier;
    operation
        .places()
        .iter()
        .copied()
        .filter(move |&place| is_barrier || arguments.place.has(place))
}

pub fn failed(error: CommError) -> Error {
    Error::communication("headlong bench")(error)
}
