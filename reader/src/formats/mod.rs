//! Formats: files of samples, each read into and written from [`Samples`].
//!
//! | format | files | module |
//! |---|---|---|
//! | `headlong` | our own: schema, checksums of blocks, any hotness | [`headlong`] |
//! | `mlperf` | records of 160 bytes: MLPerf v1's binary | [`records`] |
//! | `raw` | HugeCTR's records of fixed hotness, 912 bytes for DCNv2 | [`records`] |
//! | `npy` | TorchRec's `day_N_{dense,sparse,labels}.npy`, `…_sparse_multi_hot.npz` | [`npy`] |
//! | `split` | NVIDIA's file for each column, with its feature specification | [`split`] |
//! | `criteo` | tab-separated text, compressed or not | [`crate::criteo`] |
//!
//! All but text are read at random: a [`Source`] gives any ranges of samples in any order.

pub mod headlong;
pub mod npy;
pub mod records;
pub mod split;
pub mod text;

use std::ops::Range;
use std::path::PathBuf;

use crate::disk::DiskOptions;
use crate::error::{ReaderError, Result};
use crate::samples::{DataSchema, Samples};

/// Ranges of samples, in the order they are wanted.
pub type Ranges = Box<dyn Iterator<Item = Range<u64>> + Send>;

/// Data of a format, open for reading.
pub trait Source: Send + Sync {
    /// Its columns.
    fn schema(&self) -> &DataSchema;

    /// Samples in all files; none where only reading tells.
    fn num_samples(&self) -> Option<u64>;

    /// Begins to read `ranges`.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`] where the format can only be read from front to back and something else is asked for.
    fn read(&self, ranges: Ranges, options: &DiskOptions) -> Result<Box<dyn SampleStream>>;

    /// Bytes of all files.
    fn stored_bytes(&self) -> u64;
}

/// Samples on their way. Some at a time, as many as come easily; never of two ranges at once.
pub trait SampleStream: Send {
    /// The next samples; false after the last.
    ///
    /// # Errors
    /// What is wrong with the data, by file and record.
    fn next(&mut self, samples: &mut Samples) -> Result<bool>;

    /// How the disk is read, for the user.
    fn description(&self) -> String;
}

/// Data of a format, being written. The files have their names when it is finished, and not before.
pub trait Sink: Send {
    /// Adds samples of the schema it was made for.
    ///
    /// # Errors
    /// [`ReaderError::Write`]; [`ReaderError::Invalid`] for a value that the format cannot hold, naming column and value.
    fn write(&mut self, samples: &Samples) -> Result<()>;

    /// Completes the files.
    ///
    /// # Errors
    /// As [`Sink::write`].
    fn finish(self: Box<Self>) -> Result<Vec<PathBuf>>;
}

/// The formats by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// Our own.
    Headlong,
    /// MLPerf v1's 160-byte records.
    Mlperf,
    /// HugeCTR's raw records.
    Raw,
    /// TorchRec's arrays.
    Npy,
    /// NVIDIA's file for each column.
    Split,
    /// Criteo's text.
    Criteo,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Headlong, Self::Mlperf, Self::Raw, Self::Npy, Self::Split, Self::Criteo];

    /// `headlong`, `mlperf`, `raw`, `npy`, `split`, `criteo`.
    pub fn name(self) -> &'static str {
        match self {
            Format::Headlong => "headlong",
            Format::Mlperf => "mlperf",
            Format::Raw => "raw",
            Format::Npy => "npy",
            Format::Split => "split",
            Format::Criteo => "criteo",
        }
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}

impl std::str::FromStr for Format {
    type Err = ReaderError;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|format| format.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            ReaderError::Invalid { message: format!("format: expected one of {names}, found \"{text}\"") }
        })
    }
}
