//! `headlong tune`: tries settings, and writes those that are best as a configuration.
//!
//! Each trial is a run of `headlong train` by a process of its own, with one thread. What a plan of
//! trials comes to depends on the data, the seed and the plan, not on the clock, the number of
//! processors or how often it was interrupted:
//!
//! ```text
//! fold 0           trials in groups; on each rung the better half is trained further
//! folds 1, 2, …    the best trials and the base, from the beginning: is one surely better?
//! all other rows   the base and the best, scored with rows that no trial has seen
//! ```

pub mod journal;
mod picture;
mod plan;
mod score;
mod search;
pub mod space;
mod table;
mod workers;

use crate::Registry;
use crate::auto::Setting;
use crate::auto::text::of_settings;
use crate::commands::choice;
use crate::commands::files::CommandFiles;
use crate::commands::launch::with_device;
use crate::commands::train_arguments::{TrainArguments, of_training};
use crate::config::validate::quoted;
use crate::config::{BadRowPolicy, Config, DeviceChoice, find};
use crate::data::{self, key};
use crate::error::{Error, Result};
use crate::report::duration;
use crate::report::history::FILE_NAME;
use crate::report::output::{self, say, write_file};
use crate::system::input::read_text;
use crate::system::machine::cores;
use crate::system::signals::StopRequest;
use clap::Args;
use headlong_reader::io::DataFile;
use journal::{Asked, Journal, Scored, Task};
use plan::Plan;
use search::{Found, Trials};
use space::Space;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The configuration that is written.
const BEST: &str = "best.toml";
const PICTURE: &str = "trials.svg";
/// Checkpoints of the model that was scored in the end.
pub(super) const MODEL: &str = "best";
/// Share of the training rows that a fold is, and that are kept for the final score where there
/// are no validation files, unless the configuration says how many are held out.
const SHARE: f64 = 0.1;

/// Arguments of `headlong tune`.
#[derive(Debug, Args)]
pub struct TuneArguments {
    /// Training files, as `headlong train` takes them; may be repeated
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub data: Vec<DataFile>,
    /// Files for the final score, which no trial sees; without them a tenth of the training rows is
    /// kept for it. May be repeated
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub valid: Vec<DataFile>,
    /// Start from this configuration, not from what `train --auto` chooses
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The column to predict, where its name does not tell
    #[arg(long, value_name = "COL", conflicts_with = "config")]
    pub label: Option<String>,
    /// The column that says how much each row counts (data.columns.weight)
    #[arg(long, value_name = "COL", conflicts_with = "config")]
    pub weight: Option<String>,
    /// What a malformed line does: end the search, or be skipped and counted
    #[arg(long, value_name = "error|skip", value_parser = choice::on_bad_row())]
    pub on_bad_row: Option<BadRowPolicy>,
    /// Trials side by side, of one thread each; as many as there are cores by default
    #[arg(long, value_name = "N", value_parser = crate::config::ranges::threads)]
    pub threads: Option<usize>,
    /// Override one key of the configuration that trials start from; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The time that there is: it decides how many trials are planned
    #[arg(long, value_name = "N", default_value_t = 5.0)]
    pub minutes: f64,
    /// Plan so many trials instead, the base among them, whatever the time
    #[arg(long, value_name = "N", conflicts_with = "minutes")]
    pub trials: Option<usize>,
    /// Decides which settings are tried
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// What to try: for each key a list of values or a range (`--print-space` prints one)
    #[arg(long, value_name = "FILE")]
    pub space: Option<PathBuf>,
    /// Print what would be tried, as TOML for --space, and end
    #[arg(long)]
    pub print_space: bool,
    /// Where everything is written; the same command resumes what it has begun there
    #[arg(long, value_name = "DIR", required_unless_present = "print_space")]
    pub output_dir: Option<PathBuf>,
}

/// Files that the command reads and writes, before the configuration is known.
pub(super) fn files(arguments: &TuneArguments) -> CommandFiles {
    let folder = arguments.output_dir.as_ref();
    let written = [BEST, PICTURE, journal::RESULTS];
    let written = folder.into_iter().flat_map(|folder| written.map(|name| folder.join(name)));
    CommandFiles::default()
        .reads("--data", &arguments.data)
        .reads("--valid", &arguments.valid)
        .reads("--config", &arguments.config)
        .reads("--space", &arguments.space)
        .makes("--output-dir", folder)
        .writes("--output-dir", written)
}

/// Tries settings, prints the table of trials, and writes what is best.
///
/// # Errors
/// Wrong usage; data that cannot be read; a folder of another search; a trial that fails for a
/// reason that is not in its settings; a signal.
pub fn run(arguments: &TuneArguments, registry: &Registry) -> Result<()> {
    let begun = Instant::now();
    check(arguments)?;
    let former = arguments.output_dir.as_deref().map(journal::base_of).transpose()?.flatten();
    let base = match former {
        // What --auto chooses depends on the memory that is free, too.
        Some(base) => base,
        None => base(arguments, registry)?,
    };
    let text = arguments.space.as_ref().map(|file| {
        read_text(file).map_err(|error| {
            Error::config("--space", format!("cannot read {}: {error}", file.display()))
        })
    });
    let text = text.transpose()?;
    let space = match (&text, &arguments.space) {
        (Some(text), Some(file)) => Space::from_toml(text, &file.display().to_string())?,
        _ => Space::of(&base),
    };
    space.check(&base)?;
    let Some(folder) = arguments.output_dir.as_ref().filter(|_| !arguments.print_space) else {
        return output::print(&space.to_toml());
    };
    let decided = with_device(&data::resolve(&base)?, registry)?;
    let device = decided.run.device;
    let asked = asked(arguments, &base, text.unwrap_or_default(), device)?;
    let stop = StopRequest::listen()?;
    let mut journal = Journal::open(folder, asked, &base)?;
    // Before hours of trials, the files that only the final score reads, too.
    data::check_beginning(&base)?;
    let holds_out = base.data.holdout > 0.0;
    let share = if holds_out { base.data.holdout } else { SHARE };
    let test = if base.data.valid.is_empty() || holds_out { share } else { 0.0 };
    let trials = Trials {
        base: &base,
        space: &space,
        device,
        seed: arguments.seed,
        workers: match device {
            DeviceChoice::Cpu => arguments.threads.unwrap_or_else(cores),
            _ => 1,
        },
        stop,
        share,
        test,
    };
    match (journal.plan(), arguments.trials) {
        (Some(plan), _) => say(plan.in_words(None)),
        (None, Some(count)) => {
            let plan = Plan::of_trials(count, base.train.epochs, trials.most_folds());
            say(plan.in_words(None));
            journal.decide(plan)?;
        }
        (None, None) => {}
    }
    let found = trials.search(&mut journal, 60.0 * arguments.minutes)?;
    finish(&journal, &trials, &found)?;
    let (took, minutes) = (begun.elapsed().as_secs_f64(), 60.0 * arguments.minutes);
    if arguments.trials.is_none() && took > 1.25 * minutes {
        let (took, minutes) = (duration(took), duration(minutes));
        say(format_args!(
            "note: it took {took} of {minutes}: the plan was made from the first trials"
        ));
    }
    Ok(())
}

fn check(arguments: &TuneArguments) -> Result<()> {
    if !(arguments.minutes > 0.0 && arguments.minutes.is_finite()) {
        let message = format!("expected a number above 0, found {}", arguments.minutes);
        return Err(Error::config("--minutes", message));
    }
    if let Some(found) = arguments.trials.filter(|trials| !(2..=1000).contains(trials)) {
        let message = format!("expected 2 to 1000, the base among them, found {found}");
        return Err(Error::config("--trials", message));
    }
    if arguments.data.is_empty() && arguments.config.is_none() {
        let message = "expected training files: --data FILE";
        return Err(Error::Usage(message.to_owned()));
    }
    Ok(())
}

/// The configuration that trials start from: of `--config`, or what `train --auto` chooses where
/// models are kept, as the tuned one is.
fn base(arguments: &TuneArguments, registry: &Registry) -> Result<Config> {
    let train = TrainArguments {
        config: arguments.config.clone(),
        auto: arguments.config.is_none(),
        label: arguments.label.clone(),
        weight: arguments.weight.clone(),
        data: arguments.data.clone(),
        valid: arguments.valid.clone(),
        set: settings(arguments),
        checkpoint_dir: arguments.config.is_none().then(|| PathBuf::from(MODEL)),
        ..TrainArguments::default()
    };
    let (mut base, _) = train.resolve(registry)?;
    // Trials have folders of their own.
    base.checkpoint.dir = None;
    base.require_data()?;
    of_training(&train, &base).check()?;
    base.check_paths_are_text()?;
    if base.data.train.is_empty() {
        let message = "expected training files: --data FILE";
        return Err(Error::Usage(message.to_owned()));
    }
    if base.train.steps.is_some() {
        let message = "trials are compared after parts of epochs: set train.epochs instead";
        return Err(Error::config("train.steps", message));
    }
    Ok(base)
}

/// What is set besides: the keys of `--set`, and of flags.
fn settings(arguments: &TuneArguments) -> Vec<String> {
    let of_flag = arguments.on_bad_row.map(|policy| format!("data.on_bad_row={}", quoted(&policy)));
    arguments.set.iter().cloned().chain(of_flag).collect()
}

/// Everything that decides the results, besides `base`.
fn asked(
    arguments: &TuneArguments,
    base: &Config,
    space: String,
    device: DeviceChoice,
) -> Result<Asked> {
    let start = match &arguments.config {
        Some(file) => {
            let text = read_text(file).map_err(|error| {
                Error::config("--config", format!("cannot read {}: {error}", file.display()))
            })?;
            format!("--config of\n{text}")
        }
        None => {
            let label = arguments.label.as_deref().unwrap_or("by its name");
            let weight = arguments.weight.iter().map(|column| format!(", weight {column}"));
            format!("--auto, label {label}{}", weight.collect::<String>())
        }
    };
    let [data, valid] = contents(base)?;
    Ok(Asked {
        data,
        valid,
        start,
        set: settings(arguments),
        seed: arguments.seed,
        minutes: arguments.trials.is_none().then_some(arguments.minutes),
        trials: arguments.trials,
        space,
        device: quoted(&device).trim_matches('"').to_owned(),
    })
}

/// The training files, and those for the final score, by content.
fn contents(base: &Config) -> Result<[Vec<String>; 2]> {
    let of = |files: &[DataFile]| -> Result<Vec<String>> {
        let found = key::identities(base, files)?.into_iter();
        found
            .map(|(path, identity)| match identity {
                Some(identity) => Ok(format!(
                    "{}: {} bytes, sample_xxh3 {}",
                    path.display(),
                    identity.bytes,
                    identity.sample_xxh3
                )),
                None => Err(Error::config(
                    "--data",
                    format!("{} is a pipe, and trials read it many times", path.display()),
                )),
            })
            .collect()
    };
    let valid = if base.data.holdout > 0.0 { &[] } else { base.data.valid.as_slice() };
    Ok([of(&base.data.train)?, of(valid)?])
}

/// Writes what is best, the picture and the model, and prints the table.
fn finish(journal: &Journal, trials: &Trials<'_>, found: &Found) -> Result<()> {
    let (folder, metric) = (journal.folder(), trials.base.eval.metric);
    let plan = journal.plan().expect("a finished search has a plan");
    write_file(&folder.join(BEST), &best_toml(trials.base, found)?)?;
    write_file(&folder.join(PICTURE), &picture::draw(journal, plan, found, metric))?;
    keep_model(folder, found.best)?;
    let text = table::text(journal, plan, found, metric);
    output::print(&text)?;
    let (best, model) = (folder.join(BEST), folder.join(MODEL));
    let models = if trials.base.train.seeds > 1 { "models" } else { "model" };
    match model.exists() {
        true => say(format_args!(
            "settings: {}; the tuned {models}: {}",
            best.display(),
            model.display()
        )),
        false => say(format_args!(
            "settings: {}; {} is gone: `headlong train --config` trains it again",
            best.display(),
            model.display()
        )),
    }
    Ok(())
}

/// Keeps the checkpoint of the model that was scored in the end, and nothing else of trials.
fn keep_model(folder: &Path, (trial, epochs): (usize, f64)) -> Result<()> {
    let task = Task { trial, scored: Scored::Final, epochs };
    let trained = workers::folder_of(folder, &task).join(workers::CHECKPOINTS);
    let kept = folder.join(MODEL);
    if trained.exists() {
        workers::remove(&kept)?;
        std::fs::rename(&trained, &kept).map_err(Error::io("rename", &trained))?;
        // For `headlong report`, which nothing else here needs.
        let history = workers::folder_of(folder, &task).join(workers::OUTPUT).join(FILE_NAME);
        let _ = std::fs::copy(history, kept.join(FILE_NAME));
    }
    workers::remove(&folder.join("trials"))
}

/// The best settings as a configuration of `headlong train`, on all rows of the training files.
fn best_toml(base: &Config, found: &Found) -> Result<String> {
    let (trial, epochs) = found.best;
    let settings = &found.settings[trial];
    let config = search::tuned(base, settings, epochs)?;
    let table = config.to_table();
    let reason = format!("tuned: trial {trial}");
    let tuned = settings.keys().chain((epochs != base.train.epochs).then_some("train.epochs"));
    let tuned: Vec<Setting> = tuned
        .filter_map(|key| {
            Some(Setting { key, value: find(&table, key)?.clone(), reason: reason.clone() })
        })
        .collect();
    let outcome = match found.best == (0, base.train.epochs) {
        true => "no trial was surely better than the base".to_owned(),
        false => format!("trial {trial} was the best"),
    };
    let head =
        format!("# Chosen by `headlong tune` from {} trials: {outcome}.\n", found.settings.len());
    let short = format!("{head}{}", of_settings(&config, &tuned));
    // What an optimiser has by default depends on its name: where leaving it out would change it,
    // everything is written.
    let reads_back = Config::from_toml(&short, BEST).is_ok_and(|read| read == config);
    Ok(if reads_back { short } else { head + &config.to_commented_toml() })
}
