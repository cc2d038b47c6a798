//! Lanes: which stream each stage of the schedule runs on, and how long it took there.
//!
//! One schedule, two assignments. [`Lanes::serial`] runs all stages on the thread that walks, in
//! program order. [`Lanes::overlapped`] lets lanes run at the same time: a lane's stages run in
//! program order, each as soon as the stages that it waits for ([`Schedule::within`]) have run.
//! Both give the same bits: a stage reads nothing that it has not waited for. On a CUDA device
//! lanes at the same time do not end between two steps: a stage waits for those of the step before
//! that it needs ([`Schedule::across`]). Everywhere else a step begins when the one before has
//! ended.
//!
//! On a CPU all lanes that compute share the same cores, and threads of their own would only take
//! them from each other (measured: a tenth slower). So there the exchanges have a thread, and one
//! other thread takes the first stage that is ready of any lane that computes: while ranks wait for
//! each other, it continues.

use crate::error::{Error, Result};
use crate::iteration::model::Model;
use crate::iteration::schedule::{BatchOf, Call, Lane, Schedule, Stage};
use crate::iteration::trace::Recorder;
use headlong_device::pool::Pool;
use headlong_device::{Device, Stream};

mod cuda;
mod overlapped;

use cuda::CudaLanes;
use overlapped::Overlapped;

/// Stages of the longest list.
const MOST_STAGES: usize = 34;

/// Where a whole walk has its place.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// The slot of its batch of now.
    pub slot: usize,
    /// It is a step, and the one before may not have ended.
    pub follows_step: bool,
}

pub struct Lanes {
    stream: Stream,
    assigned: Assigned,
}

enum Assigned {
    /// All stages run in program order, which satisfies every wait.
    InOrder,
    /// On the CPU: two threads.
    Overlapped(Overlapped),
    /// On a CUDA device: streams.
    Cuda(Box<CudaLanes>),
}

impl Lanes {
    /// All lanes on one stream: the stages run in program order, which satisfies every wait.
    pub fn serial(stream: Stream) -> Result<Self> {
        let assigned = match stream.device() {
            Device::Cuda(_) => Assigned::Cuda(Box::new(CudaLanes::serial(&stream)?)),
            _ => Assigned::InOrder,
        };
        Ok(Self { stream, assigned })
    }

    /// Lanes that run at the same time: exchanges under computation, on a CUDA device whatever
    /// does not wait for each other.
    pub fn overlapped(stream: Stream) -> Result<Self> {
        let assigned = match stream.device() {
            Device::Cuda(_) => Assigned::Cuda(Box::new(CudaLanes::overlapped(&stream)?)),
            _ => Assigned::Overlapped(Overlapped::new()?),
        };
        Ok(Self { stream, assigned })
    }

    /// As [`Lanes::overlapped`]; a whole step over a full batch is captured once for each batch
    /// slot and then replayed.
    pub fn captured(stream: Stream) -> Result<Self> {
        let mut lanes = Self::overlapped(stream)?;
        match &mut lanes.assigned {
            Assigned::Cuda(cuda) => cuda.capture_steps(),
            _ => {
                return Err(Error::unsupported(
                    "--schedule captured",
                    "graphs are captured on a CUDA device",
                ));
            }
        }
        Ok(lanes)
    }

    pub fn stream(&self, lane: Lane) -> &Stream {
        match &self.assigned {
            Assigned::Cuda(cuda) => cuda.stream(lane),
            _ => &self.stream,
        }
    }

    /// The threads that the host works with.
    pub(crate) fn pool(&self) -> &Pool {
        self.stream(Lane::Dense).pool()
    }

    /// Runs the stages of `schedule`, which is no step; neighbouring stages that repeat run once
    /// per micro-batch, together. Returns when all have run, on a CUDA device when all are
    /// enqueued: behind all that was walked before.
    pub fn walk(
        &self,
        schedule: &Schedule,
        model: &Model,
        call: &Call<'_>,
        recorder: &mut Recorder,
    ) -> Result<()> {
        match &self.assigned {
            Assigned::InOrder => walk_in_order(&self.stream, schedule, model, call, recorder),
            Assigned::Overlapped(overlapped) => {
                overlapped.walk(&self.stream, schedule, model, call, recorder)
            }
            Assigned::Cuda(cuda) => cuda.walk(schedule, model, call, recorder),
        }
    }

    /// As [`Lanes::walk`], through a whole step or evaluation over the batch of a slot: what can be
    /// replayed is, and what can overlap with the step before does.
    pub fn walk_whole(
        &self,
        schedule: &Schedule,
        model: &Model,
        call: &Call<'_>,
        place: Place,
        recorder: &mut Recorder,
    ) -> Result<()> {
        match &self.assigned {
            Assigned::Cuda(cuda) => cuda.walk_whole(schedule, model, call, place, recorder),
            _ => self.walk(schedule, model, call, recorder),
        }
    }

    /// Records the times of a step over the batch of slot `slot`, which has ended; `had_next`:
    /// whether it prepared another batch. On a processor the walk has recorded them.
    pub(crate) fn take_times(
        &self,
        schedule: &Schedule,
        slot: usize,
        had_next: bool,
        recorder: &mut Recorder,
    ) {
        if let (Assigned::Cuda(cuda), true) = (&self.assigned, recorder.is_on()) {
            let ran = |stage: &Stage| had_next || stage.batch == BatchOf::Now;
            cuda.take_times(schedule, slot, ran, recorder);
        }
    }
}

/// Runs all stages on this thread, in program order.
fn walk_in_order(
    stream: &Stream,
    schedule: &Schedule,
    model: &Model,
    call: &Call<'_>,
    recorder: &mut Recorder,
) -> Result<()> {
    for (index, micro_batch) in schedule.program_order(call.num_micro_batches) {
        let stage = &schedule.stages[index];
        if let Some(call) = call.of(stage, micro_batch) {
            let started = recorder.start();
            stage.run(model, stream, &call)?;
            recorder.finish(stage, started);
        }
    }
    Ok(())
}
