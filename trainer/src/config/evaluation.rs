//! When and how the model is evaluated.

pub use crate::metrics::EvalMetric;
use serde::{Deserialize, Serialize};

settings! {
    /// When and how the model is evaluated. It always is at the end, where there are validation
    /// files.
    pub struct EvalConfig ["eval"] {
        /// An integer: steps between evaluations; with a point: fraction of an epoch; 0: at the end
        /// alone. There is one at the end, and none right before it.
        pub every: EvalEvery = EvalEvery::Steps(0),
        /// Samples of one evaluation batch.
        pub batch_size: usize = 4096,
        /// Training stops at the first evaluation that reaches this area under the ROC curve.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub target_auc: Option<f64>,
        /// Which of two evaluations is better: that with the higher "auc", or the lower "log_loss".
        pub metric: EvalMetric = EvalMetric::Auc,
        /// Training stops after so many evaluations without a better one; unset: it does not.
        ///
        /// With `checkpoint.dir`, the weights of the best evaluation are saved and kept.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub patience: Option<u64>,
        /// Whether training continues while scores are sorted; changes no metric.
        pub asynchronous: bool = true,
    }
}

impl EvalEvery {
    /// Whether the model is evaluated at the end alone.
    pub fn is_never(self) -> bool {
        matches!(self, Self::Steps(0) | Self::EpochFraction(0.0))
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
