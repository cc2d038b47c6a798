//! What data is, so that what was made of it once is not taken for other data later.

use crate::config::Config;
use crate::data;
use crate::error::{Error, Result};
use crate::state::checkpoint::TrainedFile;
use headlong_reader::FileIdentity;
use headlong_reader::convert::files_of;
use headlong_reader::formats::Format;
use headlong_reader::io::DataFile;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Keys of `data` that decide neither an id nor which samples there are. What is not known here
/// decides: nothing is reused by mistake.
const NEUTRAL: [&str; 6] =
    ["train", "valid", "dictionary", "cache", "prefetch_batches", "dense_transform"];
/// Keys of `data` that decide which samples a batch has.
const ORDER: [&str; 3] = ["order", "order_seed", "order_window"];
/// Keys of `data` by which ids become rows.
const MAPPING: [&str; 3] = ["ids", "hash", "min_count"];

/// How `config` reads raw ids from `files`: format, columns, what malformed rows do.
///
/// # Errors
/// Files whose format or columns cannot be told.
pub fn of_ids(config: &Config, files: &[DataFile]) -> Result<Value> {
    without(config, files, &[&NEUTRAL[..], &ORDER, &MAPPING].concat())
}

/// How `config` makes batches of rows from `files`: with the order, and how ids become rows.
pub fn of_batches(config: &Config, files: &[DataFile]) -> Result<Value> {
    let mut settings = without(config, files, &NEUTRAL)?;
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
    if let Some(columns) = config.dense_columns().filter(|columns| !columns.bins.is_empty()) {
        settings["bins"] = json!(columns.bins);
    }
    if format != Format::Criteo {
        // The files themselves say what their columns are.
        settings["sparse_columns"] = json!(data::open_source(config, files, 1)?.schema().sparse);
    }
    Ok(settings)
}

/// Every file that `files` stand for, with what tells it from another; nothing of a pipe, nor of
/// rows in memory.
pub fn identities(
    config: &Config,
    files: &[DataFile],
) -> Result<Vec<(PathBuf, Option<FileIdentity>)>> {
    if files.iter().any(|file| file.frame().is_some()) {
        return Ok(files.iter().map(|file| (file.name(), None)).collect());
    }
    let paths: Vec<PathBuf> = files.iter().map(|file| file.as_ref().to_owned()).collect();
    let files = files_of(data::format_of(config, files)?, &paths);
    let identity = |path: PathBuf| -> headlong_reader::Result<_> {
        let identity = FileIdentity::of(&path)?;
        Ok((path, identity))
    };
    let identities: headlong_reader::Result<Vec<_>> = files.into_iter().map(identity).collect();
    identities.map_err(Error::failed("the data cannot be read"))
}

/// The training files, as checkpoints record them.
pub fn trained_files(config: &Config, files: &[DataFile]) -> Result<Vec<TrainedFile>> {
    let record =
        |(path, identity): (PathBuf, _)| TrainedFile { path: path.display().to_string(), identity };
    Ok(identities(config, files)?.into_iter().map(record).collect())
}

/// Refuses to go on with files of another content, number or order than `then`, where the run came
/// from. Another path or time of the same content is no difference. What is not known (a pipe, a
/// checkpoint of an earlier program) is taken for the same.
///
/// # Errors
/// [`Error::Config`] with the first difference.
pub fn refuse_other_files(then: &[TrainedFile], now: &[TrainedFile]) -> Result<()> {
    let refused = |what: String| {
        Err(Error::config(
            "--resume",
            format!(
                "{what}: name the files that the run was trained on, in their order, or go on with \
                 these at the same place of the data by --data-changed"
            ),
        ))
    };
    if then.is_empty() {
        return Ok(());
    }
    if then.len() != now.len() {
        return refused(format!(
            "the run was trained on {} files, now there are {}",
            then.len(),
            now.len()
        ));
    }
    for (then, now) in then.iter().zip(now) {
        let (Some(before), Some(found)) = (&then.identity, &now.identity) else { continue };
        if !found.has_content_of(before) {
            let text =
                |of: &FileIdentity| format!("{} bytes, sample_xxh3 {}", of.bytes, of.sample_xxh3);
            return refused(format!(
                "{} is not the file that the run was trained on: expected {} ({}), found {}",
                now.path,
                text(before),
                then.path,
                text(found)
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, bytes: u64, time: u64) -> TrainedFile {
        let sample_xxh3 = format!("{bytes:016x}");
        let identity = FileIdentity { bytes, modified_ns: Some(time), sample_xxh3 };
        TrainedFile { path: path.to_owned(), identity: Some(identity) }
    }

    #[test]
    fn content_number_and_order_of_files_count_and_nothing_else() {
        let (one, two) = (file("a", 10, 1), file("b", 20, 1));
        let pipe = TrainedFile { path: "a".to_owned(), identity: None };
        let then = [one.clone(), two.clone()];
        for same in [
            [one.clone(), two.clone()],
            [file("elsewhere", 10, 9), two.clone()],
            [pipe, two.clone()],
        ] {
            refuse_other_files(&then, &same).unwrap();
        }
        refuse_other_files(&[], &then).unwrap();
        for (other, words) in [
            (vec![one.clone()], "trained on 2 files, now there are 1"),
            (
                vec![two, one.clone()],
                "expected 10 bytes, sample_xxh3 000000000000000a (a), found 20 bytes",
            ),
            (
                vec![one, file("b", 21, 1)],
                "b is not the file that the run was trained on: expected 20 bytes",
            ),
        ] {
            let error = refuse_other_files(&then, &other).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
