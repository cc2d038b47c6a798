//! Files to text: plain, gzip or zstd, told apart by their first bytes, never by their names.

mod data_file;
pub mod lines;
mod regular;

use std::io::{self, BufRead as _, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::GzDecoder;

use crate::error::{ReaderError, Result};

use data_file::Bytes;
pub use data_file::DataFile;
pub use lines::{LineBlocks, TextBlock};
pub use regular::read_small_text;
pub(crate) use regular::{open_regular, open_regular_with};

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

    /// The name of a compression that is not read.
    fn not_read(first_bytes: &[u8]) -> Option<&'static str> {
        match first_bytes {
            [0xfd, b'7', b'z', b'X', ..] => Some("xz"),
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Some("bzip2"),
            [b'P', b'K', 3, 4, ..] => Some("zip"),
            [b'7', b'z', 0xbc, 0xaf, ..] => Some("7-Zip"),
            _ => None,
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
    name: PathBuf,
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
    /// Opens `file`, to be read to its end, and looks at its first bytes.
    ///
    /// # Errors
    /// [`ReaderError::Open`], [`ReaderError::Directory`], [`ReaderError::Pipe`] for a pipe that was
    /// read before, or [`ReaderError::Empty`] for a file of no bytes but a byte order mark.
    pub fn open(file: &DataFile) -> Result<Self> {
        Self::of(file, file.open()?)
    }

    /// The same to look at the beginning, which a pipe keeps for its reader.
    pub fn look(file: &DataFile) -> Result<Self> {
        Self::of(file, file.look()?)
    }

    fn of(file: &DataFile, mut bytes: Bytes) -> Result<Self> {
        let name = file.name();
        let open_error = |source| ReaderError::Open { file: name.clone(), source };
        let mut magic = Vec::with_capacity(4);
        bytes.by_ref().take(4).read_to_end(&mut magic).map_err(open_error)?;
        if matches!(magic[..], [] | [0xef, 0xbb, 0xbf]) {
            return Err(ReaderError::Empty { file: name });
        }
        if let Some(other) = Compression::not_read(&magic) {
            let message = format!(
                "it is compressed by {other}, which is not supported: decompress it, or compress \
                 it by gzip or zstd"
            );
            return Err(ReaderError::format(name, message));
        }
        let compression = Compression::of(&magic);
        let stored_bytes_read = Arc::new(AtomicU64::new(0));
        let counted =
            Counted { magic: Cursor::new(magic), bytes, count: Arc::clone(&stored_bytes_read) };
        let text = match compression {
            Compression::Plain => Text::Plain(counted),
            Compression::Gzip => {
                let buffered = BufReader::with_capacity(READ_BYTES, counted);
                Text::Decoded(Box::new(GzipMembers(Some(GzDecoder::new(buffered)))))
            }
            Compression::Zstd => {
                let buffered = BufReader::with_capacity(READ_BYTES, counted);
                let decoder =
                    zstd::stream::read::Decoder::with_buffer(buffered).map_err(open_error)?;
                Text::Decoded(Box::new(decoder))
            }
        };
        Ok(Self { stored_bytes: file.stored_bytes()?, name, compression, stored_bytes_read, text })
    }

    /// What messages call it.
    pub fn name(&self) -> &Path {
        &self.name
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
        let file = self.name.clone();
        let format = self.compression.name();
        match (self.compression, source.kind(), source.raw_os_error()) {
            (Compression::Plain, _, _) | (_, _, Some(_)) => {
                ReaderError::Read { file, line, source }
            }
            (_, io::ErrorKind::UnexpectedEof, _) => {
                ReaderError::Truncated { file, format, line, bytes }
            }
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

/// The members of a gzip file, one after the other, and nothing else.
struct GzipMembers(Option<GzDecoder<BufReader<Counted>>>);

impl Read for GzipMembers {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.0 {
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            match member.get_mut().fill_buf()? {
                [] => return Ok(0),
                [0x1f, ..] => {
                    self.0 = self.0.take().map(|ended| GzDecoder::new(ended.into_inner()))
                }
                _ => {
                    let reason = "bytes that are no gzip follow the end of the stream";
                    return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
                }
            }
        }
        Ok(0)
    }
}

/// A file with its first bytes put back in front, counting what is read.
struct Counted {
    magic: Cursor<Vec<u8>>,
    bytes: Bytes,
    count: Arc<AtomicU64>,
}

impl Counted {
    fn skip(&mut self, count: u64) -> io::Result<u64> {
        let from_magic = io::copy(&mut self.magic.by_ref().take(count), &mut io::sink())?;
        let skipped = from_magic + self.bytes.skip(count - from_magic)?;
        self.count.fetch_add(skipped, Ordering::Relaxed);
        Ok(skipped)
    }
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let from_magic = self.magic.read(buffer)?;
        let read = if from_magic > 0 { from_magic } else { self.bytes.read(buffer)? };
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
