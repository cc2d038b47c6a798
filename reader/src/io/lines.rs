//! Text to blocks of whole lines, in bounded memory.

use std::io::{ErrorKind, Read};

use memchr::{memchr, memchr_iter, memrchr};

use super::{DataFile, TextFile};
use crate::criteo::parse::MAX_LINE_BYTES;
use crate::error::{ReaderError, Result};

/// Bytes beyond [`MAX_LINE_BYTES`] that are skipped for the end of a line.
const MOST_DROPPED_BYTES: u64 = 64 << 20;
/// What some editors put before UTF-8; no part of the first field.
const MARK_OF_UTF_8: &[u8] = b"\xef\xbb\xbf";

/// Whole lines of a file. Buffers are reused from block to block.
#[derive(Debug, Default)]
pub struct TextBlock {
    buffer: Vec<u8>,
    length: usize,
    /// Lines of the file before the block.
    pub first_line: u64,
    /// Bytes of the file's text before the block.
    pub first_byte: u64,
    /// Bytes of the file read to fill the block, as stored.
    pub stored_bytes_read: u64,
}

impl TextBlock {
    /// The lines; the last one lacks its `\n` only at the end of a file, or where it is far too
    /// long to be a row.
    pub fn text(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    /// Makes room for `length` bytes without clearing what is there.
    fn reserve(&mut self, length: usize) {
        if self.buffer.len() < length {
            self.buffer.resize(length, 0);
        }
    }
}

/// Cuts a file into [`TextBlock`]s.
pub struct LineBlocks {
    file: TextFile,
    block_bytes: usize,
    /// The unfinished line after the last block.
    carry: Vec<u8>,
    line: u64,
    byte: u64,
    ended: bool,
}

impl LineBlocks {
    /// Opens `file`; blocks will have about `block_bytes` bytes, more only for a longer line.
    pub fn open(file: &DataFile, block_bytes: usize) -> Result<Self> {
        Ok(Self::of(TextFile::open(file)?, block_bytes))
    }

    /// The lines of an open file.
    pub fn of(file: TextFile, block_bytes: usize) -> Self {
        Self {
            file,
            block_bytes: block_bytes.max(1),
            carry: Vec::new(),
            line: 0,
            byte: 0,
            ended: false,
        }
    }

    /// The file.
    pub fn file(&self) -> &TextFile {
        &self.file
    }

    /// Skips to byte `byte` of the text, which must be the start of line `line` (from 0). Plain
    /// files are seeked, compressed ones decompressed.
    ///
    /// # Errors
    /// [`ReaderError::BadPosition`] if the text is shorter or the byte is not the start of a line;
    /// else as [`LineBlocks::next`].
    ///
    /// # Panics
    /// If called after reading has begun.
    pub fn skip_to(&mut self, line: u64, byte: u64) -> Result<()> {
        assert_eq!((self.byte, self.carry.len()), (0, 0), "skip before reading");
        if byte == 0 {
            return Ok(());
        }
        let mut last = [0];
        let result =
            self.file.skip(byte - 1).and_then(|skipped| Ok((skipped, self.file.read(&mut last)?)));
        let reason = match result {
            Err(error) => return Err(self.file.name_error(error, 0, 0)),
            Ok((skipped, read)) if skipped + (read as u64) < byte => {
                format!("the text ends after {} bytes", skipped + read as u64)
            }
            Ok(_) if last != *b"\n" => "it is not the start of a line".to_owned(),
            Ok(_) => {
                (self.line, self.byte) = (line, byte);
                return Ok(());
            }
        };
        Err(ReaderError::BadPosition { file: self.file.name().to_owned(), line, byte, reason })
    }

    /// Fills `block` with the next lines; false at the end of the file.
    ///
    /// A line longer than [`MAX_LINE_BYTES`] is cut (it can only be reported) and ends its block.
    ///
    /// # Errors
    /// [`ReaderError::Read`], [`ReaderError::Truncated`], [`ReaderError::Corrupt`], or
    /// [`ReaderError::Empty`] if the file holds no text at all.
    pub fn next(&mut self, block: &mut TextBlock) -> Result<bool> {
        (block.first_line, block.first_byte) = (self.line, self.byte);
        block.reserve(self.carry.len().max(self.block_bytes));
        block.buffer[..self.carry.len()].copy_from_slice(&self.carry);
        block.length = self.carry.len();
        self.carry.clear();

        // Read until there is a whole line, or a line too long to be one.
        let mut target = self.block_bytes.max(block.length + 1);
        let mut dropped = 0;
        loop {
            let new_from = block.length;
            self.fill(block, target)?;
            if let Some(newline) = memrchr(b'\n', &block.buffer[new_from..block.length]) {
                let whole = new_from + newline + 1;
                self.carry.extend_from_slice(&block.buffer[whole..block.length]);
                block.length = whole;
                break;
            }
            if self.ended {
                break;
            }
            if block.length > MAX_LINE_BYTES + 2 {
                dropped = self.drop_rest_of_line(block)?;
                break;
            }
            target = block.length + self.block_bytes;
        }
        if self.byte == 0 && block.text().starts_with(MARK_OF_UTF_8) {
            block.buffer.copy_within(MARK_OF_UTF_8.len()..block.length, 0);
            block.length -= MARK_OF_UTF_8.len();
            self.byte = MARK_OF_UTF_8.len() as u64;
            block.first_byte = self.byte;
        }
        self.finish(block, dropped)
    }

    /// Reads until `block` has `target` bytes or the file ends.
    fn fill(&mut self, block: &mut TextBlock, target: usize) -> Result<()> {
        block.reserve(target);
        while !self.ended && block.length < target {
            match self.file.read(&mut block.buffer[block.length..target]) {
                Ok(0) => self.ended = true,
                Ok(read) => block.length += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    let lines = memchr_iter(b'\n', block.text()).count() as u64;
                    let bytes = self.byte + block.length as u64;
                    return Err(self.file.name_error(error, self.line + lines, bytes));
                }
            }
        }
        Ok(())
    }

    /// Cuts the overlong line that fills `block` and reads past its end; says how many bytes were
    /// dropped. A line that continues for [`MOST_DROPPED_BYTES`] is an error: this is no text.
    fn drop_rest_of_line(&mut self, block: &mut TextBlock) -> Result<u64> {
        let kept = MAX_LINE_BYTES + 2;
        let mut dropped = (block.length - kept) as u64;
        block.length = kept;
        let mut scratch = TextBlock::default();
        loop {
            scratch.length = 0;
            self.fill(&mut scratch, MAX_LINE_BYTES)?;
            match memchr(b'\n', scratch.text()) {
                Some(newline) => {
                    self.carry.extend_from_slice(&scratch.text()[newline + 1..]);
                    return Ok(dropped + newline as u64 + 1);
                }
                None => dropped += scratch.length as u64,
            }
            if dropped > MOST_DROPPED_BYTES {
                let message = format!(
                    "line {}: it is longer than {MOST_DROPPED_BYTES} bytes: expected lines of text",
                    self.line + 1
                );
                return Err(ReaderError::format(self.file.name(), message));
            }
            if self.ended {
                return Ok(dropped);
            }
        }
    }

    /// Counts lines and bytes; says whether the block holds anything.
    fn finish(&mut self, block: &mut TextBlock, dropped: u64) -> Result<bool> {
        if block.length == 0 {
            // A mark of UTF-8 without text is no line either.
            return match self.line {
                0 => Err(ReaderError::Empty { file: self.file.name().to_owned() }),
                _ => Ok(false),
            };
        }
        let ended_lines = memchr_iter(b'\n', block.text()).count() as u64;
        self.line += ended_lines + (block.text().last() != Some(&b'\n')) as u64;
        self.byte += block.length as u64 + dropped;
        block.stored_bytes_read = self.file.stored_bytes_read();
        Ok(true)
    }
}
