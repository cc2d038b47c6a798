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
//! | – | the same in memory, such as a data frame | [`mod@frame`] |
//! | `csv` | delimited text with a header | [`delimited`] |
//! | `criteo` | tab-separated text, compressed or not | [`crate::criteo`] |
//!
//! All but Parquet and compressed or Criteo's text are read at random: a [`Source`] gives any
//! ranges of samples in any order.

pub mod by_column;
pub mod carried;
pub mod delimited;
pub mod frame;
pub mod headlong;
pub mod memory;
pub mod named;
pub mod npy;
pub mod parquet;
pub mod part;
pub mod records;
pub mod split;
pub mod text;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use crate::disk::DiskOptions;
use crate::error::{ReaderError, Result, invalid, named};
use crate::io::DataFile;
use crate::samples::{DataSchema, Samples};
use crate::skipped::SkipReport;

/// Ranges of samples, in the order they are wanted.
pub type Ranges = Box<dyn Iterator<Item = Range<u64>> + Send>;

/// Data of a format, open for reading.
pub trait Source: Send + Sync {
    /// What is known of it before it is read.
    fn about(&self) -> &About;

    /// Begins to read `ranges`.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`] where the format can only be read from front to back and something
    /// else is asked for.
    fn read(&self, ranges: Ranges, options: &DiskOptions) -> Result<Box<dyn SampleStream>>;

    /// The bad lines that were skipped so far.
    fn skip_report(&self) -> SkipReport {
        SkipReport::default()
    }

    /// Its columns.
    fn schema(&self) -> &DataSchema {
        &self.about().schema
    }

    /// Samples in all files; none where only reading tells.
    fn num_samples(&self) -> Option<u64> {
        self.about().num_samples
    }

    /// Begins to read all samples, from the first to the last.
    fn read_all(&self, options: &DiskOptions) -> Result<Box<dyn SampleStream>> {
        let end = self.num_samples().unwrap_or(u64::MAX);
        self.read(Box::new(std::iter::once(0..end)), options)
    }
}

/// What is known of data before it is read.
#[derive(Clone, Debug)]
pub struct About {
    /// Its columns.
    pub schema: DataSchema,
    /// Samples in all files; none where only reading tells.
    pub num_samples: Option<u64>,
    /// Bytes of all files.
    pub stored_bytes: u64,
    /// Whether ranges may be asked for in any order without reading what lies before them.
    pub is_random: bool,
    /// What messages call the data, where only reading tells whether there is a sample.
    pub names: String,
}

impl About {
    /// Of data that is read at random, in parts that begin after `starts` samples.
    pub(crate) fn random(schema: DataSchema, starts: &[u64], stored_bytes: u64) -> Self {
        let (num_samples, names) = (starts.last().copied(), "the data".to_owned());
        Self { schema, num_samples, stored_bytes, is_random: true, names }
    }
}

/// Samples before each part, and all of them at the end.
pub(crate) fn starts_of(counts: impl Iterator<Item = u64>) -> Arc<[u64]> {
    let mut starts = vec![0];
    counts.for_each(|count| starts.push(starts[starts.len() - 1] + count));
    starts.into()
}

pub(crate) type Parts = Box<dyn Iterator<Item = (usize, Range<u64>)> + Send>;

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
pub(crate) fn no_samples(names: &str, skipped: &SkipReport) -> ReaderError {
    match skipped.first.first() {
        None => invalid!("{names}: expected at least one sample, found none"),
        Some(first) => ReaderError::NoSamples {
            files: names.to_owned(),
            skipped: skipped.total,
            first: first.to_string(),
        },
    }
}

/// Refuses ranges other than everything, which is all that can be asked for where samples have not
/// been counted.
pub(crate) fn front_to_back(mut ranges: Ranges) -> Result<()> {
    match ranges.next() {
        Some(Range { start: 0, end: u64::MAX }) => Ok(()),
        _ => Err(invalid!(
            "this data can only be read from front to back: convert it to read it in \
             another order"
        )),
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

named!(Format, "format": Headlong "headlong", Mlperf "mlperf", Raw "raw", Npy "npy",
    Split "split", Parquet "parquet", Csv "csv", Criteo "criteo");

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
