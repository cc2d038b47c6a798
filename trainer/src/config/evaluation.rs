//! When and how the model is evaluated.

use serde::{Deserialize, Serialize};

/// When and how the model is evaluated. It always is at the end, where there are validation files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EvalConfig {
    /// An integer: every so many steps. A number with a point: every such fraction of an epoch. 0:
    /// at the end alone.
    pub every: EvalEvery,
    /// Samples of one evaluation batch.
    pub batch_size: usize,
    /// Training stops at the first evaluation that reaches this area under the ROC curve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_auc: Option<f64>,
    /// Whether training continues while the scores of an evaluation are sorted and counted.
    pub asynchronous: bool,
}

impl Default for EvalConfig {
    fn default() -> Self {
        Self { every: EvalEvery::Steps(0), batch_size: 4096, target_auc: None, asynchronous: true }
    }
}

/// How often the model is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum EvalEvery {
    /// Every so many steps; 0: at the end alone.
    Steps(u64),
    /// Every such fraction of an epoch.
    EpochFraction(f64),
}
