//! What an unfinished call has left: `counting/state.json` and the runs of finished files.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::MakeOptions;
use crate::columns::BinnedColumn;
use crate::criteo::BadRowPolicy;
use crate::dictionary::CountedFile;
use crate::error::Result;
use crate::identity::FileIdentity;
use crate::io::DataFile;
use crate::output::{remove_file, write_error, write_file};
use crate::schema::Schema;

const FOLDER: &str = "counting";
const STATE_FILE: &str = "state.json";
/// Version of the record; what another one has left is counted again.
const FORMAT_VERSION: u32 = 2;
const RUN: &str = "run-";
const MERGED: &str = "merged-";

/// The record of finished files; it vouches for their runs.
#[derive(Debug)]
pub(super) struct State {
    folder: PathBuf,
    record: Record,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format_version: u32,
    schema: Schema,
    on_bad_row: BadRowPolicy,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    bins: Vec<BinnedColumn>,
    finished: Vec<FinishedFile>,
    /// The number of the next run; never used twice.
    next_run: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FinishedFile {
    path: DataFile,
    /// None of a pipe, which is never found finished.
    identity: Option<FileIdentity>,
    pub rows: u64,
    pub skipped: u64,
    runs: Vec<String>,
}

impl FinishedFile {
    pub fn begin(path: &DataFile) -> Result<Self> {
        let identity = if path.is_stream() { None } else { FileIdentity::of(path.as_ref())? };
        Ok(Self { path: path.clone(), identity, rows: 0, skipped: 0, runs: Vec::new() })
    }

    pub fn bytes(&self) -> u64 {
        self.identity.as_ref().map_or(0, |identity| identity.bytes)
    }

    pub fn counted(&self) -> CountedFile {
        let path = self.path.to_string();
        let (bytes, identity) = (self.bytes(), self.identity.clone());
        CountedFile { path, bytes, rows: self.rows, skipped: self.skipped, identity }
    }
}

impl State {
    /// Takes up what an earlier call left in `folder`, as far as it is about these files and they
    /// are unchanged.
    pub fn open(folder: &Path, options: &MakeOptions, files: &[DataFile]) -> Result<Self> {
        let folder = folder.join(FOLDER);
        fs::create_dir_all(&folder).map_err(write_error(&folder))?;
        let fresh = Record {
            format_version: FORMAT_VERSION,
            schema: options.schema,
            on_bad_row: options.on_bad_row,
            bins: options.columns.as_ref().map_or(Vec::new(), |columns| columns.bins.clone()),
            finished: Vec::new(),
            next_run: 0,
        };
        let found = fs::read(folder.join(STATE_FILE)).ok();
        let found: Option<Record> = found.and_then(|json| serde_json::from_slice(&json).ok());
        let mut record = match found.filter(|found| found.is_of(&fresh)) {
            Some(found) => found,
            // It must not vouch for the runs to come, which have the names of its own.
            None => {
                remove_file(&folder.join(STATE_FILE))?;
                fresh
            }
        };
        record.finished.retain(|finished| {
            let now = FileIdentity::of(finished.path.as_ref()).ok().flatten();
            let same = now.is_some() && now == finished.identity;
            same && files.contains(&finished.path)
                && finished.runs.iter().all(|run| folder.join(run).is_file())
        });
        let state = Self { folder, record };
        state.remove_unfinished(false)?;
        Ok(state)
    }

    pub fn finished(&self) -> &[FinishedFile] {
        &self.record.finished
    }

    /// The record of `path`, if it has been counted.
    pub fn finished_file(&self, path: &DataFile) -> Option<&FinishedFile> {
        self.record.finished.iter().find(|finished| finished.path == *path)
    }

    /// Names a new run of `file`.
    pub fn new_run(&mut self, file: &mut FinishedFile) -> PathBuf {
        let name = format!("{RUN}{}", self.record.next_run);
        self.record.next_run += 1;
        let path = self.folder.join(&name);
        file.runs.push(name);
        path
    }

    pub fn finish_file(&mut self, file: FinishedFile) -> Result<()> {
        self.record.finished.push(file);
        let json = serde_json::to_vec_pretty(&self.record)
            .expect("a struct of plain fields always becomes JSON");
        write_file(&self.folder.join(STATE_FILE), |file| file.write_all(&json))
    }

    pub fn run_paths(&self) -> Vec<PathBuf> {
        let names = self.record.finished.iter().flat_map(|finished| &finished.runs);
        names.map(|name| self.folder.join(name)).collect()
    }

    pub fn merged_run(&self, round: usize, group: usize) -> PathBuf {
        self.folder.join(format!("{MERGED}{round}-{group}"))
    }

    /// Removes all of it, and the folder where nothing else lies in it: the dictionary has been
    /// saved.
    pub fn remove(&self) -> Result<()> {
        self.remove_unfinished(true)?;
        remove_file(&self.folder.join(STATE_FILE))?;
        // Whatever else is there is not ours.
        let _ = fs::remove_dir(&self.folder);
        Ok(())
    }

    /// Removes runs: those of files that were never finished, or all.
    fn remove_unfinished(&self, all: bool) -> Result<()> {
        let known: HashSet<PathBuf> = self.run_paths().into_iter().collect();
        let failed = |source| write_error(&self.folder)(source);
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let is_ours =
                path.file_name().and_then(|name| name.to_str()).is_some_and(is_name_of_run);
            if is_ours && (all || !known.contains(&path)) {
                remove_file(&path)?;
            }
        }
        Ok(())
    }
}

impl Record {
    /// Whether counts of the one can be used for the other.
    fn is_of(&self, other: &Self) -> bool {
        let key = |record: &Self| (record.format_version, record.schema, record.on_bad_row);
        key(self) == key(other) && self.bins == other.bins
    }
}

/// Whether a file of this name is a run of ours, or what a crash has left of one.
fn is_name_of_run(name: &str) -> bool {
    let unfinished = name.strip_prefix(".tmp-").and_then(|name| Some(name.rsplit_once('-')?.0));
    let locked = name.strip_prefix('.').and_then(|name| name.strip_suffix(".lock"));
    let (is_left, name) = (unfinished.or(locked).is_some(), unfinished.or(locked).unwrap_or(name));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let merged = name.strip_prefix(MERGED).and_then(|rest| rest.split_once('-'));
    name.strip_prefix(RUN).is_some_and(is_number)
        || is_left && name == STATE_FILE
        || merged.is_some_and(|(round, group)| is_number(round) && is_number(group))
}
