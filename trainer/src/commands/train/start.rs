//! How a run starts: where from, and what is said of it.

use super::caller::reporter;
use super::resume::{find_checkpoint, without_effect};
use super::snapshots;
use crate::auto::text;
use crate::commands::train_arguments::TrainOptions;
use crate::data::{self, Reads};
use crate::error::{Error, Result};
use crate::iteration::job::Job;
use crate::report::Reporter;
use crate::report::output::write_file;
use crate::run::session::{Start, agree_on_start, config_of};
use crate::state::checkpoint::Checkpoint;
use crate::system::elastic;

/// The checkpoint that the run continues from, and where it says how it is going.
pub(super) fn begin(job: &Job, options: &TrainOptions) -> Result<(Option<Checkpoint>, Reporter)> {
    snapshots::gather(job, options)?;
    let resumed = job.leader_first(|| find_checkpoint(&job.config, options, job.leads()))?;
    // A run that has finished ends without a session, which would ask again.
    let start = Start::new(resumed.as_ref(), None);
    job.link().map_or(Ok(()), |ranks| agree_on_start(ranks, &start))?;
    data::check_pipes(
        &job.config,
        Reads { is_resumed: resumed.is_some(), has_mllog: options.flags.mllog.is_some() },
    )?;
    let reporter = match job.leads() {
        true => reporter(options, resumed.is_some() || snapshots::appends_to_log(options))?,
        false => Reporter::quiet(None),
    };
    Ok((resumed, reporter))
}

/// Says where a resumed run starts from the beginning, which settings it takes no more, and what
/// `--auto` has chosen.
pub(super) fn note_the_start(
    job: &Job,
    options: &TrainOptions,
    resumed: Option<&Checkpoint>,
    reporter: &mut Reporter,
) -> Result<()> {
    if options.flags.resume && resumed.is_none() && elastic::restarts() == 0 {
        reporter
            .note("--resume: there is no checkpoint yet, so training starts from the beginning");
    }
    if let Some(folder) = &job.config.checkpoint.snapshot_dir
        && elastic::snapshot_dir().is_some()
    {
        let folder = folder.display();
        reporter.note(&format!(
            "snapshots go to {folder}, where they stay, and not to the folder of `launch --elastic`"
        ));
    }
    if let Some(then) = resumed.and_then(|checkpoint| config_of(checkpoint).ok()) {
        without_effect(&job.config, &then).iter().for_each(|note| reporter.note(note));
    }
    keep_what_was_chosen(job, options, reporter)
}

/// Shows what `--auto` has chosen, and keeps it where the run writes: as a configuration that
/// trains the same.
fn keep_what_was_chosen(job: &Job, options: &TrainOptions, reporter: &Reporter) -> Result<()> {
    let Some(chosen) = options.chosen.as_ref().filter(|_| job.leads()) else { return Ok(()) };
    reporter.result(chosen);
    if options.flags.dry_run {
        return Ok(());
    }
    let folder = &job.config.run.output_dir;
    std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    let file = folder.join(text::FILE_NAME);
    if std::fs::read_to_string(&file).is_ok_and(|before| before != *chosen) {
        let before = file.with_extension("toml.before");
        std::fs::rename(&file, &before).map_err(Error::io("rename", &file))?;
        reporter.note(&format!("{} was another one: it is {}", file.display(), before.display()));
    }
    write_file(&file, chosen)
}
