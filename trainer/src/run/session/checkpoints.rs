//! What a session and its checkpoints hand each other: the directory, the state that a run
//! continues from, and the files next to the weights.

use super::{IDS_BLOB, Memory};
use crate::config::Config;
use crate::error::failed;
use crate::error::{Error, Result};
use crate::iteration::ranks::RankGroup;
use crate::state::checkpoint::steps;
use crate::state::checkpoint::{
    Blob, Checkpoint, CheckpointDirectory, DataFingerprint, DirectoryOptions, Files, Select,
    SystemFiles,
};
use headlong_reader::IdMapper;
use std::io::Read as _;
use std::path::Path;

/// Opens the directory of checkpoints for writing, where the configuration names one; each save by
/// `writers` threads.
pub fn open_directory(config: &Config, writers: usize) -> Result<Option<CheckpointDirectory>> {
    open_directory_on(Box::new(SystemFiles), config, writers)
}

pub(super) fn open_directory_on(
    files: Box<dyn Files>,
    config: &Config,
    writers: usize,
) -> Result<Option<CheckpointDirectory>> {
    let Some(dir) = &config.checkpoint.dir else { return Ok(None) };
    let options = DirectoryOptions {
        writers,
        keep_last: config.checkpoint.keep,
        keep_best: config.checkpoint.keep_best,
        files,
        ..DirectoryOptions::default()
    };
    let opened = CheckpointDirectory::open(dir, options);
    opened.map(Some).map_err(|error| failed("the checkpoint directory cannot be used", error))
}

/// Loads a checkpoint into all ranks of this process after checking that it is of this model and of
/// data prepared alike.
///
/// # Errors
/// The first difference, by name; damaged files.
pub fn load(
    group: &mut RankGroup,
    checkpoint: &Checkpoint,
    data: &DataFingerprint,
    select: Select,
) -> Result<()> {
    let (model, optimizers) = group.fingerprints();
    let checks = checkpoint
        .check_model(&model)
        .and_then(|()| match select {
            Select::All => checkpoint.check_optimizers(&optimizers),
            Select::WeightsOnly => Ok(()),
        })
        .and_then(|()| checkpoint.check_data(data))
        .and_then(|()| checkpoint.load(group, select));
    checks.map_err(|error| failed("the checkpoint cannot be loaded", error))?;
    group.weights_changed();
    Ok(())
}

/// Restores the state of admitted ids that a checkpoint holds.
pub fn restore_ids(checkpoint: &Checkpoint, ids: &mut IdMapper) -> Result<()> {
    let blob = checkpoint
        .blob(IDS_BLOB)
        .map_err(|error| failed("the checkpoint cannot be loaded", error))?;
    let Some(mut blob) = blob else { return Ok(()) };
    let mut bytes = Vec::new();
    let path = checkpoint.path().join(IDS_BLOB);
    blob.read_to_end(&mut bytes).map_err(|source| Error::Io { action: "read", path, source })?;
    ids.restore_state(&bytes).map_err(|error| failed("the checkpoint cannot be loaded", error))
}

/// Refuses to go on in another order: the position would be another one's.
pub(super) fn remember_order(memory: &mut Memory, order: String, resumed: bool) -> Result<()> {
    let before = memory.order.as_deref().unwrap_or("text");
    if resumed && before != order {
        let message = format!(
            "the run that continues has read its data as \"{before}\", this one would as \
             \"{order}\": leave data.order, its seed and window, data.cache and the batch size as \
             they were"
        );
        return Err(Error::config("--resume", message));
    }
    memory.order = Some(order);
    Ok(())
}

pub(super) fn parse_state<T: serde::de::DeserializeOwned>(
    what: &str,
    value: &serde_json::Value,
) -> Result<T> {
    serde_json::from_value(value.clone())
        .map_err(|error| failed(&format!("{what} in the checkpoint is damaged"), error))
}

pub(super) fn blob<'a>(file: &str, bytes: &'a [u8]) -> Blob<'a> {
    let estimated_bytes = bytes.len() as u64;
    Blob {
        file: file.to_owned(),
        estimated_bytes,
        write: Box::new(move |out| out.write_all(bytes)),
    }
}

/// Two runs in one folder would be told apart by their steps alone, and the wrong one resumed.
pub(crate) fn refuse_earlier_checkpoints(dir: &Path) -> Result<()> {
    let found =
        steps(dir).map_err(|error| failed("the checkpoint directory cannot be read", error))?;
    let Some((step, _)) = found.last() else { return Ok(()) };
    let dir = dir.display();
    Err(Error::config(
        "--checkpoint-dir",
        format!(
            "{dir} holds an earlier run's checkpoints (newest: step {step}): go on with --resume, \
             or name another folder"
        ),
    ))
}
