//! The work of a process that only evaluates: it takes weights from those that train, predicts the
//! validation data, and tells what the scores come to, until it is sent home.

use super::eval_processes::{Head, model_number, word};
use super::eval_ranks::evaluate_all;
use crate::data::EvaluationData;
use crate::error::{Error, Result, exchange_failed};
use crate::iteration::job::{Bridge, Job};
use crate::iteration::model::Purpose;
use crate::iteration::ranks::{RankGroup, RankGroupOptions};
use crate::metrics::Tally;
use crate::plan::evaluation::config_of_eval_ranks;
use crate::run::evaluation::Scoring;
use crate::run::prepare::Prepared;
use headlong_comm::{CommError, Communicator, Element, Rank};
use headlong_embedding::Registry;
use headlong_reader::{IdMapper, SkipReport};
use std::cell::Cell;

/// Waits until the process that leads has prepared its data; false where nothing will be evaluated.
pub fn wait_for_data(job: &Job) -> Result<bool> {
    let mut head: Head = [word::END; 4];
    if let Some(bridge) = job.bridge() {
        let _busy = job.busy("waits for those that train");
        bridge.from_leader(&mut head).map_err(Error::communication("those that train"))?;
    }
    Ok(job.as_rank_0(head[0])? == word::PREPARED)
}

/// Evaluates until the process that leads sends this one home. Gives the bad lines that the last
/// evaluation skipped. `ready` is called when the model is built: from then on, training does not
/// end with this process.
///
/// # Errors
/// Those that train are lost; memory that the system refuses; data that cannot be read.
pub fn evaluate_for_training(
    job: &mut Job,
    prepared: &Prepared,
    threads: usize,
    registry: &Registry,
    ready: &dyn Fn(),
) -> Result<SkipReport> {
    let count = job.ranks_that_evaluate().len();
    let config = config_of_eval_ranks(&job.config, count);
    let Some(valid) = prepared.session_data(&config, threads)?.valid else {
        return Err(Error::config("data.valid", "there is nothing to evaluate on"));
    };
    let ids = prepared.id_mapper(&config)?;
    let options = RankGroupOptions {
        communicators: job.take_communicator().map(|rank| vec![rank]),
        taken_devices: job.training_here(),
        ..RankGroupOptions::new(threads, registry)
    };
    let group = RankGroup::build(&config, &prepared.table_rows, options)?;
    group.keep(Purpose::Evaluation, valid.batches_that_stay(&config, threads)?)?;
    ready();
    let mut evaluator = Evaluator {
        bridge: job.take_bridge(),
        group,
        valid,
        ids,
        skipped: SkipReport::default(),
        is_left: Cell::new(false),
    };
    let outcome = evaluator.until_sent_home().map_err(|error| match evaluator.is_left.get() {
        true => error,
        false => error.in_whole(job.ranks_that_evaluate()),
    });
    if let Err(error) = &outcome {
        evaluator.bridge.iter().for_each(|bridge| bridge.abort(error));
        evaluator.group.abort(error);
    }
    outcome.map(|()| evaluator.skipped)
}

struct Evaluator {
    /// Where this is the first of those that evaluate.
    bridge: Option<Bridge>,
    group: RankGroup,
    valid: EvaluationData,
    /// Before the first sample.
    ids: IdMapper,
    skipped: SkipReport,
    /// Those that train are gone: the ranks of such an error are not those that evaluate.
    is_left: Cell<bool>,
}

impl Evaluator {
    fn until_sent_home(&mut self) -> Result<()> {
        self.tell(&mut [model_number(&self.group)])?;
        loop {
            let mut head: Head = [0; 4];
            self.hear(&mut head)?;
            match head {
                [word::EVALUATE, step, ids, tensors] => {
                    let named = Error::failed(format!("the evaluation of step {step} has failed"));
                    let tally = self.evaluate(ids as usize, tensors as usize).map_err(named)?;
                    self.tell(&mut tally.to_words())?;
                }
                _ => break,
            }
        }
        self.group.close()?;
        match &self.bridge {
            Some(bridge) => left(&self.is_left, bridge.close()),
            None => Ok(()),
        }
    }

    /// Takes weights and evaluates them.
    fn evaluate(&mut self, ids: usize, tensors: usize) -> Result<Tally> {
        let (mut state, mut rows) = (vec![0_u8; ids], vec![0; tensors]);
        self.hear(&mut state)?;
        self.hear(&mut rows)?;
        let link = self.group.link();
        let (bridge, link) = ((self.bridge.as_ref(), &self.is_left), link.as_deref());
        self.group.write_weights(&rows, &mut |values| hear(bridge, link, values))?;
        let mut ids = self.ids.clone();
        ids.restore_state(&state).map_err(Error::failed("the state of the ids is lost"))?;
        let group = &self.group;
        self.skipped = evaluate_all(group, &self.valid, &ids)?;
        let scores = group.worker(0).take_scores();
        let (tally, memory) = Scoring::start(vec![scores], group.link())?.tally()?;
        memory.into_iter().for_each(|scores| group.worker(0).reuse_scores(scores));
        Ok(tally)
    }

    /// Fills `data` with what the process that leads says: it comes over the bridge to the first of
    /// those that evaluate, and from it to the others.
    fn hear<T: Element>(&self, data: &mut [T]) -> Result<()> {
        hear((self.bridge.as_ref(), &self.is_left), self.group.link().as_deref(), data)
    }

    fn tell(&self, words: &mut [u64]) -> Result<()> {
        let Some(bridge) = &self.bridge else { return Ok(()) };
        left(&self.is_left, bridge.from_evaluator(words))
    }
}

fn hear<T: Element>(
    (bridge, is_left): (Option<&Bridge>, &Cell<bool>),
    link: Option<&Communicator>,
    data: &mut [T],
) -> Result<()> {
    if let Some(bridge) = bridge {
        let _busy = link.map(|link| link.busy("waits for those that train"));
        left(is_left, bridge.from_leader(data))?;
    }
    let told = link.map_or(Ok(()), |link| link.broadcast(Rank(0), data));
    told.map_err(exchange_failed("the weights"))
}

fn left(is_left: &Cell<bool>, result: Result<(), CommError>) -> Result<()> {
    is_left.set(result.is_err());
    result.map_err(Error::communication("those that train are lost"))
}
