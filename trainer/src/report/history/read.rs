//! What a run has kept of itself, read back.
//!
//! Several processes may have written one after another: a run that was resumed, whose steps after
//! the checkpoint came again, and the models of an ensemble.

use super::BEGIN;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::metrics::{EvalMetric, EvalMetrics};
use crate::report::events::{Done, Eval, Start, Times};
use headlong_reader::io::read_small_text;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Far more than is ever written.
const MOST_BYTES: u64 = 64 << 20;

/// A run: one model, or several.
#[derive(Debug, Default)]
pub struct Kept {
    pub models: Vec<Model>,
    /// What the mean of several models came to, where that was evaluated.
    pub ensemble: Option<Eval>,
    /// Whether the last line is cut off, as a crash leaves it.
    pub is_cut: bool,
}

/// What is known of one model.
#[derive(Debug)]
pub struct Model {
    /// Of the process that trained last.
    pub start: Start,
    pub processes: Vec<Process>,
    pub steps: Vec<StepAt>,
    pub evals: Vec<EvalAt>,
    pub warnings: Vec<String>,
    /// None of a run that continues, was killed or has failed.
    pub done: Option<DoneAt>,
    pub times: Option<Times>,
    /// Seconds of the process that trained last, as far as its events tell.
    pub last_time_s: f64,
}

/// One that has trained.
#[derive(Debug, Clone, Deserialize)]
pub struct Process {
    pub started_unix_s: u64,
    pub working_folder: PathBuf,
    /// The step from which it resumed.
    #[serde(skip)]
    pub from_step: u64,
}

/// Progress; numbers that are not finite are left out of the log.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct StepAt {
    pub step: u64,
    pub samples: u64,
    pub loss: Option<f64>,
    pub learning_rate: Option<f64>,
    pub samples_per_s: Option<f64>,
}

/// An evaluation of the weights at a step.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct EvalAt {
    pub step: u64,
    #[serde(flatten)]
    pub eval: Eval,
}

/// The end of a run.
#[derive(Debug, Clone, Deserialize)]
pub struct DoneAt {
    pub step: u64,
    pub samples: u64,
    #[serde(flatten)]
    pub done: Done,
}

#[derive(Deserialize)]
struct Ensemble {
    ensemble_eval: Eval,
}

#[derive(Deserialize)]
struct Message {
    message: String,
}

/// Reads the history at `path`.
///
/// # Errors
/// A file that cannot be read; a damaged line, by its number; a history without a run.
pub fn read(path: &Path) -> Result<Kept> {
    let text = read_small_text(path, MOST_BYTES).map_err(Error::io("read", path))?;
    let mut kept = Kept::default();
    let mut process = None;
    let mut open: Option<usize> = None;
    let ends_whole = text.is_empty() || text.ends_with('\n');
    let count = text.lines().count();
    for (index, line) in text.lines().enumerate() {
        let place = Place { path, line: index + 1 };
        let value: Value = match serde_json::from_str(line) {
            Ok(value) => value,
            Err(_) if index + 1 == count && !ends_whole => {
                kept.is_cut = true;
                break;
            }
            Err(error) => return Err(place.damaged(&in_one_line(&error))),
        };
        let event = value["event"].as_str().unwrap_or_default().to_owned();
        match &*event {
            BEGIN => process = Some(place.parse::<Process>(value)?),
            "start" => open = Some(kept.begin(place.parse(value.clone())?, process.take(), &value)),
            "ensemble" => kept.ensemble = Some(place.parse::<Ensemble>(value)?.ensemble_eval),
            _ => {
                let model = open.and_then(|at| kept.models.get_mut(at));
                let model = model.ok_or_else(|| place.damaged("expected a `start` before it"))?;
                model.add(&event, value, &place)?;
            }
        }
    }
    match kept.models.is_empty() {
        true => Err(Place { path, line: count.max(1) }.damaged("it ends before the run began")),
        false => Ok(kept),
    }
}

impl Kept {
    /// A process begins to train: a new model, or one that is resumed. Which one of all it is.
    fn begin(&mut self, start: Start, process: Option<Process>, event: &Value) -> usize {
        let from_step = event["step"].as_u64().unwrap_or(0);
        let process = process.map(|process| Process { from_step, ..process });
        let known = self.models.iter().rposition(|model| model.start.seed == start.seed);
        // A run that is resumed has begun with its seed, whatever is asked for now.
        let known = known.or_else(|| (from_step > 0).then(|| self.models.len().checked_sub(1))?);
        match known {
            Some(at) if from_step > 0 => {
                let model = &mut self.models[at];
                model.resume(start, process, from_step);
                at
            }
            _ => {
                // It is trained from the beginning again.
                self.models.retain(|model| model.start.seed != start.seed);
                self.models.push(Model::new(start, process));
                self.models.len() - 1
            }
        }
    }
}

impl Model {
    fn new(start: Start, process: Option<Process>) -> Self {
        Self {
            start,
            processes: process.into_iter().collect(),
            steps: Vec::new(),
            evals: Vec::new(),
            warnings: Vec::new(),
            done: None,
            times: None,
            last_time_s: 0.0,
        }
    }

    fn resume(&mut self, start: Start, process: Option<Process>, from_step: u64) {
        self.start = start;
        self.processes.extend(process);
        self.steps.retain(|at| at.step <= from_step);
        self.evals.retain(|at| at.step <= from_step);
        (self.done, self.times, self.last_time_s) = (None, None, 0.0);
    }

    fn add(&mut self, event: &str, value: Value, place: &Place<'_>) -> Result<()> {
        self.last_time_s = value["time_s"].as_f64().unwrap_or(self.last_time_s);
        match event {
            "step" => self.steps.push(place.parse(value)?),
            "eval" => self.evals.push(place.parse(value)?),
            "done" => self.done = Some(place.parse(value)?),
            "times" => self.times = Some(place.parse(value)?),
            "warning" | "error" => {
                let message = place.parse::<Message>(value)?.message;
                self.warnings.push(format!("{event}: {message}"));
            }
            // A later program may know more.
            _ => {}
        }
        Ok(())
    }

    /// The evaluation whose weights `eval` and `predict` take by default, and its step: the best
    /// one where its weights are saved, else the last.
    pub fn of_kept_weights(&self) -> Option<(u64, EvalMetrics)> {
        let config: Option<Config> = serde_json::from_value(self.start.config.clone()).ok();
        match config.is_some_and(|config| config.saves_best()) {
            true => self.best(),
            false => self.evals.last().map(|at| (at.step, at.eval.metrics)),
        }
    }

    /// The best evaluation, by `eval.metric`, and its step.
    pub fn best(&self) -> Option<(u64, EvalMetrics)> {
        if let Some(best) = self.done.as_ref().and_then(|done| done.done.best_eval) {
            return Some((best.step, best.metrics));
        }
        let metric = self.start.config["eval"]["metric"].clone();
        let metric = serde_json::from_value(metric).unwrap_or(EvalMetric::Auc);
        let scored = self.evals.iter().filter_map(|at| Some((at.eval.metrics.score(metric)?, at)));
        // Of equal ones the first, as training has it.
        let best = scored.reduce(|best, next| if next.0 > best.0 { next } else { best });
        let found = best.map(|(_, at)| at).or(self.evals.last());
        found.map(|at| (at.step, at.eval.metrics))
    }

    /// Steps and samples so far.
    pub fn reached(&self) -> (u64, u64) {
        let done = self.done.as_ref().map(|done| (done.step, done.samples));
        let last = || self.steps.last().map(|at| (at.step, at.samples));
        done.or_else(last).unwrap_or((0, 0))
    }
}

/// What is wrong in a line, by its column: the library counts the lines of what it is given.
fn in_one_line(error: &serde_json::Error) -> String {
    let (text, column) = (error.to_string(), error.column());
    let place = format!(" at line {} column {column}", error.line());
    text.strip_suffix(&place).map_or(text.clone(), |what| format!("{what}, column {column}"))
}

/// Where something is wrong.
struct Place<'a> {
    path: &'a Path,
    line: usize,
}

impl Place<'_> {
    fn parse<T: DeserializeOwned>(&self, value: Value) -> Result<T> {
        serde_json::from_value(value).map_err(|error| self.damaged(&error.to_string()))
    }

    fn damaged(&self, what: &str) -> Error {
        let (path, line) = (self.path.display(), self.line);
        let message = format!(
            "{path}: line {line}: not a line of a run's history ({what}); a new run \
             with this --output-dir replaces it"
        );
        Error::config("RUN_DIR", message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{At, Step};
    use serde_json::json;
    use std::time::Instant;

    fn start(seed: u64) -> Value {
        json!({
            "version": "0", "command": "", "config": {}, "plan": {}, "seed": seed,
            "data": {
                "train": [], "train_rows": null, "valid": [], "valid_rows": null,
                "synthetic": false
            }
        })
    }

    /// Writes a process of `seed` that trains steps `from + 1` to `to` and ends, or is killed.
    fn process(folder: &Path, (seed, from, to): (u64, u64, u64), appends: bool) {
        let at = |step: u64| At { step, samples: step * 10 };
        let mut log = super::super::History::open(folder, appends, at(from), Instant::now());
        let log = log.as_mut().unwrap();
        log.other(at(from), "start", &start(seed)).unwrap();
        for step in from + 1..=to {
            let loss = (seed * 1000 + from) as f64;
            let (learning_rate, samples_per_s) = (0.1, 10.0);
            let (data_wait_share, eval_share, scaling) = (0.0, 0.0, None);
            let of =
                Step { loss, learning_rate, samples_per_s, data_wait_share, eval_share, scaling };
            log.step(at(step), &of).unwrap();
        }
    }

    fn losses(model: &Model) -> Vec<(u64, f64)> {
        model.steps.iter().map(|at| (at.step, at.loss.unwrap())).collect()
    }

    #[test]
    fn steps_that_came_again_count_once() {
        let folder = tempfile::tempdir().unwrap();
        process(folder.path(), (1, 0, 4), false);
        process(folder.path(), (1, 2, 5), true);
        let kept = read(&folder.path().join(super::super::FILE_NAME)).unwrap();
        assert_eq!(kept.models.len(), 1);
        let expected = [(1, 1000.0), (2, 1000.0), (3, 1002.0), (4, 1002.0), (5, 1002.0)];
        assert_eq!(losses(&kept.models[0]), expected);
        let from: Vec<u64> = kept.models[0].processes.iter().map(|of| of.from_step).collect();
        assert_eq!(from, [0, 2]);
    }

    /// The best evaluation is shown first where its weights are there.
    #[test]
    fn the_weights_that_are_kept_are_the_best_or_the_last() {
        for (save_every, kept, best) in [(0, 3, 2), (5, 2, 2)] {
            let folder = tempfile::tempdir().unwrap();
            let at = |step: u64| At { step, samples: step * 10 };
            let log = super::super::History::open(folder.path(), false, at(0), Instant::now());
            let mut log = log.unwrap();
            let mut start = start(1);
            start["config"] = json!({ "checkpoint": { "dir": "c", "save_every": save_every } });
            log.other(at(0), "start", &start).unwrap();
            for (step, auc) in [(1, 0.6), (2, 0.7), (3, 0.65)] {
                let eval = json!({
                    "auc": auc, "logloss": 0.5, "ne": 0.9, "accuracy": 0.7, "base_rate": 0.3,
                    "eval_samples": 10, "eval_s": 0.1
                });
                log.eval(at(step), &serde_json::from_value(eval).unwrap()).unwrap();
            }
            let found = read(&folder.path().join(super::super::FILE_NAME)).unwrap();
            let steps = [found.models[0].of_kept_weights(), found.models[0].best()];
            assert_eq!(steps.map(|found| found.unwrap().0), [kept, best], "{save_every}");
        }
    }

    #[test]
    fn models_are_told_apart_by_their_seeds() {
        let folder = tempfile::tempdir().unwrap();
        process(folder.path(), (1, 0, 2), false);
        process(folder.path(), (2, 0, 1), true);
        process(folder.path(), (2, 1, 2), true);
        // Its folder was lost: it is trained again.
        process(folder.path(), (1, 0, 1), true);
        let kept = read(&folder.path().join(super::super::FILE_NAME)).unwrap();
        let seeds: Vec<u64> = kept.models.iter().map(|model| model.start.seed).collect();
        assert_eq!(seeds, [2, 1]);
        assert_eq!(losses(&kept.models[0]), [(1, 2000.0), (2, 2001.0)]);
        assert_eq!(losses(&kept.models[1]), [(1, 1000.0)]);
    }

    #[test]
    fn damage_is_named_by_its_line_and_a_cut_end_is_none() {
        let folder = tempfile::tempdir().unwrap();
        process(folder.path(), (1, 0, 2), false);
        let path = folder.path().join(super::super::FILE_NAME);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 5]).unwrap();
        let kept = read(&path).unwrap();
        assert!(kept.is_cut && kept.models[0].steps.len() == 1);
        for (damaged, line) in [
            (text.replacen("\"step\":1", "\"step\":true", 1), "line 3"),
            (text.replacen("{\"event\":\"start\"", "{\"event\":\"st", 1), "line 2"),
            (text.lines().next().unwrap().to_owned() + "\n", "line 1"),
            (text.lines().skip(2).collect::<Vec<_>>().join("\n") + "\n", "line 1"),
        ] {
            std::fs::write(&path, damaged).unwrap();
            let message = read(&path).unwrap_err().to_string();
            assert!(message.contains(line) && message.contains("history.jsonl"), "{message}");
            assert!(!message.contains(" at line "), "{message}");
        }
    }
}
