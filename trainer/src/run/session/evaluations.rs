//! Evaluations of a session: forward passes at one step's weights, scores worked on while training
//! continues, metrics when asked for.

use super::Session;
use super::eval_processes::EvalProcesses;
use super::eval_ranks::{Away, EvalRanks, evaluate_all, predict_all_with};
use crate::error::{Error, Result};
use crate::iteration::model::Purpose;
use crate::iteration::ranks::RankGroup;
use crate::metrics::{EvalMetrics, exact_probability};
use crate::run::evaluation::Scoring;
use headlong_reader::{Reader, SkipReport};
use std::time::{Duration, Instant};

/// What a session knows of its evaluations.
#[derive(Default)]
pub(super) struct Evaluations {
    /// Those that evaluate, where these are not the ranks that train.
    apart: Option<Apart>,
    /// How those that evaluated were lost, until it is said.
    lost: Option<String>,
    pending: Option<Pending>,
    /// Bad lines that the last one skipped.
    pub(super) skipped: SkipReport,
    /// For how long training has stood still for them.
    pub(super) held: Duration,
}

/// Those that evaluate while others train.
pub enum Apart {
    /// Threads of the process that leads.
    Ranks(EvalRanks),
    /// Processes.
    Processes(EvalProcesses),
}

impl Evaluations {
    /// The end of training: processes that evaluate are sent home.
    pub(super) fn dismiss(&mut self) {
        if let Some(Apart::Processes(processes)) = self.apart.take() {
            processes.dismiss();
        }
    }

    /// Tells processes that evaluate that training has failed.
    pub(super) fn abort(&self, error: &Error) {
        if let Some(Apart::Processes(processes)) = &self.apart {
            processes.abort(error);
        }
    }

    /// From now on the ranks that train evaluate.
    fn lose(&mut self, reason: String) {
        self.apart = None;
        self.lost = Some(reason);
    }
}

/// An evaluation whose metrics are not known.
struct Pending {
    step: u64,
    samples: u64,
    held: Duration,
    work: Work,
}

/// Where an evaluation is.
enum Work {
    /// Its scores are being worked on in this process.
    Scoring(Scoring),
    /// Ranks of their own have it.
    Away(Away),
    /// Processes of their own have it.
    Handed,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluated {
    pub step: u64,
    /// Samples trained on up to that step.
    pub samples: u64,
    pub metrics: EvalMetrics,
    /// For how long training stood still for it.
    pub held: Duration,
}

impl Session {
    /// Evaluates the weights as they are on the validation data, and waits for the metrics. `None`
    /// where there is no validation data.
    ///
    /// # Panics
    /// As [`Session::begin_evaluation`].
    pub fn evaluate(&mut self) -> Result<Option<EvalMetrics>> {
        self.begin_evaluation()?;
        Ok(self.finish_evaluation()?.map(|evaluated| evaluated.metrics))
    }

    /// Predicts the validation data with the weights as they are. Training may go on while the
    /// scores are worked on, until [`Session::finish_evaluation`]. Nothing where there is no
    /// validation data. All ranks call it between the same two steps.
    ///
    /// # Panics
    /// When an evaluation is pending.
    pub fn begin_evaluation(&mut self) -> Result<()> {
        assert!(self.evaluations.pending.is_none(), "one evaluation at a time");
        let Some(valid) = &self.data.valid else { return Ok(()) };
        let started = Instant::now();
        let ids = self.ids_now()?;
        let work = match &mut self.evaluations.apart {
            Some(Apart::Ranks(ranks)) => {
                Work::Away(ranks.begin(&self.group, valid, ids, self.step)?)
            }
            Some(Apart::Processes(processes)) => {
                match processes.begin(&self.group, &ids, self.step)? {
                    Ok(()) => Work::Handed,
                    Err(reason) => {
                        self.evaluations.lose(reason);
                        self.score()?
                    }
                }
            }
            None => self.score()?,
        };
        let held = self.add_held(started);
        self.evaluations.pending =
            Some(Pending { step: self.step, samples: self.samples, held, work });
        Ok(())
    }

    /// Predicts the validation data on the ranks that train.
    fn score(&mut self) -> Result<Work> {
        let ids = self.ids_now()?;
        let valid = self.data.valid.as_ref().expect("asked before");
        self.evaluations.skipped = evaluate_all(&self.group, valid, &ids)?;
        let workers = (0..self.group.len()).map(|rank| self.group.worker(rank).take_scores());
        Ok(Work::Scoring(Scoring::start(workers.collect(), self.group.link())?))
    }

    /// Leaves evaluations to others from now on: training waits for nothing but the snapshot. All
    /// ranks call it before the first step.
    pub fn evaluate_on(&mut self, apart: Apart) {
        self.evaluations.apart = Some(apart);
    }

    /// Takes room on the devices for batches of evaluations, where batches stay (`data.cache`) and
    /// the ranks that train evaluate.
    pub(super) fn keep_evaluations(&self, threads: usize) -> Result<()> {
        if self.config.run.evaluating().is_some() {
            return Ok(());
        }
        self.group.keep(Purpose::Evaluation, self.evaluation_batches_that_stay(threads)?)
    }

    /// Batches of evaluations that stay on the devices of the ranks that evaluate.
    pub(crate) fn evaluation_batches_that_stay(&self, threads: usize) -> Result<u64> {
        let valid = self.data.valid.as_ref();
        valid.map_or(Ok(0), |valid| valid.batches_that_stay(&self.config, threads))
    }

    /// How processes that evaluated were lost, once: then the ranks that train evaluate.
    pub fn take_lost_evaluators(&mut self) -> Option<String> {
        self.evaluations.lost.take()
    }

    /// Whether there is anything to evaluate on.
    pub fn has_validation(&self) -> bool {
        self.data.valid.is_some()
    }

    pub fn pending_evaluation(&self) -> Option<u64> {
        self.evaluations.pending.as_ref().map(|pending| pending.step)
    }

    /// Exchanges the scores of a pending evaluation with ranks of other processes, once they are
    /// sorted: all ranks call it between the same two steps, or leave it to
    /// [`Session::finish_evaluation`].
    pub fn exchange_scores(&mut self) -> Result<()> {
        let Some(pending) = &mut self.evaluations.pending else { return Ok(()) };
        let Work::Scoring(scoring) = &mut pending.work else { return Ok(()) };
        let started = Instant::now();
        scoring.exchange()?;
        pending.held += started.elapsed();
        self.add_held(started);
        Ok(())
    }

    /// The metrics of the pending evaluation, for which it waits; `None` where none is pending, and
    /// where it was lost with the processes that had it. All ranks call it between the same two
    /// steps.
    pub fn finish_evaluation(&mut self) -> Result<Option<Evaluated>> {
        let Some(Pending { step, samples, held, work }) = self.evaluations.pending.take() else {
            return Ok(None);
        };
        let started = Instant::now();
        let Some(metrics) = self.metrics_of(work, step)? else {
            self.add_held(started);
            return Ok(None);
        };
        self.memory.evaluated(step, metrics, self.config.eval.metric);
        self.last_metrics = Some(metrics);
        let held = held + self.add_held(started);
        Ok(Some(Evaluated { step, samples, metrics, held }))
    }

    /// The metrics of the weights of `step`, unless they were lost.
    fn metrics_of(&mut self, work: Work, step: u64) -> Result<Option<EvalMetrics>> {
        match (work, &mut self.evaluations.apart) {
            (Work::Away(away), Some(Apart::Ranks(ranks))) => {
                let (metrics, skipped) = ranks.finish(away)?;
                self.evaluations.skipped = skipped;
                Ok(Some(metrics))
            }
            (Work::Handed, Some(Apart::Processes(processes))) => {
                match processes.finish(&self.group)? {
                    Ok(tally) => Ok(Some(EvalMetrics::of(&tally))),
                    Err(reason) => {
                        self.evaluations.lose(reason);
                        // Its weights are still there where training stands where it stood.
                        let again = (step == self.step).then(|| self.score()).transpose()?;
                        again.map_or(Ok(None), |work| self.metrics_of(work, step))
                    }
                }
            }
            (Work::Away(_) | Work::Handed, _) => unreachable!("those that evaluate stay"),
            (Work::Scoring(scoring), _) => {
                let (metrics, memory) = scoring.finish()?;
                for (rank, scores) in memory.into_iter().enumerate() {
                    self.group.worker(rank).reuse_scores(scores);
                }
                Ok(Some(metrics))
            }
        }
    }

    fn add_held(&mut self, started: Instant) -> Duration {
        let held = started.elapsed();
        self.evaluations.held += held;
        held
    }

    /// For how long training has stood still for evaluations.
    pub fn evaluation_time(&self) -> Duration {
        self.evaluations.held
    }

    /// Bad lines that the last evaluation skipped.
    pub fn skipped_in_evaluation(&self) -> &SkipReport {
        &self.evaluations.skipped
    }

    pub fn last_metrics(&self) -> Option<&EvalMetrics> {
        self.last_metrics.as_ref()
    }
}

/// Is handed logits and labels, batch by batch.
pub type Take<'a> = dyn FnMut(&[f32], &[f32]) -> Result<()> + 'a;

/// The same by several models, of the mean of their probabilities: its logit is handed to `take`.
///
/// # Errors
/// As [`predict_all`].
///
/// # Panics
/// Without a model.
pub fn predict_mean(
    groups: &[RankGroup],
    reader: &mut dyn Reader,
    take: &mut Take<'_>,
) -> Result<SkipReport> {
    if let [group] = groups {
        return predict_all(group, reader, take);
    }
    let (mut sums, mut logits) = (Vec::<[f64; 2]>::new(), Vec::<f32>::new());
    predict_all_with(&groups[0], reader, &mut |batch| {
        sums.clear();
        sums.resize(batch.num_samples, [0.0; 2]);
        for group in groups {
            group.predict(batch, &mut |logits, _| {
                for ([click, none], &logit) in sums.iter_mut().zip(logits) {
                    *click += exact_probability(logit);
                    *none += exact_probability(-logit);
                }
            })?;
        }
        logits.clear();
        logits.extend(sums.iter().map(|[click, none]| (click.ln() - none.ln()) as f32));
        take(&logits, &batch.labels)
    })
}

/// Predicts everything that `reader` gives and hands logits and labels to `take`, batch by batch.
/// Returns the bad lines that were skipped.
///
/// # Errors
/// Data that cannot be read; an error of `take`, which is handed nothing more.
pub fn predict_all(
    group: &RankGroup,
    reader: &mut dyn Reader,
    take: &mut Take<'_>,
) -> Result<SkipReport> {
    predict_all_with(group, reader, &mut |batch| {
        let mut taken = Ok(());
        group.predict(batch, &mut |logits, labels| taken = take(logits, labels))?;
        taken
    })
}
