//! Several models of one configuration that differ in their initial weights and, where samples come
//! in random order, in that, trained one after another, each into a folder of its own: `seed-1`,
//! `seed-2`, … of the folder of checkpoints. What applies that folder takes their mean.

use crate::commands::checkpoint::{self as checkpoint_command, Which};
use crate::commands::inference;
use crate::commands::launch::launched;
use crate::commands::train_arguments::TrainOptions;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::metrics::EvalMetrics;
use crate::report::At;
use crate::report::output::say;
use crate::state::checkpoint;

/// Trains all models of `config`, which has several, and evaluates their mean.
///
/// # Errors
/// As of training one; an ensemble without a folder, or in that of another run.
pub(super) fn run(config: &Config, options: &TrainOptions) -> Result<()> {
    let seeds = config.train.seeds;
    if launched().is_some() {
        let reason = "models are trained one after another by one process";
        return Err(Error::contradiction("--seeds", "a launcher's several processes", reason));
    }
    let Some(dir) = &config.checkpoint.dir else {
        let message = "each model is kept in a folder: name it with --checkpoint-dir DIR";
        return Err(Error::config("train.seeds", message));
    };
    let found = checkpoint::steps(dir).unwrap_or_default();
    if let Some((_, path)) = found.last() {
        let message = format!("{} is of a run of one model: name another folder", path.display());
        return Err(Error::config("--checkpoint-dir", message));
    }
    let found = checkpoint::members(dir).len();
    if found > seeds {
        let message =
            format!("{} has {found} models already: ask for {found} or more", dir.display());
        return Err(Error::config("train.seeds", message));
    }
    for (index, seed) in (config.train.seed..).take(seeds).enumerate() {
        let mut member = config.clone();
        member.train.seed = seed;
        // What came last weighs most in a model of one pass: with other samples last, a mean gains.
        member.data.order_seed = config.data.order_seed.wrapping_add(index as u64);
        let name = checkpoint::member_name(seed);
        member.checkpoint.dir = Some(dir.join(&name));
        member.checkpoint.snapshot_dir = config.snapshot_dir().map(|folder| folder.join(&name));
        if options.caller.is_none() {
            say(format_args!("model {} of {seeds}: seed {seed}", index + 1));
        }
        // What --auto has chosen is said once.
        let chosen = options.chosen.clone().filter(|_| index == 0);
        let warnings = options.warnings.iter().filter(|_| index == 0).cloned().collect();
        let appends_to_log = index > 0;
        let mut options = TrainOptions { appends_to_log, chosen, warnings, ..options.clone() };
        // To TensorBoard each folder is a run.
        let events = options.flags.tensorboard.as_mut();
        events.into_iter().for_each(|folder| folder.push(checkpoint::member_name(seed)));
        super::run_model(&member, &options)?;
        if options.flags.dry_run {
            // The others cost the same.
            return Ok(());
        }
    }
    if config.data.valid.is_empty() {
        return Ok(());
    }
    let members = match options.caller {
        None => checkpoint_command::open_all("--checkpoint-dir", dir, Which::Best)?,
        Some(_) => checkpoint_command::open_finished("--checkpoint-dir", dir, Which::Best)?,
    };
    let eval = inference::evaluate_validation(config, members.clone(), &options.registry)?;
    let of_each = members.iter().filter_map(|member| member.manifest().state.metrics);
    let of_each = spread(&of_each.collect::<Vec<_>>());
    let mut reporter = super::reporter(options, true)?;
    reporter.keep_history(&config.run.output_dir, true, At::default());
    reporter.ensemble(seeds, &eval, &of_each)
}

/// Mean and standard deviation of what single models have reached.
fn spread(of_each: &[EvalMetrics]) -> String {
    let line = |name: &str, of: &dyn Fn(&EvalMetrics) -> Option<f64>| {
        let values: Vec<f64> = of_each.iter().filter_map(of).collect();
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        format!("{name} {mean:.5} ± {:.5}", (squares / (count - 1.0)).sqrt())
    };
    let [auc, logloss] =
        [line("AUC", &|metrics| metrics.auc), line("log loss", &|metrics| metrics.logloss)];
    format!("single models: {auc}, {logloss} (standard deviation)")
}
