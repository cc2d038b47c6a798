//! Everything that can be wrong with a file of data, with the place it is wrong at.

use std::path::PathBuf;

use crate::criteo::parse::Fault;

/// The result of everything that reads.
pub type Result<T, E = ReaderError> = std::result::Result<T, E>;

/// What went wrong while reading; every message names the file, and the line where there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReaderError {
    /// The file cannot be opened.
    #[error("cannot open {}: {source}", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// Why the operating system refused.
        source: std::io::Error,
    },
    /// A folder was named where a file belongs.
    #[error("{} is a directory, expected a file of rows", file.display())]
    Directory {
        /// The folder.
        file: PathBuf,
    },
    /// The file holds no line.
    #[error("{} is empty, expected at least one row", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// A pipe, where data is read more than once.
    #[error(
        "{} is a pipe, which can be read only once: {reason}; write the data to a file first",
        file.display()
    )]
    Pipe {
        /// What was named.
        file: PathBuf,
        /// Who reads again.
        reason: String,
    },
    /// A pipe or a device, where any byte may be asked for at any time.
    #[error(
        "{} is not a regular file: this format is read in any order, so write the data to a file \
         first",
        file.display()
    )]
    NotRegular {
        /// What was named.
        file: PathBuf,
    },
    /// The operating system could not read on.
    #[error("cannot read {} after line {line}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Whole lines read before.
        line: u64,
        /// Why.
        source: std::io::Error,
    },
    /// The disk could not be read.
    #[error("cannot read {} at byte {offset}: {source}", file.display())]
    Disk {
        /// The file.
        file: PathBuf,
        /// Where the read began.
        offset: u64,
        /// What the system says.
        source: std::io::Error,
    },
    /// Somebody wrote to the file meanwhile.
    #[error(
        "{} has changed while it was read: {expected} bytes when it was opened, {found} now",
        file.display()
    )]
    Changed {
        /// The file.
        file: PathBuf,
        /// Bytes when it was opened.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// A compressed file ends inside its stream.
    #[error(
        "{} is truncated: the {format} stream ends early, after line {line} ({bytes} bytes of \
         text)",
        file.display()
    )]
    Truncated {
        /// The file.
        file: PathBuf,
        /// `gzip` or `zstd`.
        format: &'static str,
        /// Whole lines read before.
        line: u64,
        /// Bytes of text read before.
        bytes: u64,
    },
    /// A compressed file does not decode.
    #[error(
        "{} is corrupt: bad {format} data after line {line} ({bytes} bytes of text): {source}",
        file.display()
    )]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// `gzip` or `zstd`.
        format: &'static str,
        /// Whole lines read before.
        line: u64,
        /// Bytes of text read before.
        bytes: u64,
        /// What the decoder said.
        source: std::io::Error,
    },
    /// A line is not a row.
    #[error("{}, line {line}: {fault}", file.display())]
    BadLine {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u64,
        /// Column, expected and found.
        fault: Fault,
    },
    /// Every line of the data was bad and skipped.
    #[error("no good row in {files}: {skipped} bad lines were skipped, the first: {first}")]
    NoSamples {
        /// The files, joined by commas.
        files: String,
        /// Bad lines.
        skipped: u64,
        /// The first bad line's message.
        first: String,
    },
    /// A resume position does not fit the files.
    #[error(
        "cannot continue in {} at line {line} (byte {byte}): {reason}; a run continues only in \
         files that are to that place as it has read them",
        file.display()
    )]
    BadPosition {
        /// The file.
        file: PathBuf,
        /// Lines before the position.
        line: u64,
        /// Bytes of text before the position.
        byte: u64,
        /// What does not fit.
        reason: String,
    },
    /// Stored state (a dictionary, an admission table) fails its checksum or has another shape.
    #[error("{what} is damaged or of another model: {reason}")]
    BadState {
        /// What was being restored.
        what: String,
        /// Expected and found.
        reason: String,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is not in the expected format.
    #[error("{}: {message}", file.display())]
    Format {
        /// The file.
        file: PathBuf,
        /// Expected and found.
        message: String,
    },
    /// An option makes no sense.
    #[error("{message}")]
    Invalid {
        /// Expected and found.
        message: String,
    },
    /// The operating system has no thread for the reader.
    #[error("cannot start a reader thread: {source}")]
    Thread {
        /// Why.
        source: std::io::Error,
    },
    /// A thread of the reader ended without a word.
    #[error("the reader's {thread} thread stopped unexpectedly")]
    Stopped {
        /// Its name.
        thread: &'static str,
    },
}

impl ReaderError {
    /// [`ReaderError::Invalid`], for `map_err`.
    pub(crate) fn invalid(message: String) -> Self {
        Self::Invalid { message }
    }
}
