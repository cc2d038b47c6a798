//! What the host and a device with memory of its own hand each other: batches, learning rates, loss
//! sums.
//!
//! Everything goes through page-locked memory of a batch slot: the host writes there before it
//! enqueues a step, the step's first copies read it, its last one writes the loss sums back. A slot
//! is written again two steps later, when its step has ended. Of batches that stay on the device
//! (`kept.rs`) the host writes where they are.

use super::{BatchSlot, Call, Devices, Exchange, Incoming, Model};
use crate::error::{Cause, Error, Result, exchange_failed};
use crate::iteration::share::Share;
use crate::report::output::say;
use headlong_comm::device::narrow;
use headlong_comm::{DeviceCollectives, DeviceSizes, SumLen};
use headlong_device::cuda::{
    CudaStream, DeviceMemory, DevicePtr, DeviceStep, Event, Pieces, Pinned,
};
use headlong_device::pool::Pool;
use headlong_device::{DeviceError, Mat, Stream};
use headlong_embedding::EmbeddingError;
use headlong_embedding::cuda::StagedPart;
use headlong_mlp::loss_scale::{STATE_LEN, ScaleState};
use headlong_reader::{Batch, Jagged};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A device that is found to have failed behind the stages of step `step`.
fn lost_behind(step: u64, source: Cause) -> Error {
    Error::Device { stage: "the end of the step", step, source }
}

/// The page-locked memory of one slot.
pub(super) struct Staging {
    labels: Mutex<Pinned>,
    /// Dense features, samples × features.
    dense: Mutex<Pinned>,
    /// The step's [`DeviceStep`] for the dense parameters, then the one for the tables.
    rates: Mutex<Pinned>,
    /// What the loss summed up, two numbers a block.
    sums: Mutex<Pinned>,
    /// The state of the loss scale behind the step.
    scaling: Mutex<Pinned>,
    /// What the step has found that is not finite.
    found: Mutex<Pinned>,
    /// The copies that bring a batch, where batches may stay on the device.
    pub(super) pieces: Option<Mutex<Pieces>>,
    /// Behind everything that was enqueued with this slot as the batch of now.
    pub(super) ended: Event,
}

/// What one all-reduce between devices takes: numbers in the memory of sums.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Summed {
    pub(crate) at: DevicePtr,
    pub(crate) len: SumLen,
}

/// Numbers that one thread copies at a time: 256 KiB.
const COPIED_A_TASK: usize = 1 << 16;

/// Bytes of one [`DeviceStep`].
pub(super) const RATES_BYTES: usize = size_of::<DeviceStep>();

impl Staging {
    /// Room for `samples` samples of `num_dense` features, and `blocks` loss sums.
    pub(super) fn new(
        stream: &Stream,
        samples: usize,
        num_dense: usize,
        blocks: usize,
    ) -> Result<Self> {
        let device = stream.cuda_body().device();
        let pinned =
            |bytes: usize| Pinned::new(device, bytes.max(1)).map(Mutex::new).map_err(refused);
        Ok(Self {
            labels: pinned(samples * 4)?,
            dense: pinned(samples * num_dense * 4)?,
            rates: pinned(2 * RATES_BYTES)?,
            sums: pinned(blocks * 2 * 4)?,
            scaling: pinned(STATE_LEN * 4)?,
            found: pinned(8)?,
            pieces: None,
            ended: Event::new(device).map_err(refused)?,
        })
    }
}

impl BatchSlot {
    pub(super) fn staging(&self) -> &Staging {
        self.staging.as_ref().expect("slots of a model on a device have page-locked memory")
    }

    /// Marks the end of what was enqueued with this slot as the batch of now.
    pub(crate) fn mark_end(&self, main: &CudaStream) {
        main.record(&self.staging().ended);
    }

    /// Puts the samples `samples` of a batch where the device's copies find them, by all threads of
    /// `pool`.
    fn stage(
        &self,
        pool: &Pool,
        batch: &Batch,
        samples: Range<usize>,
        with_dense: bool,
    ) -> Result<()> {
        let (staging, planned) = (self.staging(), self.labels.rows());
        if samples.len() > planned {
            return Err(too_many(samples.len(), planned));
        }
        let mut labels = lock(&staging.labels);
        let labels = &mut labels.as_mut_slice::<f32>()[..samples.len()];
        match batch.labels.is_empty() {
            true => labels.fill(0.0),
            false => copy(pool, labels, &batch.labels[samples.clone()]),
        }
        if with_dense {
            let width = self.dense.cols();
            let dense = &batch.dense[samples.start * width..samples.end * width];
            copy(pool, &mut lock(&staging.dense).as_mut_slice::<f32>()[..dense.len()], dense);
        }
        let staged = self.route_mut().stage_part(pool, &super::BatchIds(batch), samples);
        staged.map_err(Error::failed("the ids of a batch cannot be routed"))
    }

    /// Stages this rank's share of `incoming`: from where it lies, where it lies in one piece.
    pub(super) fn stage_share(
        &self,
        pool: &Pool,
        incoming: &Batch,
        share: &Share,
        with_dense: bool,
    ) -> Result<()> {
        if let Some(run) = self.only_run(incoming, share) {
            self.take_note(incoming, run.len());
            return self.stage(pool, incoming, run, with_dense);
        }
        self.take(incoming, share);
        self.stage_again(pool, with_dense)
    }

    /// Stages the samples that are kept here.
    fn stage_again(&self, pool: &Pool, with_dense: bool) -> Result<()> {
        let batch = self.batch();
        self.stage(pool, &batch, 0..batch.num_samples, with_dense)
    }

    /// Reads back what was staged.
    pub(super) fn staged(&self, batch: &mut Batch) {
        let (staging, of) = (self.staging(), self.batch());
        let samples = of.num_samples;
        (batch.num_samples, batch.position, batch.share_of) = (samples, of.position, None);
        batch.labels = lock(&staging.labels).as_slice()[..samples].to_vec();
        batch.dense = lock(&staging.dense).as_slice()[..samples * self.dense.cols()].to_vec();
        let route = self.route();
        let bags = route.staged_bags();
        let bags = bags.map(|(values, offsets)| Jagged { values, offsets: offsets.into() });
        batch.sparse = bags.collect();
    }

    /// Hands the parts of a staged batch to `take`, the same ones for the same head of its route.
    pub(super) fn parts(&self, with_dense: bool, take: &mut dyn FnMut(StagedPart)) {
        let (staging, samples) = (self.staging(), self.batch().num_samples);
        let mut part = |from: &Mutex<Pinned>, to: &Mat, words: usize| {
            if words > 0 {
                let (from, to) = (lock(from).device_visible(), to.device_ptr());
                take(StagedPart { from, to, words, is_head: false });
            }
        };
        part(&staging.labels, &self.labels, samples);
        part(&staging.dense, &self.dense, if with_dense { samples * self.dense.cols() } else { 0 });
        self.route().staged_parts(take);
    }

    /// Enqueues the copies of a staged batch.
    fn copy_to_device(&self, stream: &Stream, with_dense: bool) {
        let (cuda, staging, samples) =
            (stream.cuda_body(), self.staging(), self.batch().num_samples);
        if let Some(pieces) = &staging.pieces {
            return lock(pieces).copy(cuda);
        }
        cuda.copy_to_device(self.labels.device_ptr(), &lock(&staging.labels), 0..samples * 4);
        let dense_bytes = samples * self.dense.cols() * 4;
        if with_dense && dense_bytes > 0 {
            cuda.copy_to_device(self.dense.device_ptr(), &lock(&staging.dense), 0..dense_bytes);
        }
        self.route().copy(stream);
    }
}

impl Model {
    /// Takes what a model needs besides on a device with memory of its own.
    pub(super) fn go_to_device(&mut self, stream: &Stream) -> Result<()> {
        let steps =
            DeviceMemory::new(stream.cuda_body().device(), "learning rates", 2 * RATES_BYTES);
        let steps = steps.map_err(refused)?;
        self.tables.set_device_step(steps.ptr().offset(RATES_BYTES));
        self.device_steps = Some(steps);
        let (num_dense, blocks) = (self.config.data.num_dense, self.loss_sums.rows());
        for slot in &mut self.slots {
            slot.staging = Some(Staging::new(stream, slot.labels.rows(), num_dense, blocks)?);
        }
        Ok(())
    }

    /// Meets the other ranks' devices, where there are several: all ranks call it together.
    pub(crate) fn init_device_comm(&mut self, stream: &Stream) -> Result<()> {
        if self.on_device() && !self.is_single_rank() {
            let logits = self.config.eval.batch_size.div_ceil(self.communicator.num_ranks())
                * size_of::<f32>();
            let by_node = match std::mem::replace(&mut self.exchange, Exchange::None) {
                Exchange::ByNode(proxies) => Some(proxies),
                _ => None,
            };
            let slots = self.tables.slots().map_or(0, |slots| slots.elements);
            let vectors = slots * self.send_rows.dtype().bytes();
            let route = self.slots[0].route();
            // Only what goes between nodes needs room on the way.
            let [block_bytes, rail_bytes] = match by_node {
                None => [vectors.max(route.id_slots().stride), 0],
                Some(_) => [0, vectors.max(route.id_slots_by_node()[1].stride)],
            };
            drop(route);
            let is_narrow = self.dense_sums.is_some();
            let part = self.divided.as_ref().map(|divided| divided.longest_part(is_narrow));
            let sizes = DeviceSizes {
                block_bytes: logits.max(block_bytes),
                rail_bytes,
                sums: self.sum_len(),
                part: part.unwrap_or(SumLen::of_f32(0)),
            };
            let failed = || exchange_failed("the devices' addresses");
            let ranks = self.communicator.attach_device_for(stream, sizes).map_err(failed())?;
            if self.communicator.rails().is_some() && ranks.rank().0 == 0 {
                say(format_args!("devices exchange: {}", ranks.name()));
            }
            if by_node.is_some() && ranks.by_node().is_none() {
                let setting = "comm.deduplicate = \"node\"";
                let reason = format!(
                    "between devices nodes merge rows where ranks exchange inside them first, \
                     and these exchange by {}",
                    ranks.name()
                );
                return Err(Error::unsupported(setting, reason));
            }
            if self.dense_sums.is_some() {
                // A captured call may not load what it needs.
                narrow::load(stream);
            }
            self.exchange = Exchange::Device(Devices { ranks, by_node });
        }
        Ok(())
    }

    /// Ends the exchanges between devices: nothing of them is on its way.
    pub(crate) fn leave_devices(&mut self) {
        self.exchange = Exchange::None;
    }

    /// What devices add up where replicated rows' gradients come first: all that lies before the
    /// dense gradients. Nothing where there are no such rows: an all-reduce of its own would cost
    /// more than it brings; nor where a rank has yet to look at its part of the dense ones.
    pub(crate) fn summed_first(&self) -> Summed {
        let (at, all) = (self.reduced.device_ptr(), self.sum_len());
        let before_dense = || match (&self.divided, &self.dense_sums) {
            (Some(_), _) => all.bytes(),
            (None, Some(sums)) => (sums.device_ptr().0 - at.0) as usize,
            (None, None) => (self.gradients.device_ptr().0 - at.0) as usize,
        };
        let waits = self.divided.is_some() && self.loss_scale.is_some();
        let is_apart = self.tables.frequent_len() > 0 && !waits;
        let bytes = if is_apart { before_dense() } else { 0 };
        let exact = all.exact.min(bytes / size_of::<f32>());
        Summed { at, len: SumLen { exact, narrow: (bytes - exact * size_of::<f32>()) / 2 } }
    }

    /// What they add up then: all else.
    pub(crate) fn summed_then(&self) -> Summed {
        let (Summed { at, len }, all) = (self.summed_first(), self.sum_len());
        let (exact, narrow) = (all.exact - len.exact, all.narrow - len.narrow);
        Summed { at: at.offset(len.bytes()), len: SumLen { exact, narrow } }
    }

    /// All that devices add up.
    pub(crate) fn sum_len(&self) -> SumLen {
        let bytes = match (&self.dense_sums, &self.divided) {
            (None, _) => return SumLen::of_f32(self.reduced.bytes() / size_of::<f32>()),
            (Some(_), None) => self.reduced.bytes(),
            // Dense gradients are the last of it.
            (Some(sums), Some(_)) => self.reduced.elements_of(sums).start * sums.dtype().bytes(),
        };
        // Slots begin at cache lines, and those of bf16 follow those of f32.
        let exact = self.reduced.elements_of(&self.control_flags).end.next_multiple_of(16);
        SumLen { exact, narrow: (bytes - exact * size_of::<f32>()) / 2 }
    }

    pub(crate) fn devices(&self) -> Option<&dyn DeviceCollectives> {
        match &self.exchange {
            Exchange::Device(devices) => Some(&*devices.ranks),
            _ => None,
        }
    }

    /// Brings the batch of a slot to the device again, where it came from elsewhere than the
    /// reader.
    pub(crate) fn stage_again(&self, pool: &Pool, slot: &BatchSlot) -> Result<()> {
        if self.on_device() { slot.stage_again(pool, self.copies_dense()) } else { Ok(()) }
    }

    /// Whether the model lies on a device that works by itself, behind the host.
    pub(crate) fn on_device(&self) -> bool {
        self.device_steps.is_some()
    }

    /// The addresses of both steps, for the dense parameters and for the tables.
    pub(crate) fn steps_on_device(&self) -> Option<[DevicePtr; 2]> {
        self.device_steps.as_ref().map(|steps| [steps.ptr(), steps.ptr().offset(RATES_BYTES)])
    }

    /// The address of the learning rate and number of the step, for the dense parameters.
    pub(crate) fn dense_step_on_device(&self) -> Option<DevicePtr> {
        self.device_steps.as_ref().map(|steps| steps.ptr())
    }

    /// The host's part before a walk: the batch that comes in and the step's learning rates go
    /// where the device's copies find them.
    pub(crate) fn hand_over(&self, pool: &Pool, call: &Call<'_>) -> Result<()> {
        if !self.on_device() {
            return Ok(());
        }
        if let Some(incoming) = call.incoming {
            self.stage(pool, call.next.unwrap_or(call.now), incoming)?;
        }
        let rates = lock(&call.now.staging().rates);
        rates.put(0, &DeviceStep::new(&call.dense_step, &self.dense_optimizer).words());
        rates
            .put(RATES_BYTES, &DeviceStep::new(&call.sparse_step, self.tables.optimizer()).words());
        Ok(())
    }

    pub(super) fn copies_dense(&self) -> bool {
        self.config.data.num_dense > 0 && !self.ablation.ignore_dense
    }

    /// Brings this rank's share of the batch that has come in to where the step reads it. For a
    /// device the host has taken the share already: what is captured must not look at it.
    pub(crate) fn bring_batch(
        &self,
        stream: &Stream,
        slot: &BatchSlot,
        incoming: Option<Incoming<'_>>,
    ) -> Result<()> {
        if self.on_device() {
            slot.copy_to_device(stream, self.copies_dense());
            return Ok(());
        }
        let batch = incoming.and_then(Incoming::batch);
        batch.map_or(Ok(()), |batch| self.copy_batch(slot, batch))
    }

    /// Brings the step's learning rates to the device.
    pub(crate) fn copy_rates(&self, stream: &Stream, slot: &BatchSlot) {
        if let Some(steps) = &self.device_steps {
            let rates = lock(&slot.staging().rates);
            stream.cuda_body().copy_to_device(steps.ptr(), &rates, 0..2 * RATES_BYTES);
        }
    }

    /// Sets all loss sums to zero, where other ranks have some of them.
    pub(crate) fn clear_sums_of_others(&self, stream: &Stream) {
        if self.share.blocks().len() == self.share.sum_blocks() {
            return;
        }
        match stream.as_cuda() {
            Some(cuda) => {
                cuda.fill_bytes(self.loss_sums.device_ptr(), 0, self.loss_sums.rows() * 2 * 4)
            }
            None => self.loss_sums.write::<f32>().data_mut().fill(0.0),
        }
    }

    /// Brings the step's loss sums to the host, what is not finite, and where the loss scale
    /// stands.
    pub(crate) fn fetch_sums(&self, stream: &Stream, slot: &BatchSlot) {
        let sums = lock(&slot.staging().sums);
        let bytes = self.loss_sums.rows() * 2 * 4;
        stream.cuda_body().copy_to_host(&sums, 0..bytes, self.loss_sums.device_ptr());
        stream.cuda_body().copy_to_host(
            &lock(&slot.staging().found),
            0..8,
            self.record.device_ptr(),
        );
        if let Some(scale) = &self.loss_scale {
            let scaling = lock(&slot.staging().scaling);
            stream.cuda_body().copy_to_host(&scaling, 0..STATE_LEN * 4, scale.state.device_ptr());
        }
    }

    /// The loss sums of the step over the batch of slot `slot`, which is waited for.
    pub(super) fn sums_of(&self, slot: &BatchSlot, rows: usize, step: u64) -> Result<f64> {
        let staging = slot.staging();
        let lost = |source| lost_behind(step, source);
        match self.devices() {
            // A peer that is gone would leave this device waiting for ever.
            Some(devices) => {
                let deadline = self.config.comm.deadline();
                let waited = devices.wait(&staging.ended, deadline);
                waited.map_err(|error| match staging.ended.query() {
                    // It is this rank's own device that the others will have lost.
                    Err(_) => lost(error.into()),
                    Ok(_) => exchange_failed(&format!("step {step}"))(error),
                })?;
            }
            None => staging.ended.synchronize().map_err(|error| lost(error.into()))?,
        }
        Ok(headlong_mlp::loss::total_of(&lock(&staging.sums).as_slice::<f32>()[..2 * rows]))
    }

    /// What the tables' device has flagged, up to step `step`, which is the last.
    pub(crate) fn check_flags(&self, step: u64) -> Result<()> {
        self.tables.check_flags().map_err(|error| match error {
            // It has failed behind what the last loss waits for.
            EmbeddingError::Device(source) => lost_behind(step, source.into()),
            error => Error::failed("a batch does not fit what was planned for the device")(error),
        })
    }

    /// The state of the loss scale behind the step over the batch of a slot that was waited for.
    pub(super) fn scaling_of(&self, slot: &BatchSlot) -> ScaleState {
        ScaleState::of(lock(&slot.staging().scaling).as_slice::<f32>())
    }

    /// What the step over the batch of a slot has found that is not finite.
    pub(super) fn record_of(&self, slot: &BatchSlot) -> u64 {
        lock(&slot.staging().found).as_slice::<u64>()[0]
    }

    /// Takes this rank's share of `incoming` into a slot of the host.
    pub(super) fn take_share(&self, slot: &BatchSlot, incoming: &Batch) -> Result<()> {
        slot.take(incoming, &self.share);
        let (samples, planned) = (slot.batch().num_samples, slot.labels.rows());
        if samples > planned {
            return Err(too_many(samples, planned));
        }
        Ok(())
    }
}

fn too_many(samples: usize, planned: usize) -> Error {
    Error::Usage(format!("a batch of {samples} samples; the plan has room for {planned}"))
}

/// Copies by all threads.
fn copy(pool: &Pool, to: &mut [f32], from: &[f32]) {
    pool.chunks_mut(to, COPIED_A_TASK, |task, to| {
        to.copy_from_slice(&from[task * COPIED_A_TASK..][..to.len()]);
    });
}

pub(super) fn refused(source: DeviceError) -> Error {
    Error::failed("the device refuses memory for batches")(source)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The schedule orders readers and writers; what a panicking one leaves behind is plain data.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
