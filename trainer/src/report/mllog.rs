//! `--mllog FILE`: what a run does, in the lines that MLPerf's rules ask for.
//!
//! A line is `:::MLLOG ` and an object: time in ms, the kind of event, a key, a value, and
//! metadata: the place in the source, and where the run stands (`epoch_num`, `step`). Which keys a
//! model needs is in `hyperparameters.rs`. Source: mlcommons/logging 4.1.68, the compliance
//! checker's rules of training 2.1.0 (DLRM) and 6.0.0 (DLRM-DCNv2).
//!
//! ```text
//! cache_clear, submission_*, init_start      before anything is read
//! the model's settings, init_stop            before the first step
//! run_start
//!   block_start, block_stop                  from one evaluation to the next
//!   eval_start, eval_stop, eval_accuracy     eval_stop when the metrics are known: the next block
//!                                            has begun by then
//! run_stop                                   success: the target was reached; aborted: it was not
//! ```
//!
//! A run that resumes from a checkpoint continues with its log: lines of steps after the checkpoint
//! are taken out, since these steps come again.

mod hyperparameters;

use crate::config::Config;
use crate::error::{Error, Result};
use headlong_device::files::GrowingFile;
use serde_json::{Map, Value, json};
use std::io::{ErrorKind, Write as _};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// What every line begins with.
pub const TOKEN: &str = ":::MLLOG ";

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    pub step: u64,
    /// The part of the epochs that is done: 0.05 after the first twentieth of the first.
    pub epoch: f64,
}

#[derive(Debug)]
pub struct MlLog {
    file: GrowingFile,
    path: PathBuf,
    has_begun: bool,
    has_eval_samples: bool,
    /// Where the block began that has not ended.
    block: Option<f64>,
}

impl MlLog {
    /// Begins a log, or continues with one: `resumed` is the step of the checkpoint that the run
    /// resumes from.
    pub fn open(path: &Path, config: &Config, resumed: Option<u64>) -> Result<Self> {
        let (kept, file) = match resumed {
            Some(step) => keep_until(path, step)?,
            None => (Vec::new(), GrowingFile::open(path, false).map_err(Error::io("write", path))?),
        };
        let has = |key: &str| kept.iter().any(|line| line["key"] == key);
        let block = kept
            .iter()
            .rev()
            .find(|line| line["key"] == "block_start" || line["key"] == "block_stop");
        let block = block.filter(|line| line["key"] == "block_start");
        let mut log = Self {
            file,
            path: path.to_owned(),
            has_begun: has("run_start"),
            has_eval_samples: has("eval_samples"),
            block: block.and_then(|line| line["metadata"]["first_epoch_num"].as_f64()),
        };
        if !log.has_begun {
            log.write_head(config)?;
        }
        Ok(log)
    }

    fn write_head(&mut self, config: &Config) -> Result<()> {
        let about = &config.mlperf;
        self.point("cache_clear", json!(true))?;
        self.point("submission_benchmark", json!(hyperparameters::benchmark(config)))?;
        self.point("submission_org", json!(about.org))?;
        self.point("submission_division", json!(about.division))?;
        self.point("submission_status", json!(about.status))?;
        self.point("submission_platform", json!(about.platform))?;
        self.write("INTERVAL_START", "init_start", Value::Null, json!({}))
    }

    /// Training begins: the settings, and the start of the run. Nothing in a run that continues.
    pub fn begin(
        &mut self,
        config: &Config,
        train_samples: u64,
        eval_samples: Option<u64>,
    ) -> Result<()> {
        if self.has_begun {
            return Ok(());
        }
        self.has_begun = true;
        for (key, value) in hyperparameters::settings(config) {
            self.point(key, value)?;
        }
        for tensor in hyperparameters::tensors(config) {
            self.write(
                "POINT_IN_TIME",
                "weights_initialization",
                Value::Null,
                json!({ "tensor": tensor }),
            )?;
        }
        self.point("train_samples", json!(train_samples))?;
        eval_samples.map_or(Ok(()), |samples| self.eval_samples(samples))?;
        self.write("INTERVAL_END", "init_stop", Value::Null, json!({}))?;
        self.write("INTERVAL_START", "run_start", Value::Null, json!({}))
    }

    fn eval_samples(&mut self, samples: u64) -> Result<()> {
        self.has_eval_samples = true;
        self.point("eval_samples", json!(samples))
    }

    /// A step is about to be trained: a block begins, unless it has. `epochs` is its planned
    /// length.
    pub fn train(&mut self, at: Place, epochs: f64) -> Result<()> {
        if self.block.is_some() {
            return Ok(());
        }
        self.block = Some(at.epoch);
        let metadata =
            json!({ "first_epoch_num": at.epoch, "epoch_count": epochs, "step": at.step });
        self.write("INTERVAL_START", "block_start", Value::Null, metadata)
    }

    fn end_block(&mut self, at: Place) -> Result<()> {
        let Some(first) = self.block.take() else { return Ok(()) };
        let metadata = json!({ "first_epoch_num": first, "step": at.step });
        self.write("INTERVAL_END", "block_stop", Value::Null, metadata)
    }

    /// The forward passes of an evaluation begin.
    pub fn eval_start(&mut self, at: Place) -> Result<()> {
        self.end_block(at)?;
        self.write("INTERVAL_START", "eval_start", Value::Null, at.metadata())
    }

    /// The metrics of the evaluation at `at` are known.
    pub fn eval_stop(
        &mut self,
        at: Place,
        auc: Option<f64>,
        samples: u64,
        samples_per_s: f64,
    ) -> Result<()> {
        if !self.has_eval_samples {
            self.eval_samples(samples)?;
        }
        self.write("INTERVAL_END", "eval_stop", Value::Null, at.metadata())?;
        let throughput = json!({ "throughput": samples_per_s });
        self.write("POINT_IN_TIME", "tracked_stats", throughput, at.metadata())?;
        // One class alone has no AUC; the checker wants a number.
        self.write("POINT_IN_TIME", "eval_accuracy", json!(auc.unwrap_or(0.0)), at.metadata())
    }

    /// The run ends: with success where it has reached what it was to reach.
    pub fn stop(&mut self, at: Place, success: bool) -> Result<()> {
        self.end_block(at)?;
        let mut metadata = at.metadata();
        metadata["status"] = json!(if success { "success" } else { "aborted" });
        self.write("INTERVAL_END", "run_stop", Value::Null, metadata)
    }

    #[track_caller]
    fn point(&mut self, key: &str, value: Value) -> Result<()> {
        self.write("POINT_IN_TIME", key, value, json!({}))
    }

    #[track_caller]
    fn write(&mut self, kind: &str, key: &str, value: Value, mut metadata: Value) -> Result<()> {
        let place = Location::caller();
        (metadata["file"], metadata["lineno"]) = (json!(place.file()), json!(place.line()));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut line = Map::new();
        for (name, value) in [
            ("namespace", json!("")),
            ("time_ms", json!(now.as_millis() as u64)),
            ("event_type", json!(kind)),
            ("key", json!(key)),
            ("value", value),
            ("metadata", metadata),
        ] {
            line.insert(name.to_owned(), value);
        }
        // In one piece: a run that is killed leaves whole lines.
        let text = format!("{TOKEN}{}\n", Value::Object(line));
        self.file.write_all(text.as_bytes()).map_err(Error::io("write", &self.path))
    }
}

impl Place {
    fn metadata(self) -> Value {
        json!({ "epoch_num": self.epoch, "step": self.step })
    }
}

/// Leaves in a log what had happened up to `step`, and gives these lines and the log. A log that is
/// not there is empty.
fn keep_until(path: &Path, step: u64) -> Result<(Vec<Value>, GrowingFile)> {
    let text = match std::fs::metadata(path).and_then(|found| match found.is_file() {
        true => std::fs::read_to_string(path),
        // What a pipe was given is gone.
        false => Ok(String::new()),
    }) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(Error::io("read", path)(error)),
    };
    let (mut kept, mut lines) = (Vec::new(), String::new());
    // Note: the last line may be half written.
    for (number, line) in text.split_inclusive('\n').filter(|line| line.ends_with('\n')).enumerate()
    {
        let parsed =
            line.strip_prefix(TOKEN).and_then(|line| serde_json::from_str::<Value>(line).ok());
        let Some(parsed) = parsed else {
            let message = format!(
                "{}:{}: not a line of an MLPerf log; name another file",
                path.display(),
                number + 1
            );
            return Err(Error::config("--mllog", message));
        };
        let is_later = parsed["metadata"]["step"].as_u64().is_some_and(|at| at > step);
        if !is_later && parsed["key"] != "run_stop" {
            lines.push_str(line);
            kept.push(parsed);
        }
    }
    let file = GrowingFile::replace(path, &lines).map_err(Error::io("write", path))?;
    Ok((kept, file))
}
