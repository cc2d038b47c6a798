//! What data is, so that what was made of it once is not taken for other data later.

use crate::config::Config;
use crate::data::{self, failed};
use crate::error::Result;
use headlong_reader::FileIdentity;
use headlong_reader::convert::files_of;
use headlong_reader::formats::Format;
use headlong_reader::io::DataFile;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Keys of `data` that decide neither an id nor which samples there are. What is not known here decides: nothing is reused by mistake.
const NEUTRAL: [&str; 9] = [
    "train",
    "valid",
    "dictionary",
    "cache",
    "prefetch_batches",
    "dense_transform",
    "order",
    "order_seed",
    "order_window",
];
/// Keys of `data` by which ids become rows.
const MAPPING: [&str; 3] = ["ids", "hash", "min_count"];

/// How `config` reads raw ids from `files`: format, columns, what malformed rows do.
///
/// # Errors
/// Files whose format or columns cannot be told.
pub fn of_ids(config: &Config, files: &[DataFile]) -> Result<Value> {
    without(config, files, &[&NEUTRAL[..], &MAPPING].concat())
}

/// How `config` makes batches of rows from `files`: with the order, and how ids become rows.
///
/// # Errors
/// As [`of_ids`].
pub fn of_batches(config: &Config, files: &[DataFile]) -> Result<Value> {
    let mut settings = without(config, files, &NEUTRAL[..6])?;
    settings["multi_hot"] = json!(config.multi_hot);
    Ok(settings)
}

fn without(config: &Config, files: &[DataFile], keys: &[&str]) -> Result<Value> {
    let mut settings = json!(config.data);
    if let Value::Object(settings) = &mut settings {
        settings.retain(|key, _| !keys.contains(&key.as_str()));
    }
    let format = data::format_of(config, files)?;
    settings["format"] = json!(format.name());
    if format != Format::Criteo {
        // The files themselves say what their columns are.
        settings["sparse_columns"] = json!(data::open_source(config, files, 1)?.schema().sparse);
    }
    Ok(settings)
}

/// Every file that `files` stand for, with what tells it from another; nothing of a pipe.
///
/// # Errors
/// Files that cannot be read.
pub fn identities(config: &Config, files: &[DataFile]) -> Result<Vec<(PathBuf, Option<FileIdentity>)>> {
    let paths: Vec<PathBuf> = files.iter().map(|file| file.as_ref().to_owned()).collect();
    let files = files_of(data::format_of(config, files)?, &paths);
    let identity = |path: PathBuf| -> headlong_reader::Result<_> {
        let identity = FileIdentity::of(&path)?;
        Ok((path, identity))
    };
    let identities: headlong_reader::Result<Vec<_>> = files.into_iter().map(identity).collect();
    identities.map_err(|error| failed("the data cannot be read", error))
}
