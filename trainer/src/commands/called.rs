//! What programs in other languages call: training, as `headlong train` does it. What applies
//! checkpoints is in [`super::inference`].

use crate::Registry;
use crate::commands::cli::{Cli, Command};
use crate::commands::train;
pub use crate::commands::train_arguments::Caller;
pub use crate::error::chain;
use crate::error::{Error, Result};
pub use crate::system::signals::StopRequest;
use clap::{CommandFactory as _, Parser as _};
use headlong_reader::io::DataFile;
use std::ffi::OsString;

/// What is trained on, besides what flags say.
#[derive(Debug)]
pub struct Rows {
    /// To train on.
    pub data: Vec<DataFile>,
    /// To validate on.
    pub valid: Vec<DataFile>,
    /// The column to predict, where it is to be said.
    pub label: Option<String>,
}

/// Trains as `headlong train` with the flags `words`: without `--config` or `--preset`, as
/// `--auto` chooses.
///
/// # Errors
/// Those of the command.
pub fn train(words: &[OsString], rows: Rows, registry: &Registry, caller: Caller) -> Result<()> {
    let names = |flag: &str| words.iter().any(|word| word.to_string_lossy().starts_with(flag));
    // What is chosen needs files, whose place is taken by those that come besides the flags.
    let chosen: &[&str] = match names("--config") || names("--preset") {
        true => &["headlong", "train"],
        false => &["headlong", "train", "--auto", "--data", "data"],
    };
    let whole = chosen.iter().map(OsString::from).chain(words.iter().cloned());
    let parsed = Cli::try_parse_from(whole);
    let Some(Command::Train(mut arguments)) = parsed.map_err(usage)?.command else {
        return Err(Error::Usage("expected flags of `headlong train`".to_owned()));
    };
    arguments.is_called = true;
    let Rows { data, valid, label } = rows;
    if label.is_some() && !arguments.auto {
        let message = "a configuration names the label: leave it out here";
        return Err(Error::config("data.columns.label", message));
    }
    (arguments.data, arguments.valid, arguments.label) = (data, valid, label);
    train::from_arguments(&arguments, registry, Some(caller))
}

/// The flags of `headlong train`, without their dashes.
pub fn flags() -> Vec<String> {
    let command = Cli::command();
    let train = command.find_subcommand("train");
    let flags = train.into_iter().flat_map(clap::Command::get_arguments);
    flags.filter_map(|flag| flag.get_long().map(str::to_owned)).collect()
}

/// What is wrong with flags, without the help that a terminal gets.
fn usage(error: clap::Error) -> Error {
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let text = text.split("\n\nUsage:").next().unwrap_or(text);
    Error::Usage(text.split_whitespace().collect::<Vec<_>>().join(" "))
}
