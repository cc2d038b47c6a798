//! A directory of checkpoints: one writer at a time, saves aside and renames, removes what is superfluous.
//!
//! Names inside it:
//!
//! | name | is |
//! |---|---|
//! | `step-000001234` | a complete checkpoint |
//! | `.tmp-step-000001234` | one being written or being removed; without value after a crash |
//! | `.old-step-000001234` | the former holder of that name while a new one takes its place |
//! | `.lock` | locked by the process that writes |

use super::error::{CheckpointError, Result};
use super::files::{Files, SystemFiles};
use super::manifest::MANIFEST_FILE;
use super::read::Checkpoint;
use super::retention::{Candidate, superfluous};
use super::shard::DEFAULT_SHARD_BYTES;
use super::write::{FilePlan, Snapshot, Written, write_files};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

const STEP: &str = "step-";
const ASIDE: &str = ".tmp-";
const FORMER: &str = ".old-";
const LOCK: &str = ".lock";

/// How a [`CheckpointDirectory`] saves.
pub struct DirectoryOptions {
    /// How many of the last checkpoints stay, beside the best one. At least one does.
    pub keep_last: usize,
    /// Whether the checkpoint with the highest AUC stays, however old.
    pub keep_best: bool,
    /// Files are cut at about this size.
    pub shard_bytes: u64,
    /// Threads that write files beside each other. One asks for rows in the order of the layout.
    pub writers: usize,
    /// The file system.
    pub files: Box<dyn Files>,
}

impl Default for DirectoryOptions {
    fn default() -> Self {
        let (shard_bytes, files) = (DEFAULT_SHARD_BYTES, Box::new(SystemFiles));
        Self { keep_last: 2, keep_best: true, shard_bytes, writers: 1, files }
    }
}

/// A directory that this process writes checkpoints to.
pub struct CheckpointDirectory {
    path: PathBuf,
    options: DirectoryOptions,
    cleaned: Vec<PathBuf>,
    /// Held for its lock, which the system releases when the process ends, however it ends.
    _lock: File,
}

/// What a save did.
#[derive(Clone, Debug)]
pub struct SaveReport {
    /// The new checkpoint.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Digest of all weights and optimiser states.
    pub weights_digest: String,
    /// Checkpoints that were removed because newer or better ones stay.
    pub removed: Vec<PathBuf>,
    /// What went wrong after the checkpoint was safe: one to be removed could not be. Worth a warning, not an end.
    pub warnings: Vec<String>,
}

impl CheckpointDirectory {
    /// Opens the directory for writing, makes it if it is not there, and removes what a crash left behind.
    ///
    /// # Errors
    /// Another process writes there, or the directory cannot be made or cleaned.
    pub fn open(path: &Path, options: DirectoryOptions) -> Result<Self> {
        fs::create_dir_all(path).map_err(CheckpointError::io("create", path))?;
        let lock = lock(path)?;
        let mut directory = Self { path: path.to_owned(), options, cleaned: Vec::new(), _lock: lock };
        directory.clean()?;
        Ok(directory)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What a crash had left behind, and was put right when the directory was opened.
    pub fn cleaned(&self) -> &[PathBuf] {
        &self.cleaned
    }

    /// The newest checkpoint, opened; `None` where there is none.
    ///
    /// # Errors
    /// As [`newest`].
    pub fn newest(&self) -> Result<Option<Checkpoint>> {
        newest(&self.path)
    }

    /// Saves a checkpoint and then removes the superfluous ones. Returns when everything is on the disk. A checkpoint
    /// of the same step is replaced.
    ///
    /// # Errors
    /// [`CheckpointError::NoSpace`] where the disk is full, or an error of a file or of the source. After every error, the
    /// checkpoints from before are as they were, and what was written aside is gone, or goes at the next start.
    pub fn save(&self, snapshot: &Snapshot<'_>) -> Result<SaveReport> {
        let name = step_name(snapshot.state.step);
        let aside = self.path.join(format!("{ASIDE}{name}"));
        let path = self.path.join(&name);
        let plan = FilePlan::new(snapshot, self.options.shard_bytes)?;
        let free = self.options.files.free_bytes(&self.path);
        let no_space = || CheckpointError::NoSpace { path: path.clone(), needed: plan.bytes, free };
        if free.is_some_and(|free| free < plan.bytes) {
            return Err(no_space());
        }
        let written = self.write_aside(&aside, snapshot, &plan).and_then(|written| {
            self.move_into_place(&aside, &path, &name)?;
            Ok(written)
        });
        let written = written.map_err(|error| {
            // Best effort: what cannot be removed now is removed at the next start.
            let _ = self.options.files.remove_dir_all(&aside);
            if error.is_disk_full() { no_space() } else { error }
        })?;
        let Written { bytes, weights_digest } = written;
        let mut report =
            SaveReport { path, bytes, weights_digest, removed: Vec::new(), warnings: Vec::new() };
        self.remove_superfluous(&mut report);
        Ok(report)
    }

    fn write_aside(&self, aside: &Path, snapshot: &Snapshot<'_>, plan: &FilePlan) -> Result<Written> {
        let files = &*self.options.files;
        if aside.exists() {
            files.remove_dir_all(aside).map_err(CheckpointError::io("remove", aside))?;
        }
        files.create_dir(aside).map_err(CheckpointError::io("create", aside))?;
        write_files(files, aside, snapshot, plan, self.options.writers)
    }

    /// Gives the finished directory its name. Between the two renames of a replacement the former checkpoint has the
    /// name `.old-…`, from which the next start brings it back.
    fn move_into_place(&self, aside: &Path, path: &Path, name: &str) -> Result<()> {
        let files = &*self.options.files;
        let former = self.path.join(format!("{FORMER}{name}"));
        let replaces = path.exists();
        if replaces {
            if former.exists() {
                files.remove_dir_all(&former).map_err(CheckpointError::io("remove", &former))?;
            }
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
            // The new one is safe: a former one that cannot be removed now is removed at the next start.
            let _ = files.remove_dir_all(&former);
        }
        Ok(())
    }

    fn remove_superfluous(&self, report: &mut SaveReport) {
        let steps = match steps(&self.path) {
            Ok(steps) => steps,
            Err(error) => return report.warnings.push(error.to_string()),
        };
        let candidate = |(step, path): &(u64, PathBuf)| {
            // A damaged checkpoint has no AUC to be the best by; being old, it goes like any other.
            let open = || Checkpoint::open(path).ok();
            let auc = self.options.keep_best.then(open).flatten();
            let auc = auc.and_then(|found| found.manifest().state.metrics?.auc);
            Candidate { step: *step, auc }
        };
        let candidates: Vec<Candidate> = steps.iter().map(candidate).collect();
        for step in superfluous(&candidates, self.options.keep_last) {
            let path = self.path.join(step_name(step));
            match self.remove(&path, step) {
                Ok(()) => report.removed.push(path),
                Err(error) => {
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    report.warnings.push(format!("{error}: {}", cause.unwrap_or_default()));
                }
            }
        }
    }

    /// Renames first, so that a checkpoint half removed never looks like one that is damaged.
    fn remove(&self, path: &Path, step: u64) -> Result<()> {
        let files = &*self.options.files;
        let aside = self.path.join(format!("{ASIDE}{}", step_name(step)));
        files.rename(path, &aside).map_err(CheckpointError::io("rename", path))?;
        files.sync_dir(&self.path).map_err(CheckpointError::io("flush", &self.path))?;
        files.remove_dir_all(&aside).map_err(CheckpointError::io("remove", &aside))
    }

    fn clean(&mut self) -> Result<()> {
        let files = &*self.options.files;
        for entry in entries(&self.path)? {
            let name = entry.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            let holder = name.strip_prefix(FORMER).map(|name| self.path.join(name));
            match holder {
                Some(path) if !path.exists() => {
                    files.rename(&entry, &path).map_err(CheckpointError::io("rename", &entry))?;
                    files.sync_dir(&self.path).map_err(CheckpointError::io("flush", &self.path))?;
                }
                None if !name.starts_with(ASIDE) => continue,
                _ => files.remove_dir_all(&entry).map_err(CheckpointError::io("remove", &entry))?,
            }
            self.cleaned.push(entry);
        }
        Ok(())
    }
}

/// The newest checkpoint in a directory of checkpoints, opened; `None` where there is none.
///
/// # Errors
/// The newest one is damaged: the error names the file. An older one is never taken silently in its place.
pub fn newest(directory: &Path) -> Result<Option<Checkpoint>> {
    if !directory.exists() {
        return Ok(None);
    }
    steps(directory)?.last().map(|(_, path)| Checkpoint::open(path)).transpose()
}

/// Opens `path`, which is a checkpoint or a directory of checkpoints; of the latter, the newest.
///
/// # Errors
/// There is none, or it is damaged.
pub fn open(path: &Path) -> Result<Checkpoint> {
    let is_directory_of_them = path.is_dir() && !path.join(MANIFEST_FILE).exists();
    match if is_directory_of_them { newest(path)? } else { None } {
        Some(checkpoint) => Ok(checkpoint),
        None => Checkpoint::open(path),
    }
}

/// Steps and directories of all checkpoints, by step.
///
/// # Errors
/// The directory cannot be read.
pub fn steps(directory: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let step = |path: PathBuf| {
        let step: u64 = path.file_name()?.to_str()?.strip_prefix(STEP)?.parse().ok()?;
        Some((step, path))
    };
    let mut steps: Vec<_> = entries(directory)?.into_iter().filter_map(step).collect();
    steps.sort();
    Ok(steps)
}

/// Name of the directory of the checkpoint of a step.
pub fn step_name(step: u64) -> String {
    format!("{STEP}{step:09}")
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

/// How often a lock is tried for, and the pause between. A program started by the former holder keeps its lock for the moment
/// until it runs.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

fn lock(directory: &Path) -> Result<File> {
    let path = directory.join(LOCK);
    let options = File::options().create(true).truncate(false).write(true).open(&path);
    let file = options.map_err(CheckpointError::io("create", &path))?;
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            // Some network file systems know no locks; two writers there are the user's care.
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(file),
        }
    }
    Err(CheckpointError::InUse { path: directory.to_owned() })
}
