//! Lanes: which stream each stage of the schedule runs on, and how long it took there.
//!
//! One list, two assignments. [`Lanes::serial`] runs all stages on the thread that walks, in program order. [`Lanes::overlapped`]
//! lets lanes run beside each other: a lane's stages run in program order, each as soon as the stages that it names have run. Both
//! give the same bits: a stage reads nothing that it has not waited for.
//!
//! On a CPU all lanes that compute share the same cores, and threads of their own would only take them from each other (measured: a
//! tenth slower). So there the exchanges have a thread, and one other thread takes the first stage that is ready of any lane that
//! computes: while ranks wait for each other, it goes on.

use crate::build::Model;
use crate::error::{Error, Result};
use crate::schedule::Call;
use crate::trace::Recorder;
use headlong_device::{Device, Stream};

mod cuda;
mod overlapped;

use cuda::CudaLanes;
use overlapped::Overlapped;

/// An ordered queue of work. Stages of one lane run in program order; lanes run beside each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Batches on their way to the device.
    Copy,
    /// Routing, lookups and updates of the tables.
    Sparse,
    /// Everything between ranks.
    Comm,
    /// Dense layers, interaction, loss, dense optimiser.
    Dense,
}

impl Lane {
    /// All lanes, in the order of their tracks in a trace.
    pub const ALL: [Lane; 4] = [Lane::Copy, Lane::Sparse, Lane::Comm, Lane::Dense];

    /// The name in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Lane::Copy => "copy",
            Lane::Sparse => "sparse",
            Lane::Comm => "comm",
            Lane::Dense => "dense",
        }
    }
}

/// How often a stage runs in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// Once.
    Step,
    /// Once for every micro-batch (`train.accumulate` of them).
    MicroBatch,
}

/// Where a stage has something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// On every run.
    Always,
    /// With several ranks alone: one rank owns every row and has nobody to exchange with.
    AmongRanks,
    /// On a device with memory of its own alone: the host and it hand each other numbers.
    OnDevice,
    /// Where the loss is scaled alone.
    Scaled,
    /// Where a cross network follows the features alone.
    Crossed,
}

/// One line of the schedule.
pub struct Stage {
    /// Its name in traces and in the table of `--time`.
    pub name: &'static str,
    /// The lane it runs on.
    pub lane: Lane,
    /// How often it runs in a step.
    pub repeat: Repeat,
    /// Where it has something to do.
    pub runs: Runs,
    /// Names of the stages it waits for: earlier lines of this step, or (marked `previous:`) lines of the step before.
    pub waits: &'static [&'static str],
    /// What it does: enqueues its work on the stream, with no look at the host.
    pub run: fn(&Model, &Stream, &Call<'_>) -> Result<()>,
}

impl Stage {
    /// Whether the stage does anything in this model.
    fn is_in(&self, model: &Model) -> bool {
        match self.runs {
            Runs::Always => true,
            Runs::AmongRanks => !model.is_alone(),
            Runs::OnDevice => model.runs_ahead(),
            Runs::Scaled => model.loss_scale.is_some(),
            Runs::Crossed => model.cross.is_some(),
        }
    }

    /// How often the stage runs in this call.
    fn times(&self, call: &Call<'_>) -> usize {
        match self.repeat {
            Repeat::Step => 1,
            Repeat::MicroBatch => call.num_micro_batches,
        }
    }
}

/// An assignment of lanes to streams.
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
    ///
    /// # Errors
    /// What the device refuses.
    pub fn serial(stream: Stream) -> Result<Self> {
        let assigned = match stream.device() {
            Device::Cuda(_) => Assigned::Cuda(Box::new(CudaLanes::serial(&stream)?)),
            _ => Assigned::InOrder,
        };
        Ok(Self { stream, assigned })
    }

    /// Lanes that run beside each other: exchanges under computation, on a CUDA device whatever does not wait for each other.
    ///
    /// # Errors
    /// What the device refuses.
    pub fn overlapped(stream: Stream) -> Result<Self> {
        let assigned = match stream.device() {
            Device::Cuda(_) => Assigned::Cuda(Box::new(CudaLanes::overlapped(&stream)?)),
            _ => Assigned::Overlapped(Overlapped::new()?),
        };
        Ok(Self { stream, assigned })
    }

    /// As [`Lanes::overlapped`]; a whole step over a full batch is captured once for each batch slot and then replayed.
    ///
    /// # Errors
    /// What the device refuses, and devices that have no graphs.
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

    /// The stream of a lane.
    pub fn stream(&self, lane: Lane) -> &Stream {
        match &self.assigned {
            Assigned::Cuda(cuda) => cuda.stream(lane),
            _ => &self.stream,
        }
    }

    /// Whether walks over full batches become graphs.
    pub(crate) fn captures(&self) -> bool {
        matches!(&self.assigned, Assigned::Cuda(cuda) if cuda.captures())
    }

    /// Runs `stages`; neighbouring stages that repeat run once per micro-batch, together. Returns when all have run, on a CUDA device
    /// when all are enqueued.
    ///
    /// # Errors
    /// That of the first stage that fails; later stages do not run.
    pub fn walk(
        &self,
        stages: &[Stage],
        model: &Model,
        call: &Call<'_>,
        recorder: &mut Recorder,
    ) -> Result<()> {
        match &self.assigned {
            Assigned::InOrder => walk_in_order(&self.stream, stages, model, call, recorder),
            Assigned::Overlapped(overlapped) => overlapped.walk(&self.stream, stages, model, call, recorder),
            Assigned::Cuda(cuda) => cuda.walk(stages, model, call, recorder),
        }
    }

    /// As [`Lanes::walk`], through a whole step or evaluation over the batch of slot `slot`: what can be replayed is.
    ///
    /// # Errors
    /// As there.
    pub fn walk_whole(
        &self,
        stages: &[Stage],
        model: &Model,
        call: &Call<'_>,
        slot: usize,
        recorder: &mut Recorder,
    ) -> Result<()> {
        match &self.assigned {
            Assigned::Cuda(cuda) => cuda.replay(stages, model, call, slot, recorder),
            _ => self.walk(stages, model, call, recorder),
        }
    }
}

/// Runs all stages on this thread, in program order.
fn walk_in_order(
    stream: &Stream,
    stages: &[Stage],
    model: &Model,
    call: &Call<'_>,
    recorder: &mut Recorder,
) -> Result<()> {
    for (index, micro_batch) in ProgramOrder::new(stages, call) {
        let stage = &stages[index];
        if stage.is_in(model) {
            let started = recorder.start();
            (stage.run)(model, stream, &call.micro_batch(micro_batch))?;
            recorder.finish(stage, started);
        }
    }
    Ok(())
}

/// Every run of every stage in program order: position in the list, and micro-batch. Neighbouring stages that repeat run once per
/// micro-batch, together.
#[derive(Clone)]
struct ProgramOrder<'a> {
    stages: &'a [Stage],
    num_micro_batches: usize,
    /// The stages that run next to each other and repeat alike.
    group: std::ops::Range<usize>,
    micro_batch: usize,
    next: usize,
}

impl<'a> ProgramOrder<'a> {
    fn new(stages: &'a [Stage], call: &Call<'_>) -> Self {
        let num_micro_batches = call.num_micro_batches;
        Self { stages, num_micro_batches, group: 0..0, micro_batch: 0, next: 0 }
    }

    /// Goes on to the next micro-batch of the group, or to the next group that runs at all.
    fn turn(&mut self) -> Option<()> {
        loop {
            let repeats =
                self.stages.get(self.group.start).is_some_and(|stage| stage.repeat == Repeat::MicroBatch);
            let times = if repeats { self.num_micro_batches } else { 1 };
            self.micro_batch += 1;
            if self.group.is_empty() || self.micro_batch >= times {
                let start = self.group.end;
                let repeat = self.stages.get(start)?.repeat;
                let len = self.stages[start..].iter().take_while(|stage| stage.repeat == repeat).count();
                (self.group, self.micro_batch) = (start..start + len, 0);
                if repeat == Repeat::MicroBatch && self.num_micro_batches == 0 {
                    continue;
                }
            }
            self.next = self.group.start;
            return Some(());
        }
    }
}

impl Iterator for ProgramOrder<'_> {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<(usize, usize)> {
        if self.next >= self.group.end {
            self.turn()?;
        }
        self.next += 1;
        Some((self.next - 1, self.micro_batch))
    }
}
