//! A directory of checkpoints: one writer at a time, saves aside and renames, removes what is
//! superfluous.
//!
//! Names inside it:
//!
//! | name | is |
//! |---|---|
//! | `step-000001234` | a complete checkpoint |
//! | `.tmp-step-000001234` | one being written or being removed; without value after a crash |
//! | `.old-step-000001234` | the former holder of that name while a new one takes its place |
//! | `.left-step-000001234` | a part of one that lacks files, until another one is saved |
//! | `.lock` | locked by the process that writes |
//!
//! Whatever else lies there is left alone: another name, or a directory with something in it that
//! no checkpoint has.

use super::error::{CheckpointError, Result};
use super::files::{Files, SystemFiles};
use super::manifest::{MANIFEST_FILE, check_name};
use super::read::{ASIDE, Checkpoint, aside_of, step_name, step_named};
use super::remover::Remover;
use super::retention::{self, Candidate, superfluous};
use super::shard::DEFAULT_SHARD_BYTES;
use super::tensor_file::FilePlan;
use super::together::agreed;
use super::write::{Snapshot, Written, write_files};
use crate::metrics::EvalMetric;
use headlong_device::files::FolderLock;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fmt, fs};

const FORMER: &str = ".old-";
const LEFT: &str = ".left-";
/// What the names of a checkpoint's files end with.
const ENDINGS: [&str; 2] = [".safetensors", ".bin"];
const WHOLE_NAMES: [&str; 2] = [MANIFEST_FILE, "config.toml"];

/// How a [`CheckpointDirectory`] saves.
pub struct DirectoryOptions {
    /// How many of the last checkpoints stay, besides the best one. At least one does.
    pub keep_last: usize,
    /// By what the best checkpoint stays, however old; `None`: it does not.
    pub keep_best: Option<EvalMetric>,
    /// Files are cut at about this size.
    pub shard_bytes: u64,
    /// Threads that write files at the same time. One asks for rows in the order of the layout.
    pub writers: usize,
    /// Whether files of its checkpoints may lie on other machines alone.
    pub has_parts: bool,
    pub files: Arc<dyn Files>,
}

impl Default for DirectoryOptions {
    fn default() -> Self {
        let (shard_bytes, files) = (DEFAULT_SHARD_BYTES, Arc::new(SystemFiles));
        let keep_best = Some(EvalMetric::Auc);
        Self { keep_last: 2, keep_best, shard_bytes, writers: 1, has_parts: false, files }
    }
}

/// A directory that this process writes checkpoints to.
pub struct CheckpointDirectory {
    path: PathBuf,
    options: DirectoryOptions,
    cleaned: Vec<Cleaned>,
    has_said_alone: AtomicBool,
    /// Dropped before the lock: it waits until everything is removed.
    remover: Remover,
    /// The system releases it when the process ends, however it ends.
    lock: FolderLock,
}

/// What a crash had left, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cleaned {
    /// One that was being written or removed, and is gone.
    Removed(PathBuf),
    /// One that was being replaced, and has its name again.
    BroughtBack(PathBuf),
}

impl fmt::Display for Cleaned {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Removed(path) => {
                write!(out, "removed {}, which a run that was killed had left", path.display())
            }
            Self::BroughtBack(path) => {
                write!(
                    out,
                    "brought back {}, which a run that was killed was replacing",
                    path.display()
                )
            }
        }
    }
}

#[derive(Clone, Debug)]
pub struct SaveReport {
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Digest of all weights and optimiser states.
    pub weights_digest: String,
    /// Checkpoints that are removed because newer or better ones stay. They have lost their names;
    /// that their files go is not waited for.
    pub removed: Vec<PathBuf>,
    /// What went wrong since the last save: a checkpoint to be removed could not be; once, that
    /// other processes cannot write. Worth a warning, not an end.
    pub warnings: Vec<String>,
}

/// A save that has its room.
pub(super) struct Begun {
    step: u64,
    /// Where its files are written.
    pub aside: PathBuf,
    /// Where they go together.
    path: PathBuf,
    needed: u64,
    free: Option<u64>,
    removed: Vec<PathBuf>,
    warnings: Vec<String>,
}

impl CheckpointDirectory {
    /// Opens the directory for writing, makes it if it is not there, and removes what a crash left
    /// behind.
    pub fn open(path: &Path, options: DirectoryOptions) -> Result<Self> {
        fs::create_dir_all(path).map_err(CheckpointError::io("create", path))?;
        let lock = lock(path)?;
        let remover = Remover::new(Arc::clone(&options.files));
        let (path, cleaned) = (path.to_owned(), Vec::new());
        let has_said_alone = AtomicBool::new(false);
        let mut directory = Self { path, options, cleaned, has_said_alone, remover, lock };
        directory.clean()?;
        Ok(directory)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What a crash had left behind, and was put right when the directory was opened.
    pub fn cleaned(&self) -> &[Cleaned] {
        &self.cleaned
    }

    /// Waits until all superfluous checkpoints are gone, and says which could not be removed since
    /// the last save.
    pub fn finish(&self) -> Vec<String> {
        self.remover.wait()
    }

    /// Whether there is room for a checkpoint as large as the newest.
    pub fn has_room_for_another(&self) -> bool {
        let newest = self.newest().ok().flatten().map_or(0, |newest| newest.bytes());
        self.free_bytes().is_none_or(|free| free >= newest)
    }

    /// Removes all checkpoints, and says which could not be removed.
    pub fn remove_all(&self) -> Vec<String> {
        let mut warnings = self.remover.wait();
        match steps(&self.path) {
            Ok(steps) => {
                let removed = steps.iter().map(|(step, path)| self.remove(path, *step));
                warnings.extend(removed.filter_map(Result::err).map(|error| error.with_cause()));
            }
            Err(error) => warnings.push(error.with_cause()),
        }
        self.remove_left_out(&mut warnings);
        warnings.extend(self.remover.wait());
        warnings
    }

    /// The newest checkpoint, opened; `None` where there is none.
    pub fn newest(&self) -> Result<Option<Checkpoint>> {
        newest_by(&self.path, self.opener())
    }

    /// What opens a checkpoint of this directory.
    fn opener(&self) -> Opener {
        if self.options.has_parts { Checkpoint::open_part } else { Checkpoint::open }
    }

    /// Saves a checkpoint, and has the superfluous ones removed by a thread of its own. Returns
    /// when the checkpoint is on the disk. A checkpoint of the same step is replaced. Where space
    /// is short, what the save makes superfluous goes before it, but never the newest checkpoint.
    ///
    /// # Errors
    /// [`CheckpointError::NoSpace`] where the disk is full, or an error of a file or of the source.
    /// After every error, the newest checkpoint from before is as it was, and what was written
    /// aside is gone, or goes at the next start.
    pub fn save(&self, snapshot: &Snapshot<'_>) -> Result<SaveReport> {
        let mut plan = FilePlan::new(snapshot.source, self.options.shard_bytes)?;
        let blobs = snapshot.blobs.iter().map(|blob| blob.estimated_bytes);
        plan.bytes = blobs.fold(plan.bytes, u64::saturating_add);
        let files = &*self.options.files;
        let begun = self.begin_aside(snapshot.state.step, plan.bytes);
        let mut begun = agreed(snapshot.source.processes(), begun)?;
        let place = || self.move_into_place(&begun);
        let writers = self.options.writers;
        let written = write_files(files, &begun.aside, snapshot, &plan, (writers, &place));
        let written = match written {
            Ok(written) => written,
            Err(error) => return Err(self.abandon(begun, error)),
        };
        let Written { bytes, weights_digest, alone } = written;
        if alone && !self.has_said_alone.swap(true, Ordering::Relaxed) {
            begun.warnings.push(format!(
                "not every process can write to {}: rank 0 writes all of each checkpoint, and \
                 --resume needs a copy of the newest one on every machine",
                self.path.display()
            ));
        }
        Ok(self.conclude(begun, bytes, weights_digest))
    }

    /// Finds room for a checkpoint of `needed` bytes, and a place aside where nothing lies.
    pub(super) fn begin(&self, step: u64, needed: u64) -> Result<Begun> {
        if !self.lock.is_in_place() {
            return Err(CheckpointError::Replaced { path: self.path.clone() });
        }
        let aside = aside_of(&self.path, step);
        let path = self.path.join(step_name(step));
        let mut warnings = self.remover.warnings();
        let mut removed = Vec::new();
        let is_short = |free: Option<u64>| free.is_some_and(|free| free < needed);
        let mut free = self.free_bytes();
        if is_short(free) {
            warnings.extend(self.remover.wait());
            self.remove_left_out(&mut warnings);
            free = self.free_bytes();
        }
        if is_short(free) && self.newest().is_ok_and(|newest| newest.is_some()) {
            removed = self.remove_superfluous(
                self.options.keep_last.saturating_sub(1),
                None,
                &mut warnings,
            );
            warnings.extend(self.remover.wait());
            free = self.free_bytes();
        }
        let mut begun = Begun { step, aside, path, needed, free, removed, warnings };
        if is_short(free) {
            return Err(self.no_space(&begun));
        }
        if begun.aside.exists() {
            // It may be one that is being removed.
            begun.warnings.extend(self.remover.wait());
        }
        self.clear(&begun.aside)?;
        Ok(begun)
    }

    /// As [`CheckpointDirectory::begin`], and makes the place.
    pub(super) fn begin_aside(&self, step: u64, needed: u64) -> Result<Begun> {
        let begun = self.begin(step, needed)?;
        let made = self.options.files.create_dir(&begun.aside);
        match made.map_err(CheckpointError::io("create", &begun.aside)) {
            Ok(()) => Ok(begun),
            Err(error) => Err(self.abandon(begun, error)),
        }
    }

    fn no_space(&self, begun: &Begun) -> CheckpointError {
        let Begun { path, needed, free, .. } = begun;
        let (path, keep) = (path.clone(), self.options.keep_last);
        CheckpointError::NoSpace { path, needed: *needed, free: *free, keep }
    }

    /// Removes what was written aside before it has failed.
    pub(super) fn abandon(&self, mut begun: Begun, error: CheckpointError) -> CheckpointError {
        begun.free = self.free_bytes();
        // Best effort: what cannot be removed now is removed at the next start.
        let _ = self.options.files.remove_dir_all(&begun.aside);
        if error.is_disk_full() { self.no_space(&begun) } else { error }
    }

    /// Has the superfluous checkpoints removed, once this one has its place.
    pub(super) fn conclude(&self, begun: Begun, bytes: u64, weights_digest: String) -> SaveReport {
        let Begun { step, path, mut removed, mut warnings, .. } = begun;
        let keep_last = self.options.keep_last;
        self.remove_left_out(&mut warnings);
        removed.extend(self.remove_superfluous(keep_last, Some(step), &mut warnings));
        SaveReport { path, bytes, weights_digest, removed, warnings }
    }

    pub(super) fn files(&self) -> &dyn Files {
        &*self.options.files
    }

    fn free_bytes(&self) -> Option<u64> {
        self.options.files.free_bytes(&self.path)
    }

    /// Gives the finished directory its name. Between the two renames of a replacement the former
    /// checkpoint has the name `.old-…`, from which the next start brings it back.
    pub(super) fn move_into_place(&self, begun: &Begun) -> Result<()> {
        let (files, Begun { step, aside, path, .. }) = (&*self.options.files, begun);
        let former = self.path.join(format!("{FORMER}{}", step_name(*step)));
        let replaces = path.exists();
        if replaces {
            self.clear(&former)?;
            files.rename(path, &former).map_err(CheckpointError::io("rename", path))?;
        }
        if let Err(error) = files.rename(aside, path) {
            if replaces {
                files.rename(&former, path).map_err(CheckpointError::io("rename", &former))?;
            }
            return Err(CheckpointError::io("rename", aside)(error));
        }
        files.sync_dir(&self.path).map_err(CheckpointError::io("flush", &self.path))?;
        if replaces {
            // The new one is safe: a former one that cannot be removed now is removed at the next
            // start.
            let _ = files.remove_dir_all(&former);
        }
        Ok(())
    }

    /// Removes what a removal that was not finished, or a crash, has left under a name that is
    /// needed now.
    fn clear(&self, path: &Path) -> Result<()> {
        if !path.exists() {
            return Ok(());
        }
        if !is_checkpoint_files(path)? {
            return Err(CheckpointError::InTheWay { path: path.to_owned() });
        }
        self.options.files.remove_dir_all(path).map_err(CheckpointError::io("remove", path))
    }

    /// Removes all but the last `keep_last` checkpoints, the best one and the one just saved; says
    /// which.
    fn remove_superfluous(
        &self,
        keep_last: usize,
        saved: Option<u64>,
        warnings: &mut Vec<String>,
    ) -> Vec<PathBuf> {
        let mut removed = Vec::new();
        let steps = match steps(&self.path) {
            Ok(steps) => steps,
            Err(error) => {
                warnings.push(error.with_cause());
                return removed;
            }
        };
        // Whatever is no checkpoint of its name, or holds other files besides, is neither counted
        // nor removed.
        let candidate = |(step, path): &(u64, PathBuf)| {
            let found = is_checkpoint_files(path)
                .is_ok_and(|is| is)
                .then(|| self.opener()(path).ok())??;
            Some(Candidate { step: *step, ..candidate_of(&found, self.options.keep_best) })
        };
        let candidates: Vec<Candidate> = steps.iter().filter_map(candidate).collect();
        for step in
            superfluous(&candidates, keep_last).into_iter().filter(|step| Some(*step) != saved)
        {
            let path = self.path.join(step_name(step));
            match self.remove(&path, step) {
                Ok(()) => removed.push(path),
                Err(error) => warnings.push(error.with_cause()),
            }
        }
        removed
    }

    /// Leaves a checkpoint out until another one is saved, or it is brought back.
    pub(super) fn leave_out(&self, step: u64) -> Result<()> {
        let path = self.path.join(step_name(step));
        let left = self.path.join(format!("{LEFT}{}", step_name(step)));
        self.clear(&left)?;
        self.rename(&path, &left)
    }

    /// Brings back what was left out.
    pub(super) fn bring_back(&self) -> Result<()> {
        for (step, left) in self.left_out()? {
            let path = self.path.join(step_name(step));
            if !path.exists() {
                self.rename(&left, &path)?;
            }
        }
        Ok(())
    }

    /// Removes what was left out.
    fn remove_left_out(&self, warnings: &mut Vec<String>) {
        for (_, left) in self.left_out().unwrap_or_default() {
            warnings.extend(self.clear(&left).err().map(|error| error.with_cause()));
        }
    }

    fn left_out(&self) -> Result<Vec<(u64, PathBuf)>> {
        let step = |path: PathBuf| Some((step_named(&path, LEFT)?, path));
        Ok(entries(&self.path)?.into_iter().filter_map(step).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let files = &*self.options.files;
        files.rename(from, to).map_err(CheckpointError::io("rename", from))?;
        files.sync_dir(&self.path).map_err(CheckpointError::io("flush", &self.path))
    }

    /// Renames first, so that a checkpoint half removed never looks like one that is damaged.
    fn remove(&self, path: &Path, step: u64) -> Result<()> {
        let aside = aside_of(&self.path, step);
        self.rename(path, &aside)?;
        self.remover.remove(aside);
        Ok(())
    }

    fn clean(&mut self) -> Result<()> {
        let files = &*self.options.files;
        for entry in entries(&self.path)? {
            let former = step_named(&entry, FORMER).map(|step| self.path.join(step_name(step)));
            if former.is_none() && step_named(&entry, ASIDE).is_none()
                || !is_checkpoint_files(&entry)?
            {
                continue;
            }
            match former.filter(|path| !path.exists()) {
                Some(path) => {
                    self.rename(&entry, &path)?;
                    self.cleaned.push(Cleaned::BroughtBack(path));
                }
                None => {
                    files.remove_dir_all(&entry).map_err(CheckpointError::io("remove", &entry))?;
                    self.cleaned.push(Cleaned::Removed(entry));
                }
            }
        }
        Ok(())
    }
}

/// Whether everything in a directory is a file that a checkpoint could have; of one that was half
/// written or half removed, too.
fn is_checkpoint_files(directory: &Path) -> Result<bool> {
    let listed = || CheckpointError::io("list", directory);
    if fs::symlink_metadata(directory).map_err(listed())?.is_symlink() {
        return Ok(false);
    }
    for entry in fs::read_dir(directory).map_err(listed())? {
        let entry = entry.map_err(listed())?;
        let name = entry.file_name();
        let is_named = name.to_str().is_some_and(|name| {
            let ends = ENDINGS.iter().any(|ending| name.ends_with(ending));
            WHOLE_NAMES.contains(&name) || ends && check_name(name).is_ok()
        });
        if !is_named || !entry.file_type().map_err(listed())?.is_file() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The newest checkpoint in a directory of checkpoints, opened; `None` where there is none.
///
/// # Errors
/// The newest one is damaged: the error names the file. An older one is never taken silently in its
/// place.
pub fn newest(directory: &Path) -> Result<Option<Checkpoint>> {
    newest_by(directory, Checkpoint::open)
}

/// The same, where files of it may lie on other machines alone.
pub fn newest_part(directory: &Path) -> Result<Option<Checkpoint>> {
    newest_by(directory, Checkpoint::open_part)
}

type Opener = fn(&Path) -> Result<Checkpoint>;

fn newest_by(directory: &Path, open: Opener) -> Result<Option<Checkpoint>> {
    if !directory.exists() {
        return Ok(None);
    }
    steps(directory)?.last().map(|(_, path)| open(path)).transpose()
}

/// Opens `path`, which is a checkpoint or a directory of checkpoints; of the latter, the newest.
pub fn open(path: &Path) -> Result<Checkpoint> {
    let is_directory_of_them = path.is_dir() && !path.join(MANIFEST_FILE).exists();
    match if is_directory_of_them { newest(path)? } else { None } {
        Some(checkpoint) => Ok(checkpoint),
        None => Checkpoint::open(path),
    }
}

/// The checkpoint in `directory` whose evaluation is the best by `metric`; `None` where no
/// evaluated one is in it.
pub fn best(directory: &Path, metric: EvalMetric) -> Result<Option<Checkpoint>> {
    let mut checkpoints = Vec::new();
    for (_, path) in steps(directory)? {
        checkpoints.push(Checkpoint::open(&path)?);
    }
    let candidates = checkpoints.iter().map(|checkpoint| candidate_of(checkpoint, Some(metric)));
    let best = retention::best(&candidates.collect::<Vec<_>>());
    Ok(checkpoints.into_iter().find(|found| Some(found.manifest().state.step) == best))
}

/// What a checkpoint counts for where the best one by `metric` is looked for.
fn candidate_of(checkpoint: &Checkpoint, metric: Option<EvalMetric>) -> Candidate {
    let state = &checkpoint.manifest().state;
    let score = state.metrics.zip(metric).and_then(|(metrics, metric)| metrics.score(metric));
    Candidate { step: state.step, score }
}

pub fn steps(directory: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let step = |path: PathBuf| Some((step_named(&path, "")?, path));
    let mut steps: Vec<_> = entries(directory)?.into_iter().filter_map(step).collect();
    steps.sort();
    Ok(steps)
}

/// What the names of an ensemble's models begin with.
const MEMBER: &str = "seed-";

/// The folder of an ensemble's model with this seed.
pub fn member_name(seed: u64) -> String {
    format!("{MEMBER}{seed}")
}

/// The folders of an ensemble's models in `directory`, by seed.
pub fn members(directory: &Path) -> Vec<PathBuf> {
    let seed = |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix(MEMBER)?.parse().ok();
    let folders = entries(directory).unwrap_or_default().into_iter();
    let mut found: Vec<(u64, PathBuf)> =
        folders.filter_map(|path| Some((seed(&path)?, path))).collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

/// Paths of the directories in `directory`.
fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let read = || CheckpointError::io("list", directory);
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(read())? {
        let path = entry.map_err(read())?.path();
        if path.is_dir() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// How long a lock is tried for. A program started by the former holder keeps its lock for the
/// moment until it runs.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

fn lock(directory: &Path) -> Result<FolderLock> {
    // Where nothing can be written, a lock would keep no one away.
    let writable = rustix::fs::access(directory, rustix::fs::Access::WRITE_OK);
    writable.map_err(|error| CheckpointError::io("write to", directory)(error.into()))?;
    let lock = FolderLock::open(directory).map_err(CheckpointError::io("lock", directory))?;
    match lock.exclusive_within(LOCK_PATIENCE) {
        true => Ok(lock),
        false => Err(CheckpointError::InUse { path: directory.to_owned() }),
    }
}
