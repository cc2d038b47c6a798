//! Snapshots while training lasts: when they are due, and what they cost.

use super::Run;
use crate::commands::train_arguments::TrainOptions;
use crate::config::Config;
use crate::error::Result;
use crate::iteration::job::Job;
use crate::report::output::say;
use crate::report::{self, Reporter, bytes, count, duration};
use crate::run::session::{Alone, Session, gather_snapshot};
use crate::state::checkpoint::{Checkpoint, Peers};
use crate::system::elastic;
use serde_json::{Map, json};
use std::time::{Duration, Instant};

/// Where a run resumes: gives all machines the newest snapshot that they have together.
pub(super) fn gather(job: &Job, options: &TrainOptions) -> Result<()> {
    if !options.flags.resume || options.flags.dry_run {
        return Ok(());
    }
    let ranks = job.link().map_or(&Alone as &dyn Peers, |ranks| ranks);
    let remarks = gather_snapshot(&job.config, ranks).inspect_err(|error| job.tell(error))?;
    remarks.iter().for_each(|remark| say(format_args!("note: {remark}")));
    Ok(())
}

/// Says where a resumed run continues.
pub(super) fn resumed(config: &Config, session: &Session, from: Option<&Checkpoint>) -> String {
    let is_snapshot = from.is_some_and(|found| config.is_snapshot(found.path()));
    let from = if is_snapshot { ", from a snapshot" } else { "" };
    format!("resumed at step {} (sample {}){from}", session.steps(), session.samples())
}

/// Whether the log's file is of this run already.
pub(super) fn appends_to_log(options: &TrainOptions) -> bool {
    options.appends_to_log || elastic::restarts() > 0
}

/// Says, for the log too, that the job was started again.
pub(super) fn say_restarts(session: &Session, reporter: &mut Reporter) -> Result<()> {
    let (restarts, step) = (elastic::restarts(), count(session.steps()));
    if restarts == 0 {
        return Ok(());
    }
    let message = format!(
        "a rank was lost: all were started again, time {restarts}, and continue from step {step}"
    );
    let fields = json!({ "restarts": restarts });
    reporter.warning(&message, fields.as_object().cloned().unwrap_or_default())
}

/// The snapshots of a run so far.
#[derive(Debug, Default)]
pub(super) struct Taken {
    number: u64,
    /// The step of the last.
    pub(super) last: Option<u64>,
    /// For how long training has stood still for them.
    time: Duration,
    has_warned_of_room: bool,
    has_warned_of_time: bool,
}

impl Taken {
    /// Of a run that begins like this, and the step of its last checkpoint.
    pub(super) fn of_resumed(config: &Config, from: Option<&Checkpoint>) -> (Option<u64>, Self) {
        let step = from.map(|from| from.manifest().state.step);
        match from.is_some_and(|from| config.is_snapshot(from.path())) {
            true => (None, Self { last: step, ..Self::default() }),
            false => (step, Self::default()),
        }
    }
}

/// The share of a run's time that snapshots may take without a warning.
const MUCH: f64 = 0.2;

/// Snapshots after which that share is looked at.
const SEVERAL: u64 = 4;

impl Run<'_> {
    pub(super) fn snapshot_is_due(&self, step: u64) -> bool {
        let is_due = step.is_multiple_of(self.config.checkpoint.snapshot_every);
        is_due && self.session.takes_snapshots() && !self.session.has_ended()
    }

    pub(super) fn take_snapshot(&mut self) -> Result<()> {
        // As of a checkpoint: there is no evaluation half done in it.
        self.conclude_evaluation()?;
        let started = Instant::now();
        if !self.session.has_room_for_snapshot()? {
            let folder = self.config.snapshot_dir().unwrap_or_default();
            let folder = folder.display();
            return self.warn_of_room(&format!(
                "{folder}, of this machine or of another, has no room for another snapshot"
            ));
        }
        let taken = self.session.take_snapshot()?;
        let took = started.elapsed();
        self.saving += took;
        let report = match taken {
            Ok(report) => report,
            Err(reason) => return self.warn_of_room(&reason),
        };
        self.snapshots.last = Some(self.session.steps());
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
        report
            .warnings
            .iter()
            .try_for_each(|warning| self.reporter.warning(warning, Map::new()))?;
        self.warn_of_time()
    }

    fn warn_of_room(&mut self, reason: &str) -> Result<()> {
        if std::mem::replace(&mut self.snapshots.has_warned_of_room, true) {
            return Ok(());
        }
        let message = format!("{reason}: training continues, and the last one stays");
        self.reporter.warning(&message, Map::new())
    }

    fn warn_of_time(&mut self) -> Result<()> {
        let Taken { number, time, has_warned_of_time, .. } = self.snapshots;
        let share = time.as_secs_f64() / self.reporter.seconds().max(f64::MIN_POSITIVE);
        if number < SEVERAL || share < MUCH || has_warned_of_time {
            return Ok(());
        }
        self.snapshots.has_warned_of_time = true;
        let message = format!(
            "snapshots take {:.0} % of the time: take fewer (--snapshot-every, now {})",
            share * 100.0,
            count(self.config.checkpoint.snapshot_every)
        );
        self.reporter.warning(&message, Map::new())
    }

    /// Says what snapshots have cost. They go where the end of the run is saved.
    pub(super) fn end_snapshots(&mut self) -> Result<()> {
        let Taken { number, time, .. } = self.snapshots;
        if number > 0 {
            self.reporter.note(&format!(
                "training stood still for {} in {} of {}",
                count(number) + if number == 1 { " snapshot" } else { " snapshots" },
                duration(time.as_secs_f64()),
                duration(self.reporter.seconds())
            ));
        }
        let own = self.config.checkpoint.snapshot_dir.as_ref();
        match (&self.config.checkpoint.dir, own.filter(|_| number > 0)) {
            (Some(_), _) => {
                let warnings = self.session.remove_snapshots();
                warnings.iter().try_for_each(|text| self.reporter.warning(text, Map::new()))
            }
            (None, Some(folder)) => {
                let folder = folder.display();
                self.reporter.note(&format!("the last snapshot stays in {folder}, in memory"));
                Ok(())
            }
            (None, None) => Ok(()),
        }
    }
}
