//! Lanes: which stream each stage of the schedule runs on, and how long it took there.
//!
//! One list, two assignments. [`Lanes::serial`] runs all stages on the thread that walks, in program order. [`Lanes::overlapped`]
//! gives each lane a thread of its own, which runs its lane's stages in program order and waits, before each, for the stages that
//! it names. Both give the same bits: a stage reads nothing that it has not waited for.

use crate::build::Model;
use crate::error::Result;
use crate::schedule::Call;
use crate::trace::Recorder;
use headlong_device::Stream;

mod overlapped;

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
        self.runs == Runs::Always || !model.is_alone()
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
#[derive(Debug)]
pub struct Lanes {
    stream: Stream,
    overlapped: Option<Overlapped>,
}

impl Lanes {
    /// All lanes on one stream: the stages run in program order, which satisfies every wait.
    pub fn serial(stream: Stream) -> Self {
        Self { stream, overlapped: None }
    }

    /// Each lane on a thread of its own. All share the stream's pool: whoever comes first gets its threads, others work alone
    /// meanwhile.
    pub fn overlapped(stream: Stream) -> Self {
        Self { stream, overlapped: Some(Overlapped::new()) }
    }

    /// The stream of a lane.
    pub fn stream(&self, _lane: Lane) -> &Stream {
        &self.stream
    }

    /// Runs `stages`; neighbouring stages that repeat run once per micro-batch, together. Returns when all have run.
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
        match &self.overlapped {
            Some(overlapped) => overlapped.walk(&self.stream, stages, model, call, recorder),
            None => in_program_order(stages, call, |_, stage, call| {
                if !stage.is_in(model) {
                    return Ok(());
                }
                let started = recorder.start();
                (stage.run)(model, &self.stream, call)?;
                recorder.finish(stage, started);
                Ok(())
            }),
        }
    }
}

/// Calls `visit` with every run of every stage: its position in the list, the stage, and the call of its micro-batch.
fn in_program_order(
    stages: &[Stage],
    call: &Call<'_>,
    mut visit: impl FnMut(usize, &Stage, &Call<'_>) -> Result<()>,
) -> Result<()> {
    let mut first = 0;
    for group in stages.chunk_by(|a, b| a.repeat == b.repeat) {
        for micro_batch in 0..group[0].times(call) {
            let call = call.micro_batch(micro_batch);
            for (index, stage) in (first..).zip(group) {
                visit(index, stage, &call)?;
            }
        }
        first += group.len();
    }
    Ok(())
}
