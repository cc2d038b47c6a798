//! Lanes: which stream each stage of the schedule runs on, and how long it took there.

use crate::build::Model;
use crate::error::Result;
use crate::schedule::Call;
use crate::trace::Recorder;
use headlong_device::Stream;

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

/// One line of the schedule.
pub struct Stage {
    /// Its name in traces and in the table of `--time`.
    pub name: &'static str,
    /// The lane it runs on.
    pub lane: Lane,
    /// How often it runs in a step.
    pub repeat: Repeat,
    /// Names of the stages it waits for: earlier lines of this step, or (marked `previous:`) lines of the step before.
    pub waits: &'static [&'static str],
    /// What it does: enqueues its work on the stream, with no look at the host.
    pub run: fn(&Model, &Stream, &Call<'_>) -> Result<()>,
}

/// An assignment of lanes to streams.
#[derive(Debug)]
pub struct Lanes {
    stream: Stream,
}

impl Lanes {
    /// All lanes on one stream: the stages run in program order, which satisfies every wait.
    pub fn serial(stream: Stream) -> Self {
        Self { stream }
    }

    /// The stream of a lane.
    pub fn stream(&self, _lane: Lane) -> &Stream {
        &self.stream
    }

    /// Runs `stages` in program order; neighbouring stages that repeat run once per micro-batch, together.
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
        for group in stages.chunk_by(|a, b| a.repeat == b.repeat) {
            let times = match group[0].repeat {
                Repeat::Step => 1,
                Repeat::MicroBatch => call.num_micro_batches(),
            };
            for micro_batch in 0..times {
                let call = call.micro_batch(micro_batch);
                for stage in group {
                    let started = recorder.start();
                    (stage.run)(model, self.stream(stage.lane), &call)?;
                    recorder.finish(stage, started);
                }
            }
        }
        Ok(())
    }
}
