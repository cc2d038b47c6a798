//! The rank group: all ranks of this process, each with its worker on its own thread, working on
//! the same batches.
//!
//! One rank is a group of one and runs on the caller's thread. Several ranks meet in their
//! collectives, so each needs a thread of its own for as long as a call lasts; when one fails, it
//! tells the others, and the call returns what went wrong first.

use crate::config::{Config, IdsChoice, ScheduleChoice, TransportChoice};
use crate::error::{Error, Result, exchange_failed};
use crate::iteration::lanes::Lanes;
use crate::iteration::model::{Ablation, Incoming, Model, Purpose, RankParts, table_specs};
use crate::iteration::table_state::Group;
use crate::iteration::trace::{Record, Recorder, write_trace};
use crate::iteration::worker::{RankWorker, StepLoss, StepRates};
use crate::report::ExchangeBytes;
use crate::system::input::read_text;
use crate::system::machine::instruction_limit;
use headlong_comm::tuning::Tuning;
use headlong_comm::{BetweenDevices, Busy, CommOptions, Communicator, NcclOptions, Topology};
use headlong_device::pool::Pool;
use headlong_device::simd::Limit;
use headlong_embedding::Registry;
use headlong_embedding::hybrid::Partition;
use headlong_reader::{Batch, Position, SkipReport};
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

mod rest;
mod stream;

use rest::quiesce;
use stream::{bind, place_on_machine, stream_of};

pub struct RankGroup {
    ranks: Vec<Mutex<RankWorker>>,
    threads: Pool,
    /// What their arithmetic may use.
    limit: Limit,
    /// What its models were built from, where they can be built again with rows placed otherwise.
    blueprint: Option<Blueprint>,
    /// What evaluations have left on the devices, once they have left all.
    pub(crate) evaluated: Mutex<Option<Evaluated>>,
    /// The tables as the last look at the layout of a checkpoint found them.
    pub(crate) groups: Mutex<Arc<Vec<Group>>>,
}

/// Data that has been evaluated and lies on the devices.
#[derive(Debug, Clone)]
pub(crate) struct Evaluated {
    pub(crate) batches: usize,
    /// Bad lines that were skipped when it was read.
    pub(crate) skipped: SkipReport,
}

/// What the models of a group are built from, besides communicators and the places of rows.
#[derive(Clone)]
struct Blueprint {
    table_rows: Vec<u64>,
    registry: Registry,
    ablation: Ablation,
    threads_per_rank: usize,
    record: Record,
    taken_devices: usize,
    begun: Instant,
}

/// What a group is built from, besides a configuration.
pub struct RankGroupOptions<'a> {
    /// Threads of all ranks of this process together.
    pub threads: usize,
    /// Where every row lies. None: every row has one owner, by a formula.
    pub partition: Option<Arc<Partition>>,
    /// The ranks of this process, as they reach each other. None: `run.ranks` threads.
    pub communicators: Option<Vec<Communicator>>,
    /// The kinds of tables that the configuration may name.
    pub registry: &'a Registry,
    /// Parts of the model that are switched off.
    pub ablation: Ablation,
    pub record: Record,
    /// Devices of this machine that other ranks have, where there are that many more; else each
    /// rank shares one with another rank.
    pub taken_devices: usize,
}

impl<'a> RankGroupOptions<'a> {
    /// All ranks are threads of this process, every row has one owner, nothing is recorded.
    pub fn new(threads: usize, registry: &'a Registry) -> Self {
        Self {
            threads,
            partition: None,
            communicators: None,
            registry,
            ablation: Ablation::default(),
            record: Record::default(),
            taken_devices: 0,
        }
    }
}

/// The topology of ranks that are threads of this process.
pub fn local_topology(config: &Config) -> Topology {
    let (ranks, per_node) = (config.run.ranks, config.comm.ranks_per_node);
    Topology::with_ranks_per_node(ranks, if per_node == 0 { ranks } else { per_node })
}

/// How ranks exchange, as the configuration says.
pub fn comm_options(config: &Config) -> CommOptions {
    CommOptions {
        all_to_all: config.comm.exchange,
        compress: config.compress(),
        nccl: NcclOptions { collnet: config.comm.nccl.collnet, nvls: config.comm.nccl.nvls },
        between_devices: match config.run.transport {
            TransportChoice::Nccl => BetweenDevices::Nccl,
            _ => BetweenDevices::Auto,
        },
        deadline: config.comm.deadline(),
        ..CommOptions::default()
    }
}

/// The same with what was measured, where the configuration names a file.
pub fn tuned_comm_options(config: &Config) -> Result<CommOptions> {
    let Some(path) = &config.comm.tuning else { return Ok(comm_options(config)) };
    let text = read_text(path).map_err(Error::io("read", path))?;
    let tuning = Tuning::read(&text)
        .map_err(|error| Error::config("comm.tuning", format!("{}: {error}", path.display())))?;
    Ok(CommOptions { tuning: Some(Arc::new(tuning)), ..comm_options(config) })
}

impl RankGroup {
    /// The one rank that applies a model, on the device that `config` names.
    pub fn of_one_rank(
        config: &Config,
        table_rows: &[u64],
        threads: usize,
        registry: &Registry,
    ) -> Result<Self> {
        Self::build(config, table_rows, RankGroupOptions::new(threads, registry))
    }

    pub fn build(
        config: &Config,
        table_rows: &[u64],
        options: RankGroupOptions<'_>,
    ) -> Result<Self> {
        let communicators = match options.communicators {
            Some(communicators) => communicators,
            None => Communicator::local(&local_topology(config), tuned_comm_options(config)?),
        };
        let num_ranks = communicators[0].num_ranks();
        let partition = match options.partition {
            Some(partition) => partition,
            None => Arc::new(Partition::row_wise(&table_specs(config, table_rows), num_ranks)),
        };
        let ids = match config.comm.ids {
            IdsChoice::Known => IdsChoice::Known,
            // Where no split has decided, as it does with statistics.
            IdsChoice::Exchange | IdsChoice::Auto => IdsChoice::Exchange,
        };
        let blueprint = Blueprint {
            table_rows: table_rows.to_vec(),
            registry: options.registry.clone(),
            ablation: options.ablation,
            threads_per_rank: (options.threads / communicators.len()).max(1),
            record: options.record,
            taken_devices: options.taken_devices,
            begun: Instant::now(),
        };
        let communicators = communicators.into_iter().map(Arc::new).collect();
        Self::of_blueprint(config, blueprint, communicators, &partition, ids)
    }

    fn of_blueprint(
        config: &Config,
        blueprint: Blueprint,
        communicators: Vec<Arc<Communicator>>,
        partition: &Arc<Partition>,
        ids: IdsChoice,
    ) -> Result<Self> {
        let workers = communicators.into_iter().map(|communicator| {
            let stream = stream_of(
                config,
                &communicator,
                blueprint.threads_per_rank,
                blueprint.taken_devices,
            )?;
            if config.run.bind {
                bind(&stream, &communicator);
            }
            let (partition, registry) = (Arc::clone(partition), &blueprint.registry);
            let parts =
                RankParts { communicator, partition, ids, registry, ablation: blueprint.ablation };
            let model = Model::of_rank(config, &blueprint.table_rows, &stream, parts)?;
            let lanes = match config.run.schedule_used() {
                ScheduleChoice::Overlapped => Lanes::overlapped(stream)?,
                ScheduleChoice::Captured => Lanes::captured(stream)?,
                ScheduleChoice::Serial | ScheduleChoice::Auto => Lanes::serial(stream)?,
            };
            Ok(RankWorker::new(model, lanes, Recorder::since(blueprint.record, blueprint.begun)))
        });
        let limit = instruction_limit(config.run.instructions)?;
        let mut group = Self::new(limit.run(|| workers.collect::<Result<_>>())?)?;
        group.limit = limit;
        group.all(RankWorker::init_device_comm)?;
        group.blueprint = Some(blueprint);
        Ok(group)
    }

    /// The kinds of tables that it was built with.
    pub fn registry(&self) -> Registry {
        self.blueprint.as_ref().map(|blueprint| blueprint.registry.clone()).unwrap_or_default()
    }

    /// Ranks of this machine, those of other processes included.
    pub fn ranks_on_machine(&self) -> usize {
        place_on_machine(&self.first().model().communicator).1
    }

    /// Places the rows again: weights and states move to where they belong now, and the batch of
    /// now is routed again. What is trained afterwards has the same bits as without. Old and new
    /// rows are in memory together for as long as it takes; with ranks in other processes, all call
    /// it.
    ///
    /// # Errors
    /// Memory that the system refuses, a rank that is gone; then the group is as it was.
    pub fn repartition(&mut self, partition: &Arc<Partition>) -> Result<()> {
        // Steps on their way read the old rows, and their losses are told.
        self.drain()?;
        let blueprint = self.blueprint.clone();
        let blueprint = blueprint.ok_or_else(|| {
            Error::unsupported("placing rows again", "this group was put together by hand")
        })?;
        let communicators = (0..self.len())
            .map(|rank| Arc::clone(&self.worker(rank).model().communicator))
            .collect();
        let (config, ids) = {
            let first = self.first();
            let ids = match first.model().knows_all_ids() {
                true => IdsChoice::Known,
                false => IdsChoice::Exchange,
            };
            (first.model().config.clone(), ids)
        };
        let mut placed = Self::of_blueprint(&config, blueprint, communicators, partition, ids)?;
        self.copy_state_to(&mut placed)?;
        placed.weights_changed();
        for rank in 0..self.len() {
            placed.worker(rank).adopt(&mut self.worker(rank))?;
        }
        if placed.is_primed() {
            placed.all(RankWorker::route_again)?;
        }
        self.all(RankWorker::leave_devices)?;
        *self = placed;
        Ok(())
    }

    /// A group of these workers, in the order of their ranks.
    ///
    /// # Panics
    /// When there is none.
    pub fn new(workers: Vec<RankWorker>) -> Result<Self> {
        assert!(!workers.is_empty(), "a group has at least one rank");
        let threads = Pool::exactly(workers.len());
        let threads = threads.map_err(Error::failed("the ranks cannot be started"))?;
        Ok(Self::on_threads(threads, workers))
    }

    fn on_threads(threads: Pool, workers: Vec<RankWorker>) -> Self {
        let ranks = workers.into_iter().map(Mutex::new).collect();
        let limit = Limit::current();
        Self {
            ranks,
            threads,
            limit,
            blueprint: None,
            evaluated: Mutex::default(),
            groups: Mutex::default(),
        }
    }

    /// The worker of the first rank of this process: what all ranks agree on can be read here.
    pub fn first(&self) -> MutexGuard<'_, RankWorker> {
        self.worker(0)
    }

    /// The worker of the `index`-th rank of this process.
    pub fn worker(&self, index: usize) -> MutexGuard<'_, RankWorker> {
        // A worker that panicked has ended the run; what it holds can still be looked at.
        self.ranks[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Never: a group has at least one rank.
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// Calls `work` for every rank of this process at once, and returns when all have returned: the
    /// first rank's result.
    pub fn all<T: Send>(&self, work: impl Fn(&mut RankWorker) -> Result<T> + Sync) -> Result<T> {
        self.limit.run(|| self.work(work))
    }

    fn work<T: Send>(&self, work: impl Fn(&mut RankWorker) -> Result<T> + Sync) -> Result<T> {
        if self.ranks.len() == 1 {
            let mut worker = self.worker(0);
            return work(&mut worker).inspect_err(|error| worker.model().abort(error));
        }
        let results: Vec<Mutex<Option<std::thread::Result<Result<T>>>>> =
            self.ranks.iter().map(|_| Mutex::new(None)).collect();
        self.threads.run(self.ranks.len(), &|rank| {
            let mut worker = self.worker(rank);
            let result = catch_unwind(AssertUnwindSafe(|| work(&mut worker)));
            match &result {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => worker.model().abort(error),
                Err(_) => worker.model().abort(&Error::Usage("it has panicked".to_owned())),
            }
            *results[rank].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        });
        let results = results.into_iter().map(|result| {
            let result = result.into_inner().unwrap_or_else(PoisonError::into_inner);
            result.expect("every rank has run")
        });
        first_or_cause(results)
    }

    /// As [`RankWorker::prime`], on all ranks.
    pub fn prime<'a>(&self, batch: impl Into<Incoming<'a>>) -> Result<()> {
        let batch = batch.into();
        self.all(|worker| worker.prime(batch))
    }

    /// As [`RankWorker::step`], on all ranks.
    pub fn step(&self, rates: StepRates, next: Option<&Batch>) -> Result<f64> {
        self.all(|worker| worker.step(rates, next))
    }

    /// As [`RankWorker::enqueue`], on all ranks.
    pub fn enqueue(&self, rates: StepRates, next: Option<&Batch>) -> Result<()> {
        self.enqueue_incoming(rates, next.map(Incoming::Read))
    }

    /// As [`RankWorker::enqueue_incoming`], on all ranks.
    pub(crate) fn enqueue_incoming(
        &self,
        rates: StepRates,
        next: Option<Incoming<'_>>,
    ) -> Result<()> {
        self.all(|worker| worker.enqueue_incoming(rates, next))
    }

    /// As [`RankWorker::keep`], on all ranks; nothing where there are no batches.
    pub(crate) fn keep(&self, purpose: Purpose, batches: u64) -> Result<()> {
        if batches == 0 {
            return Ok(());
        }
        self.all(|worker| worker.keep(purpose, batches))
    }

    /// As [`RankWorker::drain`], on all ranks.
    pub fn drain(&self) -> Result<()> {
        self.all(RankWorker::drain)
    }

    /// As [`RankWorker::take_losses`]: they are those of all ranks.
    pub fn take_losses(&self, take: &mut dyn FnMut(StepLoss)) {
        let mut workers = (0..self.len()).map(|rank| self.worker(rank));
        if let Some(mut first) = workers.next() {
            first.take_losses(take);
        }
        workers.for_each(|mut worker| worker.take_losses(&mut |_| {}));
    }

    /// Predicts `batch` and hands logits and labels (empty where there are none) to `take`, in the
    /// order of the samples.
    pub fn predict(&self, batch: &Batch, take: &mut dyn FnMut(&[f32], &[f32])) -> Result<()> {
        self.all(|worker| worker.predict(batch))?;
        self.first().logits(batch.num_samples, &mut |logits| take(logits, &batch.labels));
        Ok(())
    }

    /// Predicts a batch and keeps each rank's scores.
    pub fn evaluate<'a>(&self, batch: impl Into<Incoming<'a>>) -> Result<()> {
        let batch = batch.into();
        self.all(|worker| worker.evaluate(batch))
    }

    pub fn table_rows(&self) -> Vec<u64> {
        self.first().model().tables.specs().iter().map(|spec| spec.rows).collect()
    }

    /// Where the rows lie.
    pub fn partition(&self) -> Arc<Partition> {
        Arc::clone(self.first().model().tables.partition())
    }

    /// Whether a batch of now is there.
    pub fn is_primed(&self) -> bool {
        self.first().is_primed()
    }

    /// Samples in the batch of now, of all ranks.
    pub fn num_samples_now(&self) -> usize {
        self.first().num_samples_now()
    }

    /// Where the stream of batches stands behind the batch of now.
    pub fn position_after_now(&self) -> Position {
        self.first().position_after_now()
    }

    /// Writes what the ranks of this process recorded, as [`write_trace`] does, and gives the file:
    /// `path`, in whose name a process that does not lead puts its rank (`step.rank1.svg`), so that
    /// none writes over another's.
    pub fn write_trace(&self, path: &Path) -> Result<PathBuf> {
        let mut file = path.to_owned();
        if !self.leads() {
            let mut ending =
                OsString::from(format!("rank{}", self.first().model().communicator.rank().0));
            if let Some(extension) = path.extension() {
                ending.push(".");
                ending.push(extension);
            }
            file.set_extension(ending);
        }
        let workers: Vec<_> = (0..self.len()).map(|index| self.worker(index)).collect();
        let ranks =
            workers.iter().map(|worker| (worker.model().communicator.rank().0, worker.recorder()));
        write_trace(&file, ranks)?;
        Ok(file)
    }

    /// What all ranks have sent in a training step, on average; none where there is one rank, and
    /// on devices, which do not count. Ranks of other processes are asked.
    pub fn sent_per_step(&self) -> Result<Option<ExchangeBytes>> {
        if self.first().model().on_device() {
            return Ok(None);
        }
        let sent = (0..self.len()).map(|index| self.worker(index).sent());
        let mut sums = sent.fold([0, 0, 0], |[steps, intra, inter], sent| {
            [sent.steps.max(steps), intra + sent.intra_node_bytes, inter + sent.inter_node_bytes]
        });
        if self.has_remote_ranks() {
            let first = self.first();
            let mut all = vec![0; 3 * first.model().communicator.num_ranks()];
            first
                .model()
                .communicator
                .all_gather(&sums, &mut all)
                .map_err(exchange_failed("the counters"))?;
            (sums[1], sums[2]) =
                (all.iter().skip(1).step_by(3).sum(), all.iter().skip(2).step_by(3).sum());
        }
        let [steps, intra, inter] = sums;
        let per_step = |bytes: u64| bytes as f64 / steps.max(1) as f64;
        let is_shared = self.has_remote_ranks() || self.len() > 1;
        Ok(is_shared
            .then(|| ExchangeBytes { intra_node: per_step(intra), inter_node: per_step(inter) }))
    }

    /// The way to ranks in other processes, where there are some.
    pub(crate) fn link(&self) -> Option<Arc<Communicator>> {
        self.has_remote_ranks().then(|| Arc::clone(&self.first().model().communicator))
    }

    /// This process does something long on its host while the answer lives: ranks of other
    /// processes wait for it, whatever their deadline.
    pub(crate) fn busy(&self, what: &'static str) -> Option<Busy> {
        self.link().map(|link| link.busy(what))
    }

    /// Tells the ranks of other processes that this one cannot go on, and why.
    pub fn abort(&self, error: &Error) {
        self.first().model().abort(error);
    }

    /// Says goodbye to the ranks of other processes: this one may end now.
    pub fn close(&self) -> Result<()> {
        self.all(|worker| {
            worker.model().communicator.close().map_err(exchange_failed("the last words"))
        })
    }

    /// As [`RankWorker::weights_changed`], on all ranks.
    pub fn weights_changed(&self) {
        self.ranks.iter().enumerate().for_each(|(rank, _)| self.worker(rank).weights_changed());
    }
}

impl Drop for RankGroup {
    fn drop(&mut self) {
        let workers: Vec<_> = (0..self.len()).map(|index| self.worker(index)).collect();
        let at_rest = quiesce(&workers.iter().map(|worker| &**worker).collect::<Vec<_>>());
        drop(workers);
        if !at_rest {
            // What is freed under a device that still writes would end the process: rather none of
            // it is.
            self.ranks.drain(..).for_each(std::mem::forget);
        }
    }
}

/// The first result, unless a rank has failed: then the failure that no other rank has caused. A
/// panic resumes here.
fn first_or_cause<T>(results: impl Iterator<Item = std::thread::Result<Result<T>>>) -> Result<T> {
    let (mut first, mut cause) = (None, None);
    for result in results {
        match result {
            Err(panic) => resume_unwind(panic),
            Ok(Ok(value)) => {
                first.get_or_insert(value);
            }
            Ok(Err(error)) => {
                let is_consequence = |error: &Error| matches!(error, Error::Communication { .. });
                if cause
                    .as_ref()
                    .is_none_or(|known| is_consequence(known) && !is_consequence(&error))
                {
                    cause = Some(error);
                }
            }
        }
    }
    match (cause, first) {
        (Some(error), _) => Err(error),
        (None, Some(value)) => Ok(value),
        (None, None) => unreachable!("a group has at least one rank"),
    }
}
