//! What was left out under the policy `skip`.

use std::fmt;
use std::path::PathBuf;

use crate::criteo::blocks::ParsedBlock;
use crate::criteo::parse::Fault;
use crate::io::DataFile;

/// How many bad lines are kept word for word.
pub const BAD_ROWS_KEPT: usize = 10;

/// Bad lines that were skipped: how many, and the first few.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SkipReport {
    /// All of them; a line counts again in every epoch.
    pub total: u64,
    /// The first [`BAD_ROWS_KEPT`].
    pub first: Vec<BadRow>,
}

impl SkipReport {
    /// Counts the bad lines of a block of `file`, and keeps those that are among the first.
    pub fn add_block(&mut self, file: &DataFile, block: &ParsedBlock) {
        self.total += block.raw.bad_lines.len() as u64;
        let missing = BAD_ROWS_KEPT - self.first.len();
        self.first.extend(BadRow::of_block(file, block).take(missing));
    }
}

/// A bad line and its place; shown as `FILE, line N: what is wrong`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRow {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub fault: Fault,
}

impl BadRow {
    /// The bad lines of a block of `file`, as far as it is known what is wrong with them.
    pub fn of_block(file: &DataFile, block: &ParsedBlock) -> impl Iterator<Item = Self> {
        block.raw.bad_lines.iter().zip(&block.raw.faults).map(move |(bad, &fault)| {
            let line = block.first_line + u64::from(bad.line) + 1;
            Self { file: file.name(), line, fault }
        })
    }
}

impl fmt::Display for BadRow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}, line {}: {}", self.file.display(), self.line, self.fault)
    }
}
