//! A session: a model in training, its data, its evaluations and its checkpoints. The host's part
//! of a run, around the iteration.
//!
//! A program of one's own drives it as `headlong train` does: [`Session::step`] until it gives
//! `None`, which it does where `train.steps` or `train.epochs` end the run, with
//! [`Session::evaluate`] and [`Session::save`] in between.

mod checkpoints;
mod eval_processes;
mod eval_ranks;
mod evaluations;
mod evaluator;
mod memory;
mod passes;
mod saves;
mod slices;

pub use checkpoints::{
    Alone, config_of, find_checkpoint, gather_snapshot, load, open_directory, restore_ids,
};
pub(crate) use checkpoints::{agree_on_start, refuse_later_checkpoints};
pub use eval_processes::EvalProcesses;
pub(crate) use eval_processes::dismiss;
pub use eval_ranks::{EvalRanks, EvalRanksOptions};
use evaluations::Evaluations;
pub use evaluations::{Apart, Evaluated, Take, predict_all, predict_mean};
pub use evaluator::{evaluate_for_training, wait_for_data};

use crate::config::learning_rate::LearningRate;
use crate::config::{CacheData, Config};
use crate::data::{self, EvaluationData, TrainingReader, key as data_key};
use crate::error::{Error, Result};
use crate::iteration::model::Purpose;
use crate::iteration::ranks::RankGroup;
use crate::iteration::schedule::Lane;
use crate::iteration::worker::{StepLoss, StepRates};
use crate::metrics::{EvalMetrics, Scores};
use crate::run::drift::{Drift, DriftWatch, covered_share};
use crate::state::checkpoint::{Checkpoint, DataFingerprint, Select, SystemFiles, TrainedFile};
use checkpoints::{parse_state, remember_order};
use headlong_embedding::hybrid::statistics::Statistics;
use headlong_reader::io::DataFile;
use headlong_reader::multi_hot::MultiHotReader;
use headlong_reader::{Batch, IdMapper, Position, Reader};
pub use memory::Memory;
use passes::{KeptPasses, Source};
use saves::Saves;
use slices::{Gather, slice_of};
use std::sync::Arc;
use std::time::Duration;

/// File of a checkpoint that holds the state of admitted ids.
pub const IDS_BLOB: &str = "ids.bin";
/// File of a checkpoint that holds the dictionary.
pub const DICTIONARY_BLOB: &str = "dictionary.bin";
/// File of a checkpoint that holds the effective configuration.
pub const CONFIG_BLOB: &str = "config.toml";

/// The number of a step's control flags that says that a rank wishes to stop.
const STOP_FLAG: usize = 0;

/// Steps of a device between two looks at the control flags.
const STEPS_BETWEEN_LOOKS: u64 = 8;

pub struct SessionData {
    pub train: Vec<DataFile>,
    /// Their rows, where known. They are counted where `train.epochs` ends within an epoch.
    pub train_rows: Option<u64>,
    /// Validation data, where there is any.
    pub valid: Option<EvaluationData>,
    /// Ids to rows, as they are before the first sample (a resumed session restores its own).
    pub ids: IdMapper,
    /// The bytes of the dictionary, where ids come from one: saved with every checkpoint.
    pub dictionary: Option<Arc<Vec<u8>>>,
    /// The statistics that the rows were placed by, where they were: saved with every checkpoint.
    pub statistics: Option<Statistics>,
    /// What checkpoints record of how data becomes numbers.
    pub fingerprint: DataFingerprint,
    /// What checkpoints record of the training files.
    pub train_files: Vec<TrainedFile>,
    /// Whether a resumed session may go on with files of another content.
    pub may_differ: bool,
}

/// Where a session starts.
pub enum Start<'a> {
    Fresh,
    /// At the beginning, with the weights of a checkpoint.
    WeightsOf(&'a Checkpoint),
    /// Where a checkpoint ended, in every respect.
    Resume(&'a Checkpoint),
}

impl<'a> Start<'a> {
    /// Where a run starts that may resume, or else begin with given weights.
    pub fn new(resumed: Option<&'a Checkpoint>, initial: Option<&'a Checkpoint>) -> Self {
        match (resumed, initial) {
            (Some(checkpoint), _) => Self::Resume(checkpoint),
            (None, Some(checkpoint)) => Self::WeightsOf(checkpoint),
            (None, None) => Self::Fresh,
        }
    }
}

pub struct Session {
    config: Config,
    group: RankGroup,
    data: SessionData,
    reader: MultiHotReader<TrainingReader>,
    /// Gives its buffers to the reader and gets the next batch, which all ranks take their shares
    /// of.
    incoming: Batch,
    /// Where batches stay on the devices.
    passes: Option<KeptPasses>,
    /// Where every rank needs the ids of a batch of which it reads its slice.
    gather: Option<Gather>,
    dense_rate: LearningRate,
    sparse_rate: LearningRate,
    /// The step after which nothing more is trained, where it is not the data that ends.
    last_step: Option<u64>,
    step: u64,
    samples: u64,
    position: Position,
    memory: Memory,
    last_metrics: Option<EvalMetrics>,
    evaluations: Evaluations,
    /// Counts rows where the frequent ones may be chosen again.
    drift: Option<DriftWatch>,
    saves: Saves,
}

/// A step that the device has been given: [`Session::enqueue`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Enqueued {
    pub num_samples: u64,
    /// Learning rate of the dense parameters.
    pub learning_rate: f64,
}

/// What one step did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepOutcome {
    /// Mean loss of the batch, in nats, before the update; with `model.loss = "mse"`, the mean
    /// squared error.
    pub loss: f64,
    /// Samples that the step trained on, over all ranks.
    pub num_samples: u64,
    /// Learning rate of the dense parameters.
    pub learning_rate: f64,
}

impl Session {
    /// Opens a session over the ranks of this process.
    pub fn open(
        config: &Config,
        mut group: RankGroup,
        mut data: SessionData,
        start: &Start<'_>,
    ) -> Result<Self> {
        let (mut step, mut samples, mut position) = (0, 0, Position::default());
        let (mut memory, mut last_metrics) = (Memory::default(), None);
        group.link().map_or(Ok(()), |ranks| agree_on_start(&ranks, start))?;
        match start {
            Start::Fresh => {}
            Start::WeightsOf(checkpoint) => {
                load(&mut group, checkpoint, &data.fingerprint, Select::WeightsOnly)?
            }
            Start::Resume(checkpoint) => {
                let state = &checkpoint.manifest().state;
                if !data.may_differ {
                    data_key::refuse_other_files(&state.train_files, &data.train_files)?;
                }
                load(&mut group, checkpoint, &data.fingerprint, Select::All)?;
                (step, samples, last_metrics) = (state.step, state.samples, state.metrics);
                state.loss_scale.iter().try_for_each(|saved| group.restore_loss_scale(saved))?;
                position = parse_state("the reader's position", &state.reader)?;
                memory = parse_state("the session's memory", &state.session)?;
                restore_ids(checkpoint, &mut data.ids)?;
            }
        }
        let resumed = matches!(start, Start::Resume(_));
        remember_order(&mut memory, data::order_name(config, &data.train)?, resumed)?;
        let threads = config.threads();
        let start = (&position, slice_of(&group));
        let reader = data::open_training(config, &data.train, data.ids.clone(), start, threads)?;
        let saves = Saves::open(Arc::new(SystemFiles), config, &group)?;
        let drift = data.statistics.as_ref().filter(|_| config.hybrid.repartition_drift > 0.0).map(
            |statistics| {
                let expected = covered_share(statistics, &group.partition());
                DriftWatch::new(config, &group.table_rows(), expected)
            },
        );
        let expected = data.valid.as_ref().and_then(EvaluationData::num_samples).unwrap_or(0);
        for rank in 0..group.len() {
            group.worker(rank).reuse_scores(Scores::with_capacity(expected as usize));
        }
        let passes = keep_training(config, &group, (&data, position), threads)?;
        let needs_all_ids = group.first().model().knows_all_ids() || drift.is_some();
        let session = Self {
            gather: if needs_all_ids { Gather::new(&group) } else { None },
            dense_rate: LearningRate::dense(&config.train),
            sparse_rate: LearningRate::sparse(&config.train),
            last_step: last_step(config, &data, threads)?,
            config: config.clone(),
            incoming: Batch::default(),
            passes,
            group,
            data,
            reader,
            step,
            samples,
            position,
            memory,
            last_metrics,
            evaluations: Evaluations::default(),
            drift,
            saves,
        };
        session.keep_evaluations(threads)?;
        Ok(session)
    }

    /// Trains on the next batch, and waits for its loss; `None` where training has ended: after
    /// `train.steps` steps, or `train.epochs` passes over the data.
    ///
    /// # Errors
    /// Bad data (names file and line), a loss that is not finite (names step and layer).
    pub fn step(&mut self) -> Result<Option<StepOutcome>> {
        let Some(Enqueued { num_samples, learning_rate }) = self.enqueue()? else {
            return Ok(None);
        };
        let mut loss = f64::NAN;
        self.drain()?;
        self.take_losses(&mut |step| loss = step.loss);
        Ok(Some(StepOutcome { loss, num_samples, learning_rate }))
    }

    /// Gives the device the step over the next batch without waiting for it; `None` where training
    /// has ended, as of [`Session::step`]. Losses come as steps end: [`Session::take_losses`].
    pub fn enqueue(&mut self) -> Result<Option<Enqueued>> {
        if self.last_step.is_some_and(|last| self.step >= last) {
            return Ok(None);
        }
        if !self.group.is_primed() {
            let Some(first) = self.read()? else { return Ok(None) };
            self.group.prime(first.incoming(&self.incoming))?;
        }
        let learning_rate = self.dense_rate.at(self.step);
        let rates = StepRates {
            number: self.step + 1,
            dense: learning_rate as f32,
            sparse: self.sparse_rate.at(self.step) as f32,
        };
        let position = self.group.position_after_now();
        let num_samples = self.group.num_samples_now() as u64;
        // What no step needs is not read, nor is what is wrong there an error.
        let is_last = self.last_step == Some(self.step + 1);
        let next = if is_last { None } else { self.read()? };
        self.group.enqueue_incoming(rates, next.map(|source| source.incoming(&self.incoming)))?;
        self.step += 1;
        self.samples += num_samples;
        self.position = position;
        Ok(Some(Enqueued { num_samples, learning_rate }))
    }

    /// Whether the last step that was given was the last of all.
    pub fn has_ended(&self) -> bool {
        self.last_step.is_some_and(|last| self.step >= last) || !self.group.is_primed()
    }

    /// Waits for all steps that the device has been given.
    pub fn drain(&self) -> Result<()> {
        self.group.drain()
    }

    /// Hands the losses of steps that have ended to `take`, oldest first, each once.
    pub fn take_losses(&self, take: &mut dyn FnMut(StepLoss)) {
        self.group.take_losses(take);
    }

    /// The next batch; what the reader gives is in `incoming`.
    fn read(&mut self) -> Result<Option<Source>> {
        if let Some(passes) = self.passes.as_mut().filter(|passes| passes.are_kept()) {
            if passes.is_first() {
                // No later step writes what is read from here on.
                self.group.drain()?;
            }
            return Ok(passes.next());
        }
        let started = self.group.first().recorder().start();
        let busy = self.group.busy("waits for its data");
        let has_batch = self
            .reader
            .next(&mut self.incoming)
            .map_err(Error::failed("the training data cannot be read"))?;
        drop(busy);
        if let Some(gather) = self.gather.as_mut().filter(|_| has_batch) {
            gather.complete(&mut self.incoming)?;
        }
        if let Some(drift) = self.drift.as_mut().filter(|_| has_batch) {
            drift.count(&self.incoming);
        }
        if let Some(started) = started {
            self.group.first().recorder_mut().add("wait_for_data", Lane::Copy, started);
        }
        let batch = has_batch.then_some(&self.incoming);
        Ok(batch
            .map(|batch| self.passes.as_mut().map_or(Source::Reader, |passes| passes.hear(batch))))
    }

    /// Places the rows again where the frequent ones are not frequent any more: at an evaluation,
    /// where ranks stand still together.
    pub fn repartition_after_drift(&mut self) -> Result<Option<Drift>> {
        let Some(watch) = &mut self.drift else { return Ok(None) };
        let Some((drift, statistics)) = watch.look(&self.config, &mut self.group)? else {
            return Ok(None);
        };
        self.data.statistics = Some(statistics);
        Ok(Some(drift))
    }

    /// The ids as they were right after the last batch that was trained on.
    pub(crate) fn ids_now(&self) -> Result<IdMapper> {
        if self.passes.as_ref().is_some_and(KeptPasses::are_kept) {
            // Such ids learn nothing on the way, and the reader is elsewhere.
            return Ok(self.data.ids.clone());
        }
        self.reader
            .inner()
            .mapper_at(&self.position)
            .map_err(Error::failed("the state of the ids is lost"))
    }

    /// Adds this process's wish to stop to the next step: all ranks stop after the same one.
    pub fn vote_to_stop(&self, signal: Option<i32>) -> Result<()> {
        if !self.reads_control_flags(self.step + 1) {
            return Ok(());
        }
        self.group.first().set_control_flag(STOP_FLAG, signal.map_or(0.0, |signal| signal as f32))
    }

    /// Whether a rank wished to stop before the last step. Behind most steps of a device, no
    /// rank is asked.
    pub fn stop_is_agreed(&self) -> Result<bool> {
        Ok(self.reads_control_flags(self.step) && self.group.first().control_flag(STOP_FLAG)? > 0.0)
    }

    /// Whether the wishes of `step` are looked at: of every step, but on a device, where a look
    /// waits for all that it has been given.
    fn reads_control_flags(&self, step: u64) -> bool {
        !self.group.first().model().on_device() || step.is_multiple_of(STEPS_BETWEEN_LOOKS)
    }

    /// Digest of all weights and optimiser states.
    pub fn weights_digest(&self) -> Result<String> {
        self.drain()?;
        let _busy = self.group.busy("takes the digest of its weights");
        crate::state::digest::weights_digest(&self.group)
            .map_err(Error::failed("the weights cannot be read"))
    }

    /// The step after which nothing more is trained, where `train.steps` or a part of an epoch says
    /// so.
    pub fn last_step(&self) -> Option<u64> {
        self.last_step
    }

    pub fn steps(&self) -> u64 {
        self.step
    }

    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Where the data stands behind the last step.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The end of training, on all ranks: those that evaluate are sent home, and ranks of other
    /// processes hear a goodbye.
    pub fn close(&mut self) -> Result<()> {
        self.evaluations.dismiss();
        self.group.close()
    }

    /// Tells ranks of other processes that this one cannot go on, and why.
    pub fn abort(&self, error: &Error) {
        self.evaluations.abort(error);
        self.group.abort(error);
    }

    /// The reader: its progress, the time it was waited for, the rows it skipped.
    pub fn reader(&self) -> &TrainingReader {
        self.reader.inner()
    }

    pub fn group(&self) -> &RankGroup {
        &self.group
    }

    /// What the session remembers; `memory_mut` lets the driver add to it before a save.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// See [`Session::memory`].
    pub fn memory_mut(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// Samples of the validation data, where they have been counted.
    pub fn valid_samples(&self) -> Option<u64> {
        self.data.valid.as_ref().and_then(EvaluationData::num_samples)
    }

    /// Which part of the epoch at hand has been trained on, by bytes of the files, or by batches
    /// where they come from the devices; none of a pipe, of which no one knows the end.
    pub fn of_epoch(&self) -> Option<f64> {
        let progress = self.reader().progress();
        let of_kept = self.passes.as_ref().and_then(KeptPasses::of_epoch);
        of_kept.or_else(|| {
            let is_known = progress.stored_bytes > 0;
            is_known.then(|| progress.stored_bytes_read as f64 / progress.stored_bytes as f64)
        })
    }

    /// How long the session has waited for data.
    pub fn data_wait(&self) -> Duration {
        self.reader.wait_time()
    }
}

/// Takes room on the devices for the batches of an epoch, where they stay there (`data.cache`);
/// training begins at a position of the data.
fn keep_training(
    config: &Config,
    group: &RankGroup,
    (data, start): (&SessionData, Position),
    threads: usize,
) -> Result<Option<KeptPasses>> {
    if config.data.cache != CacheData::Device {
        return Ok(None);
    }
    let rows = counted_rows(config, data, threads)?;
    if data::training_stays(config, Some(rows)).is_err() {
        return Ok(None);
    }
    let batch_size = (config.train.batch_size * config.train.accumulate) as u64;
    let batches = rows.div_ceil(batch_size);
    group.keep(Purpose::Training, batches)?;
    let (order, epochs) = (data::order(config), data::whole_epochs(config));
    Ok(Some(KeptPasses::new(order, batch_size, epochs, start, batches)))
}

/// Rows of the training data.
fn counted_rows(config: &Config, data: &SessionData, threads: usize) -> Result<u64> {
    data.train_rows.map_or_else(|| data::count_training_rows(config, &data.train, threads), Ok)
}

/// The step after which nothing more is trained: as `train.steps` says, or at the end of a part of
/// an epoch. Where whole epochs are asked for, the data itself ends.
fn last_step(config: &Config, data: &SessionData, threads: usize) -> Result<Option<u64>> {
    let train = &config.train;
    if train.steps.is_some() || train.epochs.fract() == 0.0 {
        return Ok(train.steps);
    }
    Ok(Some(steps_of_epochs(config, counted_rows(config, data, threads)?)))
}

/// Steps of `train.epochs` passes over `rows` rows.
pub fn steps_of_epochs(config: &Config, rows: u64) -> u64 {
    let train = &config.train;
    let per_step = (train.batch_size * train.accumulate) as u64;
    let part = (rows as f64 * train.epochs.fract()).round() as u64;
    train.epochs.trunc() as u64 * rows.div_ceil(per_step) + part.div_ceil(per_step)
}
