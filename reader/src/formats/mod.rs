//! Formats: files of samples, each read into and written from [`Samples`].
//!
//! | format | files | module |
//! |---|---|---|
//! | `headlong` | our own: schema, checksums of blocks, any hotness | [`headlong`] |
//! | `mlperf` | records of 160 bytes: MLPerf v1's binary | [`records`] |
//! | `raw` | HugeCTR's records of fixed hotness, 912 bytes for DCNv2 | [`records`] |
//! | `npy` | TorchRec's `day_N_{dense,sparse,labels}.npy`, `…_sparse_multi_hot.npz` | [`npy`] |
//! | `split` | NVIDIA's file for each column, with its feature specification | [`split`] |
//! | `parquet` | columns by name, of numbers, words and lists | [`parquet`] |
//! | `csv` | delimited text with a header | [`delimited`] |
//! | `criteo` | tab-separated text, compressed or not | [`crate::criteo`] |
//!
//! All but Parquet and compressed or Criteo's text are read at random: a [`Source`] gives any
//! ranges of samples in any order.

pub mod delimited;
pub mod headlong;
pub mod memory;
pub mod named;
pub mod npy;
pub mod parquet;
pub mod records;
pub mod split;
pub mod text;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use crate::disk::DiskOptions;
use crate::error::{ReaderError, Result};
use crate::io::DataFile;
use crate::samples::{DataSchema, Samples};

/// Ranges of samples, in the order they are wanted.
pub type Ranges = Box<dyn Iterator<Item = Range<u64>> + Send>;

/// Data of a format, open for reading.
pub trait Source: Send + Sync {
    /// Its columns.
    fn schema(&self) -> &DataSchema;

    /// Samples in all files; none where only reading tells.
    fn num_samples(&self) -> Option<u64>;

    /// What messages call the data, where only reading tells whether there is a sample.
    fn names(&self) -> String {
        "the data".to_owned()
    }

    /// Begins to read `ranges`.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`] where the format can only be read from front to back and something
    /// else is asked for.
    fn read(&self, ranges: Ranges, options: &DiskOptions) -> Result<Box<dyn SampleStream>>;

    /// Bytes of all files.
    fn stored_bytes(&self) -> u64;

    /// Whether ranges may be asked for in any order without reading what lies before them.
    fn is_random(&self) -> bool {
        true
    }
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

    /// Bytes that the disk was asked for so far; 0 where that is not counted.
    fn bytes_read(&self) -> u64 {
        0
    }
}

/// What messages call `files`.
pub(crate) fn names_of(files: &[DataFile]) -> String {
    let names: Vec<_> = files.iter().map(DataFile::to_string).collect();
    names.join(", ")
}

/// The error of data without a sample.
pub(crate) fn no_samples(names: &str) -> ReaderError {
    ReaderError::Invalid { message: format!("{names}: expected at least one sample, found none") }
}

/// Refuses ranges other than everything, which is all that can be asked for where samples have not
/// been counted.
pub(crate) fn front_to_back(mut ranges: Ranges) -> Result<()> {
    match ranges.next() {
        Some(Range { start: 0, end: u64::MAX }) => Ok(()),
        _ => {
            let message = "this data can only be read from front to back: convert it to read it in \
                           another order";
            Err(ReaderError::Invalid { message: message.to_owned() })
        }
    }
}

/// Ranges of samples, cut at the borders of parts (files, shards, blocks): which part, and its
/// samples. `starts` are the samples before each part, and all of them at the end.
pub(crate) fn cut(
    ranges: impl Iterator<Item = Range<u64>> + Send,
    starts: Arc<[u64]>,
) -> impl Iterator<Item = (usize, Range<u64>)> + Send {
    ranges.flat_map(move |range| {
        let starts = Arc::clone(&starts);
        let first = starts.partition_point(|&start| start <= range.start).max(1) - 1;
        (first..starts.len() - 1)
            .map_while(move |part| {
                let (begin, end) = (starts[part], starts[part + 1]);
                let samples = range.start.max(begin) - begin..range.end.min(end).max(begin) - begin;
                (begin < range.end).then_some((part, samples))
            })
            .filter(|(_, samples)| samples.start < samples.end)
    })
}

/// Data of a format, being written. The files have their names when it is finished, and not before.
pub trait Sink: Send {
    /// Adds samples of the schema it was made for.
    ///
    /// # Errors
    /// [`ReaderError::Write`]; [`ReaderError::Invalid`] for a value that the format cannot hold,
    /// naming column and value.
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
    /// Columns by name.
    Parquet,
    /// Delimited text with a header.
    Csv,
    /// Criteo's text.
    Criteo,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Headlong,
        Self::Mlperf,
        Self::Raw,
        Self::Npy,
        Self::Split,
        Self::Parquet,
        Self::Csv,
        Self::Criteo,
    ];

    /// `headlong`, `mlperf`, `raw`, `npy`, `split`, `parquet`, `csv`, `criteo`.
    pub fn name(self) -> &'static str {
        match self {
            Format::Headlong => "headlong",
            Format::Mlperf => "mlperf",
            Format::Raw => "raw",
            Format::Npy => "npy",
            Format::Split => "split",
            Format::Parquet => "parquet",
            Format::Csv => "csv",
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
            ReaderError::Invalid {
                message: format!("format: expected one of {names}, found \"{text}\""),
            }
        })
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::disk::DiskOptions;

    /// All samples of `ranges`, one after another.
    pub fn read_ranges(
        source: &dyn Source,
        ranges: Vec<Range<u64>>,
        options: &DiskOptions,
    ) -> Result<Samples> {
        let mut stream = source.read(Box::new(ranges.into_iter()), options)?;
        let (mut all, mut some) = (Samples::default(), Samples::default());
        all.clear(source.schema());
        while stream.next(&mut some)? {
            all.extend_from(&some, 0..some.num_samples, source.schema());
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_at_the_borders_of_parts() {
        let starts: Arc<[u64]> = [0, 10, 10, 25].into();
        let cut = |range: Range<u64>| {
            cut(std::iter::once(range), Arc::clone(&starts)).collect::<Vec<_>>()
        };
        assert_eq!(cut(3..12), [(0, 3..10), (2, 0..2)]);
        assert_eq!(cut(10..99), [(2, 0..15)]);
        assert_eq!(cut(5..5), []);
        assert_eq!(cut(30..40), []);
        assert_eq!(cut(0..u64::MAX), [(0, 0..10), (2, 0..15)]);
    }
}
