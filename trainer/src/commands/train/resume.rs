//! Which checkpoint a run resumes from, and which earlier run it must not write over.

use crate::commands::train_arguments::TrainOptions;
use crate::config::{Config, Ids, validate::quoted};
use crate::error::failed;
use crate::error::{Error, Result};
use crate::iteration::job::Job;
use crate::report::output;
use crate::report::{At, Done, Reporter};
use crate::run::session::{open_directory, refuse_earlier_checkpoints};
use crate::state::checkpoint::{self, Checkpoint, CheckpointDirectory};

/// The checkpoint that `--resume` resumes from. Refuses a folder that another run has saved in, and
/// weights to begin with that are not there.
pub(crate) fn find_checkpoint(
    config: &Config,
    options: &TrainOptions,
    leads: bool,
) -> Result<Option<Checkpoint>> {
    if let Some(dir) = &options.init_from {
        crate::commands::checkpoint::open("--init-from", dir)?;
    }
    match &config.checkpoint.dir {
        Some(dir) if options.resume && dir.exists() => {
            if leads && !options.dry_run {
                // Opening the directory brings back a checkpoint that a crash had left under an
                // interim name.
                let directory = open_directory(config, 1)?;
                let cleaned = directory.iter().flat_map(CheckpointDirectory::cleaned);
                cleaned.for_each(|left| output::say(format_args!("checkpoints: {left}")));
            }
            checkpoint::newest(dir).map_err(|error| failed("the run cannot be resumed", error))
        }
        Some(dir) if dir.exists() => refuse_earlier_checkpoints(dir).map(|()| None),
        _ => Ok(None),
    }
}

/// Another run may have saved between the look at the folder and the moment at which this run
/// locked it.
pub(super) fn refuse_later_checkpoints(
    config: &Config,
    resumed: Option<&Checkpoint>,
) -> Result<()> {
    let Some(dir) = &config.checkpoint.dir else { return Ok(()) };
    let found = checkpoint::steps(dir)
        .map_err(|error| failed("the checkpoint directory cannot be read", error))?;
    let newest = found.last().map(|(step, _)| *step);
    let expected = resumed.map(|checkpoint| checkpoint.manifest().state.step);
    match (newest, expected) {
        (Some(step), Some(expected)) if step != expected => Err(Error::config(
            "--checkpoint-dir",
            format!(
                "another run has saved step {step} in {} since this run began to go on from step \
                 {expected}: start it again, or name another folder",
                dir.display()
            ),
        )),
        (Some(_), None) => refuse_earlier_checkpoints(dir),
        _ => Ok(()),
    }
}

/// Refuses to go on with another loss: what a checkpoint records of its model does not hold it.
pub(super) fn refuse_other_loss(now: &Config, then: &Config) -> Result<()> {
    let [now, then] = [now, then].map(|config| quoted(&config.model.loss));
    match now == then {
        true => Ok(()),
        false => Err(Error::contradiction(
            "--resume",
            format!("model.loss = {now}"),
            format!("the run has begun with {then}; --init-from takes weights only"),
        )),
    }
}

/// What a user should know of settings that a run continues with and did not begin with: those that
/// decide how a run begins, and what rows are stored in.
pub(super) fn without_effect(now: &Config, then: &Config) -> Vec<String> {
    let seed = ("train.seed", now.train.seed, then.train.seed);
    let min_count =
        ("data.min_count", u64::from(now.data.min_count), u64::from(then.data.min_count));
    // Of admitted ids it is part of what a checkpoint must agree in.
    let decide = [Some(seed), Some(min_count).filter(|_| now.data.ids != Ids::Admitted)];
    let others = decide.into_iter().flatten().filter(|(_, now, then)| now != then);
    let others = others.map(|(key, now, then)| {
        format!("--resume: {key} = {now} has no effect, the run has begun with {then}")
    });
    let [now, then] = [now, then].map(|config| quoted(&config.tables.dtype));
    let stored = format!("--resume: rows are stored in {now} from here on, until now in {then}");
    others.chain((now != then).then_some(stored)).collect()
}

/// The last words of a run that has finished and is not asked for more now than it was then.
fn already_done(config: &Config, checkpoint: &Checkpoint) -> Option<Done> {
    let state = &checkpoint.manifest().state;
    state.finished.as_ref()?;
    let memory: crate::run::session::Memory = serde_json::from_value(state.session.clone()).ok()?;
    let same = memory.asked_for == Some(asked_for(config));
    memory.done.filter(|_| same).and_then(|done| serde_json::from_value(done).ok())
}

/// What decides when a run ends.
pub(super) fn asked_for(config: &Config) -> (f64, Option<u64>, Option<f64>) {
    (config.train.epochs, config.train.steps, config.eval.target_auc)
}

/// Says once more what a run that has finished has reached; false where it has not.
pub(super) fn repeats_its_report(
    job: &Job,
    resumed: Option<&Checkpoint>,
    reporter: &mut Reporter,
) -> Result<bool> {
    let Some(checkpoint) = resumed else { return Ok(false) };
    let Some(done) = already_done(&job.config, checkpoint) else { return Ok(false) };
    if job.leads() {
        checkpoint.verify().map_err(|error| failed("the run cannot be resumed", error))?;
    }
    reporter.note(
        "this run has finished already (more --epochs or --steps go on); its final report again:",
    );
    let state = &checkpoint.manifest().state;
    reporter.done(At { step: state.step, samples: state.samples }, &done)?;
    Ok(true)
}
