//! What a session remembers of its evaluations and its end.

use crate::config::Config;
use crate::metrics::{BestEvaluation, EvalMetric, EvalMetrics};
use serde::{Deserialize, Serialize};

/// What a session remembers beyond weights and position. What earlier programs have written besides
/// is passed over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct Memory {
    /// The best evaluation so far.
    #[serde(default)]
    pub best: Option<BestEvaluation>,
    /// Evaluations since the best one.
    #[serde(default)]
    pub evaluations_since_best: u64,
    pub last_eval_step: Option<u64>,
    /// What an evaluation has found that reaches the target: the step at which the run stops for
    /// it, and its AUC.
    pub reached: Option<(u64, f64)>,
    /// When the run was to end: epochs, steps and target AUC of the configuration. A finished run
    /// that is asked for more continues.
    pub asked_for: Option<(f64, Option<u64>, Option<f64>)>,
    /// The `done` event of a finished run.
    pub done: Option<serde_json::Value>,
    /// How the reader's position is counted ([`crate::data::order_name`]); unset in checkpoints of
    /// text.
    #[serde(default)]
    pub order: Option<String>,
}

impl Memory {
    /// Whether as many evaluations as `eval.patience` says have not been better.
    pub fn patience_is_over(&self, config: &Config) -> bool {
        config.eval.patience.is_some_and(|patience| self.evaluations_since_best >= patience)
    }

    /// Counts an evaluation of the weights of `step`.
    pub(super) fn evaluated(&mut self, step: u64, metrics: EvalMetrics, metric: EvalMetric) {
        self.last_eval_step = Some(step);
        let before = self.best.and_then(|best| best.metrics.score(metric));
        if metrics.score(metric).is_some_and(|now| before.is_none_or(|before| now > before)) {
            self.best = Some(BestEvaluation { step, metrics });
            self.evaluations_since_best = 0;
        } else {
            self.evaluations_since_best += 1;
        }
    }
}
