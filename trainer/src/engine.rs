//! The engine: one rank's model and its lanes, fed with batches one by one. It knows no files and no checkpoints, so that
//! benches, tests and programs with data of their own drive the same iteration as `headlong train`. All ranks of this process
//! together are a [`crate::crew::Crew`].
//!
//! Two slots hold batches: the one of now and the one of next. [`Engine::prime`] fills the first; each
//! [`Engine::step`] trains on now while next is copied and routed. Batches are those of all ranks: the engine takes its
//! share of them.

use crate::build::Model;
use crate::error::{Error, Result};
use crate::lanes::Lanes;
use crate::schedule::{Call, EVALUATION, PROLOGUE, TRAINING};
use crate::trace::Recorder;
use headlong_device::optimizer::Step;
use headlong_reader::{Batch, Position};

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
pub struct Engine {
    model: Model,
    lanes: Lanes,
    recorder: Recorder,
    /// Which slot holds the batch of now, once primed.
    now: usize,
    primed: bool,
    sent: Sent,
}

/// What a rank has sent in training steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sent {
    /// Steps.
    pub steps: u64,
    /// Bytes to ranks of the same node.
    pub intra_node_bytes: u64,
    /// Bytes to ranks of other nodes.
    pub inter_node_bytes: u64,
}

impl Engine {
    /// An engine over a built model.
    pub fn new(model: Model, lanes: Lanes, recorder: Recorder) -> Self {
        Self { model, lanes, recorder, now: 0, primed: false, sent: Sent::default() }
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The model, to load weights into.
    pub fn model_mut(&mut self) -> &mut Model {
        &mut self.model
    }

    /// What the stages took so far, where that is recorded.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The recorder, for whoever has something to add: time spent waiting for data, say.
    pub fn recorder_mut(&mut self) -> &mut Recorder {
        &mut self.recorder
    }

    /// Whether a batch of now is there.
    pub fn is_primed(&self) -> bool {
        self.primed
    }

    /// Brings in the first batch, or the first after the data ended.
    ///
    /// # Errors
    /// Ids out of range, batches larger than planned.
    pub fn prime(&mut self, batch: &Batch) -> Result<()> {
        let call = training_call(&self.model, self.now, Some((self.now, batch)), StepRates::NONE);
        self.lanes.walk(PROLOGUE, &self.model, &call, &mut self.recorder)?;
        self.primed = true;
        Ok(())
    }

    /// Trains on the batch of now and prepares `next`, which becomes the batch of now. Returns the mean loss of the batch,
    /// over the samples of all ranks.
    ///
    /// # Errors
    /// A loss that is no number (names the layer), ids out of range in `next`, a rank that is gone.
    ///
    /// # Panics
    /// When there is no batch of now.
    pub fn step(&mut self, rates: StepRates, next: Option<&Batch>) -> Result<f64> {
        assert!(self.primed, "a step needs a batch: prime the engine first");
        let other = 1 - self.now;
        let call = training_call(&self.model, self.now, next.map(|batch| (other, batch)), rates);
        let before = self.model.communicator.counters();
        self.lanes.walk(TRAINING, &self.model, &call, &mut self.recorder)?;
        let sent = self.model.communicator.counters() - before;
        self.sent.steps += 1;
        self.sent.intra_node_bytes += sent.intra_node_bytes();
        self.sent.inter_node_bytes += sent.inter_node_bytes();
        let loss = self.model.mean_loss(&call);
        if !loss.is_finite() {
            let what = self.model.first_non_finite(&call).unwrap_or_else(|| "loss".to_owned());
            return Err(Error::NotFinite { step: rates.number, what, value: loss });
        }
        self.now = other;
        self.primed = next.is_some();
        Ok(loss)
    }

    /// Samples in the batch of now, of all ranks.
    pub fn num_samples_now(&self) -> usize {
        self.model.slots[self.now].num_samples_of_all()
    }

    /// Goes on where `former` stands, an engine of the same rank and model whose weights this one has already: batch of now, times, counts.
    pub(crate) fn take_over(&mut self, former: &mut Self) {
        (self.primed, self.sent) = (former.primed, former.sent);
        std::mem::swap(&mut self.recorder, &mut former.recorder);
        let (slot, former_slot) = (&self.model.slots[self.now], &former.model.slots[former.now]);
        slot.take_over(former_slot);
    }

    /// Routes the batch of now again, because rows lie elsewhere than when it was routed.
    ///
    /// # Errors
    /// A rank that is gone.
    pub(crate) fn route_again(&mut self) -> Result<()> {
        let mut call = training_call(&self.model, self.now, None, StepRates::NONE);
        call.next = Some(&self.model.slots[self.now]);
        self.lanes.walk(PROLOGUE, &self.model, &call, &mut self.recorder)
    }

    /// What this rank has sent so far.
    pub fn sent(&self) -> Sent {
        self.sent
    }

    /// Makes everything that is derived from weights again; call it after weights were written from outside.
    pub fn weights_changed(&self) {
        self.model.refresh(self.lanes.stream(crate::lanes::Lane::Dense));
    }

    /// Where the stream of batches stands behind the batch of now.
    pub fn position_after_now(&self) -> Position {
        self.model.slots[self.now].batch().position
    }

    /// Predicts `batch`; [`Engine::logits`] has the result. Changes no weight and no batch of training.
    ///
    /// # Errors
    /// Ids out of range, batches larger than planned, a rank that is gone.
    pub fn predict(&mut self, batch: &Batch) -> Result<()> {
        let call = evaluation_call(&self.model, batch);
        self.lanes.walk(EVALUATION, &self.model, &call, &mut self.recorder)
    }

    /// Hands the first `num_samples` logits of the last prediction to `take`, those of all ranks.
    pub fn logits(&self, num_samples: usize, take: &mut dyn FnMut(&[f32])) {
        let logits = if self.model.is_alone() { &self.model.logits } else { &self.model.all_logits };
        take(&logits.read::<f32>().data()[..num_samples]);
    }

    /// Sets the number that this rank adds to number `index` of the next step's votes.
    pub fn vote(&self, index: usize, value: f32) {
        self.model.votes.write::<f32>().data_mut()[index] = value;
    }

    /// The sum of number `index` over all ranks, of the last step.
    pub fn votes(&self, index: usize) -> f32 {
        self.model.votes.read::<f32>().data()[index]
    }
}

fn training_call<'a>(
    model: &'a Model,
    now: usize,
    next: Option<(usize, &'a Batch)>,
    rates: StepRates,
) -> Call<'a> {
    let slot = &model.slots[now];
    let (share, num_samples_of_all) = (&model.share, slot.num_samples_of_all());
    let step = |learning_rate| Step { learning_rate, number: rates.number };
    Call {
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

fn evaluation_call<'a>(model: &'a Model, batch: &'a Batch) -> Call<'a> {
    let num_samples = model.share.in_evaluation(batch.num_samples).len();
    let now = &model.slots[Model::EVALUATION_SLOT];
    let micro_batch_size = model.micro_batch_capacity;
    Call {
        now,
        next: None,
        incoming: Some(batch),
        num_samples,
        num_samples_of_all: batch.num_samples,
        micro_batch_size,
        num_micro_batches: num_samples.div_ceil(micro_batch_size),
        ..training_call(model, Model::EVALUATION_SLOT, None, StepRates::NONE)
    }
}
