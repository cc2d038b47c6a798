//! The engine: a model and its lanes, fed with batches one by one. It knows no files and no checkpoints, so that benches,
//! tests and programs with data of their own drive the same iteration as `headlong train`.
//!
//! Two slots hold batches: the one of now and the one of next. [`Engine::prime`] fills the first; each
//! [`Engine::step`] trains on now while next is copied and routed.

use crate::build::Model;
use crate::error::{Error, Result};
use crate::lanes::Lanes;
use crate::schedule::{Call, EVALUATION, TRAINING, prologue};
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

/// A model that can be trained batch by batch.
pub struct Engine {
    model: Model,
    lanes: Lanes,
    recorder: Recorder,
    /// Which slot holds the batch of now, once primed.
    now: usize,
    primed: bool,
}

impl Engine {
    /// An engine over a built model.
    pub fn new(model: Model, lanes: Lanes, recorder: Recorder) -> Self {
        Self { model, lanes, recorder, now: 0, primed: false }
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

    /// Brings in the first batch, or the first after the data ended. `batch` gets other buffers in exchange.
    ///
    /// # Errors
    /// Ids out of range, batches larger than planned.
    pub fn prime(&mut self, batch: &mut Batch) -> Result<()> {
        let slot = &self.model.slots[self.now];
        slot.swap(batch);
        let call =
            call(&self.model, self.now, Some(self.now), StepRates { number: 0, dense: 0.0, sparse: 0.0 });
        self.lanes.walk(prologue(), &self.model, &call, &mut self.recorder)?;
        self.primed = true;
        Ok(())
    }

    /// Trains on the batch of now and prepares `next`, which becomes the batch of now. Returns the mean loss of the batch.
    ///
    /// # Errors
    /// A loss that is no number (names the layer), ids out of range in `next`.
    ///
    /// # Panics
    /// When there is no batch of now.
    pub fn step(&mut self, rates: StepRates, next: Option<&mut Batch>) -> Result<f64> {
        assert!(self.primed, "a step needs a batch: prime the engine first");
        let other = 1 - self.now;
        let has_next = next.is_some();
        if let Some(batch) = next {
            self.model.slots[other].swap(batch);
        }
        let call = call(&self.model, self.now, has_next.then_some(other), rates);
        self.lanes.walk(TRAINING, &self.model, &call, &mut self.recorder)?;
        let loss = self.model.mean_loss(call.num_samples);
        if !loss.is_finite() {
            let what = self.model.first_non_finite(&call).unwrap_or_else(|| "loss".to_owned());
            return Err(Error::NotFinite { step: rates.number, what, value: loss });
        }
        self.now = other;
        self.primed = has_next;
        Ok(loss)
    }

    /// Samples in the batch of now.
    pub fn num_samples_now(&self) -> usize {
        self.model.slots[self.now].batch().num_samples
    }

    /// Makes everything that is derived from weights again; call it after weights were written from outside.
    pub fn weights_changed(&self) {
        self.model.refresh(self.lanes.stream(crate::lanes::Lane::Dense));
    }

    /// Where the stream of batches stands behind the batch of now.
    pub fn position_after_now(&self) -> Position {
        self.model.slots[self.now].batch().position
    }

    /// Predicts `batch` and hands logits and labels (empty where there are none) to `take`. Changes no weight and no batch of
    /// training. `batch` keeps its contents.
    ///
    /// # Errors
    /// Ids out of range, batches larger than planned.
    pub fn predict(&mut self, batch: &mut Batch, take: &mut dyn FnMut(&[f32], &[f32])) -> Result<()> {
        let slot = Model::EVALUATION_SLOT;
        self.model.slots[slot].swap(batch);
        let call = call(&self.model, slot, None, StepRates { number: 0, dense: 0.0, sparse: 0.0 });
        let walked = self.lanes.walk(EVALUATION, &self.model, &call, &mut self.recorder);
        self.model.slots[slot].swap(batch);
        walked?;
        let logits = self.model.logits.first_rows(call.num_samples);
        take(logits.read::<f32>().data(), &batch.labels);
        Ok(())
    }
}

fn call(model: &Model, now: usize, next: Option<usize>, rates: StepRates) -> Call<'_> {
    let num_samples = model.slots[now].batch().num_samples;
    let step = |learning_rate| Step { learning_rate, number: rates.number };
    Call {
        now: &model.slots[now],
        next: next.map(|next| &model.slots[next]),
        num_samples,
        micro_batch_size: model.micro_batch_size,
        micro_batch: 0,
        dense_step: step(rates.dense),
        sparse_step: step(rates.sparse),
    }
}
