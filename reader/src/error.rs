//! Everything that can be wrong with a file of data, with the place it is wrong at.

use std::path::PathBuf;

/// The result of everything that reads.
pub type Result<T, E = ReaderError> = std::result::Result<T, E>;

/// What went wrong while reading; every message names the file, and the line where there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the message says what each field is")]
pub enum ReaderError {
    /// The file cannot be opened.
    #[error("cannot open {}: {source}", file.display())]
    Open { file: PathBuf, source: std::io::Error },
    /// A folder was named where a file belongs.
    #[error("{} is a directory, expected a file of rows", file.display())]
    Directory { file: PathBuf },
    /// The file holds no line.
    #[error("{} is empty, expected at least one row", file.display())]
    Empty { file: PathBuf },
    /// A pipe, where data is read more than once.
    #[error(
        "{} is a pipe, which can be read only once: {reason}; write the data to a file first",
        file.display()
    )]
    Pipe { file: PathBuf, reason: String },
    /// A pipe or a device, where any byte may be asked for at any time.
    #[error(
        "{} is not a regular file: this format is read in any order, so write the data to a file \
         first",
        file.display()
    )]
    NotRegular { file: PathBuf },
    /// The operating system could not read on.
    #[error("cannot read {} after line {line}: {source}", file.display())]
    Read { file: PathBuf, line: u64, source: std::io::Error },
    /// The disk could not be read.
    #[error("cannot read {} at byte {offset}: {source}", file.display())]
    Disk { file: PathBuf, offset: u64, source: std::io::Error },
    /// Somebody wrote to the file meanwhile.
    #[error(
        "{} has changed while it was read: {expected} bytes when it was opened, {found} now",
        file.display()
    )]
    Changed { file: PathBuf, expected: u64, found: u64 },
    /// A compressed file ends inside its stream.
    #[error(
        "{} is truncated: the {format} stream ends early, after line {line} ({bytes} bytes of \
         text)",
        file.display()
    )]
    Truncated { file: PathBuf, format: &'static str, line: u64, bytes: u64 },
    /// A compressed file does not decode.
    #[error(
        "{} is corrupt: bad {format} data after line {line} ({bytes} bytes of text): {source}",
        file.display()
    )]
    Corrupt { file: PathBuf, format: &'static str, line: u64, bytes: u64, source: std::io::Error },
    /// A line is not a row.
    #[error("{}, line {line}: {fault}", file.display())]
    BadLine { file: PathBuf, line: u64, fault: String },
    /// Every line of the data was bad and skipped.
    #[error("no good row in {files}: {skipped} bad lines were skipped, the first: {first}")]
    NoSamples { files: String, skipped: u64, first: String },
    /// A resume position does not fit the files.
    #[error(
        "cannot continue in {} at line {line} (byte {byte}): {reason}; a run continues only in \
         files that are to that place as it has read them",
        file.display()
    )]
    BadPosition { file: PathBuf, line: u64, byte: u64, reason: String },
    /// Stored state (a dictionary, an admission table) fails its checksum or has another shape.
    #[error("{what} is damaged or of another model: {reason}")]
    BadState { what: String, reason: String },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", file.display())]
    Write { file: PathBuf, source: std::io::Error },
    /// A file is not in the expected format.
    #[error("{}: {message}", file.display())]
    Format { file: PathBuf, message: String },
    /// An option makes no sense.
    #[error("{message}")]
    Invalid { message: String },
    /// The operating system has no thread for the reader.
    #[error("cannot start a reader thread: {source}")]
    Thread { source: std::io::Error },
    /// A thread of the reader ended without a word.
    #[error("the reader's {thread} thread stopped unexpectedly")]
    Stopped { thread: &'static str },
}

impl ReaderError {
    /// [`ReaderError::Invalid`], for `map_err`.
    pub(crate) fn invalid(message: String) -> Self {
        Self::Invalid { message }
    }

    /// [`ReaderError::Format`] of `file`.
    pub(crate) fn format(file: impl Into<PathBuf>, message: impl ToString) -> Self {
        Self::Format { file: file.into(), message: message.to_string() }
    }
}

/// [`ReaderError::Invalid`] with a formatted message.
macro_rules! invalid {
    ($($message:tt)*) => { $crate::ReaderError::Invalid { message: format!($($message)*) } };
}

/// Returns [`ReaderError::Invalid`] with a formatted message.
macro_rules! refuse {
    ($($message:tt)*) => { return Err($crate::error::invalid!($($message)*)) };
}

/// The names of an enum's variants, as files and the command line have them.
macro_rules! named {
    ($type:ident, $what:literal: $($variant:ident $name:literal),+) => {
        impl $type {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// As files and the command line have it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::ReaderError;

            fn from_str(text: &str) -> $crate::Result<Self> {
                Self::ALL.iter().copied().find(|one| one.name() == text).ok_or_else(|| {
                    let names: Vec<_> = Self::ALL.iter().map(|one| one.name()).collect();
                    let names = names.join(", ");
                    $crate::error::invalid!("{}: expected one of {names}, found \"{text}\"", $what)
                })
            }
        }
    };
}

pub(crate) use {invalid, named, refuse};
