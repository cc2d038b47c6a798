//! From prepared data to a session: the one way in which the command `train` and a program of one's
//! own open theirs.

use crate::error::Result;
use crate::iteration::job::Job;
use crate::iteration::ranks::{RankGroup, RankGroupOptions};
use crate::iteration::trace::Record;
use crate::plan::evaluation::check_eval_ranks;
use crate::plan::placement::Placement;
use crate::run::prepare::Prepared;
use crate::run::session::{
    Apart, EvalProcesses, EvalRanks, EvalRanksOptions, Session, Start, refuse_later_checkpoints,
};
use headlong_embedding::Registry;
use std::sync::Arc;

/// What a session is opened from, besides its job.
pub struct OpenArgs<'a> {
    /// The data.
    pub prepared: &'a Prepared,
    /// Where every row lies.
    pub placement: Placement,
    /// Where training starts.
    pub start: Start<'a>,
    /// Whether a resumed run may go on with files of another content.
    pub may_differ: bool,
    /// What is recorded of each stage.
    pub record: Record,
    /// The kinds of tables.
    pub registry: &'a Registry,
}

/// Builds the ranks of this process, those that evaluate included, and opens their session.
///
/// # Errors
/// Memory that the system refuses; a checkpoint of another model or other data; a folder that
/// another run has saved in meanwhile; evaluation ranks that have nothing to evaluate.
pub fn open_session(job: &mut Job, args: OpenArgs<'_>) -> Result<Session> {
    let OpenArgs { prepared, placement, start, may_differ, record, registry } = args;
    let config = &job.config.clone();
    let threads = config.threads();
    check_eval_ranks(config, &prepared.table_rows, !prepared.valid.is_empty())?;
    let processes = match config.run.eval_processes {
        Some(_) => Some(EvalProcesses::prepare(job.take_bridge())?),
        None => None,
    };
    let mut data = prepared.session_data(config, threads)?;
    data.may_differ = may_differ;
    let threads = Threads::of(job, threads);
    let group = RankGroupOptions {
        partition: Some(Arc::clone(&placement.partition)),
        communicators: job.take_communicator().map(|rank| vec![rank]),
        record,
        ..RankGroupOptions::new(threads.of_training, registry)
    };
    let group = RankGroup::build(&placement.decide(config), &prepared.table_rows, group)?;
    let (leads, ranks_on_machine) = (group.leads(), group.ranks_on_machine());
    let mut session = Session::open(config, group, data, &start)?;
    if leads {
        let resumed = match start {
            Start::Resume(checkpoint) => Some(checkpoint),
            _ => None,
        };
        refuse_later_checkpoints(config, resumed)?;
    }
    if let Some(count) = config.run.eval_ranks {
        let options = EvalRanksOptions {
            count,
            threads_per_rank: threads.of_eval_rank,
            training_threads: threads.of_training,
            batches_that_stay: match leads {
                true => session.evaluation_batches_that_stay(threads.of_training)?,
                false => 0,
            },
            leads,
            ranks_on_machine,
            registry,
        };
        let ranks = EvalRanks::build(config, &prepared.table_rows, &options)?;
        session.evaluate_on(Apart::Ranks(ranks));
    }
    if let Some(processes) = processes {
        processes.wait_until_ready(session.group())?;
        session.evaluate_on(Apart::Processes(processes));
    }
    Ok(session)
}

/// How the threads of this process are shared out: ranks that evaluate have as many as ranks that
/// train.
struct Threads {
    of_training: usize,
    of_eval_rank: usize,
}

impl Threads {
    fn of(job: &Job, threads: usize) -> Self {
        let run = &job.config.run;
        let training = if job.is_single_process() { run.ranks } else { 1 };
        let evaluating = run.eval_ranks.filter(|_| job.leads()).unwrap_or(0);
        let of_rank = (threads / (training + evaluating)).max(1);
        let of_training = if evaluating == 0 { threads } else { of_rank * training };
        Self { of_training, of_eval_rank: of_rank }
    }
}
