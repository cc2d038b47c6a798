//! What of a run is kept for a report of it (`headlong report`) and for TensorBoard.

use super::Run;
use crate::commands::train_arguments::TrainOptions;
use crate::config::{Config, DeviceChoice};
use crate::error::Result;
use crate::iteration::job::Job;
use crate::iteration::trace::{Record, SAMPLED_EVERY, Total};
use crate::report::tensorboard::EventFile;
use crate::report::{At, Reporter, StageTime, Times};
use crate::run::session::Session;
use crate::state::checkpoint::Checkpoint;

/// Begins the event file that TensorBoard reads, where one is asked for: a folder that cannot be
/// written ends the run before it costs anything.
pub(super) fn open_tensorboard(
    job: &Job,
    options: &TrainOptions,
    resumed: Option<&Checkpoint>,
    reporter: &mut Reporter,
) -> Result<()> {
    let Some(folder) = options.flags.tensorboard.as_ref().filter(|_| job.leads()) else {
        return Ok(());
    };
    let step = resumed.map(|checkpoint| checkpoint.manifest().state.step);
    reporter.write_tensorboard(EventFile::create(folder, step)?);
    Ok(())
}

/// What is recorded of stages.
pub(super) fn record(config: &Config, options: &TrainOptions) -> Record {
    Record {
        times: options.flags.time,
        spans: options.flags.trace.is_some(),
        // What a report says of stages. On a device it would cost more than it says.
        sampled: config.run.device != DeviceChoice::Cuda,
    }
}

/// From now on keeps the history of the run.
pub(super) fn keep(
    job: &Job,
    options: &TrainOptions,
    is_resumed: bool,
    session: &Session,
    reporter: &mut Reporter,
) {
    if job.leads() {
        let at = At { step: session.steps(), samples: session.samples() };
        let appends = is_resumed || options.appends_to_log;
        reporter.keep_history(&job.config.run.output_dir, appends, at);
    }
}

impl Run<'_> {
    /// Where the time of this process went so far.
    pub(super) fn times(&self) -> Times {
        let training_s = self.meter.seconds();
        let group = self.session.group();
        let stage = |total: &Total| StageTime {
            stage: total.name.to_owned(),
            lane: total.lane.name().to_owned(),
            runs: total.runs,
            seconds: total.seconds,
        };
        let records_all = self.options.flags.time || self.options.flags.trace.is_some();
        Times {
            preparation_s: (self.reporter.seconds() - training_s).max(0.0),
            training_s,
            data_wait_s: self.session.data_wait().as_secs_f64(),
            evaluation_s: self.session.evaluation_time().as_secs_f64(),
            checkpoint_s: self.saving.as_secs_f64(),
            stages: group.first().recorder().totals().iter().map(stage).collect(),
            recorded_every: if records_all { 1 } else { SAMPLED_EVERY },
        }
    }
}
