//! Writing one checkpoint aside: its files, flushed, the manifest last. Moving it into place is
//! `directory`'s part.

use super::error::{CheckpointError, Result};
use super::files::Files;
use super::layout::CheckpointSource;
use super::manifest::{FileEntry, MANIFEST_FILE, Manifest, SavedState, check_name};
use super::shard::{Content, portions};
use super::tensor_file::{FilePlan, Output, TensorOutput};
use super::together::{Together, agreed, write_together};
use crate::state::digest::{CHUNK_BYTES, WeightsDigest, read_error};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Writes the bytes of a [`Blob`].
pub type BlobWriter<'a> = Box<dyn Fn(&mut dyn Write) -> io::Result<()> + 'a>;

/// Bytes of another part of the program that are saved with the weights: `config.toml`, the state
/// of the ids.
pub struct Blob<'a> {
    /// File name in the checkpoint: `ids.bin`.
    pub file: String,
    /// Size, to know beforehand whether the disk has room. An estimate will do.
    pub estimated_bytes: u64,
    /// Writes the bytes.
    pub write: BlobWriter<'a>,
}

pub struct Snapshot<'a> {
    pub source: &'a dyn CheckpointSource,
    /// Where the run stands, and of what model and data it is.
    pub state: SavedState,
    pub blobs: Vec<Blob<'a>>,
}

#[derive(Clone, Debug)]
pub(super) struct Written {
    pub bytes: u64,
    pub weights_digest: String,
    /// Whether process 0 has written everything, because others cannot.
    pub alone: bool,
}

/// Writes all files of a checkpoint into the existing, empty directory `aside` and flushes them and
/// the directory. `writers` threads take the files of tensors one by one; where several processes
/// save, each writes its own. Then gives the directory its `place`; all processes hear whether that
/// is done.
pub(super) fn write_files(
    files: &dyn Files,
    aside: &Path,
    snapshot: &Snapshot<'_>,
    plan: &FilePlan,
    (writers, place): (usize, &dyn Fn() -> Result<()>),
) -> Result<Written> {
    let source = snapshot.source;
    let mut alone = false;
    let tensors = match source.processes() {
        Some(processes) => {
            let Together { entries, shared } = write_together(files, aside, plan, processes)?;
            alone = !shared;
            entries
        }
        None => side_by_side(plan.files.len(), writers, &|index| {
            let file = &plan.files[index];
            let mut output = TensorOutput::create(files, aside, file)?;
            let mut values = Vec::new();
            for (piece, portion) in portions(&file.pieces, CHUNK_BYTES) {
                values.resize(portion.len(), 0.0);
                source
                    .read(piece.id, portion.first_row, &mut values)
                    .map_err(read_error(&piece.name))?;
                output.put(piece, portion.first_row, &values)?;
            }
            output.finish(file)
        })
        .into_iter()
        .collect::<Result<_>>()?,
    };
    let written = write_small(files, aside, snapshot, plan, tensors);
    let written = written.and_then(|written| place().map(|()| Written { alone, ..written }));
    agreed(source.processes(), written)
}

/// What only the process that leads knows: small files, the manifest the last.
fn write_small(
    files: &dyn Files,
    aside: &Path,
    snapshot: &Snapshot<'_>,
    plan: &FilePlan,
    tensors: Vec<(FileEntry, WeightsDigest)>,
) -> Result<Written> {
    let mut digest = WeightsDigest::default();
    let mut entries = Vec::new();
    for (entry, part) in tensors {
        entries.push(entry);
        digest.merge(part);
    }
    plan.layout.tensors()?.iter().for_each(|tensor| digest.shape(tensor));
    for blob in &snapshot.blobs {
        entries.push(write_blob(files, aside, blob)?);
    }
    let weights_digest = digest.finish();
    let mut bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
    let manifest =
        Manifest::new(snapshot.state.clone(), plan.layout.clone(), weights_digest.clone(), entries);
    manifest.check().map_err(|message| CheckpointError::Layout { message })?;
    let manifest = manifest.to_bytes();
    bytes += manifest.len() as u64;
    let mut output = Output::create(files, &aside.join(MANIFEST_FILE))?;
    output.put(&manifest)?;
    output.finish(MANIFEST_FILE, Content::Blob)?;
    files.sync_dir(aside).map_err(CheckpointError::io("flush", aside))?;
    Ok(Written { bytes, weights_digest, alone: false })
}

/// The results of `work` for `0 .. count`, up to the first that fails, by `threads` threads that
/// take the next number each.
fn side_by_side<T: Send>(
    count: usize,
    threads: usize,
    work: &(dyn Fn(usize) -> Result<T> + Sync),
) -> Vec<Result<T>> {
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let results: Mutex<Vec<(usize, Result<T>)>> = Mutex::default();
    let take = || {
        while !failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            let result = work(index);
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            scope.spawn(take);
        }
        take();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    // The error first, where there is one: a later file may have been written all the same.
    results.sort_by_key(|(index, result)| (result.is_ok(), *index));
    results.into_iter().map(|(_, result)| result).collect()
}

fn write_blob(files: &dyn Files, aside: &Path, blob: &Blob<'_>) -> Result<FileEntry> {
    check_name(&blob.file).map_err(|message| CheckpointError::Layout { message })?;
    let path = aside.join(&blob.file);
    let mut output = Output::create(files, &path)?;
    {
        let mut buffered = BufWriter::with_capacity(1 << 20, &mut output);
        let written = (blob.write)(&mut buffered).and_then(|()| buffered.flush());
        written.map_err(CheckpointError::io("write", &path))?;
    }
    output.finish(&blob.file, Content::Blob)
}
