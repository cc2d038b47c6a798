//! The description: for a program as JSON, for a person as a table.

use std::fmt;

use serde::Serialize;

use super::columns::{ColumnStatistics, DenseStatistics};
use super::distinct::DistinctCounter;
use crate::convert::files_of;
use crate::error::Result;
use crate::formats::Format;
use crate::io::{Compression, DataFile, TextFile};
use crate::schema::{Column, Schema};
use crate::skipped::SkipReport;

/// What is in the files.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InspectReport {
    /// Each file.
    pub files: Vec<FileSummary>,
    /// Good rows of all files.
    pub rows: u64,
    /// Lines that are not rows.
    pub bad_rows: u64,
    /// The first few of them, with file, line and reason.
    pub first_bad_rows: Vec<String>,
    /// Rows with label 1; none where rows have no label.
    pub clicks: Option<u64>,
    /// Share of rows with label 1; none where rows have no label, or there is no row.
    pub click_rate: Option<f64>,
    /// The columns of numbers, in order.
    pub dense: Vec<DenseSummary>,
    /// The categorical columns, in order.
    pub sparse: Vec<SparseSummary>,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileSummary {
    /// Its path, as it was given.
    pub path: String,
    /// Its size, as stored, with that of the files that are read with it (`npy`, `split`); 0 of a
    /// pipe.
    pub bytes: u64,
    /// Its format, as on the command line: `criteo`, `csv` and so on.
    pub format: &'static str,
    /// `plain`, `gzip` or `zstd`; none where the format is not text.
    pub compression: Option<&'static str>,
    /// Good rows, where they are counted file by file.
    pub rows: Option<u64>,
    /// Lines that are not rows.
    pub bad_rows: Option<u64>,
}

/// One column of numbers. Ranges and means are those of the values present, none if there is none;
/// where they are no integers, a missing one is among them, as the number that it counts as.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DenseSummary {
    /// `I1` and so on, or as the file calls it.
    pub name: String,
    /// Share of rows without a value.
    pub missing_share: f64,
    /// Share of rows with a negative value.
    pub negative_share: f64,
    /// The least value.
    pub minimum: Option<f64>,
    /// The middle value; none where values were estimated.
    pub median: Option<f64>,
    /// The value that 99 % do not exceed; none where values were estimated.
    pub percentile_99: Option<f64>,
    /// The greatest value.
    pub maximum: Option<f64>,
    /// The mean.
    pub mean: Option<f64>,
    /// Distinct values.
    pub distinct: u64,
    /// Whether `distinct` was counted; else it is an estimate with a standard error of 0.8 %.
    pub distinct_is_exact: bool,
}

/// One categorical column.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SparseSummary {
    /// `C1` and so on, or as the file calls it.
    pub name: String,
    /// Share of missing values.
    pub missing_share: f64,
    /// Distinct values, a missing one not counted.
    pub distinct: u64,
    /// Whether `distinct` was counted; else it is an estimate with a standard error of 0.8 %.
    pub distinct_is_exact: bool,
    /// The most frequent value, or `missing`; none if there is no row. An id of Criteo's text is
    /// shown as eight hexadecimal digits, another as a decimal number.
    pub most_frequent: Option<String>,
    /// Its share of all values, missing ones included.
    pub most_frequent_share: f64,
    /// Ids a sample, missing ones not counted.
    pub ids_per_sample: f64,
}

impl FileSummary {
    /// A file of Criteo's text that has not been read yet.
    pub(super) fn open(path: &DataFile) -> Result<Self> {
        let file = TextFile::look(path)?;
        let (bytes, compression) = (file.stored_bytes(), file.compression().name());
        let (path, format) = (path.to_string(), Format::Criteo.name());
        Ok(Self {
            path,
            bytes,
            format,
            compression: Some(compression),
            rows: Some(0),
            bad_rows: Some(0),
        })
    }

    /// One of several files, or a folder, whose rows are counted together; nothing of them has been
    /// read yet.
    pub(super) fn of_format(path: &DataFile, format: Format) -> Result<Self> {
        let files = files_of(format, &[path.system_path().to_owned()]);
        let bytes = files.iter().map(|file| file.metadata().map_or(0, |data| data.len())).sum();
        let compression = match format {
            Format::Csv => Some(TextFile::look(path)?.compression().name()),
            _ => None,
        };
        let (path, format) = (path.to_string(), format.name());
        Ok(Self { path, bytes, format, compression, rows: None, bad_rows: None })
    }
}

impl InspectReport {
    pub(super) fn new(
        files: Vec<FileSummary>,
        schema: Schema,
        statistics: &ColumnStatistics,
        skipped: &SkipReport,
    ) -> Self {
        let rows = statistics.rows;
        let clicks = schema.labelled.then_some(statistics.clicks);
        let dense = statistics.dense().zip(0..);
        let sparse = statistics.sparse().zip(0..);
        Self {
            files,
            rows,
            bad_rows: skipped.total,
            first_bad_rows: skipped.first.iter().map(ToString::to_string).collect(),
            clicks,
            click_rate: clicks.filter(|_| rows > 0).map(|clicks| clicks as f64 / rows as f64),
            dense: dense
                .map(|(column, index)| DenseSummary::of_column(index, &column, rows))
                .collect(),
            sparse: sparse
                .map(|(column, index)| {
                    let name = Column::Sparse(index).to_string();
                    SparseSummary::new(name, column.missing, &column.values, rows, |id| {
                        format!("{id:08x}")
                    })
                })
                .collect(),
        }
    }
}

fn share(count: u64, rows: u64) -> f64 {
    count as f64 / rows.max(1) as f64
}

pub(super) struct Numbers {
    pub rows: u64,
    pub counted: u64,
    pub missing: u64,
    pub negative: u64,
    pub range: Option<(f64, f64)>,
    pub sum: f64,
}

impl DenseSummary {
    fn of_column(index: u16, column: &DenseStatistics, rows: u64) -> Self {
        let range =
            (rows > column.missing).then(|| (f64::from(column.minimum), f64::from(column.maximum)));
        let DenseStatistics { missing, negative, .. } = *column;
        let numbers = Numbers {
            rows,
            counted: rows - missing,
            missing,
            negative,
            range,
            sum: column.sum as f64,
        };
        let name = Column::Dense(index).to_string();
        Self::new(name, &numbers, &column.sorted_counts(), column.values.distinct())
    }

    /// `counts` are all values with their counts, in rising order; none where they are not known.
    pub(super) fn new(
        name: String,
        numbers: &Numbers,
        counts: &[(f64, u64)],
        (distinct, distinct_is_exact): (u64, bool),
    ) -> Self {
        let Numbers { rows, counted, missing, negative, range, sum } = *numbers;
        Self {
            name,
            missing_share: share(missing, rows),
            negative_share: share(negative, rows),
            minimum: range.map(|range| range.0),
            median: quantile(counts, 0.5),
            percentile_99: quantile(counts, 0.99),
            maximum: range.map(|range| range.1),
            mean: range.map(|_| sum / counted.max(1) as f64),
            distinct,
            distinct_is_exact,
        }
    }
}

/// The value below which the share `share` of the values lies (the lower one of two), if they are
/// known.
fn quantile(counts: &[(f64, u64)], share: f64) -> Option<f64> {
    let total: u64 = counts.iter().map(|&(_, count)| count).sum();
    let place = (total.saturating_sub(1) as f64 * share) as u64;
    let mut below = 0;
    let found = counts.iter().find(|&&(_, count)| {
        below += count;
        below > place
    });
    found.map(|&(value, _)| value)
}

impl SparseSummary {
    /// `shown` says how an id is written.
    pub(super) fn new(
        name: String,
        missing: u64,
        values: &DistinctCounter,
        rows: u64,
        shown: impl Fn(u64) -> String,
    ) -> Self {
        let (distinct, distinct_is_exact) = values.distinct();
        let present = values.most_frequent().map(|(id, count)| (shown(id), count));
        let absent = Some(("missing".to_owned(), missing)).filter(|missing| missing.1 > 0);
        // At equal counts the value present counts more.
        let most_frequent = absent.into_iter().chain(present).max_by_key(|candidate| candidate.1);
        let most_frequent_share =
            most_frequent.as_ref().map_or(0.0, |(_, count)| share(*count, rows));
        Self {
            name,
            missing_share: share(missing, rows),
            distinct,
            distinct_is_exact,
            most_frequent: most_frequent.map(|(value, _)| value),
            most_frequent_share,
            ids_per_sample: share(rows - missing.min(rows), rows),
        }
    }
}

/// A table for people; several lines, ended by a newline.
impl fmt::Display for InspectReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in &self.files {
            let FileSummary { path, bytes, format, compression, rows, bad_rows } = file;
            let packed = compression.filter(|name| *name != Compression::Plain.name());
            let packed = packed.map_or(String::new(), |name| format!(", {name}"));
            match (rows, bad_rows) {
                (Some(rows), Some(bad)) => write!(formatter, "{path}: {rows} rows, {bad} bad, ")?,
                _ => write!(formatter, "{path}: ")?,
            }
            writeln!(formatter, "{bytes} bytes ({format}{packed})")?;
        }
        match (self.click_rate, self.clicks) {
            (Some(rate), Some(clicks)) => {
                writeln!(formatter, "{} rows, {clicks} clicks, click rate {rate:.5}", self.rows)?;
            }
            _ => writeln!(formatter, "{} rows without labels", self.rows)?,
        }
        for bad in &self.first_bad_rows {
            writeln!(formatter, "bad: {bad}")?;
        }
        self.write_dense(formatter)?;
        self.write_sparse(formatter)?;
        let columns = self.dense.iter().map(|column| column.distinct_is_exact);
        if !columns
            .chain(self.sparse.iter().map(|column| column.distinct_is_exact))
            .all(|exact| exact)
        {
            writeln!(formatter, "\n~ is an estimate, with a standard error of 0.8 %")?;
        }
        Ok(())
    }
}

impl InspectReport {
    fn write_dense(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            "column",
            "missing %",
            "negative %",
            "min",
            "median",
            "99 %",
            "max",
            "mean",
            "distinct",
        ];
        let or_dash = |value: Option<f64>| value.map_or("-".to_owned(), number_text);
        let rows = self.dense.iter().map(|column| {
            [
                column.name.clone(),
                format!("{:.1}", 100.0 * column.missing_share),
                format!("{:.1}", 100.0 * column.negative_share),
                or_dash(column.minimum),
                or_dash(column.median),
                or_dash(column.percentile_99),
                or_dash(column.maximum),
                or_dash(column.mean),
                distinct_text(column.distinct, column.distinct_is_exact),
            ]
        });
        write_table(formatter, names, rows.collect())
    }

    fn write_sparse(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["column", "missing %", "distinct", "ids each", "most frequent", "share %"];
        let rows = self.sparse.iter().map(|column| {
            [
                column.name.clone(),
                format!("{:.1}", 100.0 * column.missing_share),
                distinct_text(column.distinct, column.distinct_is_exact),
                format!("{:.2}", column.ids_per_sample),
                column.most_frequent.clone().unwrap_or("-".to_owned()),
                format!("{:.1}", 100.0 * column.most_frequent_share),
            ]
        });
        write_table(formatter, names, rows.collect())
    }
}

/// A table whose columns are as wide as what is in them; nothing where there are no rows.
fn write_table<const N: usize>(
    formatter: &mut fmt::Formatter<'_>,
    names: [&str; N],
    mut rows: Vec<[String; N]>,
) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    rows.insert(0, names.map(str::to_owned));
    let letters = |text: &String| text.chars().count();
    let widths: [usize; N] = std::array::from_fn(|column| {
        rows.iter().map(|row| letters(&row[column])).max().unwrap_or(0)
    });
    writeln!(formatter)?;
    for row in &rows {
        write!(formatter, "{:<1$}", row[0], widths[0])?;
        for (text, &width) in row.iter().zip(&widths).skip(1) {
            write!(formatter, "  {text:>width$}")?;
        }
        writeln!(formatter)?;
    }
    Ok(())
}

/// A number in few digits, so that the table stays narrow: whole ones as they are, large ones to
/// tenths.
fn number_text(number: f64) -> String {
    let digits = if number.abs() < 1000.0 { 4 } else { 1 };
    let rounded = format!("{number:.digits$}");
    rounded.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn distinct_text(distinct: u64, exact: bool) -> String {
    if exact { distinct.to_string() } else { format!("~{distinct}") }
}
