//! Whether files of Criteo's format are sound: every line that is not a row, by file and line, and
//! columns that are suspicious as a whole.

mod samples;

pub use samples::{DenseRange, IdRange, SamplesReport, verify_samples};

use std::fmt;

use headlong_device::pool::Pool;
use serde::Serialize;

use crate::criteo::BadRowPolicy;
use crate::error::{ReaderError, Result};
use crate::inspect::{ColumnStatistics, InspectProgress, read_file};
use crate::io::DataFile;
use crate::schema::{Column, Schema};
use crate::skipped::BadRow;

/// What to check.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// The columns that rows should have.
    pub schema: Schema,
    /// How many bad lines are kept for the report and passed to the caller; all are counted.
    pub most_bad_rows: usize,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self { schema: Schema::criteo(), most_bad_rows: 100 }
    }
}

/// The verdict.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct VerifyReport {
    /// Each file.
    pub files: Vec<FileVerdict>,
    /// Good rows of all files.
    pub rows: u64,
    /// Lines that are not rows, of all files.
    pub bad_rows: u64,
    /// The first of them: `FILE, line N: column …: expected …, found …`.
    pub first_bad_rows: Vec<String>,
    /// What is strange about whole columns; not an error.
    pub anomalies: Vec<Anomaly>,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileVerdict {
    /// Its path, as it was given.
    pub path: String,
    /// Good rows.
    pub rows: u64,
    /// Lines that are not rows.
    pub bad_rows: u64,
    /// Why it could not be read to its end, if so: absent, empty, truncated, corrupt.
    pub failure: Option<String>,
}

/// Something strange about a column, over all files.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Anomaly {
    /// `label`, `I1`, `C1` and so on.
    pub column: String,
    /// What is strange.
    pub message: String,
}

impl VerifyReport {
    /// Whether every line of every file is a row.
    pub fn is_sound(&self) -> bool {
        self.bad_rows == 0 && self.files.iter().all(|file| file.failure.is_none())
    }
}

/// Reads all of `files`, whatever is wrong with them. `on_bad_row` is called for the first bad
/// lines as they are found, `progress` after every block; both from the calling thread, in the
/// order of the files.
///
/// # Errors
/// [`crate::ReaderError::Invalid`] for a senseless schema. What is wrong with the data is in the
/// report.
pub fn verify(
    files: &[DataFile],
    options: &VerifyOptions,
    pool: &Pool,
    on_bad_row: &mut dyn FnMut(&BadRow),
    progress: &mut dyn FnMut(InspectProgress),
) -> Result<VerifyReport> {
    options.schema.check().map_err(ReaderError::invalid)?;
    // A suspicious column has few distinct values, so few need counting.
    let mut statistics = ColumnStatistics::new(options.schema, 16);
    let mut report = VerifyReport::default();
    for (index, path) in files.iter().enumerate() {
        let rows_before = report.rows;
        let mut file = FileVerdict { path: path.to_string(), rows: 0, bad_rows: 0, failure: None };
        let result = read_file(path, options.schema, BadRowPolicy::Skip, pool, &mut |block| {
            statistics.add(&block.raw, pool);
            file.rows += block.raw.num_samples as u64;
            file.bad_rows += block.raw.bad_lines.len() as u64;
            let missing = options.most_bad_rows.saturating_sub(report.first_bad_rows.len());
            for row in block.bad_rows(path).take(missing) {
                report.first_bad_rows.push(row.to_string());
                on_bad_row(&row);
            }
            let rows = rows_before + file.rows;
            progress(InspectProgress {
                file: index,
                rows,
                stored_bytes_read: block.stored_bytes_read,
            });
        });
        file.failure = result.err().map(|error| error.to_string());
        report.rows += file.rows;
        report.bad_rows += file.bad_rows;
        report.files.push(file);
    }
    report.anomalies = anomalies(options.schema, &statistics);
    Ok(report)
}

/// Columns that teach a model nothing, or not what they seem to.
fn anomalies(schema: Schema, statistics: &ColumnStatistics) -> Vec<Anomaly> {
    let rows = statistics.rows;
    let mut found = Vec::new();
    let mut add = |column: Column, message: String| {
        found.push(Anomaly { column: column.to_string(), message })
    };
    if rows == 0 {
        return found;
    }
    if schema.labelled && (statistics.clicks == 0 || statistics.clicks == rows) {
        add(Column::Label, of_one_label(statistics.clicks > 0, rows));
    }
    for (column, index) in statistics.dense().zip(0..) {
        let of_values =
            what_is_strange(column.missing, column.values.distinct() == (1, true), rows);
        of_values.into_iter().for_each(|message| add(Column::Dense(index), message));
        if column.negative > 0 {
            add(Column::Dense(index), of_negative(column.negative, f64::from(column.minimum)));
        }
    }
    for (column, index) in statistics.sparse().zip(0..) {
        let of_values =
            what_is_strange(column.missing, column.values.distinct() == (1, true), rows);
        of_values.into_iter().for_each(|message| add(Column::Sparse(index), message));
    }
    found
}

fn of_one_label(label: bool, rows: u64) -> String {
    format!("it is {} in all {rows} rows: a model learns nothing of one class", u8::from(label))
}

fn of_negative(count: u64, least: f64) -> String {
    format!("{count} negative values (the least is {least}), which ln(x+1) takes for 0")
}

fn what_is_strange(missing: u64, one_value: bool, rows: u64) -> Option<String> {
    match (missing == rows, one_value && missing == 0) {
        (true, _) => Some(format!("it is missing in all {rows} rows")),
        (_, true) => Some(format!("it has the same value in all {rows} rows")),
        _ => None,
    }
}

/// Lines for people: files, then the first bad rows, then anomalies; ended by a newline.
impl fmt::Display for VerifyReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in &self.files {
            let FileVerdict { path, rows, bad_rows, failure } = file;
            writeln!(formatter, "{path}: {rows} good rows, {bad_rows} bad")?;
            failure.iter().try_for_each(|failure| writeln!(formatter, "failed: {failure}"))?;
        }
        self.first_bad_rows.iter().try_for_each(|bad| writeln!(formatter, "bad: {bad}"))?;
        let unnamed = self.bad_rows - self.first_bad_rows.len() as u64;
        if unnamed > 0 {
            writeln!(formatter, "and {unnamed} more bad rows")?;
        }
        for Anomaly { column, message } in &self.anomalies {
            writeln!(formatter, "note: column {column}: {message}")?;
        }
        let verdict =
            if self.is_sound() { "every line is a row" } else { "not every line is a row" };
        writeln!(formatter, "{verdict}: {} good, {} bad", self.rows, self.bad_rows)
    }
}

#[cfg(test)]
mod tests;
