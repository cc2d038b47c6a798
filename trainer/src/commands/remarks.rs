//! What scripts and people are told about places: where an error is, which rows were skipped.

use crate::config::Config;
use crate::error::Error;
use crate::metrics::EvalMetrics;
use crate::report::{Done, count};
use crate::run::prepare::SYNTHETIC_FOLDER;
use crate::state::checkpoint::CheckpointError;
use crate::system::command_line;
use headlong_reader::{ReaderError, SkipReport};
use serde_json::{Map, Value, json};
use std::path::Path;

/// The fields of the `error` event that identify the place: `file`, `line`, `step`, `key`, as far
/// as the error knows.
pub fn place(error: &Error) -> Map<String, Value> {
    let mut fields = Map::new();
    let mut add = |key: &str, value: Value| fields.insert(key.to_owned(), value);
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        match error.downcast_ref() {
            Some(Error::NotFinite { step, what, .. }) => {
                add("step", json!(step));
                add("place", json!(what));
            }
            Some(Error::Config { key, .. }) => drop(add("key", json!(key))),
            Some(Error::Io { path, .. }) => drop(add("file", json!(path.to_string_lossy()))),
            _ => {}
        }
        match error.downcast_ref() {
            Some(
                ReaderError::BadLine { file, line, .. }
                | ReaderError::Read { file, line, .. }
                | ReaderError::Truncated { file, line, .. }
                | ReaderError::Corrupt { file, line, .. },
            ) => {
                add("file", json!(file.to_string_lossy()));
                add("line", json!(line));
            }
            Some(
                ReaderError::Open { file, .. }
                | ReaderError::Directory { file }
                | ReaderError::Empty { file }
                | ReaderError::Write { file, .. },
            ) => drop(add("file", json!(file.to_string_lossy()))),
            _ => {}
        }
        match error.downcast_ref() {
            Some(
                CheckpointError::Corrupted { file, .. }
                | CheckpointError::WrongSize { file, .. }
                | CheckpointError::MissingFile { file }
                | CheckpointError::Manifest { file, .. },
            ) => drop(add("file", json!(file.to_string_lossy()))),
            Some(
                CheckpointError::OtherModel { path, key, .. }
                | CheckpointError::OtherData { path, key, .. },
            ) => {
                add("file", json!(path.to_string_lossy()));
                add("key", json!(key));
            }
            Some(CheckpointError::NoSpace { path, .. }) => {
                drop(add("file", json!(path.to_string_lossy())))
            }
            _ => {}
        }
        next = error.source();
    }
    fields
}

/// The warning about bad rows that were skipped, and the fields of its event; none where there were
/// none.
pub fn skipped(data: &str, report: &SkipReport) -> Option<(String, Map<String, Value>)> {
    let first = report.first.first()?;
    let rows = if report.total == 1 { "row was" } else { "rows were" };
    let places: Vec<String> = report.first.iter().map(ToString::to_string).collect();
    let message = format!(
        "{} bad {rows} skipped in the {data}; the first: {}",
        count(report.total),
        places.join("; ")
    );
    let mut fields = Map::new();
    fields.insert("skipped".to_owned(), json!(report.total));
    fields.insert("file".to_owned(), json!(first.file.to_string_lossy()));
    fields.insert("line".to_owned(), json!(first.line));
    Some((message, fields))
}

/// The warning about labels that are all the same.
pub fn one_class(samples: u64, label: f32) -> String {
    format!(
        "all {} training samples have the label {label}: a model learns nothing of one class; is \
         this the right column, and are the rows shuffled?",
        count(samples)
    )
}

/// How a sentence continues that begins with "stopped by SIGINT": where, what was saved, how to go
/// on.
pub fn stopped(step: u64, saved: Option<&Path>, is_single_process: bool) -> String {
    let step = count(step);
    let Some(folder) = saved else {
        return format!(
            " at step {step}: nothing was saved; --checkpoint-dir DIR would have kept the model"
        );
    };
    let how = match command_line::resuming(is_single_process) {
        Some(command) => format!("\n  {command}"),
        None => " the same command and --resume".to_owned(),
    };
    format!(" at step {step}: checkpoint {} saved; continue with{how}", folder.display())
}

/// What is lost of a run that ends at `step` without a checkpoint of it: the steps of the last
/// checkpoint and of the last snapshot are known.
pub fn lost(step: u64, (checkpoint, snapshot): (Option<u64>, Option<u64>)) -> String {
    let saved_at = match checkpoint.max(snapshot) {
        None => "nothing".to_owned(),
        Some(step) if checkpoint == Some(step) => format!("step {}", count(step)),
        Some(step) => format!("step {}, a snapshot", count(step)),
    };
    format!("step {} was not saved; the last that this run has saved: {saved_at}", count(step))
}

/// Of a run that may have been too short, on files of the user's: that it was.
pub fn few_steps(config: &Config, steps: u64) -> Option<String> {
    /// Runs of fewer steps have hardly learnt yet.
    const FEW: u64 = 100;
    let of_epochs = config.train.steps.is_none() && !config.data.train.is_empty();
    (of_epochs && steps < FEW).then(|| {
        format!(
            "{} steps are few to learn from: a smaller --batch-size (now {}) makes more of the \
             same rows, more --epochs go over them again",
            count(steps),
            count(config.train.batch_size as u64)
        )
    })
}

/// Of columns, most of whose ids share the row of rare and unknown ones: which they are.
pub fn unseen_ids(shares: &[(String, f64)]) -> Option<String> {
    /// Of fewer, all may be new: users of a later day.
    const MOST: f64 = 0.5;
    let shown = |(column, share): &(String, f64)| format!("{column} {:.0} %", 100.0 * share);
    let many: Vec<String> = shares.iter().filter(|(_, share)| *share > MOST).map(shown).collect();
    (!many.is_empty()).then(|| {
        format!(
            "ids without a row of their own, because they were rare or absent in training: {}; are \
             they written as they were there?",
            many.join(", ")
        )
    })
}

/// Of a model that predicts worse than the base rate would for all samples: that it does.
pub fn worse_than_none(metrics: &EvalMetrics) -> Option<String> {
    let ne = metrics.ne.filter(|&ne| ne > 1.0)?;
    Some(format!(
        "NE {ne:.3} is above 1: the base rate, predicted for every sample, has a lower log loss; a \
         lower learning rate, fewer epochs or --patience may help"
    ))
}

/// What the run came to and where it was written. `reached` is the AUC and the best possible one,
/// where that is known.
pub fn what_was_reached(config: &Config, done: &Done, reached: Option<(f64, f64)>) -> String {
    let mut lines = Vec::new();
    if let Some(best) = done.best_eval.filter(|best| Some(best.step) != done.eval_step) {
        let [auc, logloss] =
            [best.metrics.auc, best.metrics.logloss].map(|value| value.unwrap_or(f64::NAN));
        let step = count(best.step);
        lines.push(format!("best evaluation: step {step}, AUC {auc:.5}, log loss {logloss:.5}"));
    }
    if let Some((auc, best)) = reached {
        lines.push(format!(
            "AUC {auc:.5} of {best:.5}, the best possible on this data: {:.5} below it",
            best - auc
        ));
    }
    if config.data.train.is_empty() {
        lines.push(format!(
            "data written to {}",
            config.run.output_dir.join(SYNTHETIC_FOLDER).display()
        ));
    }
    lines.push(match &config.checkpoint.dir {
        Some(dir) => format!("checkpoints written to {}", dir.display()),
        None => "no checkpoint was asked for; --checkpoint-dir DIR keeps the model".to_owned(),
    });
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn the_place_is_found_below_the_context() {
        let line = ReaderError::Empty { file: "day_0".into() };
        let fields = place(&Error::failed("the training data cannot be read")(line));
        assert_eq!(Value::from(fields), json!({"file": "day_0"}));
        let loss =
            Error::NotFinite { step: 7, what: "output of layer top.0".to_owned(), value: f64::NAN };
        assert_eq!(Value::from(place(&loss)), json!({"step": 7, "place": "output of layer top.0"}));
    }

    #[test]
    fn nothing_is_said_about_no_rows() {
        assert_eq!(skipped("training data", &SkipReport::default()), None);
    }
}
