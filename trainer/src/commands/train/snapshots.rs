//! Snapshots while training lasts: when they are due, and what they cost.

use super::Run;
use crate::config::Config;
use crate::error::Result;
use crate::report::{self, bytes, count, duration};
use crate::run::session::Session;
use crate::state::checkpoint::Checkpoint;
use serde_json::Map;
use std::path::Path;
use std::time::{Duration, Instant};

/// Says where a resumed run continues.
pub(super) fn resumed(config: &Config, session: &Session, from: Option<&Checkpoint>) -> String {
    let folder = from.and_then(|found| found.path().parent().map(Path::to_owned));
    let is_snapshot = folder.is_some() && folder == config.snapshot_dir();
    let from = if is_snapshot { ", from a snapshot" } else { "" };
    format!("resumed at step {} (sample {}){from}", session.steps(), session.samples())
}

/// The snapshots of a run so far.
#[derive(Debug, Default)]
pub(super) struct Taken {
    number: u64,
    /// For how long training has stood still for them.
    time: Duration,
}

impl Run<'_> {
    pub(super) fn snapshot_is_due(&self, step: u64) -> bool {
        let is_due = step.is_multiple_of(self.config.checkpoint.snapshot_every);
        is_due && self.session.takes_snapshots() && !self.session.has_ended()
    }

    pub(super) fn take_snapshot(&mut self) -> Result<()> {
        // As of a checkpoint: there is no evaluation half done in it.
        self.conclude_evaluation()?;
        let started = Instant::now();
        let report = self.session.take_snapshot()?;
        let took = started.elapsed();
        self.saving += took;
        self.snapshots.number += 1;
        self.snapshots.time += took;
        let Some(report) = report else { return Ok(()) };
        let at = self.at();
        if self.snapshots.number == 1 {
            self.reporter.note(&format!(
                "step {}  snapshot in {} ({}, {}), the first of one every {} steps",
                count(at.step),
                report.path.parent().unwrap_or(&report.path).display(),
                bytes(report.bytes),
                duration(took.as_secs_f64()),
                count(self.config.checkpoint.snapshot_every)
            ));
        }
        let seconds = took.as_secs_f64();
        self.reporter.snapshot(at, &report::Snapshot { bytes: report.bytes, seconds })?;
        report.warnings.iter().try_for_each(|warning| self.reporter.warning(warning, Map::new()))
    }

    /// Says what snapshots have cost. They go where the end of the run is saved.
    pub(super) fn end_snapshots(&mut self) -> Result<()> {
        let Taken { number, time } = self.snapshots;
        if number > 0 {
            self.reporter.note(&format!(
                "training stood still for {} in {} of {}",
                count(number) + if number == 1 { " snapshot" } else { " snapshots" },
                duration(time.as_secs_f64()),
                duration(self.reporter.seconds())
            ));
        }
        if self.config.checkpoint.dir.is_none() {
            return Ok(());
        }
        let warnings = self.session.remove_snapshots();
        warnings.iter().try_for_each(|warning| self.reporter.warning(warning, Map::new()))
    }
}
