//! The worker: one rank's model and its lanes, fed with batches one by one. It knows no files and
//! no checkpoints, so that benches, tests and programs with data of their own drive the same
//! iteration as `headlong train`. All ranks of this process together are a
//! [`crate::iteration::ranks::RankGroup`].
//!
//! Two slots hold batches: the one of now and the one of next. [`RankWorker::prime`] fills the
//! first; each [`RankWorker::step`] trains on now while next is copied and routed. Batches are
//! those of all ranks: the worker takes its share of them.

use crate::error::{Error, Result, exchange_failed};
use crate::iteration::lanes::{Lanes, Place};
use crate::iteration::model::strips::StripSizes;
use crate::iteration::model::{Incoming, Model, Purpose, ScaleState};
use crate::iteration::schedule::{Call, Lane, Schedule};
use crate::iteration::share::pad;
use crate::iteration::trace::Recorder;
use crate::metrics::Scores;
use headlong_device::cuda::CudaDevice;
use headlong_device::optimizer::Step;
use headlong_reader::{Batch, Position};
use std::collections::VecDeque;

/// Steps that may be on their way at once: the host prepares the batch after the next while the
/// device works.
const MOST_PENDING: usize = 2;

/// Learning rates and number of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepRates {
    /// 1 for the first step of the run.
    pub number: u64,
    /// Learning rate of the dense parameters.
    pub dense: f32,
    /// Learning rate of the tables.
    pub sparse: f32,
}

impl StepRates {
    /// Of calls that train nothing.
    const NONE: Self = Self { number: 0, dense: 0.0, sparse: 0.0 };
}

/// A model that can be trained batch by batch.
pub struct RankWorker {
    model: Model,
    lanes: Lanes,
    recorder: Recorder,
    /// The stages of a step, of what comes before the first one, and of an evaluation.
    schedule: Schedule,
    preparation: Schedule,
    evaluation: Schedule,
    /// The evaluation's two parts, where strips are chosen.
    evaluation_in_two: [Schedule; 2],
    gather: Schedule,
    /// The strips that the last batch of training needed, and that of an evaluation.
    needed: [Option<StripSizes>; 2],
    /// Which slot holds the batch of now, once primed.
    now: usize,
    primed: bool,
    sent: Sent,
    /// Number of the step that was enqueued last.
    latest: u64,
    /// Steps that were enqueued and whose loss is not known yet, oldest first.
    pending: VecDeque<Pending>,
    /// Losses that no one has taken yet, oldest first.
    finished: VecDeque<StepLoss>,
    /// The last prediction, where it was brought from a device.
    logits: Vec<f32>,
    /// A short batch of an evaluation on a device, made full.
    padded: Batch,
    /// What this rank has evaluated of late.
    scores: Scores,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepLoss {
    /// 1 for the first step of the run.
    pub number: u64,
    /// Mean over the samples of all ranks, before the update.
    pub loss: f64,
    pub num_samples: usize,
    /// Where the loss scale stands behind the step, where the loss is scaled.
    pub scaling: Option<ScaleState>,
}

/// A step that is on its way.
#[derive(Debug, Clone, Copy)]
struct Pending {
    rates: StepRates,
    /// The slot of its batch, and that batch's samples over all ranks.
    slot: usize,
    num_samples_of_all: usize,
    /// Whether it prepares another batch.
    has_next: bool,
}

/// What a rank has sent in training steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sent {
    pub steps: u64,
    /// Bytes to ranks of the same node.
    pub intra_node_bytes: u64,
    /// Bytes to ranks of other nodes.
    pub inter_node_bytes: u64,
}

impl RankWorker {
    pub fn new(model: Model, lanes: Lanes, recorder: Recorder) -> Self {
        let pending = VecDeque::with_capacity(MOST_PENDING);
        // Where losses are never taken, the last few are kept.
        let finished = VecDeque::with_capacity(2 * MOST_PENDING);
        let features = model.features();
        Self {
            schedule: Schedule::step(features),
            preparation: Schedule::preparation(features),
            evaluation: Schedule::evaluation(features),
            evaluation_in_two: Schedule::evaluation_in_two(features),
            needed: [None; 2],
            gather: Schedule::gather(features),
            model,
            lanes,
            recorder,
            now: 0,
            primed: false,
            sent: Sent::default(),
            latest: 0,
            pending,
            finished,
            logits: Vec::new(),
            padded: Batch::default(),
            scores: Scores::default(),
        }
    }

    /// Meets the other ranks' devices, where models lie on devices: all ranks call it together,
    /// before the first batch.
    pub(crate) fn init_device_comm(&mut self) -> Result<()> {
        self.model.init_device_comm(self.lanes.stream(Lane::Comm))
    }

    /// The CUDA device that the lanes work on, where it is one.
    pub(crate) fn cuda_device(&self) -> Option<CudaDevice> {
        self.lanes.stream(Lane::Dense).as_cuda().map(|cuda| cuda.device().clone())
    }

    /// The stages of a step, to be changed.
    #[cfg(test)]
    pub(crate) fn schedule_mut(&mut self) -> &mut Schedule {
        &mut self.schedule
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    /// What the stages took so far, where that is recorded.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The recorder, so that a caller can add to it: time spent waiting for data, say.
    pub fn recorder_mut(&mut self) -> &mut Recorder {
        &mut self.recorder
    }

    /// Whether a batch of now is there.
    pub fn is_primed(&self) -> bool {
        self.primed
    }

    /// Takes room on the device for `batches` batches that stay there: all ranks call it before the
    /// first batch.
    pub(crate) fn keep(&mut self, purpose: Purpose, batches: u64) -> Result<()> {
        self.model.keep(self.lanes.stream(Lane::Dense), purpose, batches)
    }

    /// Brings in the first batch, or the first after the data ended.
    pub fn prime<'a>(&mut self, batch: impl Into<Incoming<'a>>) -> Result<()> {
        self.drain()?;
        self.model.expect_strips(&self.model.slots[self.now], self.needed[0]);
        let call =
            training_call(&self.model, self.now, Some((self.now, batch.into())), StepRates::NONE);
        self.model.hand_over(self.lanes.pool(), &call)?;
        self.lanes.walk(&self.preparation, &self.model, &call, &mut self.recorder)?;
        self.wait_for_prologue()?;
        self.primed = true;
        Ok(())
    }

    /// Trains on the batch of now and prepares `next`, which becomes the batch of now. Returns the
    /// mean loss of the batch, over the samples of all ranks, for which it waits:
    /// [`RankWorker::enqueue`] does not.
    ///
    /// # Panics
    /// When there is no batch of now.
    pub fn step(&mut self, rates: StepRates, next: Option<&Batch>) -> Result<f64> {
        self.enqueue(rates, next)?;
        self.drain()?;
        let last = self.finished.back().map_or(f64::NAN, |last| last.loss);
        self.finished.clear();
        Ok(last)
    }

    /// Gives the device the step over the batch of now, and `next` to prepare, which becomes the
    /// batch of now. At most two steps are on their way: before a third, the first is waited for.
    /// On a CPU the step has run when this returns.
    ///
    /// # Errors
    /// A loss that is not finite (names the layer, on a CPU), ids out of range in `next`, a rank
    /// that is gone, a device that fails (names the stage): of this step, or of one that was waited
    /// for.
    ///
    /// # Panics
    /// When there is no batch of now.
    pub fn enqueue(&mut self, rates: StepRates, next: Option<&Batch>) -> Result<()> {
        self.enqueue_incoming(rates, next.map(Incoming::Read))
    }

    /// The same with a batch that stays on the device, or has stayed there.
    pub(crate) fn enqueue_incoming(
        &mut self,
        rates: StepRates,
        next: Option<Incoming<'_>>,
    ) -> Result<()> {
        assert!(self.primed, "a step needs a batch: prime the worker first");
        while self.pending.len() >= MOST_PENDING {
            self.complete_oldest()?;
        }
        let (now, other) = (self.now, 1 - self.now);
        self.fit_strips()?;
        self.model.expect_strips(&self.model.slots[other], self.needed[0]);
        let call = training_call(&self.model, now, next.map(|batch| (other, batch)), rates);
        let num_samples_of_all = call.num_samples_of_all;
        let before = self.model.communicator.counters();
        self.model.hand_over(self.lanes.pool(), &call)?;
        let place = Place { slot: now, follows_step: !self.pending.is_empty() };
        self.recorder.begin_step(rates.number);
        self.lanes.walk_whole(&self.schedule, &self.model, &call, place, &mut self.recorder)?;
        self.recorder.end_step();
        let sent = self.model.communicator.counters() - before;
        self.sent.steps += 1;
        self.sent.intra_node_bytes += sent.intra_node_bytes();
        self.sent.inter_node_bytes += sent.inter_node_bytes();
        self.latest = rates.number;
        let has_next = next.is_some();
        self.pending.push_back(Pending { rates, slot: now, num_samples_of_all, has_next });
        self.now = other;
        self.primed = has_next;
        if self.model.on_device() { Ok(()) } else { self.complete_oldest() }
    }

    /// Brings a batch to where a device's copies find it, and no more: for benchmarks. The batch of
    /// next is lost. Errors are those of [`RankWorker::enqueue`].
    pub fn stage(&self, batch: &Batch) -> Result<()> {
        self.model.stage(self.lanes.pool(), &self.model.slots[1 - self.now], batch.into())
    }

    /// Makes the strips of the batch of now as long as it needs; where they were too short when it
    /// was asked for, it is asked for again, on all ranks.
    fn fit_strips(&mut self) -> Result<()> {
        let mut routed_by = 1 - self.now;
        loop {
            let [now, before] = [self.now, routed_by].map(|slot| &self.model.slots[slot]);
            let Some(needed) = self.model.needed_strips(now, before)? else { return Ok(()) };
            let is_cut = now.is_cut(needed);
            self.model.fit_strips(now, needed);
            self.needed[0] = Some(needed);
            if !is_cut {
                return Ok(());
            }
            now.route().forget_needed();
            self.prepare_again()?;
            self.model.slots[self.now].mark_end(self.lanes.stream(Lane::Dense).cuda_body());
            routed_by = self.now;
        }
    }

    /// Routes the batch of now again, as it was staged.
    fn prepare_again(&mut self) -> Result<()> {
        let mut call = training_call(&self.model, self.now, None, StepRates::NONE);
        call.next = Some(&self.model.slots[self.now]);
        self.lanes.walk(&self.preparation, &self.model, &call, &mut self.recorder)
    }

    /// Waits for all steps that are on their way, and asks the device for what it has flagged
    /// meanwhile.
    ///
    /// # Errors
    /// A loss that is not finite, a device that has failed, more rows for one owner than a slot was
    /// planned for (names the table).
    pub fn drain(&mut self) -> Result<()> {
        while !self.pending.is_empty() {
            self.complete_oldest()?;
        }
        self.model.check_flags(self.latest)
    }

    /// Hands the losses of steps that have ended to `take`, oldest first, each once.
    pub fn take_losses(&mut self, take: &mut dyn FnMut(StepLoss)) {
        self.finished.drain(..).for_each(take);
    }

    fn complete_oldest(&mut self) -> Result<()> {
        let Some(oldest) = self.pending.pop_front() else { return Ok(()) };
        let Pending { rates, slot, num_samples_of_all, has_next } = oldest;
        let loss = self.model.mean_loss(slot, num_samples_of_all, rates.number)?;
        self.lanes.take_times(&self.schedule, slot, has_next, &mut self.recorder);
        if !loss.is_finite() {
            let call = training_call(&self.model, slot, None, rates);
            // Once a device has gone on to other batches, it alone can tell where it began.
            let found = match self.model.on_device() {
                true => self.model.found_non_finite(slot, rates.number, &call),
                false => self.model.first_non_finite(&call),
            };
            let what = found.unwrap_or_else(|| "loss".to_owned());
            return Err(Error::NotFinite { step: rates.number, what, value: loss });
        }
        let scaling = self.model.scaling(slot)?;
        if let Some(scaling) = scaling.filter(|scaling| scaling.was_smallest) {
            let first_bad = self.model.first_bad_of_all(scaling.first_bad)?;
            let name = first_bad.and_then(|quad| self.model.name_of_gradient(4 * quad as usize));
            let what = format!(
                "gradient of {}, at the smallest loss scale, 1,",
                name.unwrap_or("a table's vectors")
            );
            return Err(Error::NotFinite { step: rates.number, what, value: f64::INFINITY });
        }
        if self.finished.len() == self.finished.capacity() {
            self.finished.pop_front();
        }
        self.finished.push_back(StepLoss {
            number: rates.number,
            loss,
            num_samples: num_samples_of_all,
            scaling,
        });
        Ok(())
    }

    /// Where the loss scale stands behind the last step, where the loss is scaled. Waits for the
    /// device.
    pub fn loss_scale(&self) -> Result<Option<ScaleState>> {
        self.model.loss_scale()
    }

    /// Puts the loss scale where it stood: when training continues. Nothing where the loss is not
    /// scaled, or was not.
    pub fn set_loss_scale(&self, state: Option<ScaleState>) -> Result<()> {
        state.map_or(Ok(()), |state| self.model.set_loss_scale(&state))
    }

    /// Samples in the batch of now, of all ranks.
    pub fn num_samples_now(&self) -> usize {
        self.model.slots[self.now].num_samples_of_all()
    }

    /// Resumes where `former` stands, a worker of the same rank and model whose weights this one
    /// has already: batch of now, times, counts.
    pub(crate) fn adopt(&mut self, former: &mut Self) -> Result<()> {
        (self.primed, self.sent, self.latest) = (former.primed, former.sent, former.latest);
        self.needed = former.needed;
        std::mem::swap(&mut self.finished, &mut former.finished);
        std::mem::swap(&mut self.recorder, &mut former.recorder);
        let (slot, former_slot) = (&self.model.slots[self.now], &former.model.slots[former.now]);
        slot.adopt(former_slot);
        self.set_loss_scale(former.loss_scale()?)
    }

    /// Routes the batch of now again, because rows lie elsewhere than when it was routed.
    pub(crate) fn route_again(&mut self) -> Result<()> {
        self.model.stage_again(self.lanes.pool(), &self.model.slots[self.now])?;
        self.prepare_again()?;
        self.wait_for_prologue()
    }

    /// Ends the exchanges between devices of a worker whose place another has taken: behind all
    /// ranks, so that none still looks after an NCCL that ends elsewhere first.
    pub(crate) fn leave_devices(&mut self) -> Result<()> {
        if self.model.devices().is_none() {
            return Ok(());
        }
        let at_rest = self.lanes.stream(Lane::Dense).synchronize();
        at_rest.map_err(Error::failed("the device has not done its last step"))?;
        let all_are_here = self.model.communicator.barrier();
        all_are_here.map_err(exchange_failed("which devices are done"))?;
        self.model.leave_devices();
        Ok(())
    }

    /// The second step writes where the prologue's copies read, and would only wait for the step
    /// before the first.
    fn wait_for_prologue(&self) -> Result<()> {
        let waited = self.lanes.stream(Lane::Dense).synchronize();
        waited.map_err(Error::failed("the first batch was not brought to the device"))
    }

    /// What this rank has sent so far.
    pub fn sent(&self) -> Sent {
        self.sent
    }

    /// Makes everything that is derived from weights again; call it after weights were written from
    /// outside.
    pub fn weights_changed(&self) {
        self.model.refresh(self.lanes.stream(Lane::Dense));
    }

    /// Where the stream of batches stands behind the batch of now.
    pub fn position_after_now(&self) -> Position {
        self.model.slots[self.now].batch().position
    }

    /// Predicts `batch`; [`RankWorker::logits`] has the result. Changes no weight and no batch of
    /// training.
    pub fn predict(&mut self, batch: &Batch) -> Result<()> {
        let num_samples = self.forward(batch.into())?;
        let mut call = evaluation_call(&self.model, batch.into(), batch.num_samples);
        call.num_samples_of_all = num_samples;
        self.lanes.walk(&self.gather, &self.model, &call, &mut self.recorder)?;
        if self.model.on_device() {
            self.logits =
                self.model.logits_on_host(self.model.logits_of_all(), batch.num_samples)?;
        }
        Ok(())
    }

    /// Predicts a batch and keeps this rank's scores: [`RankWorker::take_scores`].
    ///
    /// # Panics
    /// When the batch has no labels.
    pub fn evaluate<'a>(&mut self, incoming: impl Into<Incoming<'a>>) -> Result<()> {
        let incoming = incoming.into();
        let num_samples = self.forward(incoming)?;
        let Self { model, scores, .. } = self;
        if let Incoming::Kept { index, .. } = incoming {
            return model.kept_labels(index, &mut |labels| add_scores(model, labels, scores));
        }
        let Some(batch) = incoming.batch() else { return Ok(()) };
        let mine = model.share.in_evaluation(num_samples);
        let labels =
            &batch.labels[mine.start.min(batch.num_samples)..mine.end.min(batch.num_samples)];
        if let Incoming::Keep { .. } = incoming {
            model.keep_labels(labels);
        }
        add_scores(model, labels, scores)
    }

    /// This rank's scores of all batches that were evaluated since the last call. They may be given
    /// back ([`RankWorker::reuse_scores`]).
    pub fn take_scores(&mut self) -> Scores {
        std::mem::take(&mut self.scores)
    }

    /// Uses the memory of `scores` from now on.
    pub fn reuse_scores(&mut self, mut scores: Scores) {
        scores.clear();
        self.scores = scores;
    }

    /// The forward passes over a batch, and how many samples it was made: on a device a short batch
    /// is made full by samples of no meaning, so that the same graph runs, and without graphs the
    /// same products: another number of rows may be another algorithm, which adds in another order.
    /// A logit depends on its own sample alone. A batch that stays on the device stays as it was
    /// made.
    fn forward(&mut self, incoming: Incoming<'_>) -> Result<usize> {
        self.drain()?;
        let full = self.model.config.eval.batch_size;
        let is_short = |batch: &&Batch| (1..full).contains(&batch.num_samples);
        let incoming = match incoming.batch().filter(is_short) {
            Some(batch) if self.model.on_device() => {
                pad(&mut self.padded, batch, full);
                incoming.with(&self.padded)
            }
            _ => incoming,
        };
        let num_samples = match incoming {
            Incoming::Kept { index, .. } => self.model.kept_samples(index),
            Incoming::Read(batch) | Incoming::Keep { batch, .. } => batch.num_samples,
        };
        let call = evaluation_call(&self.model, incoming, num_samples);
        self.model.hand_over(self.lanes.pool(), &call)?;
        let in_training = self.needed_in_training(full);
        let (model, slot, recorder) = (&self.model, call.now, &mut self.recorder);
        let mut forward = &self.evaluation;
        if model.chooses_strips() {
            let [ahead, rest] = &self.evaluation_in_two;
            model.expect_strips(slot, self.needed[1].or(in_training));
            loop {
                self.lanes.walk(ahead, model, &call, recorder)?;
                slot.mark_end(self.lanes.stream(Lane::Dense).cuda_body());
                let needed = model.needed_strips(slot, slot)?;
                self.needed[1] = needed;
                let Some(needed) = needed.filter(|needed| slot.is_cut(*needed)) else { break };
                model.fit_strips(slot, needed);
                slot.route().forget_needed();
            }
            self.needed[1].iter().for_each(|needed| model.fit_strips(slot, *needed));
            forward = rest;
        }
        let place = Place { slot: Model::EVALUATION_SLOT, follows_step: false };
        self.lanes.walk_whole(forward, model, &call, place, recorder)?;
        Ok(call.num_samples_of_all)
    }

    /// What a batch of `num_samples` samples needs at most, going by the last batch of training, if
    /// there was one.
    fn needed_in_training(&self, num_samples: usize) -> Option<StripSizes> {
        let train = &self.model.config.train;
        let factor = num_samples as f64 / (train.batch_size * train.accumulate) as f64;
        self.needed[0].map(|needed| needed.at_most_for(factor))
    }

    /// Hands the first `num_samples` logits of the last prediction to `take`, those of all ranks.
    pub fn logits(&self, num_samples: usize, take: &mut dyn FnMut(&[f32])) {
        match self.model.on_device() {
            true => take(&self.logits[..num_samples]),
            false => take(&self.model.logits_of_all().read::<f32>().data()[..num_samples]),
        }
    }

    /// Sets the number that this rank adds to number `index` of the next step's control flags.
    pub fn set_control_flag(&self, index: usize, value: f32) -> Result<()> {
        let vote = self.model.control_flags.columns(index, 1);
        vote.copy_from::<f32>(&[value]).map_err(Error::failed("a vote cannot be given"))
    }

    /// The sum of number `index` over all ranks, of the last step.
    pub fn control_flag(&self, index: usize) -> Result<f32> {
        let control_flags = self.model.control_flags.columns(index, 1).to_vec::<f32>();
        Ok(control_flags.map_err(Error::failed("the control flags cannot be read"))?[0])
    }
}

fn training_call<'a>(
    model: &'a Model,
    now: usize,
    next: Option<(usize, Incoming<'a>)>,
    rates: StepRates,
) -> Call<'a> {
    let slot = &model.slots[now];
    let (share, num_samples_of_all) = (&model.share, slot.num_samples_of_all());
    let step = |learning_rate| Step { learning_rate, number: rates.number };
    Call {
        slot,
        now: slot,
        next: next.map(|(next, _)| &model.slots[next]),
        incoming: next.map(|(_, batch)| batch),
        num_samples: slot.batch().num_samples,
        num_samples_of_all,
        micro_batch_size: share.micro_batch_size(),
        num_micro_batches: num_samples_of_all.div_ceil(share.micro_batch_size_of_all()),
        micro_batch_size_of_all: share.micro_batch_size_of_all(),
        sum_blocks: share.sum_blocks(),
        micro_batch: 0,
        dense_step: step(rates.dense),
        sparse_step: step(rates.sparse),
    }
}

/// Adds the scores of this rank's samples of the last prediction, whose labels are these.
fn add_scores(model: &Model, labels: &[f32], scores: &mut Scores) -> Result<()> {
    match model.on_device() {
        true => scores.extend(&model.logits_on_host(&model.logits, labels.len())?, labels),
        false => scores.extend(&model.logits.read::<f32>().data()[..labels.len()], labels),
    }
    Ok(())
}

fn evaluation_call<'a>(
    model: &'a Model,
    incoming: Incoming<'a>,
    num_samples_of_all: usize,
) -> Call<'a> {
    let num_samples = model.share.in_evaluation(num_samples_of_all).len();
    let now = &model.slots[Model::EVALUATION_SLOT];
    let micro_batch_size = model.micro_batch_capacity;
    Call {
        slot: now,
        now,
        next: None,
        incoming: Some(incoming),
        num_samples,
        num_samples_of_all,
        micro_batch_size,
        num_micro_batches: num_samples.div_ceil(micro_batch_size),
        ..training_call(model, Model::EVALUATION_SLOT, None, StepRates::NONE)
    }
}
