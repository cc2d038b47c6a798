//! What is kept in the output folder: what was asked for and the plan (`tune.toml`), the
//! configuration that trials start from (`base.toml`), and a line for each result (`trials.jsonl`).

use super::plan::Plan;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::metrics::{EvalMetric, EvalMetrics};
use crate::report::output::write_file;
use crate::state::checkpoint::first_difference;
use crate::system::input::read_text;
use headlong_device::files::GrowingFile;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The name of the file of results.
pub const RESULTS: &str = "trials.jsonl";
const ASKED: &str = "tune.toml";
const BASE: &str = "base.toml";

/// Everything that decides the results, besides the configuration that trials start from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// The training files, by content.
    pub data: Vec<String>,
    pub valid: Vec<String>,
    /// `--config FILE` with its content, or `--auto` with the label.
    pub start: String,
    pub set: Vec<String>,
    pub seed: u64,
    /// None where the number of trials was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minutes: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trials: Option<usize>,
    /// The space as TOML; empty: the one that fits the base.
    pub space: String,
    /// `cpu` or `cuda`: their sums differ in the last bits.
    pub device: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    asked: Asked,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    plan: Option<Plan>,
}

/// Which rows a trial is trained on and scored with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scored {
    /// A fold of the training files; the rest is trained on.
    Fold(u64),
    /// Rows that no trial has seen; all others are trained on.
    Final,
}

/// What is done in one run of the training program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Task {
    pub trial: usize,
    pub scored: Scored,
    /// Where it ends; it begins where the trial has got so far.
    pub epochs: f64,
}

/// What came of a task: a line of `trials.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub trial: usize,
    pub scored: Scored,
    pub epochs: f64,
    pub settings: serde_json::Map<String, serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<EvalMetrics>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_digest: Option<String>,
    /// Why it has no metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Of the process; no result depends on it.
    pub seconds: f64,
    /// Of these, before and after training.
    pub start_seconds: f64,
}

/// The output folder, locked.
pub struct Journal {
    folder: PathBuf,
    asked: Asked,
    plan: Option<Plan>,
    lines: Vec<Line>,
    file: GrowingFile,
}

impl fmt::Display for Scored {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fold(fold) => write!(formatter, "fold-{fold}"),
            Self::Final => formatter.write_str("final"),
        }
    }
}

impl Line {
    pub fn score(&self, metric: EvalMetric) -> Option<f64> {
        self.metrics?.score(metric)
    }

    fn is_of(&self, task: &Task) -> bool {
        (self.trial, self.scored) == (task.trial, task.scored) && self.epochs == task.epochs
    }
}

/// The configuration that a former run in `folder` started from.
///
/// # Errors
/// A file that cannot be read.
pub fn base_of(folder: &Path) -> Result<Option<Config>> {
    let path = folder.join(BASE);
    // Written last: with it the folder is one that `tune` has begun in.
    match folder.join(ASKED).exists() {
        true => Config::from_file(&path).map(Some),
        false => Ok(None),
    }
}

impl Journal {
    /// What was asked for.
    pub fn asked(&self) -> &Asked {
        &self.asked
    }

    /// Opens the folder of a run, or begins one there with the configuration `base`.
    ///
    /// # Errors
    /// A folder in which something else was asked for; one that another process works in; files
    /// that are damaged.
    pub fn open(folder: &Path, asked: Asked, base: &Config) -> Result<Self> {
        std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let path = folder.join(RESULTS);
        let mut file = GrowingFile::open(&path, true).map_err(Error::io("write", &path))?;
        let kept = kept_in(folder)?;
        let Some(kept) = kept else {
            if std::fs::metadata(&path).is_ok_and(|found| found.len() > 0) {
                let message =
                    format!("{} is of another program: name another folder", path.display());
                return Err(Error::config("--output-dir", message));
            }
            write_file(&folder.join(BASE), &base.to_commented_toml())?;
            let journal =
                Self { folder: folder.to_owned(), asked, plan: None, lines: Vec::new(), file };
            journal.keep()?;
            return Ok(journal);
        };
        refuse_other(folder, &asked, &kept.asked)?;
        let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        let (lines, whole) = parse(&text, &path)?;
        if whole < text.len() {
            drop(file);
            file =
                GrowingFile::replace(&path, &text[..whole]).map_err(Error::io("write", &path))?;
        }
        Ok(Self { folder: folder.to_owned(), asked, plan: kept.plan, lines, file })
    }

    fn keep(&self) -> Result<()> {
        let kept = Kept { asked: self.asked.clone(), plan: self.plan.clone() };
        let text = toml::to_string(&kept).map_err(Error::failed("the plan cannot be written"))?;
        let head =
            "# What `headlong tune` was asked for, and its plan: the same command resumes.\n";
        write_file(&self.folder.join(ASKED), &format!("{head}{text}"))
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// Keeps the plan: from now on nothing else decides.
    pub fn decide(&mut self, plan: Plan) -> Result<()> {
        self.plan = Some(plan);
        self.keep()
    }

    /// What came of a task, where that is known.
    pub fn line(&self, task: &Task) -> Option<&Line> {
        self.lines.iter().find(|line| line.is_of(task))
    }

    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Adds a result, in the file first.
    pub fn add(&mut self, line: Line) -> Result<()> {
        let text = serde_json::to_string(&line).map_err(Error::failed("a result is no JSON"))?;
        let written = self.file.write_all(format!("{text}\n").as_bytes());
        written.map_err(Error::io("write", self.folder.join(RESULTS)))?;
        self.lines.push(line);
        Ok(())
    }
}

fn kept_in(folder: &Path) -> Result<Option<Kept>> {
    let path = folder.join(ASKED);
    let text = match read_text(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(Error::io("read", &path))?,
    };
    let parsed = toml::from_str(&text);
    parsed.map(Some).map_err(Error::failed(format!("{} is damaged", path.display())))
}

fn refuse_other(folder: &Path, now: &Asked, then: &Asked) -> Result<()> {
    let Some(difference) = first_difference("asked", now, then) else { return Ok(()) };
    let key = difference.key.trim_start_matches("asked.");
    let message = format!(
        "{} has begun with {key} {}, now it is {}: name another folder",
        folder.display(),
        difference.found,
        difference.expected
    );
    Err(Error::config("--output-dir", message))
}

/// The lines of a file, and how many bytes of it are whole lines: a killed process may have left a
/// part of one.
pub fn parse(text: &str, path: &Path) -> Result<(Vec<Line>, usize)> {
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    let mut lines = Vec::new();
    for (number, line) in text[..whole].lines().enumerate() {
        let place = format!("{}:{} is no result of a trial", path.display(), number + 1);
        lines.push(serde_json::from_str(line).map_err(Error::failed(place))?);
    }
    Ok((lines, whole))
}
