//! `headlong report`: a page about a run, from what it has left in its folder. What the page says
//! of rows comes from the run's checkpoint and its validation data, where they are still there.

mod chart;
mod costs;
mod curves;
mod html;
mod page;
mod quality;
mod rows;
mod settings;

use crate::Registry;
use crate::commands::checkpoint::{self as checkpoint_command, Which};
use crate::commands::files::CommandFiles;
use crate::commands::tune;
use crate::error::{Error, Result, chain};
use crate::report::count;
use crate::report::history::FILE_NAME;
use crate::report::history::read::{self, Kept};
use crate::report::output::{say, write_file};
use crate::state::checkpoint::{Checkpoint, members, steps};
use clap::Args;
use headlong_reader::io::DataFile;
use page::Report;
use rows::{Found, Sample};
use std::path::{Path, PathBuf};

/// The page's name in the run's folder.
const PAGE: &str = "report.html";

/// Arguments of `headlong report`.
#[derive(Debug, Args)]
pub struct ReportArguments {
    /// The run's folder: that of `train --output-dir`, or of `tune`
    #[arg(value_name = "RUN_DIR")]
    pub run_dir: PathBuf,
    /// Where the page goes; RUN_DIR/report.html by default
    #[arg(long, value_name = "FILE.html")]
    pub output: Option<PathBuf>,
    /// Most rows of the validation data, from its front, for calibration, lift and the importance
    /// of columns; 0: none of these
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub rows: u64,
    /// Threads; one per core by default
    #[arg(long, value_name = "N", value_parser = crate::config::ranges::threads)]
    pub threads: Option<usize>,
}

impl ReportArguments {
    fn page(&self) -> PathBuf {
        self.output.clone().unwrap_or_else(|| self.run_dir.join(PAGE))
    }
}

/// What it reads and writes.
pub fn files(arguments: &ReportArguments) -> CommandFiles {
    let histories = histories(&arguments.run_dir);
    // Where the folder is none, that is what is wrong.
    let page = (arguments.output.is_some() || arguments.run_dir.is_dir()).then(|| arguments.page());
    CommandFiles::default().reads("RUN_DIR", histories).writes("--output", page)
}

/// Where a run's history may be: in its folder, or in that of the model that `tune` keeps.
fn histories(folder: &Path) -> [PathBuf; 2] {
    [folder.join(FILE_NAME), folder.join(tune::MODEL).join(FILE_NAME)]
}

/// Writes the page.
///
/// # Errors
/// A folder without a history; a history that is damaged; a page that cannot be written.
pub fn run(arguments: &ReportArguments, registry: &Registry) -> Result<()> {
    let folder = &arguments.run_dir;
    let found = histories(folder).into_iter().find(|path| path.is_file());
    let path = found.ok_or_else(|| nothing_kept(folder))?;
    let kept = read::read(&path)?;
    let rows = look_at_rows(arguments, path.parent().unwrap_or(folder), &kept, registry);
    if let Err(why) = &rows {
        say(format_args!("note: {why}"));
    }
    let name = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.clone());
    let name = name.file_name().unwrap_or(name.as_os_str()).to_string_lossy().into_owned();
    let page = Report { name: &name, kept: &kept, rows }.to_html();
    let output = arguments.page();
    write_file(&output, &page)?;
    say(format_args!("the report is {}", output.display()));
    Ok(())
}

fn nothing_kept(folder: &Path) -> Error {
    let (name, what) = (folder.display(), "the folder that `headlong train --output-dir` names");
    let message = match folder.is_dir() {
        true if !members(folder).is_empty() || steps(folder).is_ok_and(|all| !all.is_empty()) => {
            format!(
                "{name} has checkpoints, and no {FILE_NAME}: name {what}, by default headlong-out"
            )
        }
        true => format!("{name} has no {FILE_NAME}: expected {what}"),
        false => format!("{name} is no folder: expected {what}"),
    };
    Error::config("RUN_DIR", message)
}

/// What the rows say, or a sentence why they say nothing.
fn look_at_rows(
    arguments: &ReportArguments,
    folder: &Path,
    kept: &Kept,
    registry: &Registry,
) -> Result<Found, String> {
    if arguments.rows == 0 {
        return Err("No rows were looked at (--rows 0).".to_owned());
    }
    let model = kept.models.last().ok_or("There is no model.")?;
    if kept.models.len() == 1 && model.done.is_none() && model.evals.is_empty() {
        return Err("The run has not been evaluated so far.".to_owned());
    }
    let valid = &model.start.data.valid;
    if valid.is_empty() {
        return Err("The run has no validation data (--valid, --holdout): calibration, lift and \
                    the importance of columns need rows that were not trained on."
            .to_owned());
    }
    if model.start.data.valid_is_frame {
        return Err(
            "The run validated on a data frame, which no file holds: calibration, lift and \
                    the importance of columns need rows of a file (`valid=\"rows.parquet\"`)."
                .to_owned(),
        );
    }
    let working = model.processes.last().map(|process| process.working_folder.as_path());
    let files: Vec<DataFile> = valid.iter().map(|file| found_from(file, working)).collect();
    if let Some(file) = files.iter().find(|file| !is_there(file)) {
        return Err(format!(
            "The validation data {file} is not there any more: calibration, lift and the \
             importance of columns need it."
        ));
    }
    let checkpoints = checkpoints(folder, kept, working)?;
    let (most_rows, threads) = (arguments.rows, arguments.threads);
    say(format_args!("looking at up to {} rows of the validation data", count(most_rows)));
    let sample = Sample { checkpoints, files: &files, most_rows, threads };
    let found = rows::look(sample, registry).map_err(|error| {
        let error = error.naming_columns(&[]);
        format!("The rows of the validation data cannot be looked at: {}.", chain(&error))
    })?;
    Ok(Found { remark: remark(kept, &found), ..found })
}

/// What is to be said where the rows are not those that the run has evaluated.
fn remark(kept: &Kept, found: &Found) -> Option<String> {
    let then = kept.models.iter().flat_map(|model| &model.evals).last()?.eval.metrics.eval_samples;
    let now = found.metrics.eval_samples;
    let is_changed = if found.is_all { now != then } else { now > then };
    is_changed.then(|| {
        let [then, now] = [then, now].map(count);
        format!("The run has evaluated {then} rows, and here are {now}: the data has changed.")
    })
}

/// A file of the run: as it was named, from here or from where the run was started.
fn found_from(file: &DataFile, working: Option<&Path>) -> DataFile {
    match working.map(|folder| folder.join(file.path())) {
        Some(path) if !is_there(file) && path.exists() => DataFile::from(path),
        _ => file.clone(),
    }
}

/// A pipe has given its rows already, and a shard is named by the beginning of its files.
fn is_there(file: &DataFile) -> bool {
    let is_of_files = headlong_reader::convert::is_folder_or_stem(file.path());
    !file.is_stream() && (file.path().exists() || is_of_files)
}

/// The checkpoints of the run's models: in the folder of the history, or where the run says.
fn checkpoints(
    folder: &Path,
    kept: &Kept,
    working: Option<&Path>,
) -> Result<Vec<Checkpoint>, String> {
    let configured = kept.models.last().and_then(|model| {
        let dir = Path::new(model.start.config["checkpoint"]["dir"].as_str()?);
        let is_of_several = model.start.config["train"]["seeds"].as_u64() > Some(1);
        if is_of_several { dir.parent() } else { Some(dir) }
    });
    let from_there = configured.zip(working).map(|(dir, working)| working.join(dir));
    // A folder may have moved, with the model in it.
    let moved = configured.and_then(Path::file_name).map(|name| folder.join(name));
    let places = [Some(folder), configured, from_there.as_deref(), moved.as_deref()];
    let mut places = places.into_iter().flatten();
    let has_some = |place: &&Path| {
        !members(place).is_empty() || steps(place).is_ok_and(|steps| !steps.is_empty())
    };
    match (places.find(has_some), configured) {
        (Some(place), _) => checkpoint_command::open_finished("RUN_DIR", place, Which::Best)
            .map_err(|error| format!("The run's checkpoint cannot be used: {}.", chain(&error))),
        (None, None) => {
            Err("The run has kept no checkpoint (--checkpoint-dir): calibration, lift \
                             and the importance of columns need its weights."
                .to_owned())
        }
        (None, Some(dir)) => Err(format!(
            "The run's checkpoint in {} is not there any more: calibration, lift and the \
             importance of columns need its weights.",
            dir.display()
        )),
    }
}
