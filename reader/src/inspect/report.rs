//! The description: for a program as JSON, for a person as a table.

use std::fmt;

use serde::Serialize;

use super::columns::{ColumnStatistics, DenseStatistics, SparseStatistics};
use crate::error::Result;
use crate::io::{DataFile, TextFile};
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
    /// The integer columns, in order.
    pub dense: Vec<DenseSummary>,
    /// The categorical columns, in order.
    pub sparse: Vec<SparseSummary>,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileSummary {
    /// Its path, as it was given.
    pub path: String,
    /// Its size, as stored.
    pub bytes: u64,
    /// `plain`, `gzip` or `zstd`.
    pub compression: &'static str,
    /// Good rows.
    pub rows: u64,
    /// Lines that are not rows.
    pub bad_rows: u64,
}

/// One integer column. Ranges and means are those of the values present, none if there is none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DenseSummary {
    /// `I1` and so on.
    pub name: String,
    /// Share of rows without a value.
    pub missing_share: f64,
    /// Share of rows with a negative value.
    pub negative_share: f64,
    /// The least value.
    pub minimum: Option<i32>,
    /// The middle value; none where values were estimated.
    pub median: Option<i32>,
    /// The value that 99 % do not exceed; none where values were estimated.
    pub percentile_99: Option<i32>,
    /// The greatest value.
    pub maximum: Option<i32>,
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
    /// `C1` and so on.
    pub name: String,
    /// Share of rows without a value.
    pub missing_share: f64,
    /// Distinct values, a missing one not counted.
    pub distinct: u64,
    /// Whether `distinct` was counted; else it is an estimate with a standard error of 0.8 %.
    pub distinct_is_exact: bool,
    /// The most frequent value, as eight hexadecimal digits, or `missing`; none if there is no row.
    pub most_frequent: Option<String>,
    /// Its share of the rows.
    pub most_frequent_share: f64,
}

impl FileSummary {
    /// A file that has not been read yet.
    pub(super) fn open(path: &DataFile) -> Result<Self> {
        let file = TextFile::look(path)?;
        let (bytes, compression) = (file.stored_bytes(), file.compression().name());
        Ok(Self { path: path.to_string(), bytes, compression, rows: 0, bad_rows: 0 })
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
            dense: dense.map(|(column, index)| DenseSummary::new(index, &column, rows)).collect(),
            sparse: sparse.map(|(column, index)| SparseSummary::new(index, &column, rows)).collect(),
        }
    }
}

fn share(count: u64, rows: u64) -> f64 {
    count as f64 / rows.max(1) as f64
}

impl DenseSummary {
    fn new(index: u16, column: &DenseStatistics, rows: u64) -> Self {
        let present = rows - column.missing;
        let (distinct, distinct_is_exact) = column.values.distinct();
        Self {
            name: Column::Dense(index).to_string(),
            missing_share: share(column.missing, rows),
            negative_share: share(column.negative, rows),
            minimum: (present > 0).then_some(column.minimum),
            median: column.quantile(0.5),
            percentile_99: column.quantile(0.99),
            maximum: (present > 0).then_some(column.maximum),
            mean: (present > 0).then(|| column.sum as f64 / present as f64),
            distinct,
            distinct_is_exact,
        }
    }
}

impl SparseSummary {
    fn new(index: u16, column: &SparseStatistics, rows: u64) -> Self {
        let (distinct, distinct_is_exact) = column.values.distinct();
        let present = column.values.most_frequent().map(|(id, count)| (format!("{id:08x}"), count));
        let missing = Some(("missing".to_owned(), column.missing)).filter(|missing| missing.1 > 0);
        // At equal counts the value present counts more.
        let most_frequent = missing.into_iter().chain(present).max_by_key(|candidate| candidate.1);
        let most_frequent_share = most_frequent.as_ref().map_or(0.0, |(_, count)| share(*count, rows));
        Self {
            name: Column::Sparse(index).to_string(),
            missing_share: share(column.missing, rows),
            distinct,
            distinct_is_exact,
            most_frequent: most_frequent.map(|(value, _)| value),
            most_frequent_share,
        }
    }
}

/// A table for people; several lines, ended by a newline.
impl fmt::Display for InspectReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in &self.files {
            let FileSummary { path, bytes, compression, rows, bad_rows } = file;
            writeln!(formatter, "{path}: {rows} rows, {bad_rows} bad, {bytes} bytes ({compression})")?;
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
        if !columns.chain(self.sparse.iter().map(|column| column.distinct_is_exact)).all(|exact| exact) {
            writeln!(formatter, "\n~ is an estimate, with a standard error of 0.8 %")?;
        }
        Ok(())
    }
}

impl InspectReport {
    fn write_dense(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.dense.is_empty() {
            return Ok(());
        }
        writeln!(
            formatter,
            "\n{:<6} {:>9} {:>10} {:>12} {:>12} {:>12} {:>12} {:>14} {:>12}",
            "column", "missing %", "negative %", "min", "median", "99 %", "max", "mean", "distinct"
        )?;
        let or_dash = |value: Option<i32>| value.map_or("-".to_owned(), |value| value.to_string());
        for column in &self.dense {
            writeln!(
                formatter,
                "{:<6} {:>9.1} {:>10.1} {:>12} {:>12} {:>12} {:>12} {:>14} {:>12}",
                column.name,
                100.0 * column.missing_share,
                100.0 * column.negative_share,
                or_dash(column.minimum),
                or_dash(column.median),
                or_dash(column.percentile_99),
                or_dash(column.maximum),
                column.mean.map_or("-".to_owned(), |mean| format!("{mean:.1}")),
                distinct_text(column.distinct, column.distinct_is_exact),
            )?;
        }
        Ok(())
    }

    fn write_sparse(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.sparse.is_empty() {
            return Ok(());
        }
        let (missing, distinct, frequent) = ("missing %", "distinct", "most frequent (share %)");
        writeln!(formatter, "\n{:<6} {missing:>9} {distinct:>12}   {frequent}", "column")?;
        for column in &self.sparse {
            writeln!(
                formatter,
                "{:<6} {:>9.1} {:>12}   {} ({:.1})",
                column.name,
                100.0 * column.missing_share,
                distinct_text(column.distinct, column.distinct_is_exact),
                column.most_frequent.as_deref().unwrap_or("-"),
                100.0 * column.most_frequent_share,
            )?;
        }
        Ok(())
    }
}

fn distinct_text(distinct: u64, exact: bool) -> String {
    if exact { distinct.to_string() } else { format!("~{distinct}") }
}
