//! A save of several processes: each writes the files that the plan gives it, and process 0, which
//! has the directory, the manifest when all are there.
//!
//! All of them know the same plan, and go through it in step. In each round, the rows that each
//! writer puts into its file next go to it from where they lie, and to no one else. A table that
//! lies with one process is written there, and nothing of it travels; rows that all have never do.
//!
//! Where not all of them can write to the directory, process 0 writes everything.

use super::error::{CheckpointError, Result};
use super::files::{Files, mark};
use super::layout::{CheckpointSource, Peers, Processes};
use super::manifest::FileEntry;
use super::read::aside_of;
use super::shard::{DEFAULT_SHARD_BYTES, portions};
use super::tensor_file::{FilePlan, TensorFile, TensorOutput};
use crate::state::digest::{CHUNK_BYTES, WeightsDigest, exchange_error};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use zerocopy::IntoBytes as _;

/// A file that a process has written, as process 0 hears of it.
#[derive(PartialEq, Serialize, Deserialize)]
pub(super) struct Part {
    /// Its place in the plan.
    pub index: usize,
    pub entry: FileEntry,
    pub digest: WeightsDigest,
}

/// What a process does that is not process 0 while this one saves `source` as `step`: it writes the
/// files that are its own, and gives the others its rows.
///
/// # Errors
/// A file that cannot be written; what the processes exchange.
pub fn take_part_in_save(
    files: &dyn Files,
    directory: &Path,
    source: &dyn CheckpointSource,
    step: u64,
) -> Result<()> {
    let plan = FilePlan::new(source, DEFAULT_SHARD_BYTES)?;
    match source.processes() {
        Some(processes) => {
            agreed(Some(processes), Ok(()))?;
            write_together(files, &aside_of(directory, step), &plan, processes)?;
            agreed(Some(processes), Ok(()))
        }
        None => Ok(()),
    }
}

/// What has been written.
pub(super) struct Together {
    /// The files of all processes, where this is process 0.
    pub entries: Vec<(FileEntry, WeightsDigest)>,
    /// Whether each process has written its own.
    pub shared: bool,
}

/// Writes the tensors into the directory `aside`, which process 0 has made: each process its own
/// files.
pub(super) fn write_together(
    files: &dyn Files,
    aside: &Path,
    plan: &FilePlan,
    processes: &dyn Processes,
) -> Result<Together> {
    let shared = is_seen_by_all(aside, processes)?;
    let writes =
        |process: usize, file: &TensorFile| process == if shared { file.writer } else { 0 };
    let parts = write_parts(files, aside, plan, processes, &writes)?;
    let all = gather_parts(&parts, processes)?;
    for Part { entry, .. } in &all {
        let file = aside.join(&entry.file);
        let metadata = fs::metadata(&file).map_err(CheckpointError::io("read", &file))?;
        let (expected, found) = (entry.bytes, metadata.len());
        if expected != found {
            return Err(CheckpointError::WrongSize { file, expected, found });
        }
    }
    let entries = all.into_iter().map(|part| (part.entry, part.digest)).collect();
    Ok(Together { entries, shared })
}

/// Goes through the plan in step with the other processes, and writes those of its files that this
/// one `writes`; more than one may write the same.
pub(super) fn write_parts(
    files: &dyn Files,
    aside: &Path,
    plan: &FilePlan,
    processes: &dyn Processes,
    writes: &dyn Fn(usize, &TensorFile) -> bool,
) -> Result<Vec<Part>> {
    let (own, count) = (processes.own(), processes.count());
    let files_of = |process: usize| {
        let own = plan.files.iter().enumerate();
        let own = own.filter(move |(_, file)| writes(process, file));
        own.flat_map(|(index, file)| {
            portions(&file.pieces, CHUNK_BYTES).map(move |portion| (index, portion))
        })
    };
    let (mut parts, mut failure) = (Vec::new(), None);
    let mut queues: Vec<_> = (0..count).map(files_of).collect();
    let mut values = Vec::new();
    let mut output: Option<(usize, TensorOutput)> = None;
    loop {
        let next: Vec<_> = queues.iter_mut().map(Iterator::next).collect();
        if next.iter().all(Option::is_none) {
            break;
        }
        let wanted: Vec<_> =
            next.iter().map(|next| next.map(|(_, (_, portion))| portion)).collect();
        processes.bring(&wanted, &mut values).map_err(exchange_error("its rows"))?;
        // Who cannot write still gives the others their rows.
        let Some((index, (piece, portion))) = next[own].filter(|_| failure.is_none()) else {
            continue;
        };
        let mut write = || -> Result<()> {
            if let Some((done, written)) = output.take_if(|(open, _)| *open != index) {
                parts.push(finish(plan, done, written)?);
            }
            let (_, output) = match &mut output {
                Some(output) => output,
                empty => {
                    let file = &plan.files[index];
                    empty.insert((index, TensorOutput::create(files, aside, file)?))
                }
            };
            output.put(piece, portion.first_row, &values)
        };
        failure = write().err();
    }
    if let (Some((done, written)), None) = (output, &failure) {
        match finish(plan, done, written) {
            Ok(part) => parts.push(part),
            Err(error) => failure = Some(error),
        }
    }
    agreed(Some(processes), failure.map_or(Ok(parts), Err))
}

/// What this process has done of a save, if all processes have done theirs; else the first's
/// reason, for all of them. Each calls it at the same place.
pub(super) fn agreed<T>(processes: Option<&dyn Processes>, own: Result<T>) -> Result<T> {
    let Some(processes) = processes else { return own };
    let refused = || exchange_error("whether it has done its part of a save");
    if processes.all_say(own.is_ok()).map_err(refused())? {
        return own;
    }
    let own = own.err().map_or_else(String::new, |failure| failure.with_cause());
    let said = processes.gather(own.as_bytes()).map_err(refused())?;
    let first = said.iter().position(|said| !said.is_empty()).unwrap_or(0);
    let mut reason = said.into_iter().nth(first).unwrap_or_default();
    let mut words = [first as u64, reason.len() as u64];
    processes.tell(0, words.as_mut_bytes()).map_err(refused())?;
    reason.resize(words[1] as usize, 0);
    processes.tell(0, &mut reason).map_err(refused())?;
    let reason = String::from_utf8_lossy(&reason).into_owned();
    Err(CheckpointError::NotWritten { rank: words[0], reason })
}

fn finish(plan: &FilePlan, index: usize, output: TensorOutput) -> Result<Part> {
    let (entry, digest) = output.finish(&plan.files[index])?;
    Ok(Part { index, entry, digest })
}

/// Whether all processes see the directory `aside` as process 0 has just made it, and can write to
/// it: one that has a disk of its own sees none, or another.
fn is_seen_by_all(aside: &Path, processes: &dyn Peers) -> Result<bool> {
    let mut first = mark(aside);
    processes.tell(0, first.as_mut_bytes()).map_err(exchange_error("where its directory is"))?;
    let can_write = rustix::fs::access(aside, rustix::fs::Access::WRITE_OK).is_ok();
    let sees = first != [0; 3] && first == mark(aside) && can_write;
    processes.all_say(sees).map_err(exchange_error("whether it sees the directory"))
}

/// For process 0, what all have written, in the order of the plan; none for the others.
pub(super) fn gather_parts(parts: &[Part], processes: &dyn Peers) -> Result<Vec<Part>> {
    let own = serde_json::to_vec(parts).expect("parts have text keys only");
    let said = processes.gather(&own).map_err(exchange_error("what it has written"))?;
    let mut all: Vec<Part> = Vec::new();
    for said in said {
        let parts: Vec<Part> = serde_json::from_slice(&said)
            .map_err(|error| exchange_error("what it has written")(error.into()))?;
        all.extend(parts);
    }
    all.sort_by_key(|part| part.index);
    Ok(all)
}
