//! What of a run goes into a log of MLPerf's form ([`crate::report::mllog`]).

use super::{Run, history};
use crate::commands::train_arguments::TrainOptions;
use crate::config::EvalEvery;
use crate::error::Result;
use crate::iteration::job::Job;
use crate::report::mllog::{MlLog, Place};
use crate::report::{At, Eval, Reporter};
use crate::state::checkpoint::Checkpoint;

/// Begins the logs that are asked for besides the JSON log: that of MLPerf's form, whose first
/// lines come before anything is read, and TensorBoard's.
pub(super) fn open_logs(
    job: &Job,
    options: &TrainOptions,
    resumed: Option<&Checkpoint>,
    reporter: &mut Reporter,
) -> Result<Option<MlLog>> {
    history::open_tensorboard(job, options, resumed, reporter)?;
    let path = options.flags.mllog.as_ref().filter(|_| job.leads());
    let step = resumed.map(|checkpoint| checkpoint.manifest().state.step);
    path.map(|path| MlLog::open(path, &job.config, step)).transpose()
}

impl Run<'_> {
    /// Before the first step.
    pub(super) fn log_begin(&mut self) -> Result<()> {
        let (rows, valid) = (self.train_rows.unwrap_or(0), self.session.valid_samples());
        self.mllog.as_mut().map_or(Ok(()), |log| log.begin(self.config, rows, valid))
    }

    /// A step is trained that began at `at`.
    pub(super) fn log_training(&mut self, at: At) -> Result<()> {
        let (place, epochs) = (self.place(at), self.epochs_of_block());
        self.mllog.as_mut().map_or(Ok(()), |log| log.train(place, epochs))
    }

    /// The forward passes of an evaluation are about to begin.
    pub(super) fn log_eval_start(&mut self) -> Result<()> {
        let place = self.place(self.at());
        self.mllog.as_mut().map_or(Ok(()), |log| log.eval_start(place))
    }

    /// The evaluation of the weights at `at` is known.
    pub(super) fn log_eval_stop(&mut self, at: At, eval: &Eval) -> Result<()> {
        let (place, rate) = (self.place(at), self.meter.samples_per_s(&self.session));
        let (auc, samples) = (eval.metrics.auc, eval.metrics.eval_samples);
        self.mllog.as_mut().map_or(Ok(()), |log| log.eval_stop(place, auc, samples, rate))
    }

    pub(super) fn log_stop(&mut self, success: bool) -> Result<()> {
        let place = self.place(self.at());
        self.mllog.as_mut().map_or(Ok(()), |log| log.stop(place, success))
    }

    /// Where the run stands. By the rule, the k-th evaluation is at k times the fraction of an
    /// epoch, though its steps are rounded down.
    fn place(&self, at: At) -> Place {
        let epoch = match (self.config.eval.every, self.eval_every) {
            (EvalEvery::EpochFraction(fraction), Some(every)) if at.step.is_multiple_of(every) => {
                (at.step / every) as f64 * fraction
            }
            _ => at.samples as f64 / self.train_rows.unwrap_or(0).max(1) as f64,
        };
        Place { step: at.step, epoch: (epoch * 1e6).round() / 1e6 }
    }

    /// Epochs from one evaluation to the next.
    fn epochs_of_block(&self) -> f64 {
        let per_step = (self.config.train.batch_size * self.config.train.accumulate) as f64;
        let rows = self.train_rows.unwrap_or(0).max(1) as f64;
        match (self.config.eval.every, self.eval_every, self.session.last_step()) {
            (EvalEvery::EpochFraction(fraction), ..) => fraction,
            (_, Some(steps), _) | (_, None, Some(steps)) => steps as f64 * per_step / rows,
            _ => self.config.train.epochs,
        }
    }
}
