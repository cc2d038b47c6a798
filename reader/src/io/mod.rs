//! Files to text: plain, gzip or zstd, told apart by their first bytes, never by their names.

pub mod lines;
mod regular;

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

use crate::error::{ReaderError, Result};

pub use lines::{LineBlocks, TextBlock};
pub use regular::read_small_text;
pub(crate) use regular::{open_regular, open_regular_with};

/// Bytes of a compressed file read at a time.
const READ_BYTES: usize = 256 << 10;

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    Plain,
    /// gzip, of one or several members.
    Gzip,
    /// Zstandard, of one or several frames.
    Zstd,
}

impl Compression {
    /// Reads it from the first bytes of a file.
    pub fn of(first_bytes: &[u8]) -> Self {
        match first_bytes {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zstd,
            _ => Compression::Plain,
        }
    }

    /// `plain`, `gzip` or `zstd`.
    pub fn name(self) -> &'static str {
        match self {
            Compression::Plain => "plain",
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        }
    }
}

/// A file being read as text, decompressed on the way.
pub struct TextFile {
    path: PathBuf,
    compression: Compression,
    stored_bytes: u64,
    stored_bytes_read: Arc<AtomicU64>,
    text: Text,
}

/// Plain files keep their handle, so that they can be skipped by seeking.
enum Text {
    Plain(Counted),
    Decoded(Box<dyn Read + Send>),
}

impl TextFile {
    /// Opens `path` and looks at its first bytes.
    ///
    /// # Errors
    /// [`ReaderError::Open`], [`ReaderError::Directory`], or [`ReaderError::Empty`] for a file of no bytes.
    pub fn open(path: &Path) -> Result<Self> {
        let open_error = |source| ReaderError::Open { file: path.to_owned(), source };
        let mut file = File::open(path).map_err(open_error)?;
        let metadata = file.metadata().map_err(open_error)?;
        if metadata.is_dir() {
            return Err(ReaderError::Directory { file: path.to_owned() });
        }
        let mut magic = Vec::with_capacity(4);
        file.by_ref().take(4).read_to_end(&mut magic).map_err(open_error)?;
        if magic.is_empty() {
            return Err(ReaderError::Empty { file: path.to_owned() });
        }
        let compression = Compression::of(&magic);
        let stored_bytes_read = Arc::new(AtomicU64::new(0));
        let counted = Counted { magic: Cursor::new(magic), file, count: Arc::clone(&stored_bytes_read) };
        let text = match compression {
            Compression::Plain => Text::Plain(counted),
            Compression::Gzip => {
                Text::Decoded(Box::new(MultiGzDecoder::new(BufReader::with_capacity(READ_BYTES, counted))))
            }
            Compression::Zstd => {
                let buffered = BufReader::with_capacity(READ_BYTES, counted);
                let decoder = zstd::stream::read::Decoder::with_buffer(buffered).map_err(open_error)?;
                Text::Decoded(Box::new(decoder))
            }
        };
        Ok(Self { path: path.to_owned(), compression, stored_bytes: metadata.len(), stored_bytes_read, text })
    }

    /// The size of the file at `path` in bytes, as stored.
    ///
    /// # Errors
    /// [`ReaderError::Open`].
    pub fn stored_bytes_of(path: &Path) -> Result<u64> {
        let metadata = std::fs::metadata(path);
        Ok(metadata.map_err(|source| ReaderError::Open { file: path.to_owned(), source })?.len())
    }

    /// The file's path, as given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How it is compressed.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// Its size in bytes, as stored.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// Bytes of it read so far, as stored: up to [`TextFile::stored_bytes`].
    pub fn stored_bytes_read(&self) -> u64 {
        self.stored_bytes_read.load(Ordering::Relaxed)
    }

    /// Skips up to `count` bytes of text; says how many there were.
    ///
    /// # Errors
    /// What the operating system or the decoder says.
    pub fn skip(&mut self, count: u64) -> io::Result<u64> {
        match &mut self.text {
            Text::Plain(counted) => counted.skip(count),
            Text::Decoded(decoder) => io::copy(&mut decoder.take(count), &mut io::sink()),
        }
    }

    /// Turns an error of [`Read::read`] into one that names the file and the place.
    pub fn name_error(&self, source: io::Error, line: u64, bytes: u64) -> ReaderError {
        let file = self.path.clone();
        let format = self.compression.name();
        match (self.compression, source.kind(), source.raw_os_error()) {
            (Compression::Plain, _, _) | (_, _, Some(_)) => ReaderError::Read { file, line, source },
            (_, io::ErrorKind::UnexpectedEof, _) => ReaderError::Truncated { file, format, line, bytes },
            _ => ReaderError::Corrupt { file, format, line, bytes, source },
        }
    }
}

impl Read for TextFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.text {
            Text::Plain(counted) => counted.read(buffer),
            Text::Decoded(decoder) => decoder.read(buffer),
        }
    }
}

/// A file with its first bytes put back in front, counting what is read.
struct Counted {
    magic: Cursor<Vec<u8>>,
    file: File,
    count: Arc<AtomicU64>,
}

impl Counted {
    /// Skips by seeking where the file can seek (pipes cannot), else by reading.
    fn skip(&mut self, count: u64) -> io::Result<u64> {
        let from_magic = io::copy(&mut self.magic.by_ref().take(count), &mut io::sink())?;
        let rest = count - from_magic;
        let (here, length) = match (self.file.stream_position(), self.file.metadata()) {
            (Ok(here), Ok(metadata)) if metadata.is_file() => (here, metadata.len()),
            _ => {
                let read = io::copy(&mut self.file.by_ref().take(rest), &mut io::sink())?;
                self.count.fetch_add(from_magic + read, Ordering::Relaxed);
                return Ok(from_magic + read);
            }
        };
        let target = (here + rest).min(length.max(here));
        self.file.seek(SeekFrom::Start(target))?;
        self.count.fetch_add(from_magic + target - here, Ordering::Relaxed);
        Ok(from_magic + target - here)
    }
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let from_magic = self.magic.read(buffer)?;
        let read = if from_magic > 0 { from_magic } else { self.file.read(buffer)? };
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
