//! `history.jsonl` in a run's output folder: the events of the JSON log, as far as a report of the
//! run needs them (`headlong report`), kept by every run.
//!
//! Its size is bounded, however long the run: from some thousand on, neighbouring `step` events are
//! merged into one, first two, then four and so on, and evaluations are left out likewise. No user
//! has asked for it, so no run ends because it cannot be written.

pub mod read;

use super::events::{At, Eval, Step, Times};
use super::json_log::{JsonLog, LogTarget};
use crate::error::{Error, Result};
use serde_json::json;
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The file's name.
pub const FILE_NAME: &str = "history.jsonl";

/// The event that begins what one process has written.
const BEGIN: &str = "history";

/// So many events of a kind are kept as they are.
const KEPT_ALL: u64 = 2000;

/// From then on, after so many lines more of them are merged into one.
const KEPT_NEXT: u64 = 1000;

/// Warnings, checkpoints and whatever else comes often: the first ones.
const MOST_OTHERS: u64 = 1000;

/// How many events become a line.
#[derive(Debug, Clone, Copy, Default)]
struct Thinning {
    lines: u64,
}

impl Thinning {
    fn events_of_line(self) -> u64 {
        match self.lines.checked_sub(KEPT_ALL) {
            None => 1,
            Some(later) => 2 << (later / KEPT_NEXT).min(60),
        }
    }
}

/// Steps that become one line.
#[derive(Debug, Clone, Copy)]
struct Merged {
    events: u64,
    samples: f64,
    loss_sum: f64,
    seconds: f64,
    wait_s: f64,
    eval_s: f64,
    last: Step,
}

impl Merged {
    fn of(step: &Step, samples: u64) -> Self {
        let samples = samples as f64;
        let seconds = if step.samples_per_s > 0.0 { samples / step.samples_per_s } else { 0.0 };
        Self {
            events: 1,
            samples,
            loss_sum: step.loss * samples,
            seconds,
            wait_s: step.data_wait_share * seconds,
            eval_s: step.eval_share * seconds,
            last: *step,
        }
    }

    fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.samples += other.samples;
        self.loss_sum += other.loss_sum;
        self.seconds += other.seconds;
        self.wait_s += other.wait_s;
        self.eval_s += other.eval_s;
        self.last = other.last;
    }

    fn to_step(self) -> Step {
        if self.events == 1 || self.samples <= 0.0 || self.seconds <= 0.0 {
            return self.last;
        }
        Step {
            loss: self.loss_sum / self.samples,
            samples_per_s: self.samples / self.seconds,
            data_wait_share: self.wait_s / self.seconds,
            eval_share: self.eval_s / self.seconds,
            ..self.last
        }
    }
}

/// Writes the history of a run.
#[derive(Debug)]
pub struct History {
    log: JsonLog,
    at: At,
    steps: Thinning,
    evals: Thinning,
    evals_left_out: u64,
    merged: Option<Merged>,
    others: u64,
}

impl History {
    /// Begins the history of a run in `folder`, which is made where it is not there, or, where it
    /// `appends`, continues with it. The run is at `at`.
    ///
    /// # Errors
    /// The file cannot be written; another process writes it; it is a file of something else.
    pub fn open(folder: &Path, appends: bool, at: At, started: Instant) -> Result<Self> {
        std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let path = folder.join(FILE_NAME);
        refuse_others(&path)?;
        let mut log = JsonLog::open(&LogTarget::File(path), appends, started)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let folder = std::env::current_dir().unwrap_or_default();
        log.write(
            BEGIN,
            &json!({ "started_unix_s": now, "working_folder": folder.to_string_lossy() }),
        )?;
        log.set_position(at);
        let (steps, evals) = (Thinning::default(), Thinning::default());
        Ok(Self { log, at, steps, evals, evals_left_out: 0, merged: None, others: 0 })
    }

    /// Progress at `at`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn step(&mut self, at: At, step: &Step) -> Result<()> {
        let next = Merged::of(step, at.samples.saturating_sub(self.at.samples));
        self.at = at;
        match &mut self.merged {
            Some(merged) => merged.add(&next),
            none => *none = Some(next),
        }
        let is_full = |merged: &Merged| merged.events >= self.steps.events_of_line();
        if self.merged.as_ref().is_some_and(is_full) { self.write_steps() } else { Ok(()) }
    }

    fn write_steps(&mut self) -> Result<()> {
        let Some(merged) = self.merged.take() else { return Ok(()) };
        self.steps.lines += 1;
        self.log.set_position(self.at);
        self.log.write("step", &merged.to_step())
    }

    /// An evaluation of the weights at `at`.
    ///
    /// # Errors
    /// As [`History::step`].
    pub fn eval(&mut self, at: At, eval: &Eval) -> Result<()> {
        self.evals_left_out += 1;
        if self.evals_left_out < self.evals.events_of_line() {
            return Ok(());
        }
        self.evals_left_out = 0;
        self.evals.lines += 1;
        self.write_at(at, "eval", eval)
    }

    /// Where the time went, before the run's last event.
    ///
    /// # Errors
    /// As [`History::step`].
    pub fn times(&mut self, at: At, times: &Times) -> Result<()> {
        self.write_steps()?;
        self.write_at(at, "times", times)
    }

    /// Any other event.
    ///
    /// # Errors
    /// As [`History::step`].
    pub fn other<T: serde::Serialize>(&mut self, at: At, event: &str, fields: &T) -> Result<()> {
        self.others += 1;
        let is_of_run = ["start", "done", "error", "ensemble"].contains(&event);
        if !is_of_run && self.others > MOST_OTHERS {
            return Ok(());
        }
        if is_of_run {
            self.write_steps()?;
        }
        self.write_at(at, event, fields)
    }

    fn write_at<T: serde::Serialize>(&mut self, at: At, event: &str, fields: &T) -> Result<()> {
        self.log.set_position(at);
        self.log.write(event, fields)
    }
}

/// Leaves a file alone that is no history.
fn refuse_others(path: &Path) -> Result<()> {
    let file = match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => std::fs::File::open(path),
        Ok(_) => Err(std::io::Error::other("it is no file")),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
    };
    let mut first = Vec::new();
    let file = file.map_err(Error::io("write", path))?;
    let mut reader = BufReader::new(std::io::Read::take(file, 64));
    reader.read_until(b'\n', &mut first).map_err(Error::io("read", path))?;
    let begin = format!("{{\"event\":\"{BEGIN}\"");
    match first.is_empty() || first.starts_with(begin.as_bytes()) {
        true => Ok(()),
        false => {
            let error = std::io::Error::other("it is there, and no history of a run");
            Err(Error::io("write", path)(error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(loss: f64) -> Step {
        Step {
            loss,
            learning_rate: 0.1,
            samples_per_s: 100.0,
            data_wait_share: 0.5,
            eval_share: 0.0,
            scaling: None,
        }
    }

    fn lines(folder: &Path, event: &str) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(folder.join(FILE_NAME)).unwrap();
        let all = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        all.filter(|line| line["event"] == event).collect()
    }

    #[test]
    fn a_long_run_has_a_short_history() {
        let folder = tempfile::tempdir().unwrap();
        let (path, now) = (folder.path(), Instant::now());
        let mut history = History::open(path, false, At::default(), now).unwrap();
        let events = 20_000;
        for number in 1..=events {
            let at = At { step: number, samples: 10 * number };
            history.step(at, &step(number as f64)).unwrap();
        }
        history.other(At::default(), "done", &json!({})).unwrap();
        let found = lines(path, "step");
        // 2,000 as they are, then 1,000 lines of 2, of 4, of 8, and the rest of 16.
        assert_eq!(found.len(), 2000 + 3000 + 250);
        assert_eq!((&found[1999]["loss"], &found[1999]["step"]), (&json!(2000.0), &json!(2000)));
        assert_eq!((&found[2000]["loss"], &found[2000]["step"]), (&json!(2001.5), &json!(2002)));
        let losses = found.iter().map(|line| line["loss"].as_f64().unwrap());
        let samples = found.iter().map(|line| line["samples"].as_u64().unwrap());
        let (mut before, mut sum) = (0, 0.0);
        for (loss, samples) in losses.zip(samples) {
            sum += loss * (samples - before) as f64;
            before = samples;
        }
        // No sample is lost or counted twice.
        assert_eq!(sum, 10.0 * (events * (events + 1) / 2) as f64);
    }

    #[test]
    fn what_is_no_history_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (path, at) = (folder.path().join(FILE_NAME), At::default());
        std::fs::write(&path, "my own file\n").unwrap();
        assert!(History::open(folder.path(), false, at, Instant::now()).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "my own file\n");
        std::fs::write(&path, "").unwrap();
        drop(History::open(folder.path(), false, at, Instant::now()).unwrap());
        drop(History::open(folder.path(), true, at, Instant::now()).unwrap());
        assert_eq!(lines(folder.path(), BEGIN).len(), 2);
        drop(History::open(folder.path(), false, at, Instant::now()).unwrap());
        assert_eq!(lines(folder.path(), BEGIN).len(), 1);
    }
}
