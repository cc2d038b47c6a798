//! What an unfinished call has left: `counting/state.json`, the runs of finished files, and a lock.

use std::collections::HashSet;
use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::remove_folder;
use crate::aside::write_file_aside;
use crate::criteo::BadRowPolicy;
use crate::dictionary::CountedFile;
use crate::error::{ReaderError, Result};
use crate::io::DataFile;
use crate::schema::Schema;

const FOLDER: &str = "counting";
const STATE_FILE: &str = "state.json";
const LOCK_FILE: &str = "lock";
/// Bytes at the beginning of a file that are hashed to know it again.
const IDENTITY_BYTES: u64 = 1 << 20;

/// The record of finished files; it vouches for their runs.
#[derive(Debug)]
pub(super) struct State {
    folder: PathBuf,
    record: Record,
    /// Held as long as this call works in the folder; the system frees it even after a crash.
    _lock: File,
}

/// What counts depend on, and what has been counted.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format_version: u32,
    schema: Schema,
    on_bad_row: BadRowPolicy,
    finished: Vec<FinishedFile>,
    /// The number of the next run; never used twice.
    next_run: u64,
}

/// A counted file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FinishedFile {
    path: DataFile,
    identity: Identity,
    pub rows: u64,
    pub skipped: u64,
    /// Names of its runs.
    runs: Vec<String>,
}

/// Enough of a file to notice that it is another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Identity {
    bytes: u64,
    /// Nanoseconds since 1970, where the file system knows.
    modified_ns: Option<u128>,
    xxh3_of_beginning: u64,
}

impl Identity {
    fn of(path: &DataFile) -> Result<Self> {
        if path.is_stream() {
            // It is never found again.
            return Ok(Self { bytes: 0, modified_ns: None, xxh3_of_beginning: 0 });
        }
        let failed = |source| ReaderError::Open { file: path.name(), source };
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let modified = metadata.modified().ok();
        let since_1970 = modified.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        let mut beginning = Vec::new();
        file.take(IDENTITY_BYTES).read_to_end(&mut beginning).map_err(failed)?;
        Ok(Self {
            bytes: metadata.len(),
            modified_ns: since_1970.map(|time| time.as_nanos()),
            xxh3_of_beginning: xxh3_64(&beginning),
        })
    }
}

impl FinishedFile {
    /// A file that is about to be counted.
    pub fn begin(path: &DataFile) -> Result<Self> {
        let identity = Identity::of(path)?;
        Ok(Self { path: path.clone(), identity, rows: 0, skipped: 0, runs: Vec::new() })
    }

    /// Its size, as stored.
    pub fn bytes(&self) -> u64 {
        self.identity.bytes
    }

    /// What the dictionary says of it.
    pub fn counted(&self) -> CountedFile {
        let path = self.path.to_string();
        CountedFile { path, bytes: self.bytes(), rows: self.rows, skipped: self.skipped }
    }
}

impl State {
    /// Takes up what an earlier call left in `folder`, as far as it is about these files and they are unchanged.
    pub fn open(folder: &Path, schema: Schema, on_bad_row: BadRowPolicy, files: &[DataFile]) -> Result<Self> {
        let folder = folder.join(FOLDER);
        let lock = lock_folder(&folder)?;
        let fresh = Record { format_version: 1, schema, on_bad_row, finished: Vec::new(), next_run: 0 };
        let found = fs::read(folder.join(STATE_FILE)).ok();
        let mut record: Record =
            found.and_then(|json| serde_json::from_slice(&json).ok()).unwrap_or(Record { ..fresh });
        if (record.format_version, record.schema, record.on_bad_row) != (1, schema, on_bad_row) {
            record.finished.clear();
            (record.format_version, record.schema, record.on_bad_row) = (1, schema, on_bad_row);
        }
        record.finished.retain(|finished| {
            let same = Identity::of(&finished.path).is_ok_and(|identity| identity == finished.identity);
            same && !finished.path.is_stream()
                && files.contains(&finished.path)
                && finished.runs.iter().all(|run| folder.join(run).is_file())
        });
        let state = Self { folder, record, _lock: lock };
        state.remove_strangers()?;
        Ok(state)
    }

    /// The folder of runs.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Files counted so far.
    pub fn finished(&self) -> &[FinishedFile] {
        &self.record.finished
    }

    /// The record of `path`, if it has been counted.
    pub fn finished_file(&self, path: &DataFile) -> Option<&FinishedFile> {
        self.record.finished.iter().find(|finished| finished.path == *path)
    }

    /// Names a new run of `file`.
    pub fn new_run(&mut self, file: &mut FinishedFile) -> PathBuf {
        let name = format!("run-{}", self.record.next_run);
        self.record.next_run += 1;
        let path = self.folder.join(&name);
        file.runs.push(name);
        path
    }

    /// Records a file whose runs are all on disk.
    pub fn finish_file(&mut self, file: FinishedFile) -> Result<()> {
        self.record.finished.push(file);
        let json =
            serde_json::to_vec_pretty(&self.record).expect("a struct of plain fields always becomes JSON");
        write_file_aside(&self.folder.join(STATE_FILE), |file| file.write_all(&json))
    }

    /// The runs of all finished files.
    pub fn run_paths(&self) -> Vec<PathBuf> {
        let names = self.record.finished.iter().flat_map(|finished| &finished.runs);
        names.map(|name| self.folder.join(name)).collect()
    }

    /// Removes the folder: the dictionary has been saved.
    pub fn remove(&self) -> Result<()> {
        remove_folder(&self.folder)
    }

    /// Removes runs of files that were never finished.
    fn remove_strangers(&self) -> Result<()> {
        let mut known: HashSet<PathBuf> = self.run_paths().into_iter().collect();
        known.extend([STATE_FILE, LOCK_FILE].map(|name| self.folder.join(name)));
        let failed = |source| ReaderError::Write { file: self.folder.clone(), source };
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if !known.contains(&path) {
                fs::remove_file(&path).map_err(|source| ReaderError::Write { file: path, source })?;
            }
        }
        Ok(())
    }
}

/// Creates the folder and takes its lock.
fn lock_folder(folder: &Path) -> Result<File> {
    let path = folder.join(LOCK_FILE);
    let failed = |source| ReaderError::Write { file: path.clone(), source };
    fs::create_dir_all(folder).map_err(failed)?;
    let lock = File::create(&path).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::Error(source)) => Err(failed(source)),
        Err(TryLockError::WouldBlock) => {
            let message = format!("another process is making a dictionary in {}", folder.display());
            Err(ReaderError::Invalid { message })
        }
    }
}
