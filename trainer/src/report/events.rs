//! The events of a run: what the JSON log holds (docs/formats.md, "JSON log").

use crate::metrics::{BestEvaluation, EvalMetrics};
use headlong_reader::io::DataFile;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Start {
    pub version: String,
    pub command: String,
    pub config: Value,
    pub plan: Value,
    pub data: DataSummary,
    /// `train.seed`.
    pub seed: u64,
}

/// The files of a run, with their rows where known.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DataSummary {
    pub train: Vec<DataFile>,
    /// Rows of the training files together.
    pub train_rows: Option<u64>,
    pub valid: Vec<DataFile>,
    /// Rows of the validation files together.
    pub valid_rows: Option<u64>,
    /// Whether the rows to validate on were a data frame of a program, whose name is no path.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub valid_is_frame: bool,
    /// Whether the files were made by the program.
    pub synthetic: bool,
}

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct At {
    pub step: u64,
    /// Samples trained on, over all ranks.
    pub samples: u64,
}

/// Progress, every `train.log_every` steps. Loss and rates are of the steps since the event before.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Mean loss of a sample.
    pub loss: f64,
    /// Learning rate of the last step.
    pub learning_rate: f64,
    /// Samples a second of wall time.
    pub samples_per_s: f64,
    /// Share of the wall time in which training waited for data, 0 to 1.
    pub data_wait_share: f64,
    /// Share of the wall time in which training stood still for evaluations, 0 to 1.
    pub eval_share: f64,
    /// Where the loss is scaled: how, and which steps that cost.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub scaling: Option<Scaling>,
}

/// The scale of the loss, in f16.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Scaling {
    /// What the loss of the next step is multiplied by.
    pub loss_scale: f64,
    /// Steps skipped since the run began, because a gradient was not finite.
    pub skipped_steps: u32,
}

impl std::fmt::Display for Scaling {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "loss scale {}, {} steps skipped", self.loss_scale, self.skipped_steps)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Eval {
    #[serde(flatten)]
    pub metrics: EvalMetrics,
    /// Seconds that training stood still for it.
    pub eval_s: f64,
    /// The last step before the metrics were known: training continues while scores are sorted. The
    /// event's own `step` is the one whose weights were evaluated.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub known_at_step: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    #[serde(serialize_with = "crate::config::paths::one")]
    pub path: PathBuf,
    pub bytes: u64,
    /// Seconds from the state to the renamed folder.
    pub seconds: f64,
}

/// A checkpoint in memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    pub bytes: u64,
    /// Seconds that training stood still for it.
    pub seconds: f64,
}

/// Bytes that left the ranks of a run in a training step, on average: payload, counted where it
/// leaves.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ExchangeBytes {
    /// To ranks of the same node.
    pub intra_node: f64,
    pub inter_node: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// `"finished"`, `"target_auc"`, `"patience"`, `"SIGINT"`, `"SIGTERM"` or `"SIGHUP"`.
    pub reason: String,
    /// Seconds since the start.
    pub wall_s: f64,
    /// Samples a second of this process, since its data were ready, evaluations and checkpoints
    /// included.
    pub samples_per_s: f64,
    /// Largest resident memory of the process.
    pub peak_rss_bytes: u64,
    /// Digest of all weights and optimiser state, independent of the number of ranks.
    pub weights_digest: String,
    /// What a training step sent between ranks, where there are several, on processors.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exchange_bytes_per_step: Option<ExchangeBytes>,
    /// Bytes that this process has asked the disk for, of training data that is read at random: a
    /// process of several reads its slice alone.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub data_bytes_read: Option<u64>,
    /// Share of the time from the first step on in which training stood still for evaluations, 0
    /// to 1.
    #[serde(default)]
    pub eval_share: f64,
    /// The step of the last evaluation, where there was one: it reached the target where that is
    /// the reason.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub eval_step: Option<u64>,
    /// The last evaluation, where there was one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_eval: Option<Eval>,
    /// The best evaluation, by `eval.metric`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub best_eval: Option<BestEvaluation>,
}

/// Where the time of a process went, for its history: seconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Times {
    /// Until the first step.
    pub preparation_s: f64,
    /// From then on, all of what follows included.
    pub training_s: f64,
    /// In which training waited for data.
    pub data_wait_s: f64,
    /// In which training stood still for evaluations.
    pub evaluation_s: f64,
    /// In which it stood still for checkpoints.
    pub checkpoint_s: f64,
    /// What the stages of rank 0 took, where that was recorded.
    pub stages: Vec<StageTime>,
    /// One step of so many was recorded.
    pub recorded_every: u64,
}

/// What one stage took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageTime {
    pub stage: String,
    pub lane: String,
    /// How often it was recorded.
    pub runs: u64,
    /// Seconds of all these.
    pub seconds: f64,
}
