//! The number by which trials are compared (`eval.metric`).

use crate::metrics::{EvalMetric, EvalMetrics};

/// The name of a metric in a table.
pub fn name(metric: EvalMetric) -> &'static str {
    match metric {
        EvalMetric::Auc => "AUC",
        EvalMetric::LogLoss => "log loss",
    }
}

/// The number that `metric` goes by.
pub fn value(metrics: &EvalMetrics, metric: EvalMetric) -> Option<f64> {
    match metric {
        EvalMetric::Auc => metrics.auc,
        EvalMetric::LogLoss => metrics.logloss,
    }
}

/// Both.
pub fn in_words(metrics: &EvalMetrics, metric: EvalMetric) -> String {
    let value = value(metrics, metric);
    format!("{} {}", name(metric), value.map_or("undefined".to_owned(), |v| format!("{v:.5}")))
}
