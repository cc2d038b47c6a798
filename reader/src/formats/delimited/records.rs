//! Records of delimited text, one after another, in bounded memory.

use std::fmt::Display;
use std::io::{ErrorKind, Read};

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use memchr::memchr_iter;

use crate::error::{ReaderError, Result};
use crate::io::TextFile;
use crate::samples::MOST_COLUMNS;

/// A field longer than this, or a record longer than this, is an error: without a limit, one quote
/// that is not closed would read a whole file into memory.
pub(super) const MOST_FIELD_BYTES: usize = 64 << 10;
const MOST_RECORD_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 256 << 10;

/// Where a record begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Bytes of the text before it.
    pub byte: u64,
    /// Its line, from 1.
    pub line: u64,
}

impl Place {
    /// Where a file begins.
    pub const START: Self = Self { byte: 0, line: 1 };
}

pub(super) struct Records {
    from: TextFile,
    core: Reader,
    /// What was read and not looked at yet: `input[start..end]`.
    input: Vec<u8>,
    start: usize,
    end: usize,
    /// The place of `input[start]`, and that of the record at hand.
    next: Place,
    place: Place,
    fields: Vec<u8>,
    ends: Vec<usize>,
    num_fields: usize,
}

impl Records {
    /// Begins at `place` of a file that has just been opened.
    pub fn new(mut from: TextFile, separator: u8, place: Place) -> Result<Self> {
        from.skip(place.byte).map_err(|error| from.name_error(error, 0, 0))?;
        let mut core = ReaderBuilder::new().delimiter(separator).build();
        // Note: the mark of UTF-8 is skipped below, at the beginning of a file alone.
        let _ = core.read_record(b"\n", &mut [0], &mut [0]);
        Ok(Self {
            from,
            core,
            input: vec![0; READ_BYTES],
            start: 0,
            end: 0,
            next: place,
            place,
            fields: vec![0; 4 << 10],
            ends: vec![0; 64],
            num_fields: 0,
        })
    }

    /// Where the record at hand begins.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Where what comes after the record at hand begins: in bytes of text.
    pub fn end(&self) -> u64 {
        self.next.byte
    }

    /// Bytes of the file read so far, as stored.
    pub fn stored_bytes_read(&self) -> u64 {
        self.from.stored_bytes_read()
    }

    pub fn len(&self) -> usize {
        self.num_fields
    }

    pub fn fields(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).take(self.num_fields).map(|(&start, &end)| &self.fields[start..end])
    }

    /// Goes to the next record; false after the last. Lines without a byte are no records.
    ///
    /// # Errors
    /// Those of reading; [`ReaderError::Format`] for a record beyond the limits, or a quote that is
    /// not closed.
    pub fn next(&mut self) -> Result<bool> {
        if !self.skip_line_ends()? {
            return Ok(false);
        }
        (self.place, self.num_fields) = (self.next, 0);
        let (mut length, mut closing) = (0, false);
        loop {
            let input = &self.input[self.start..self.end];
            let (fields, ends) = (&mut self.fields[length..], &mut self.ends[self.num_fields..]);
            let (result, read, written, ended) = self.core.read_record(input, fields, ends);
            self.take(read);
            length += written;
            self.num_fields += ended;
            match result {
                ReadRecordResult::Record => {
                    self.check_fields()?;
                    return Ok(true);
                }
                ReadRecordResult::End => return Ok(false),
                ReadRecordResult::OutputEndsFull if self.ends.len() > MOST_COLUMNS => {
                    let message = format!("expected at most {MOST_COLUMNS} fields, found more");
                    return Err(self.bad(self.place.line, message));
                }
                ReadRecordResult::OutputEndsFull => {
                    self.ends.resize((2 * self.ends.len()).min(MOST_COLUMNS + 1), 0);
                }
                ReadRecordResult::OutputFull => {
                    self.check_field_at_hand(length)?;
                    if length >= MOST_RECORD_BYTES {
                        let message = format!(
                            "expected a record of at most {MOST_RECORD_BYTES} bytes, found more"
                        );
                        return Err(self.bad(self.place.line, message));
                    }
                    self.fields.resize(2 * self.fields.len(), 0);
                }
                ReadRecordResult::InputEmpty => {
                    self.check_field_at_hand(length)?;
                    if closing {
                        return Err(self.open_quote());
                    }
                    if !self.fill()? {
                        // A line end is data inside quotes, and ends the record outside.
                        (self.input[0], self.end, closing) = (b'\n', 1, true);
                    }
                }
            }
        }
    }

    pub fn bad(&self, line: u64, message: impl Display) -> ReaderError {
        ReaderError::Format {
            file: self.from.name().to_owned(),
            message: format!("line {line}: {message}"),
        }
    }

    /// `count` more bytes of the input are done with.
    fn take(&mut self, count: usize) {
        let taken = &self.input[self.start..self.start + count];
        self.next.line += memchr_iter(b'\n', taken).count() as u64;
        self.next.byte += count as u64;
        self.start += count;
    }

    /// Reads on; false at the end.
    fn fill(&mut self) -> Result<bool> {
        (self.start, self.end) = (0, 0);
        loop {
            match self.from.read(&mut self.input) {
                Ok(read) => {
                    self.end = read;
                    return Ok(read > 0);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(self.from.name_error(error, self.next.line - 1, self.next.byte));
                }
            }
        }
    }

    /// Skips what is before a record: line ends, and at the beginning of a file the mark of UTF-8;
    /// false at its end.
    fn skip_line_ends(&mut self) -> Result<bool> {
        loop {
            if self.start == self.end && !self.fill()? {
                return Ok(false);
            }
            let input = &self.input[self.start..self.end];
            let mark = self.next.byte == 0 && input.starts_with(b"\xef\xbb\xbf");
            let count = match mark {
                true => 3,
                false => input.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count(),
            };
            if count == 0 {
                return Ok(true);
            }
            self.take(count);
        }
    }

    /// The line that byte `at` of the record's fields is on.
    fn line_of(&self, at: usize) -> u64 {
        self.place.line + memchr_iter(b'\n', &self.fields[..at]).count() as u64
    }

    fn long_field(&self, start: usize) -> ReaderError {
        let message = format!(
            "the field that begins here is longer than {MOST_FIELD_BYTES} bytes: is there a quote \
             that is not closed?"
        );
        self.bad(self.line_of(start), message)
    }

    /// Refuses a field that is too long already, when the record has `length` bytes so far.
    fn check_field_at_hand(&self, length: usize) -> Result<()> {
        let start = self.num_fields.checked_sub(1).map_or(0, |last| self.ends[last]);
        if length - start > MOST_FIELD_BYTES { Err(self.long_field(start)) } else { Ok(()) }
    }

    fn check_fields(&self) -> Result<()> {
        let starts = std::iter::once(&0).chain(&self.ends);
        let mut fields = starts.zip(&self.ends).take(self.num_fields);
        match fields.find(|(start, end)| *end - *start > MOST_FIELD_BYTES) {
            Some((&start, _)) => Err(self.long_field(start)),
            None => Ok(()),
        }
    }

    fn open_quote(&self) -> ReaderError {
        let start = self.num_fields.checked_sub(1).map_or(0, |last| self.ends[last]);
        self.bad(self.line_of(start), "the quote of the field that begins here is not closed")
    }
}
