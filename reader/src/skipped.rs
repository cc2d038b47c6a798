//! What was left out under the policy `skip`.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::lock;

pub const BAD_ROWS_KEPT: usize = 10;

/// Bad lines that were skipped: how many, and the first few.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SkipReport {
    /// All of them. Of text that is read in a stream, a line counts again in every epoch.
    pub total: u64,
    /// The first `BAD_ROWS_KEPT`.
    pub first: Vec<BadRow>,
}

impl SkipReport {
    /// Counts `total` bad lines, and keeps those of `rows` that are among the first.
    pub fn add(&mut self, total: u64, rows: impl Iterator<Item = BadRow>) {
        self.total += total;
        let missing = BAD_ROWS_KEPT - self.first.len();
        self.first.extend(rows.take(missing));
    }
}

/// A report that a stream adds to while others read it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedReport(Arc<Mutex<SkipReport>>);

impl SharedReport {
    /// Lets `change` add to it.
    pub fn add(&self, change: impl FnOnce(&mut SkipReport)) {
        change(&mut lock(&self.0));
    }

    /// As it is now.
    pub fn now(&self) -> SkipReport {
        lock(&self.0).clone()
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
    pub fault: String,
}

impl fmt::Display for BadRow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}, line {}: {}", self.file.display(), self.line, self.fault)
    }
}
