//! What a session saves: checkpoints, in a folder that outlives the job, and snapshots, in memory,
//! from which a job continues that has lost a rank.
//!
//! A snapshot is a checkpoint of the same form. It costs no disk, so that more of them can be taken
//! and less is trained again. Where the ranks' machines have a folder each, its files lie on two
//! machines each.

use super::checkpoints::{blob, open_directory_on, open_snapshots_on};
use super::{CONFIG_BLOB, DICTIONARY_BLOB, IDS_BLOB, Session};
use crate::config::Config;
use crate::error::{Error, Result, chain, exchange_failed};
use crate::iteration::ranks::RankGroup;
use crate::run::statistics::STATISTICS_BLOB;
use crate::state::checkpoint::{
    CheckpointDirectory, CheckpointError, Cleaned, Files, Mirrored, RandomState, SaveReport,
    SavedState, Snapshot, have_a_folder_each, is_first_of_machine, save_mirrored,
    take_part_in_save,
};
use headlong_embedding::hybrid::statistics::Statistics;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Whether ranks may go on together after this failure of a save: all have heard of it, or one
/// process has them all.
fn is_past(error: &Error, is_one_process: bool) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref());
    match cause {
        Some(CheckpointError::NotWritten { .. }) => true,
        Some(CheckpointError::NoSpace { .. } | CheckpointError::Io { .. }) => is_one_process,
        _ => false,
    }
}

/// Where a session saves.
pub(super) struct Saves {
    checkpoints: Place,
    snapshots: Place,
    /// What this process writes its part through, where another one leads.
    files: Arc<dyn Files>,
}

/// One of the two folders.
struct Place {
    /// Each process of a job has one, or none has.
    folder: Option<PathBuf>,
    /// Of the process that leads; of the first of each machine, where these have a folder each.
    directory: Option<CheckpointDirectory>,
    /// Whether these have.
    is_mirrored: bool,
    /// What other ranks are told while it lasts.
    activity: &'static str,
    failure: &'static str,
}

impl Saves {
    /// Opens the folders for writing, where this process leads.
    pub fn open(files: Arc<dyn Files>, config: &Config, group: &RankGroup) -> Result<Self> {
        let writers = group.num_writers();
        let (mut directory, mut snapshots) = (None, None);
        if group.leads() {
            directory = open_directory_on(Arc::clone(&files), config, writers)?;
            snapshots = open_snapshots_on(Arc::clone(&files), config, writers)?;
        }
        let folder = config.snapshot_dir();
        let is_mirrored = match (&folder, group.link()) {
            (Some(folder), Some(ranks)) => have_a_folder_each(folder, &*ranks)
                .map_err(Error::failed("the folder of snapshots cannot be used"))?,
            _ => false,
        };
        if is_mirrored && snapshots.is_none() && is_first_of_machine(group) {
            snapshots = open_snapshots_on(Arc::clone(&files), config, writers)?;
        }
        let checkpoints = Place {
            folder: config.checkpoint.dir.clone(),
            directory,
            is_mirrored: false,
            activity: "saves a checkpoint",
            failure: "the checkpoint was not saved",
        };
        let snapshots = Place {
            folder,
            directory: snapshots,
            is_mirrored,
            activity: "takes a snapshot",
            failure: "the snapshot was not taken",
        };
        Ok(Self { checkpoints, snapshots, files })
    }

    fn directories(&self) -> impl Iterator<Item = &CheckpointDirectory> {
        [&self.checkpoints, &self.snapshots].into_iter().filter_map(|it| it.directory.as_ref())
    }
}

impl Session {
    /// Saves everything. `finished` says why the run has ended, where it has.
    pub fn save(&mut self, finished: Option<&str>) -> Result<Option<SaveReport>> {
        self.save_in(&self.saves.checkpoints, finished)
    }

    /// Takes a snapshot, where there is a folder for them: all ranks do after the same step.
    /// Nothing but a message where one could not write its part: the last one stays.
    pub fn take_snapshot(&mut self) -> Result<Result<Option<SaveReport>, String>> {
        match self.save_in(&self.saves.snapshots, None) {
            Err(error) if is_past(&error, self.group.link().is_none()) => Ok(Err(chain(&error))),
            saved => saved.map(Ok),
        }
    }

    /// Whether there is room for another snapshot as large as the last: the same on all ranks. The
    /// plan has asked for the first.
    pub fn has_room_for_snapshot(&self) -> Result<bool> {
        let directory = self.saves.snapshots.directory.as_ref();
        let has_room = directory.is_none_or(CheckpointDirectory::has_room_for_another);
        match self.group.link() {
            Some(link) => link.all_say(has_room).map_err(exchange_failed("whether there is room")),
            None => Ok(has_room),
        }
    }

    /// Whether there is a folder for snapshots.
    pub fn takes_snapshots(&self) -> bool {
        self.saves.snapshots.folder.is_some()
    }

    /// Waits until the checkpoints that saves made superfluous are gone, and says which could not
    /// be removed.
    pub fn finish_saves(&self) -> Vec<String> {
        let _busy = self.group.busy("removes old checkpoints");
        self.saves.directories().flat_map(CheckpointDirectory::finish).collect()
    }

    /// Removes the snapshots, which a run that has saved its end needs no more.
    pub fn remove_snapshots(&self) -> Vec<String> {
        let snapshots = self.saves.snapshots.directory.as_ref();
        snapshots.map(CheckpointDirectory::remove_all).unwrap_or_default()
    }

    /// What a crash had left in the folders, and was put right when they were opened.
    pub fn cleaned(&self) -> impl Iterator<Item = &Cleaned> {
        self.saves.directories().flat_map(CheckpointDirectory::cleaned)
    }

    fn save_in(&self, place: &Place, finished: Option<&str>) -> Result<Option<SaveReport>> {
        // Weights of a step whose loss is not finite are not saved.
        self.drain()?;
        let Some(folder) = &place.folder else { return Ok(None) };
        let busy = self.group.busy(place.activity);
        let report = match &place.directory {
            _ if place.is_mirrored => self.save_on_machines(place, folder, finished),
            Some(directory) => self.with_snapshot(finished, |snapshot| {
                directory.save(snapshot).map(Some).map_err(Error::failed(place.failure))
            }),
            None => take_part_in_save(&*self.saves.files, folder, &self.group, self.step)
                .map(|()| None)
                .map_err(Error::failed(place.failure)),
        };
        drop(busy);
        let report = match report {
            Err(error) if !is_past(&error, false) => return Err(error),
            report => report,
        };
        // Devices have deadlines of their own: none of them is given a step while a disk is waited
        // for.
        if let Some(link) = self.group.link() {
            link.barrier().map_err(exchange_failed("the end of a save"))?;
        }
        report
    }

    fn save_on_machines(
        &self,
        place: &Place,
        folder: &Path,
        finished: Option<&str>,
    ) -> Result<Option<SaveReport>> {
        let directory = place.directory.as_ref();
        let own = Mirrored { files: &*self.saves.files, folder, directory };
        let save = |snapshot: Option<&Snapshot<'_>>| {
            save_mirrored(&own, &self.group, self.step, snapshot)
                .map_err(Error::failed(place.failure))
        };
        match self.group.leads() {
            true => self.with_snapshot(finished, |snapshot| save(Some(snapshot))),
            false => save(None),
        }
    }

    /// Hands `save` what the process that leads knows of a save.
    fn with_snapshot<T>(
        &self,
        finished: Option<&str>,
        save: impl FnOnce(&Snapshot<'_>) -> Result<T>,
    ) -> Result<T> {
        let ids = self.ids_now()?.state_bytes();
        let config = self.config.to_commented_toml();
        let statistics = self.data.statistics.as_ref().map(Statistics::to_bytes);
        let mut blobs = vec![blob(CONFIG_BLOB, config.as_bytes())];
        if !ids.is_empty() {
            blobs.push(blob(IDS_BLOB, &ids));
        }
        if let Some(dictionary) = &self.data.dictionary {
            blobs.push(blob(DICTIONARY_BLOB, dictionary));
        }
        if let Some(statistics) = &statistics {
            blobs.push(blob(STATISTICS_BLOB, statistics));
        }
        save(&Snapshot { source: &self.group, state: self.saved_state(finished)?, blobs })
    }

    fn saved_state(&self, finished: Option<&str>) -> Result<SavedState> {
        let (model, optimizers) = self.group.fingerprints();
        let value = |value: serde_json::Result<serde_json::Value>| value.unwrap_or_default();
        Ok(SavedState {
            step: self.step,
            samples: self.samples,
            finished: finished.map(str::to_owned),
            model,
            optimizers,
            data: self.data.fingerprint.clone(),
            train_files: self.data.train_files.clone(),
            reader: value(serde_json::to_value(self.position)),
            random: RandomState { seed: self.config.train.seed, step: self.step },
            loss_scale: self.group.saved_loss_scale()?,
            // Only what was measured of these very weights: by it the best checkpoint is known.
            metrics: self.last_metrics.filter(|_| self.memory.last_eval_step == Some(self.step)),
            session: value(serde_json::to_value(&self.memory)),
        })
    }

    /// Saves through `files` from now on: another file system than the operating system's, for
    /// tests.
    #[doc(hidden)]
    pub fn save_through(&mut self, files: Arc<dyn Files>) -> Result<()> {
        // One writer at a time: the old one gives up its lock first.
        self.saves.checkpoints.directory = None;
        self.saves.snapshots.directory = None;
        self.saves = Saves::open(files, &self.config, &self.group)?;
        Ok(())
    }
}
