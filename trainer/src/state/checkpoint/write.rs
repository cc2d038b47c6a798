//! Writing one checkpoint aside: its files, flushed, the manifest last. Moving it into place is
//! `directory`'s part.

use super::error::{CheckpointError, Result};
use super::files::{FileWriter, Files};
use super::layout::{CheckpointSource, Layout};
use super::manifest::{FileEntry, MANIFEST_FILE, Manifest, SavedState, check_name, checksum_text};
use super::shard::{Content, Piece, file_bytes, header, pieces, plan_files};
use crate::state::digest::{WeightsDigest, chunks, read_error, to_bytes};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use xxhash_rust::xxh3::Xxh3Default;

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

/// The files of the tensors, each with its content and its pieces.
pub(super) struct FilePlan {
    layout: Layout,
    files: Vec<(String, Content, Vec<Piece>)>,
    /// Bytes of all files, the manifest and the blobs by estimate.
    pub bytes: u64,
}

impl FilePlan {
    /// Decides what is written where. Reads no weights.
    pub fn new(snapshot: &Snapshot<'_>, shard_bytes: u64) -> Result<Self> {
        let layout = snapshot.source.layout();
        layout.tensors()?;
        let mut bytes = 0_u64;
        let mut files = Vec::new();
        for (file, content) in plan_files(&layout, shard_bytes)? {
            let pieces = pieces(&layout, &content)?;
            bytes = bytes.saturating_add(file_bytes(&pieces).unwrap_or(u64::MAX));
            files.push((file, content, pieces));
        }
        let blobs = snapshot.blobs.iter();
        bytes = blobs.fold(bytes, |sum, blob| sum.saturating_add(blob.estimated_bytes));
        // A manifest needs a few hundred bytes per tensor; directories and partly filled blocks
        // need some, too.
        let tensors: u64 = files.iter().map(|(_, _, pieces)| pieces.len() as u64).sum();
        bytes = bytes.saturating_add(16_384 + 512 * tensors + 4096 * files.len() as u64);
        Ok(Self { layout, files, bytes })
    }
}

#[derive(Clone, Debug)]
pub(super) struct Written {
    pub bytes: u64,
    pub weights_digest: String,
}

/// Writes all files of a checkpoint into the existing, empty directory `aside` and flushes them and
/// the directory. `writers` threads take the files of tensors one by one.
pub(super) fn write_files(
    files: &dyn Files,
    aside: &Path,
    snapshot: &Snapshot<'_>,
    plan: &FilePlan,
    writers: usize,
) -> Result<Written> {
    let write = |index: usize| {
        let (file, content, pieces) = &plan.files[index];
        let mut digest = WeightsDigest::default();
        let mut output = Output::create(files, &aside.join(file))?;
        write_pieces(&mut output, pieces, snapshot.source, &mut digest)?;
        Ok((output.finish(file, content.clone())?, digest))
    };
    let mut digest = WeightsDigest::default();
    let mut entries = Vec::new();
    for written in side_by_side(plan.files.len(), writers, &write) {
        let (entry, part) = written?;
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
    Ok(Written { bytes, weights_digest })
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

/// Reads everything that a save of `source` with one writer reads, in the same order, and writes
/// nothing: what a rank does while another saves, where every read is an exchange between them.
pub fn read_like_a_save(source: &dyn CheckpointSource, shard_bytes: u64) -> Result<()> {
    let layout = source.layout();
    let mut values = Vec::new();
    for (_, content) in plan_files(&layout, shard_bytes)? {
        for piece in pieces(&layout, &content)? {
            for (first_row, rows) in chunks(piece.width, piece.first_row, piece.rows) {
                values.resize((rows * piece.width) as usize, 0.0);
                source.read(piece.id, first_row, &mut values).map_err(read_error(&piece.name))?;
            }
        }
    }
    Ok(())
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

fn write_pieces(
    output: &mut Output,
    pieces: &[Piece],
    source: &dyn CheckpointSource,
    digest: &mut WeightsDigest,
) -> Result<()> {
    output.put(&header(pieces))?;
    let mut values = Vec::new();
    let mut bytes = Vec::new();
    for piece in pieces {
        for (first_row, rows) in chunks(piece.width, piece.first_row, piece.rows) {
            values.resize((rows * piece.width) as usize, 0.0);
            source.read(piece.id, first_row, &mut values).map_err(read_error(&piece.name))?;
            to_bytes(&values, &mut bytes);
            output.put(&bytes)?;
            digest.add(&piece.name, piece.width, first_row, &bytes);
        }
    }
    Ok(())
}

/// A file being written, with its length and checksum so far.
struct Output {
    path: PathBuf,
    writer: Box<dyn FileWriter>,
    checksum: Xxh3Default,
    bytes: u64,
}

impl Output {
    fn create(files: &dyn Files, path: &Path) -> Result<Self> {
        let writer = files.create_file(path).map_err(CheckpointError::io("create", path))?;
        Ok(Self { path: path.to_owned(), writer, checksum: Xxh3Default::new(), bytes: 0 })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let path = self.path.clone();
        self.write_all(bytes).map_err(CheckpointError::io("write", &path))
    }

    /// Flushes the file to the disk and closes it.
    fn finish(mut self, file: &str, content: Content) -> Result<FileEntry> {
        self.writer.sync().map_err(CheckpointError::io("flush", &self.path))?;
        let xxh3_128 = checksum_text(self.checksum.digest128());
        Ok(FileEntry { file: file.to_owned(), bytes: self.bytes, xxh3_128, content })
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.writer.write(bytes)?;
        self.checksum.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}
