//! A process that only evaluates (`--eval-processes`), from its preparation to its end.

use super::resume::find_checkpoint;
use crate::commands::launch::tell_role;
use crate::commands::remarks;
use crate::commands::train_arguments::TrainOptions;
use crate::error::Result;
use crate::iteration::job::Job;
use crate::plan::Facts;
use crate::plan::evaluation::{check_eval_ranks, check_memory};
use crate::report::Reporter;
use crate::report::output::say;
use crate::run::outlook::Outlook;
use crate::run::prepare::Prepared;
use crate::run::session::{evaluate_for_training, wait_for_data};
use crate::system::machine::Machine;
use crate::system::signals::StopRequest;

/// Evaluates for the processes of `job` that train, until they are done.
pub(super) fn run(job: &mut Job, options: &TrainOptions) -> Result<()> {
    // Of a signal, those that train decide: they may want to hear of an evaluation first. A second
    // one ends this process at once.
    let _asked = StopRequest::listen()?;
    if !wait_for_data(job)? {
        return Ok(());
    }
    let resumed = find_checkpoint(&job.config, options, false)?;
    let mut config = job.config.clone();
    // Its rows have owners by a formula: none are counted.
    (config.run.ranks, config.run.eval_processes) = (1, None);
    let threads = config.threads();
    let quiet = Reporter::quiet(None);
    let prepared = Prepared::new(&config, resumed.as_ref(), threads, &quiet)?;
    check_eval_ranks(&job.config, &prepared.table_rows, !prepared.valid.is_empty())?;
    let machine = Machine::detect_with(config.run.device)?;
    let outlook = Outlook::of(&config)?;
    let facts = Facts {
        kept_bytes: outlook.kept_bytes,
        evaluating_here: Some(job.evaluating_here()),
        ..Facts::new(&prepared.table_rows, &machine, &options.registry)
    };
    check_memory(&job.config, &facts)?;
    let skipped = evaluate_for_training(job, &prepared, threads, &options.registry, &tell_role)?;
    if let Some((warning, _)) = remarks::skipped("validation data", &skipped) {
        say(format_args!("warning: {warning}"));
    }
    Ok(())
}
