//! How often each row is looked up: counted over the first batches of the data, in bounded memory.
//!
//! A [`Collector`] sees every lookup of some batches, once. Up to [`StatisticsOptions::capacity`]
//! rows of a table are counted singly. A table that has more distinct rows than that is counted by
//! two sketches at once:
//!
//! * *Space-Saving* (Metwally, Agrawal, El Abbadi, ICDT 2005) for the frequent rows: a new row
//!   takes the place of the row with the least count and counts on from there, so a count is too
//!   high by at most `lookups / capacity`. Kept is the part that is certain: the true count lies in
//!   `count ..= count + error_bound`, and a row that is not listed occurred at most `error_bound`
//!   times.
//! * *distinct sampling* (Gibbons, VLDB 2001) for the tail: of the rows whose hash begins with
//!   `level` zero bits, every lookup is counted exactly; the level rises when there are too many.
//!   Times `2^level`, it says how many rows occurred once, twice, …
//!
//! ```
//! use headlong_embedding::TableSpec;
//! use headlong_embedding::hybrid::statistics::{Collector, Statistics, StatisticsOptions};
//!
//! let specs = [TableSpec::new("city", 1000, 16)];
//! let mut collector = Collector::new(&specs, &StatisticsOptions::default());
//! for batch in [[7, 7, 3, 7], [7, 9, 7, 3]] {
//!     collector.add(0, &batch);
//!     collector.end_batch(4);
//! }
//! let statistics = collector.finish();
//! let city = &statistics.tables[0];
//! assert_eq!((city.counted[0].row, city.counted[0].count), (7, 5));
//! assert_eq!(city.covered_by_top(2), 7.0 / 8.0);
//! assert_eq!(Statistics::from_bytes(&statistics.to_bytes())?, statistics);
//! # Ok::<(), headlong_embedding::hybrid::statistics::StatisticsError>(())
//! ```

mod counter;
mod estimate;
mod format;

pub use estimate::{RateClass, TableRates};

use crate::table::{Keys, TableSpec};
use counter::Counter;

/// What can go wrong with stored or merged statistics.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names of fields say it")]
pub enum StatisticsError {
    /// The bytes are something else.
    #[error(
        "not statistics of rows: the first bytes are {found:02x?}, expected {expected:02x?} \
         (`HLSTATS1`)"
    )]
    Magic { expected: [u8; 8], found: Vec<u8> },
    /// A version that this build does not read.
    #[error("statistics of format version {found}; this build reads version {expected}")]
    Version { expected: u32, found: u32 },
    /// The bytes end early, or were cut.
    #[error("statistics are cut short: {what} is missing at byte {position}")]
    Truncated { what: &'static str, position: usize },
    /// The bytes are not those that were written.
    #[error("statistics are damaged: the checksum is {found:016x}, expected {expected:016x}")]
    Checksum { expected: u64, found: u64 },
    /// The checksum is right, and yet the contents cannot be.
    #[error("statistics cannot be: {reason}")]
    Invalid { reason: String },
    /// Statistics of other tables.
    #[error("statistics are of other tables: {reason}")]
    OtherTables { reason: String },
}

/// How much memory counting takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatisticsOptions {
    /// Rows of one table that are counted singly: about 70 bytes each while counting, 16
    /// afterwards.
    pub capacity: usize,
}

impl Default for StatisticsOptions {
    /// 262,144 rows a table: exact for 50 batches of 2,048 of any table, an error of at most
    /// 4.3 counts for 20 batches of 55,296.
    fn default() -> Self {
        Self { capacity: 1 << 18 }
    }
}

/// A row and how often it was looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowCount {
    /// The row index, or the raw id for tables keyed by raw ids.
    pub row: u64,
    /// Lookups that are certain.
    pub count: u64,
}

/// Rows drawn by their hash, with exact counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowSample {
    /// One row in `2^level` is in the sample.
    pub level: u32,
    /// The rows, by falling count, equal counts by rising row.
    pub rows: Vec<RowCount>,
}

/// Lookups of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableStatistics {
    /// Name of the table.
    pub name: String,
    /// Rows of the table; `None` for tables keyed by raw ids, of which there may be any number.
    pub rows: Option<u64>,
    /// All lookups, counted.
    pub lookups: u64,
    /// Rows by falling count, equal counts by rising row.
    pub counted: Vec<RowCount>,
    /// A listed row has at most this many more lookups than its count, an unlisted one at most this
    /// many. 0: all is exact.
    pub error_bound: u64,
    /// Where not all is exact: the tail's sample.
    pub sample: Option<RowSample>,
}

impl TableStatistics {
    /// Share of the lookups that the `num_rows` most frequent rows serve: 0 to 1, a lower bound
    /// where counts are not exact.
    pub fn covered_by_top(&self, num_rows: usize) -> f64 {
        let covered: u64 = self.counted.iter().take(num_rows).map(|row| row.count).sum();
        if self.lookups == 0 { 0.0 } else { covered as f64 / self.lookups as f64 }
    }

    /// Whether every row that occurred is listed with its true count.
    pub fn is_exact(&self) -> bool {
        self.error_bound == 0
    }
}

/// Lookups of all tables over some batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statistics {
    /// Batches seen.
    pub num_batches: u64,
    /// Samples seen.
    pub num_samples: u64,
    /// Samples of the largest batch seen.
    pub batch_size: u64,
    /// The tables, in the order of the set.
    pub tables: Vec<TableStatistics>,
}

impl Statistics {
    /// Checks that these are statistics of the tables `specs`.
    ///
    /// # Errors
    /// [`StatisticsError::OtherTables`] with the first difference.
    pub fn check_tables(&self, specs: &[TableSpec]) -> Result<(), StatisticsError> {
        let refuse = |reason: String| Err(StatisticsError::OtherTables { reason });
        if self.tables.len() != specs.len() {
            return refuse(format!("{} tables, expected {}", self.tables.len(), specs.len()));
        }
        for (table, spec) in self.tables.iter().zip(specs) {
            if table.name != spec.name || table.rows != countable_rows(spec) {
                return refuse(format!(
                    "table `{}` of {:?} rows, expected `{}` of {:?}",
                    table.name,
                    table.rows,
                    spec.name,
                    countable_rows(spec)
                ));
            }
        }
        Ok(())
    }

    /// Lookups of table `table` in one step of `batch_size` samples.
    pub fn lookups_per_step(&self, table: usize, batch_size: u64) -> f64 {
        if self.num_samples == 0 {
            return 0.0;
        }
        self.tables[table].lookups as f64 / self.num_samples as f64 * batch_size as f64
    }

    /// Expected lookups in a step of `batch_size` samples of a row that was counted `count` times,
    /// by plain proportion.
    pub fn lambda(&self, count: u64, batch_size: u64) -> f64 {
        count as f64 / self.num_samples.max(1) as f64 * batch_size as f64
    }

    /// Number of distinct rows of table `table` that `num_samples` other samples are expected to
    /// hold.
    ///
    /// For fewer samples than were counted this is rarefaction: the mean over all ways to draw them
    /// from the counted ones, free of any assumption on rows not seen. For more, the unseen are
    /// extrapolated. See [`TableStatistics::expected_distinct`].
    pub fn expected_distinct(&self, table: usize, num_samples: u64) -> f64 {
        self.tables[table].expected_distinct(self.lookups_per_step(table, num_samples))
    }
}

pub(super) fn countable_rows(spec: &TableSpec) -> Option<u64> {
    (spec.keys == Keys::RowIndices).then_some(spec.rows)
}

/// Counts the lookups of batches as they come.
#[derive(Debug)]
pub struct Collector {
    num_batches: u64,
    num_samples: u64,
    batch_size: u64,
    tables: Vec<(String, Option<u64>, Counter)>,
}

impl Collector {
    /// Nothing counted yet.
    pub fn new(specs: &[TableSpec], options: &StatisticsOptions) -> Self {
        let counter = |spec: &TableSpec| {
            (spec.name.clone(), countable_rows(spec), Counter::new(options.capacity.max(1)))
        };
        Self {
            num_batches: 0,
            num_samples: 0,
            batch_size: 0,
            tables: specs.iter().map(counter).collect(),
        }
    }

    /// Counts lookups of table `table`: row indices, or raw ids where the table is keyed by
    /// those.
    pub fn add(&mut self, table: usize, rows: &[u64]) {
        let counter = &mut self.tables[table].2;
        rows.iter().for_each(|&row| counter.add(row));
    }

    /// Says that the lookups added since the last call were those of one batch of `num_samples`
    /// samples.
    pub fn end_batch(&mut self, num_samples: usize) {
        self.num_batches += 1;
        self.num_samples += num_samples as u64;
        self.batch_size = self.batch_size.max(num_samples as u64);
    }

    /// Samples counted so far.
    pub fn num_samples(&self) -> u64 {
        self.num_samples
    }

    /// What was counted.
    pub fn finish(self) -> Statistics {
        Statistics {
            num_batches: self.num_batches,
            num_samples: self.num_samples,
            batch_size: self.batch_size,
            tables: self
                .tables
                .into_iter()
                .map(|(name, rows, counter)| counter.finish(name, rows))
                .collect(),
        }
    }
}

/// By falling count, equal counts by rising row.
fn sort_rows(rows: &mut [RowCount]) {
    rows.sort_unstable_by_key(|row| (std::cmp::Reverse(row.count), row.row));
}

#[cfg(test)]
mod tests;
