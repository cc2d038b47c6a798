//! Which checkpoint a run resumes from, and which earlier run it must not write over.

use crate::commands::checkpoint as checkpoint_command;
use crate::commands::train_arguments::TrainOptions;
use crate::config::{Bf16Sums, Config, Ids, Precision, validate::quoted};
use crate::error::{Error, Result};
use crate::iteration::job::Job;
use crate::report::{At, Done, Reporter};
use crate::run::session::config_of;
use crate::state::checkpoint::Checkpoint;

/// What a user should know of settings that a run continues with and did not begin with: those that
/// decide how a run begins, what rows are stored in, and how products are computed.
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
    let [rows, rows_then] = [now, then].map(|config| quoted(&config.tables.dtype));
    let stored =
        format!("--resume: rows are stored in {rows} from here on, until now in {rows_then}");
    let computed = computed(now, then).into_iter();
    others.chain((rows != rows_then).then_some(stored)).chain(computed).collect()
}

/// What differs from here on in how products are computed, if anything.
fn computed(now: &Config, then: &Config) -> Option<String> {
    let words = |config: &Config| {
        let order = quoted(&config.train.bf16_sums);
        let order = (config.train.precision == Precision::Bf16).then(|| format!(", sums {order}"));
        format!("{}{}", quoted(&config.train.precision), order.unwrap_or_default())
    };
    // On a device, or before there was a choice.
    let open = then.train.bf16_sums == Bf16Sums::Auto;
    let same = open && now.train.precision == then.train.precision;
    let [now, then] = [now, then].map(words);
    (now != then && !same)
        .then(|| format!("--resume: products are in {now} from here on, until now in {then}"))
}

/// The last words of a run that has finished and is not asked for more now than it was then.
fn already_done(config: &Config, checkpoint: &Checkpoint) -> Option<Done> {
    let state = &checkpoint.manifest().state;
    state.finished.as_ref()?;
    let memory: crate::run::session::Memory = serde_json::from_value(state.session.clone()).ok()?;
    if state.finished.as_deref() == Some("patience") && !memory.patience_is_over(config) {
        return None;
    }
    let (epochs, steps, target) = asked_for(config);
    let (epochs_then, steps_then, target_then) = memory.asked_for?;
    let ends_as_early = match (steps, steps_then) {
        (Some(steps), _) => steps <= state.step,
        (None, None) => epochs <= epochs_then,
        (None, Some(_)) => false,
    };
    memory
        .done
        .filter(|_| ends_as_early && target == target_then)
        .and_then(|done| serde_json::from_value(done).ok())
}

pub(super) fn asked_for(config: &Config) -> (f64, Option<u64>, Option<f64>) {
    (config.train.epochs, config.train.steps, config.eval.target_auc)
}

/// Says once more what a run that has finished has reached; false where it has not.
pub(super) fn repeats_its_report(
    job: &Job,
    resumed: Option<&Checkpoint>,
    reporter: &mut Reporter,
) -> Result<bool> {
    // One of another model is refused where it is loaded.
    let is_alike =
        |then: &Checkpoint| config_of(then).map_or(true, |then| then.model == job.config.model);
    let Some(checkpoint) = resumed.filter(|then| is_alike(then)) else { return Ok(false) };
    let Some(done) = already_done(&job.config, checkpoint) else { return Ok(false) };
    if job.leads() {
        checkpoint.verify().map_err(Error::failed("the run cannot be resumed"))?;
    }
    reporter.note(
        "this run has finished already (more --epochs or --steps go on); its final report again:",
    );
    let state = &checkpoint.manifest().state;
    reporter.done(At { step: state.step, samples: state.samples }, &done)?;
    Ok(true)
}

/// The checkpoint whose weights `--init-from` takes.
pub(super) fn initial_weights(options: &TrainOptions) -> Result<Option<Checkpoint>> {
    let folder = options.flags.init_from.as_deref();
    folder.map(|folder| checkpoint_command::open("--init-from", folder)).transpose()
}

/// The checkpoint that `--resume` resumes from, and that of `--init-from` is one.
///
/// # Errors
/// As [`crate::run::session::find_checkpoint`]; weights to begin with that are not there.
pub(crate) fn find_checkpoint(
    config: &Config,
    options: &TrainOptions,
    leads: bool,
) -> Result<Option<Checkpoint>> {
    initial_weights(options)?;
    crate::run::session::find_checkpoint(
        config,
        options.flags.resume,
        leads && !options.flags.dry_run,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bf16(sums: Bf16Sums) -> Config {
        let mut config = Config::default();
        config.train.precision = Precision::Bf16;
        config.train.bf16_sums = sums;
        config
    }

    #[test]
    fn another_precision_or_order_of_sums_is_named() {
        let said = |now: &Config, then: &Config| without_effect(now, then).concat();
        let [pairs, tiles] = [Bf16Sums::Pairs, Bf16Sums::Tiles].map(bf16);
        assert_eq!(
            said(&tiles, &pairs),
            "--resume: products are in \"bf16\", sums \"tiles\" from here on, until now in \
             \"bf16\", sums \"pairs\""
        );
        assert!(said(&Config::default(), &pairs).contains("products are in \"f32\" from here on"));
        // The same, and of a run that had no order: nothing is known to differ.
        for (now, then) in [(&pairs, &pairs), (&tiles, &bf16(Bf16Sums::Auto))] {
            assert_eq!(said(now, then), "");
        }
    }
}
