//! What a session and its checkpoints hand each other: the directory, the state that a run
//! continues from, and the files next to the weights.

use super::{CONFIG_BLOB, IDS_BLOB, Memory, Start};
use crate::config::Config;
use crate::config::validate::quoted;
use crate::error::{Error, Result, exchange_failed};
use crate::iteration::ranks::RankGroup;
use crate::report::output::say;
use crate::state::checkpoint::{
    Blob, Cause, Checkpoint, CheckpointDirectory, DataFingerprint, DirectoryOptions, Files, Peers,
    Select, SystemFiles, gather_mirrored, have_a_folder_each, is_first_of_machine, members, newest,
    newest_part, steps,
};
use headlong_comm::Communicator;
use headlong_reader::IdMapper;
use std::io::{ErrorKind, Read as _};
use std::path::Path;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Opens the directory of checkpoints for writing, where the configuration names one; each save by
/// `writers` threads.
pub fn open_directory(config: &Config, writers: usize) -> Result<Option<CheckpointDirectory>> {
    open_directory_on(Arc::new(SystemFiles), config, writers)
}

pub(super) fn open_directory_on(
    files: Arc<dyn Files>,
    config: &Config,
    writers: usize,
) -> Result<Option<CheckpointDirectory>> {
    let Some(dir) = &config.checkpoint.dir else { return Ok(None) };
    let options = DirectoryOptions {
        writers,
        keep_last: config.checkpoint.keep,
        keep_best: config.checkpoint.keep_best.then_some(config.eval.metric),
        files,
        ..DirectoryOptions::default()
    };
    let opened = CheckpointDirectory::open(dir, options);
    opened.map(Some).map_err(Error::failed("the checkpoint directory cannot be used"))
}

/// Opens the folder of snapshots for writing, where there is one. The newest is enough.
pub(super) fn open_snapshots_on(
    files: Arc<dyn Files>,
    config: &Config,
    writers: usize,
) -> Result<Option<CheckpointDirectory>> {
    let Some(folder) = config.snapshot_dir() else { return Ok(None) };
    let options = DirectoryOptions {
        writers,
        keep_last: 1,
        keep_best: None,
        has_parts: true,
        files,
        ..DirectoryOptions::default()
    };
    let opened = CheckpointDirectory::open(&folder, options);
    opened.map(Some).map_err(Error::failed("the folder of snapshots cannot be used"))
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
    let _busy = group.busy("loads a checkpoint");
    let (model, optimizers) = group.fingerprints();
    let checks = checkpoint
        .check_model(&model)
        .and_then(|()| match select {
            Select::All => checkpoint.check_optimizers(&optimizers),
            Select::WeightsOnly => Ok(()),
        })
        .and_then(|()| checkpoint.check_data(data))
        .and_then(|()| checkpoint.load(group, select));
    let checks = checks.map_err(Error::failed("the checkpoint cannot be loaded"));
    // Ranks of other processes load with this one, and hear why it cannot go on.
    checks.inspect_err(|error| group.abort(error))?;
    group.weights_changed();
    Ok(())
}

/// Refuses processes of one job that would start from different checkpoints: one that has a folder
/// of its own may find none there, or another.
pub(crate) fn agree_on_start(ranks: &Communicator, start: &Start<'_>) -> Result<()> {
    let mark = |kind: u64, checkpoint: &Checkpoint| {
        let manifest = checkpoint.manifest();
        [kind, manifest.state.step, xxh3_64(&manifest.to_bytes())]
    };
    let own = match start {
        Start::Fresh => [0; 3],
        Start::WeightsOf(checkpoint) => mark(1, checkpoint),
        Start::Resume(checkpoint) => mark(2, checkpoint),
    };
    let mut all = vec![0; own.len() * ranks.num_ranks()];
    ranks.all_gather(&own, &mut all).map_err(exchange_failed("where training starts"))?;
    let mut marks = all.chunks_exact(own.len()).enumerate();
    let other = marks.find(|(_, mark)| **mark != all[..own.len()]);
    let Some((rank, found)) = other else { return Ok(()) };
    let text = |mark: &[u64]| match mark[0] {
        0 => "begins at step 0".to_owned(),
        1 => format!("begins with the weights of step {}", mark[1]),
        _ => format!("resumes at step {}", mark[1]),
    };
    let flag = if found[0] == 1 || all[0] == 1 { "--init-from" } else { "--resume" };
    let (found, first) = (text(found), text(&all));
    let which = if found == first { " of another checkpoint" } else { "" };
    let message = format!(
        "rank {rank} {found}{which}, rank 0 {first}: every process needs the same checkpoints, in \
         a folder that all of them see, or a copy of it that is as new"
    );
    Err(Error::config(flag, message))
}

/// Restores the state of admitted ids that a checkpoint holds.
pub fn restore_ids(checkpoint: &Checkpoint, ids: &mut IdMapper) -> Result<()> {
    let blob =
        checkpoint.blob(IDS_BLOB).map_err(Error::failed("the checkpoint cannot be loaded"))?;
    let Some(mut blob) = blob else { return Ok(()) };
    let mut bytes = Vec::new();
    let path = checkpoint.path().join(IDS_BLOB);
    blob.read_to_end(&mut bytes).map_err(|source| Error::Io { action: "read", path, source })?;
    ids.restore_state(&bytes).map_err(Error::failed("the checkpoint cannot be loaded"))
}

/// Refuses to go on in another order: the position would be another one's.
pub(super) fn remember_order(memory: &mut Memory, order: String, resumed: bool) -> Result<()> {
    let before = memory.order.as_deref().unwrap_or("text");
    if resumed && before != order {
        let message = format!(
            "the resumed run has read its data as \"{before}\", this one would as \
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
        .map_err(Error::failed(format!("{what} in the checkpoint is damaged")))
}

pub(super) fn blob<'a>(file: &str, bytes: &'a [u8]) -> Blob<'a> {
    let estimated_bytes = bytes.len() as u64;
    Blob {
        file: file.to_owned(),
        estimated_bytes,
        write: Box::new(move |out| out.write_all(bytes)),
    }
}

/// Gives all machines the newest snapshot that they have together, and leaves out those that they
/// lack a part of. Says which.
///
/// # Errors
/// A folder that cannot be used, or has another run's snapshot; what the ranks exchange.
pub fn gather_snapshot(config: &Config, ranks: &dyn Peers) -> Result<Vec<String>> {
    let failed = || Error::failed("the run cannot be resumed");
    let Some(folder) = config.snapshot_dir() else { return Ok(Vec::new()) };
    let each = have_a_folder_each(&folder, ranks).map_err(failed())?;
    let leads = if each { is_first_of_machine(ranks) } else { ranks.own() == 0 };
    let mut directory = None;
    // A machine may have none yet.
    if leads && (each || folder.exists()) {
        directory = open_snapshots_on(Arc::new(SystemFiles), config, 1)?;
        for (_, path) in steps(&folder).map_err(failed())? {
            // What cannot be read is left out.
            let opened = Checkpoint::open_part(&path).ok();
            opened.map_or(Ok(()), |found| refuse_another_runs_snapshot(config, &found))?;
        }
    }
    gather_mirrored(directory.as_ref(), ranks).map_err(failed())
}

/// A job of one process.
pub struct Alone;

impl Peers for Alone {
    fn count(&self) -> usize {
        1
    }

    fn own(&self) -> usize {
        0
    }

    fn machine_of(&self, _: usize) -> usize {
        0
    }

    fn gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, Cause> {
        Ok(vec![own.to_vec()])
    }

    fn tell(&self, _: usize, _: &mut [u8]) -> Result<(), Cause> {
        Ok(())
    }

    fn all_say(&self, own: bool) -> Result<bool, Cause> {
        Ok(own)
    }
}

/// The checkpoint or the snapshot that a run resumes from, where it is to: the newest. Else a
/// folder that another run has saved in is refused. `repairs`: a checkpoint that a crash has left
/// under an interim name is brought back first.
///
/// # Errors
/// Checkpoints that cannot be read, or are of another loss or of other columns.
pub fn find_checkpoint(
    config: &Config,
    resumes: bool,
    repairs: bool,
) -> Result<Option<Checkpoint>> {
    let files: Arc<dyn Files> = Arc::new(SystemFiles);
    let mut found = None;
    for (flag, folder) in [
        ("--checkpoint-dir", config.checkpoint.dir.clone()),
        ("--snapshot-dir", config.snapshot_dir()),
    ] {
        let Some(folder) = folder.filter(|folder| folder.exists()) else { continue };
        if !resumes {
            refuse_earlier_checkpoints(flag, &folder)?;
            continue;
        }
        if repairs {
            let directory = match flag {
                "--checkpoint-dir" => open_directory_on(Arc::clone(&files), config, 1)?,
                _ => open_snapshots_on(Arc::clone(&files), config, 1)?,
            };
            let cleaned = directory.iter().flat_map(CheckpointDirectory::cleaned);
            cleaned.for_each(|left| say(format_args!("checkpoints: {left}")));
        }
        let newest = match flag {
            "--checkpoint-dir" => newest(&folder),
            _ => newest_part(&folder),
        };
        let newest = newest.map_err(Error::failed("the run cannot be resumed"))?;
        let step = |checkpoint: &Checkpoint| checkpoint.manifest().state.step;
        if flag == "--snapshot-dir" {
            newest.as_ref().map_or(Ok(()), |found| refuse_another_runs_snapshot(config, found))?;
        }
        // Of the same step, the one that stays.
        if newest.as_ref().map(step) > found.as_ref().map(step) {
            found = newest;
        }
    }
    match found.as_ref().map(config_of) {
        Some(Ok(then)) => refuse_another_run(config, &then)?,
        // Of a version that knew other keys, or none.
        Some(Err(Error::UnknownKey { .. } | Error::Config { .. } | Error::Toml { .. })) => {}
        Some(Err(Error::Io { source, .. })) if source.kind() == ErrorKind::NotFound => {}
        Some(Err(error)) => return Err(error),
        None => {}
    }
    Ok(found)
}

/// A snapshot is of a run that has not ended, which is known by the folders that it writes to.
fn refuse_another_runs_snapshot(config: &Config, found: &Checkpoint) -> Result<()> {
    // One that is damaged says so where it is read.
    let Ok(then) = config_of(found) else { return Ok(()) };
    let pairs = [
        ("checkpoint.dir", quoted(&config.checkpoint.dir), quoted(&then.checkpoint.dir)),
        ("run.output_dir", quoted(&config.run.output_dir), quoted(&then.run.output_dir)),
        ("train.seed", quoted(&config.train.seed), quoted(&then.train.seed)),
    ];
    let Some((key, now, then)) = pairs.into_iter().find(|(_, now, then)| now != then) else {
        return Ok(());
    };
    let message = format!(
        "{} is a snapshot of another run ({key} = {then}, not {now}): remove it, or name another \
         folder",
        found.path().display()
    );
    Err(Error::config("--snapshot-dir", message))
}

/// Two runs in one folder would be told apart by their steps alone, and the wrong one resumed.
fn refuse_earlier_checkpoints(flag: &str, dir: &Path) -> Result<()> {
    let found = steps(dir).map_err(Error::failed("the checkpoint directory cannot be read"))?;
    if let Some(member) = members(dir).first() {
        let message = format!(
            "{} is a model of an ensemble (--seeds): name another folder",
            member.display()
        );
        return Err(Error::config(flag, message));
    }
    let Some((step, _)) = found.last() else { return Ok(()) };
    let dir = dir.display();
    Err(Error::config(
        flag,
        format!(
            "{dir} holds an earlier run's checkpoints (newest: step {step}): go on with --resume, \
             or name another folder"
        ),
    ))
}

/// Another run may have saved between the look at the folder and the moment at which this run
/// locked it.
pub(crate) fn refuse_later_checkpoints(
    config: &Config,
    resumed: Option<&Checkpoint>,
) -> Result<()> {
    let Some(dir) = &config.checkpoint.dir else { return Ok(()) };
    let found = steps(dir).map_err(Error::failed("the checkpoint directory cannot be read"))?;
    let newest = found.last().map(|(step, _)| *step);
    let expected = resumed.map(|checkpoint| checkpoint.manifest().state.step);
    // A snapshot that the run continues from is newer than all of them.
    let may_be_older = resumed.is_some_and(|found| config.is_snapshot(found.path()));
    match (newest, expected) {
        (Some(step), Some(expected)) if step < expected && may_be_older => Ok(()),
        (Some(step), Some(expected)) if step != expected => Err(Error::config(
            "--checkpoint-dir",
            format!(
                "another run has saved step {step} in {} since this run began to go on from step \
                 {expected}: start it again, or name another folder",
                dir.display()
            ),
        )),
        (Some(_), None) => refuse_earlier_checkpoints("--checkpoint-dir", dir),
        _ => Ok(()),
    }
}

/// Refuses to go on with another loss or with other columns: what a checkpoint records of its model
/// and its data does not hold them.
fn refuse_another_run(now: &Config, then: &Config) -> Result<()> {
    let settings = |config: &Config| {
        let columns = &config.data.columns;
        [
            ("model.loss", quoted(&config.model.loss)),
            ("data.holdout", quoted(&config.data.holdout)),
            ("data.holdout_by", quoted(&config.data.holdout_by)),
            ("data.holdout_fold", quoted(&config.data.holdout_fold)),
            ("data.holdout_test", quoted(&config.data.holdout_test)),
            ("data.columns.label", quoted(&columns.label)),
            ("data.columns.weight", quoted(&columns.weight)),
            ("data.columns.dense", quoted(&columns.dense)),
            ("data.columns.categorical", quoted(&columns.categorical)),
            ("data.columns.lists", quoted(&columns.lists)),
            ("data.columns.list_separator", quoted(&columns.list_separator)),
        ]
    };
    let other = settings(now).into_iter().zip(settings(then)).find(|(now, then)| now != then);
    let Some(((key, now), (_, then))) = other else { return Ok(()) };
    Err(Error::contradiction(
        "--resume",
        format!("{key} = {now}"),
        format!("the run has begun with {then}; --init-from takes weights only"),
    ))
}

/// The configuration of the run that has saved a checkpoint.
///
/// # Errors
/// A file that is missing or damaged.
pub fn config_of(checkpoint: &Checkpoint) -> Result<Config> {
    let path = checkpoint.path().join(CONFIG_BLOB);
    let blob =
        checkpoint.blob(CONFIG_BLOB).map_err(Error::failed("the checkpoint cannot be used"))?;
    let mut text = String::new();
    match blob {
        Some(mut blob) => blob.read_to_string(&mut text),
        None => Err(ErrorKind::NotFound.into()),
    }
    .map_err(|source| Error::Io { action: "read", path: path.clone(), source })?;
    Config::from_toml(&text, &path.display().to_string())
}
