//! Blocks with checksums to samples.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::{
    BLOCKS_FROM, END, Header, MAGIC, MAGIC_1, MOST_BLOCK_BYTES, MOST_HEADER_BYTES, TAIL_BYTES,
    VERSION,
};
use crate::disk::{Block, DiskBlocks, DiskFiles, DiskOptions, Segment};
use crate::error::{ReaderError, Result, refuse};
use crate::formats::{About, Ranges, SampleStream, Source, cut, starts_of};
use crate::io::open_regular;
use crate::samples::{DenseValues, Hotness, Samples};

/// Files of one schema, one after another.
pub struct HeadlongSource {
    about: About,
    files: Arc<[OneFile]>,
    starts: Arc<[u64]>,
}

#[derive(Debug)]
struct OneFile {
    path: PathBuf,
    header: Header,
    num_samples: u64,
    /// Where the blocks begin, and where each ends.
    first_byte: u64,
    ends: Vec<u64>,
    bytes: u64,
}

impl HeadlongSource {
    /// Opens `paths`, which must have the same columns.
    ///
    /// # Errors
    /// Those of opening; [`ReaderError::Format`] for a file that is not whole or has other columns
    /// than the first.
    pub fn open(paths: &[PathBuf]) -> Result<Self> {
        let files = paths.iter().map(|path| OneFile::open(path)).collect::<Result<Vec<_>>>()?;
        let Some(first) = files.first() else {
            refuse!("no data file was named");
        };
        for file in &files {
            first
                .header
                .schema
                .check_like(&file.header.schema, &file.path.display().to_string())?;
            if file.header.ids != first.header.ids {
                let (expected, found) = (&first.header.ids, &file.header.ids);
                let message = format!(
                    "expected ids of \"{expected}\" as in {}, found \"{found}\"",
                    first.path.display()
                );
                return Err(ReaderError::format(&file.path, message));
            }
        }
        let starts = starts_of(files.iter().map(|file| file.num_samples));
        let stored_bytes = files.iter().map(|file| file.bytes).sum();
        let about = About::random(first.header.schema.clone(), &starts, stored_bytes);
        Ok(Self { about, files: files.into(), starts })
    }

    /// What the first file says of itself.
    pub fn header(&self) -> &Header {
        &self.files[0].header
    }
}

/// Whether a file begins as one of ours.
pub fn is_headlong(first_bytes: &[u8]) -> bool {
    first_bytes.starts_with(MAGIC) || first_bytes.starts_with(MAGIC_1)
}

impl OneFile {
    fn open(path: &Path) -> Result<Self> {
        let (file, bytes) = open_regular(path)?;
        let raw = Raw { path, file, bytes };
        let magic = raw.read(0, 8.min(bytes))?;
        let has_checksum = match &magic[..] {
            found if found == MAGIC => true,
            found if found == MAGIC_1 => false,
            _ => return Err(raw.bad("expected a file that begins with HLDATA02, found another")),
        };
        if bytes < BLOCKS_FROM + TAIL_BYTES as u64 {
            return Err(raw.bad("truncated: it ends inside its header"));
        }
        let (header, first_byte) = raw.header(has_checksum)?;
        let (num_samples, ends) = raw.index(first_byte)?;
        if num_samples.div_ceil(u64::from(header.samples_per_block)) != ends.len() as u64 {
            return Err(raw.bad("damaged: its samples do not fit its blocks"));
        }
        Ok(Self { path: path.to_owned(), header, num_samples, first_byte, ends, bytes })
    }

    fn samples_of(&self, block: u64) -> usize {
        let per_block = u64::from(self.header.samples_per_block);
        (self.num_samples - block * per_block).min(per_block) as usize
    }

    fn block_bytes(&self, block: u64) -> Range<u64> {
        let block = block as usize;
        let start = if block == 0 { self.first_byte } else { self.ends[block - 1] };
        start..self.ends[block]
    }
}

/// A file whose sizes are not believed yet.
struct Raw<'a> {
    path: &'a Path,
    file: File,
    bytes: u64,
}

impl Raw<'_> {
    fn bad(&self, message: &str) -> ReaderError {
        ReaderError::Format { file: self.path.into(), message: message.to_owned() }
    }

    /// `count` bytes that lie within the file.
    fn read(&self, from: u64, count: u64) -> Result<Vec<u8>> {
        let failed = |source| ReaderError::Disk { file: self.path.into(), offset: from, source };
        let mut buffer = Vec::new();
        let reserved = buffer.try_reserve_exact(count as usize);
        reserved.map_err(|_| failed(std::io::ErrorKind::OutOfMemory.into()))?;
        buffer.resize(count as usize, 0);
        self.file.read_exact_at(&mut buffer, from).map_err(failed)?;
        Ok(buffer)
    }

    /// The header, and where the blocks begin.
    fn header(&self, has_checksum: bool) -> Result<(Header, u64)> {
        let length = numbers(&self.read(8, 8)?).next().unwrap_or(0);
        if length > MOST_HEADER_BYTES {
            let message = format!(
                "damaged: expected a header of at most {MOST_HEADER_BYTES} bytes, found {length}"
            );
            return Err(self.bad(&message));
        }
        let checksum_bytes = if has_checksum { 8 } else { 0 };
        let first_byte = (16 + length + checksum_bytes).next_multiple_of(BLOCKS_FROM);
        if first_byte > self.bytes - TAIL_BYTES as u64 {
            return Err(self.bad("damaged: its header does not fit its size"));
        }
        let head = self.read(0, first_byte)?;
        let (covered, stored) = head.split_at(head.len() - 8);
        let (expected, found) = (numbers(stored).next(), xxh3_64(covered));
        if has_checksum && expected != Some(found) {
            return Err(self.bad("damaged: the checksum of its header is wrong"));
        }
        let header: Header = serde_json::from_slice(&head[16..16 + length as usize])
            .map_err(|error| self.bad(&format!("damaged header: {error}")))?;
        let version = if has_checksum { VERSION } else { 1 };
        if header.format_version != version {
            let found = header.format_version;
            let message = format!(
                "expected format version {version}, found {found}: it needs a newer Headlong"
            );
            return Err(self.bad(&message));
        }
        if header.samples_per_block == 0 {
            return Err(self.bad("damaged header: samples_per_block: expected at least 1, found 0"));
        }
        header.schema.check().map_err(|error| self.bad(&format!("damaged header: {error}")))?;
        Ok((header, first_byte))
    }

    /// The number of samples, and where each block ends.
    fn index(&self, first_byte: u64) -> Result<(u64, Vec<u64>)> {
        let tail = self.read(self.bytes - TAIL_BYTES as u64, TAIL_BYTES as u64)?;
        if tail[32..] != *END {
            return Err(
                self.bad("truncated: expected HLDATEND at its end; was its writing interrupted?")
            );
        }
        let [num_samples, num_blocks, index_from, checksum] = number_array(&tail);
        // Every block is longer than its place in the index.
        let index_bytes = num_blocks.checked_mul(8).filter(|index| *index <= index_from);
        let end = index_bytes.and_then(|index| index_from.checked_add(index + TAIL_BYTES as u64));
        if end != Some(self.bytes) {
            return Err(self.bad("damaged: its index does not fit its size"));
        }
        let index = self.read(index_from, self.bytes - index_from - 16)?;
        if xxh3_64(&index) != checksum {
            return Err(self.bad("damaged: the checksum of its index is wrong"));
        }
        let ends: Vec<u64> = numbers(&index[..num_blocks as usize * 8]).collect();
        let starts = std::iter::once(&first_byte).chain(&ends);
        let in_order = ends.iter().zip(starts.clone()).all(|(end, start)| end > start);
        if !in_order || ends.last().unwrap_or(&first_byte) != &index_from {
            return Err(self.bad("damaged: its blocks are out of order"));
        }
        if let Some(block) =
            ends.iter().zip(starts).position(|(end, start)| end - start > MOST_BLOCK_BYTES)
        {
            let message =
                format!("block {block}: expected at most {MOST_BLOCK_BYTES} bytes, found more");
            return Err(self.bad(&message));
        }
        Ok((num_samples, ends))
    }
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number))
}

fn number_array(bytes: &[u8]) -> [u64; 4] {
    let mut numbers = numbers(bytes);
    std::array::from_fn(|_| numbers.next().unwrap_or(0))
}

#[derive(Clone, Debug)]
struct Piece {
    file: usize,
    block: u64,
    wanted: Range<usize>,
    /// The piece before is a part of the same block, which is read once for both.
    continues: bool,
}

fn pieces(
    ranges: Vec<Range<u64>>,
    files: Arc<[OneFile]>,
    starts: Arc<[u64]>,
) -> impl Iterator<Item = Piece> + Send {
    let parts = Arc::clone(&files);
    let all = cut(ranges.into_iter(), starts).flat_map(move |(file, samples)| {
        let per_block = u64::from(files[file].header.samples_per_block);
        (samples.start / per_block..samples.end.div_ceil(per_block)).map(move |block| {
            let first = block * per_block;
            let wanted =
                samples.start.max(first) - first..samples.end.min(first + per_block) - first;
            let wanted = wanted.start as usize..wanted.end as usize;
            Piece { file, block, wanted, continues: false }
        })
    });
    all.scan(None, move |part_before, piece| {
        let at = (piece.file, piece.block);
        let continues = *part_before == Some(at);
        let is_whole = piece.wanted == (0..parts[piece.file].samples_of(piece.block));
        *part_before = (!is_whole).then_some(at);
        Some(Piece { continues: continues && !is_whole, ..piece })
    })
}

impl Source for HeadlongSource {
    fn about(&self) -> &About {
        &self.about
    }

    fn read(&self, ranges: Ranges, options: &DiskOptions) -> Result<Box<dyn SampleStream>> {
        let ranges: Vec<Range<u64>> = ranges.collect();
        let all = || pieces(ranges.clone(), Arc::clone(&self.files), Arc::clone(&self.starts));
        let paths: Vec<_> = self.files.iter().map(|file| file.path.clone()).collect();
        let disk = DiskFiles::open(&paths, options.direct)?;
        let files = Arc::clone(&self.files);
        let segments = all().filter(|piece| !piece.continues).map(move |piece| Segment {
            file: piece.file,
            bytes: files[piece.file].block_bytes(piece.block),
        });
        let blocks = disk.read(segments, options)?;
        Ok(Box::new(HeadlongStream {
            files: Arc::clone(&self.files),
            pieces: Box::new(all()),
            blocks,
            carried: Vec::new(),
            whole: Samples::default(),
            has_failed: false,
        }))
    }
}

struct HeadlongStream {
    files: Arc<[OneFile]>,
    pieces: Box<dyn Iterator<Item = Piece> + Send>,
    blocks: DiskBlocks,
    carried: Vec<u8>,
    whole: Samples,
    /// A block could not be read: nothing follows.
    has_failed: bool,
}

impl HeadlongStream {
    fn next_read(&mut self) -> Result<Block> {
        self.blocks.next()?.ok_or(ReaderError::Stopped { thread: "disk" })
    }

    /// What is wanted of the block that was decoded last.
    fn take(&self, piece: &Piece, samples: &mut Samples) {
        let schema = &self.files[piece.file].header.schema;
        samples.clear(schema);
        samples.extend_from(&self.whole, piece.wanted.clone(), schema);
    }

    fn decode(&mut self, piece: &Piece, samples: &mut Samples) -> Result<()> {
        let files = Arc::clone(&self.files);
        let file = &files[piece.file];
        let range = file.block_bytes(piece.block);
        let length = (range.end - range.start) as usize;
        let count = file.samples_of(piece.block);
        let first = self.next_read()?;
        let whole = piece.wanted == (0..count);
        let mut into = std::mem::take(if whole { samples } else { &mut self.whole });
        let decoded = if first.bytes().len() == length {
            decode(first.bytes(), file, piece.block, count, &mut into)
        } else {
            self.carried.clear();
            self.carried.extend_from_slice(first.bytes());
            drop(first);
            while self.carried.len() < length {
                let more = self.next_read()?;
                self.carried.extend_from_slice(more.bytes());
            }
            decode(&self.carried, file, piece.block, count, &mut into)
        };
        if whole {
            *samples = into;
        } else {
            self.whole = into;
            if decoded.is_ok() {
                self.take(piece, samples);
            }
        }
        decoded
    }
}

impl SampleStream for HeadlongStream {
    fn next(&mut self, samples: &mut Samples) -> Result<bool> {
        if self.has_failed {
            return Err(ReaderError::Stopped { thread: "disk" });
        }
        let Some(piece) = self.pieces.next() else {
            // The end is where changes of a file's size are noticed.
            while self.blocks.next()?.is_some() {}
            return Ok(false);
        };
        match piece.continues {
            true => self.take(&piece, samples),
            false => {
                let decoded = self.decode(&piece, samples);
                self.has_failed = decoded.is_err();
                decoded?;
            }
        }
        Ok(true)
    }

    fn description(&self) -> String {
        self.blocks.description().to_owned()
    }

    fn bytes_read(&self) -> u64 {
        self.blocks.bytes_read()
    }
}

/// Takes a block apart after checking it.
fn decode(
    bytes: &[u8],
    file: &OneFile,
    block: u64,
    count: usize,
    samples: &mut Samples,
) -> Result<()> {
    let first = block * u64::from(file.header.samples_per_block);
    let bad = |what: &str| ReaderError::Format {
        file: file.path.clone(),
        message: format!("block {block} (samples {first} to {}): {what}", first + count as u64 - 1),
    };
    let Some((contents, stored)) = bytes.split_last_chunk::<8>() else {
        return Err(bad("it has no checksum"));
    };
    let (expected, found) = (u64::from_le_bytes(*stored), xxh3_64(contents));
    if expected != found {
        return Err(bad(&format!(
            "checksum: expected {expected:016x}, found {found:016x}; the file is damaged"
        )));
    }
    parse(contents, file, count, samples).ok_or_else(|| bad("its columns do not fit its size"))?;
    let schema = &file.header.schema;
    match samples.first_fault(schema) {
        Some(fault) => Err(fault.in_file(&file.path, first, schema)),
        None => Ok(()),
    }
}

/// Columns of a sound block; none where they are longer or shorter than it is.
fn parse(contents: &[u8], file: &OneFile, count: usize, samples: &mut Samples) -> Option<()> {
    let schema = &file.header.schema;
    samples.clear(schema);
    samples.num_samples = count;
    let mut rest = contents;
    if schema.weight.is_some() {
        let (labels, _) = rest.split_off(..count * 4)?.as_chunks::<4>();
        samples.labels.extend(labels.iter().map(|bytes| f32::from_le_bytes(*bytes)));
    } else if schema.labelled {
        samples.labels.extend(rest.split_off(..count)?.iter().map(|&label| f32::from(label)));
    }
    let (dense, _) = rest.split_off(..count * schema.dense.len() * 4)?.as_chunks::<4>();
    match &mut samples.dense {
        DenseValues::Integers(values) => {
            values.extend(dense.iter().map(|bytes| i32::from_le_bytes(*bytes)))
        }
        DenseValues::Numbers(values) => {
            values.extend(dense.iter().map(|bytes| f32::from_le_bytes(*bytes)))
        }
    }
    for (bags, column) in samples.sparse.iter_mut().zip(&schema.sparse) {
        let width = usize::from(*rest.split_off_first()?);
        let num_ids = match column.hotness {
            Hotness::Fixed(hotness) => count * hotness as usize,
            Hotness::Varying => {
                let (offsets, _) = rest.split_off(..(count + 1) * 4)?.as_chunks::<4>();
                bags.offsets.clear();
                bags.offsets.extend(offsets.iter().map(|bytes| u32::from_le_bytes(*bytes)));
                let rising = bags.offsets[0] == 0 && bags.offsets.is_sorted();
                rising.then(|| bags.offsets[count] as usize)?
            }
        };
        let ids = rest.split_off(..num_ids.checked_mul(width)?)?;
        match width {
            4 => bags.ids.extend(
                ids.as_chunks::<4>().0.iter().map(|bytes| u64::from(u32::from_le_bytes(*bytes))),
            ),
            8 => bags
                .ids
                .extend(ids.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes))),
            _ => return None,
        }
    }
    rest.is_empty().then_some(())
}
