//! Ranks of their own that evaluate: they take a snapshot of the weights and predict on their own
//! threads, while training continues.
//!
//! They live in the process that leads, on devices of their own where the machine has so many, else
//! on those of ranks that train. Where training has ranks in other processes, these give their rows
//! for the snapshot, and hear what the evaluation has come to at the step at which it is looked at.
//!
//! ```text
//! training ranks      step 32 ── snapshot ── 33 ── 34 ── …  ── metrics of 32 are looked at, snapshot ── 65 ── …
//! evaluation ranks                    └─ forward passes, scores sorted and counted ─┘      └─ …
//! ```

use crate::config::Config;
use crate::data::EvaluationData;
use crate::error::{Error, Result, exchange_failed};
use crate::iteration::model::{Incoming, Purpose};
use crate::iteration::ranks::{Evaluated, RankGroup, RankGroupOptions};
use crate::metrics::{EvalMetrics, Scores, Tally};
use crate::plan::evaluation::config_of_eval_ranks;
use crate::run::evaluation::{Worker, add_up};
use headlong_comm::Communicator;
use headlong_device::pool::Pool;
use headlong_embedding::Registry;
use headlong_reader::{Batch, IdMapper, Position, Reader, SkipReport};
use std::sync::{Arc, PoisonError};

/// What ranks that evaluate are built from, besides a configuration.
pub struct EvalRanksOptions<'a> {
    pub count: usize,
    pub threads_per_rank: usize,
    /// Threads of the ranks that train in this process.
    pub training_threads: usize,
    pub leads: bool,
    /// Batches of evaluations that stay on the devices of these ranks.
    pub batches_that_stay: u64,
    /// Ranks that train on this machine; on devices they have the first ones.
    pub ranks_on_machine: usize,
    /// The kinds of tables that the configuration may name.
    pub registry: &'a Registry,
}

pub struct EvalRanks {
    /// Away while they evaluate; none in processes that do not lead.
    group: Option<Box<RankGroup>>,
    count: usize,
    /// Take the snapshots, for which all ranks of this process stand still.
    copiers: Pool,
}

impl EvalRanks {
    /// Builds the ranks, where this process leads. Training ranks wait while a snapshot is taken.
    pub fn build(
        config: &Config,
        table_rows: &[u64],
        options: &EvalRanksOptions<'_>,
    ) -> Result<Self> {
        let EvalRanksOptions { count, leads, registry, .. } = *options;
        let threads = count * options.threads_per_rank;
        let group = RankGroupOptions {
            taken_devices: options.ranks_on_machine,
            ..RankGroupOptions::new(threads, registry)
        };
        let build = || {
            let group = RankGroup::build(&config_of_eval_ranks(config, count), table_rows, group)?;
            group.keep(Purpose::Evaluation, options.batches_that_stay)?;
            Ok::<_, Error>(Box::new(group))
        };
        let copiers = Pool::new(if leads { options.training_threads + threads } else { 1 });
        Ok(Self { group: leads.then(build).transpose()?, count, copiers })
    }

    /// Takes a snapshot of the weights of `training` and begins to evaluate it. All ranks of
    /// training call it between the same two steps.
    ///
    /// # Panics
    /// When these ranks are evaluating.
    pub(super) fn begin(
        &mut self,
        training: &RankGroup,
        valid: &EvaluationData,
        ids: IdMapper,
        step: u64,
    ) -> Result<Away> {
        training.drain()?;
        let mut group = self.group.take();
        assert_eq!(
            group.is_some(),
            training.leads(),
            "these ranks evaluate one snapshot at a time"
        );
        training.copy_weights_to(group.as_deref_mut(), &self.copiers)?;
        let (valid, count) = (valid.clone(), self.count);
        let named = move |error| {
            let ranks = if count == 1 {
                "1 evaluation rank".to_owned()
            } else {
                format!("{count} evaluation ranks")
            };
            Error::failed(format!("the evaluation of step {step} has failed on {ranks}"))(error)
        };
        let work = |group| move || evaluate(group, &valid, &ids).map_err(named);
        let worker = group.map(|group| Worker::start("evaluation", work(group))).transpose()?;
        Ok(Away { worker, link: training.link() })
    }

    /// Waits for the evaluation. All ranks of training call it between the same two steps.
    pub(super) fn finish(&mut self, away: Away) -> Result<(EvalMetrics, SkipReport)> {
        let Away { worker, link } = away;
        let (mut tally, mut skipped) = (Tally::default(), SkipReport::default());
        if let Some(mut worker) = worker {
            let _busy = link.as_ref().map(|link| link.busy("waits for its evaluation ranks"));
            let (group, found) = worker.result()?;
            self.group = Some(group);
            (tally, skipped) = found;
        }
        if let Some(communicator) = link {
            tally = add_up(&communicator, tally).map_err(exchange_failed("the metrics"))?;
        }
        Ok((EvalMetrics::of(&tally), skipped))
    }
}

/// The group that evaluates, and what it has found.
type Found = (Box<RankGroup>, (Tally, SkipReport));

/// An evaluation on ranks of their own.
pub(super) struct Away {
    worker: Option<Worker<Result<Found>>>,
    /// The way to ranks of training in other processes.
    link: Option<Arc<Communicator>>,
}

fn evaluate(group: Box<RankGroup>, valid: &EvaluationData, ids: &IdMapper) -> Result<Found> {
    group.weights_changed();
    let skipped = evaluate_all(&group, valid, ids)?;
    let mut all = Scores::default();
    for rank in 0..group.len() {
        let scores = group.worker(rank).take_scores();
        if rank == 0 {
            all = scores;
        } else {
            all.absorb(&scores);
            group.worker(rank).reuse_scores(scores);
        }
    }
    let tally = all.tally();
    group.worker(0).reuse_scores(all);
    Ok((group, (tally, skipped)))
}

/// Evaluates `valid` on the ranks of `group`, which keep their scores: from its files, and from the
/// devices once all of it lies there. Returns the bad lines that were skipped.
///
/// `ids` are the same each time: those that are admitted while training reads are refused with
/// `data.cache`.
pub(super) fn evaluate_all(
    group: &RankGroup,
    valid: &EvaluationData,
    ids: &IdMapper,
) -> Result<SkipReport> {
    let mut evaluated = group.evaluated.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(Evaluated { batches, skipped }) = &*evaluated {
        for index in 0..*batches {
            // Where training stands has no part in an evaluation.
            group.evaluate(Incoming::Kept { index, position: Position::default() })?;
        }
        return Ok(skipped.clone());
    }
    let keeps = group.first().model().keeps(Purpose::Evaluation);
    let mut batches = 0;
    let mut reader = valid.reader(ids)?;
    let skipped = predict_all_with(group, &mut *reader, &mut |batch| {
        let index = batches;
        batches += 1;
        group.evaluate(if keeps { Incoming::Keep { batch, index } } else { Incoming::Read(batch) })
    })?;
    *evaluated = keeps.then(|| Evaluated { batches, skipped: skipped.clone() });
    Ok(skipped)
}

/// Calls `predict`, which works with `group`, with every batch of `reader`. Returns the bad lines
/// that were skipped.
pub(super) fn predict_all_with(
    group: &RankGroup,
    reader: &mut dyn Reader,
    predict: &mut dyn FnMut(&Batch) -> Result<()>,
) -> Result<SkipReport> {
    let mut batch = Batch::default();
    loop {
        let busy = group.busy("waits for its data");
        let has_batch =
            reader.next(&mut batch).map_err(Error::failed("the data cannot be read"))?;
        drop(busy);
        if !has_batch {
            return Ok(reader.skip_report());
        }
        predict(&batch)?;
    }
}
