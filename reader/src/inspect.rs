//! What is in files of Criteo's format: rows, clicks, and for each column missing values, range and
//! distinct values.

mod columns;
mod distinct;
mod report;
mod samples;

use headlong_device::pool::Pool;

use crate::batch::Position;
use crate::criteo::{BadRowPolicy, BlockOptions, BlockStream, Event, ParsedBlock};
use crate::error::Result;
use crate::io::DataFile;
use crate::schema::Schema;
use crate::skipped::SkipReport;

pub(crate) use columns::ColumnStatistics;
pub use report::{DenseSummary, FileSummary, InspectReport, SparseSummary};
pub use samples::inspect_samples;

/// How to look.
#[derive(Clone, Debug)]
pub struct InspectOptions {
    /// The columns of the files.
    pub schema: Schema,
    /// What to do with lines that are not rows.
    pub on_bad_row: BadRowPolicy,
    /// Distinct values of a column are counted exactly up to this many (about 32 bytes each),
    /// beyond that estimated.
    pub exact_distinct: usize,
}

impl Default for InspectOptions {
    fn default() -> Self {
        Self { schema: Schema::criteo(), on_bad_row: BadRowPolicy::Error, exact_distinct: 1 << 18 }
    }
}

/// How far the look is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InspectProgress {
    /// The file being read, as an index into the list of files.
    pub file: usize,
    /// Good rows so far, over all files.
    pub rows: u64,
    /// Bytes of this file read so far, as stored.
    pub stored_bytes_read: u64,
}

/// Reads `files` once and describes them. Memory is bounded; threads change nothing but speed.
///
/// # Errors
/// Whatever is wrong with the data; under [`BadRowPolicy::Skip`] bad lines are counted instead.
pub fn inspect(
    files: &[DataFile],
    options: &InspectOptions,
    pool: &Pool,
    progress: &mut dyn FnMut(InspectProgress),
) -> Result<InspectReport> {
    let mut statistics = ColumnStatistics::new(options.schema, options.exact_distinct);
    let (mut summaries, mut skipped) = (Vec::new(), SkipReport::default());
    let mut rows_before = 0;
    for (index, file) in files.iter().enumerate() {
        let mut summary = FileSummary::open(file)?;
        let (mut good, mut bad) = (0, 0);
        read_file(file, options.schema, options.on_bad_row, pool, &mut |block| {
            statistics.add(&block.raw, pool);
            good += block.raw.num_samples as u64;
            bad += block.raw.bad_lines.len() as u64;
            block.report_bad_rows(file, &mut skipped);
            let rows = rows_before + good;
            progress(InspectProgress {
                file: index,
                rows,
                stored_bytes_read: block.stored_bytes_read,
            });
        })?;
        rows_before += good;
        (summary.rows, summary.bad_rows) = (Some(good), Some(bad));
        summaries.push(summary);
    }
    Ok(InspectReport::new(summaries, options.schema, &statistics, &skipped))
}

/// Calls `body` with every block of a file, in order.
pub(crate) fn read_file(
    file: &DataFile,
    schema: Schema,
    on_bad_row: BadRowPolicy,
    pool: &Pool,
    body: &mut dyn FnMut(&ParsedBlock),
) -> Result<()> {
    let options =
        BlockOptions { schema, on_bad_row, num_threads: pool.threads(), ..BlockOptions::default() };
    let mut stream =
        BlockStream::open(vec![file.clone()], &options, &Position::default(), Some(1))?;
    while let Some(event) = stream.next()? {
        if let Event::Block(block) = event {
            body(&block);
            stream.recycle(block);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
