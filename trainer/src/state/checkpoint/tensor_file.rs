//! The files of a checkpoint's tensors: which there are, who writes them, and one being written.

use super::error::{CheckpointError, Result};
use super::files::{FileWriter, Files};
use super::layout::{CheckpointSource, Layout};
use super::manifest::{FileEntry, checksum_text};
use super::shard::{Content, Piece, PlannedFile, file_bytes, header, pieces, plan_files};
use crate::state::digest::{WeightsDigest, to_bytes};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3Default;

/// The files of the tensors. Where several processes save, it is the same one for all.
pub(super) struct FilePlan {
    pub layout: Layout,
    pub files: Vec<TensorFile>,
    /// Bytes of all files, the manifest by estimate, without blobs.
    pub bytes: u64,
}

/// A file of tensors.
pub(super) struct TensorFile {
    pub name: String,
    pub content: Content,
    pub pieces: Vec<Piece>,
    /// The process that writes it.
    pub writer: usize,
}

impl TensorFile {
    pub fn bytes(&self) -> u64 {
        file_bytes(&self.pieces).unwrap_or(u64::MAX)
    }
}

/// Where several processes save, none gets a file that is smaller than this for want of rows.
const SMALLEST_SHARE_BYTES: u64 = 1 << 20;

impl FilePlan {
    /// Decides what is written where, and by whom. Reads no weights.
    pub fn new(source: &dyn CheckpointSource, shard_bytes: u64) -> Result<Self> {
        let layout = source.layout();
        let tensors = layout.tensors()?;
        let processes = source.processes();
        let count = processes.map_or(1, |processes| processes.count());
        let all_bytes = tensors.iter().map(|tensor| tensor.rows * tensor.width * 4);
        let share = all_bytes.fold(0, u64::saturating_add).div_ceil(count as u64);
        let shard_bytes = match count {
            1 => shard_bytes,
            _ => shard_bytes.min(share.max(SMALLEST_SHARE_BYTES)),
        };
        let holder_of = |table| processes.and_then(|processes| processes.holder_of(table));
        let mut files = Vec::new();
        for PlannedFile { name, content, holder } in plan_files(&layout, shard_bytes, &holder_of)? {
            let pieces = pieces(&layout, &content)?;
            let file = TensorFile { name, content, pieces, writer: 0 };
            let bytes = file.bytes();
            files.push((file, bytes, holder));
        }
        let mut bytes = files.iter().fold(0_u64, |sum, (_, bytes, _)| sum.saturating_add(*bytes));
        assign_writers(&mut files, count);
        let files: Vec<TensorFile> = files.into_iter().map(|(file, ..)| file).collect();
        // A manifest needs a few hundred bytes per tensor; directories and partly filled blocks
        // need some, too.
        let tensors: u64 = files.iter().map(|file| file.pieces.len() as u64).sum();
        bytes = bytes.saturating_add(16_384 + 512 * tensors + 4096 * files.len() as u64);
        Ok(Self { layout, files, bytes })
    }
}

/// Files go to the process that holds all of them, the others to those that write the least.
fn assign_writers(files: &mut [(TensorFile, u64, Option<usize>)], count: usize) {
    let mut loads = vec![0_u64; count];
    for (file, bytes, holder) in files.iter_mut() {
        let Some(holder) = *holder else { continue };
        loads[holder] = loads[holder].saturating_add(*bytes);
        file.writer = holder;
    }
    for (file, bytes, _) in files.iter_mut().filter(|(.., holder)| holder.is_none()) {
        file.writer = give_to_least(&mut loads, *bytes);
    }
}

/// The process that has the least to do, which takes so many bytes more.
fn give_to_least(loads: &mut [u64], bytes: u64) -> usize {
    let least = (0..loads.len()).min_by_key(|&process| loads[process]).unwrap_or(0);
    loads[least] = loads[least].saturating_add(bytes);
    least
}

/// A file of tensors being written, with the digest of its rows so far.
pub(super) struct TensorOutput {
    output: Output,
    digest: WeightsDigest,
    bytes: Vec<u8>,
}

impl TensorOutput {
    pub fn create(files: &dyn Files, aside: &Path, file: &TensorFile) -> Result<Self> {
        let mut output = Output::create(files, &aside.join(&file.name))?;
        output.put(&header(&file.pieces))?;
        Ok(Self { output, digest: WeightsDigest::default(), bytes: Vec::new() })
    }

    /// Takes the next rows of the file.
    pub fn put(&mut self, piece: &Piece, first_row: u64, values: &[f32]) -> Result<()> {
        to_bytes(values, &mut self.bytes);
        self.output.put(&self.bytes)?;
        self.digest.add(&piece.name, piece.width, first_row, &self.bytes);
        Ok(())
    }

    /// Flushes the file to the disk and closes it.
    pub fn finish(self, file: &TensorFile) -> Result<(FileEntry, WeightsDigest)> {
        Ok((self.output.finish(&file.name, file.content.clone())?, self.digest))
    }
}

/// A file being written, with its length and checksum so far.
pub(super) struct Output {
    path: PathBuf,
    writer: Box<dyn FileWriter>,
    checksum: Xxh3Default,
    bytes: u64,
}

impl Output {
    pub fn create(files: &dyn Files, path: &Path) -> Result<Self> {
        let writer = files.create_file(path).map_err(CheckpointError::io("create", path))?;
        Ok(Self { path: path.to_owned(), writer, checksum: Xxh3Default::new(), bytes: 0 })
    }

    pub fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let path = self.path.clone();
        self.write_all(bytes).map_err(CheckpointError::io("write", &path))
    }

    /// Flushes the file to the disk and closes it.
    pub fn finish(mut self, file: &str, content: Content) -> Result<FileEntry> {
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
