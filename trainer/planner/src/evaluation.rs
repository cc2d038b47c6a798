//! What evaluations cost, how many ranks of their own would hide them, and how long training takes
//! to its target.

use crate::count::Count;
use crate::placement::{Layout, Placing};
use crate::simulator;
use crate::work::Works;
use crate::workload::Workload;
use serde::Serialize;

/// Part of an evaluating rank's memory that rows may take.
const ROWS_OF_MEMORY: f64 = 0.9;

/// What evaluations cost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct EvaluationForecast {
    /// One evaluation on all ranks, seconds.
    pub seconds: f64,
    /// Between two evaluations, seconds of training.
    pub interval_s: f64,
    /// Part of the run that they take where all ranks evaluate.
    pub share: f64,
    /// The fewest ranks that, evaluating a snapshot while the others train, are done before the
    /// next one: fast enough, and with memory for all rows.
    pub ranks_that_hide: usize,
    /// Whether giving so many ranks away costs training less than evaluating with all.
    pub hiding_pays: bool,
}

/// Where an AUC is reached, as published: MLPerf's submissions with these batch sizes.
struct Converged {
    /// Whether it is DCNv2, and not DLRM.
    crossed: bool,
    batch_size: usize,
    epochs: f64,
    target: f64,
}

/// Points of convergence (mlcommons/training_results v1.0 to v4.0, evaluations every 0.05 epochs):
/// DLRM at 0.90 and 1.00 epochs, DCNv2 at 0.75 and 0.95.
const CONVERGED: [Converged; 4] = [
    Converged { crossed: false, batch_size: 55_296, epochs: 0.90, target: 0.8025 },
    Converged { crossed: false, batch_size: 71_680, epochs: 1.00, target: 0.8025 },
    Converged { crossed: true, batch_size: 55_296, epochs: 0.75, target: 0.802_75 },
    Converged { crossed: true, batch_size: 135_168, epochs: 0.95, target: 0.802_75 },
];

/// When training is done.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Target {
    pub auc: f64,
    /// Epochs until then, as published.
    pub epochs: f64,
    /// Minutes, evaluations included.
    pub minutes: f64,
}

/// Batch sizes whose convergence is known for the model of `workload`.
pub fn known_batch_sizes(workload: &Workload) -> Vec<usize> {
    let known = CONVERGED.iter().filter(|known| is_of(known, workload));
    known.map(|known| known.batch_size).collect()
}

fn is_of(known: &Converged, workload: &Workload) -> bool {
    workload.data_rows.is_some() && known.crossed != workload.has_dot_products
}

impl Placing<'_> {
    /// What evaluations cost, compared with steps of `step_us`; nothing where it is not known how
    /// many samples there are.
    pub fn evaluation(&self, layout: &Layout, step_us: f64) -> Option<EvaluationForecast> {
        let (rows, data_rows) = (self.workload.eval_rows? as f64, self.workload.data_rows?);
        let between = self.workload.program.samples_between_evaluations(self.workload);
        let samples_per_interval = between.unwrap_or(data_rows as f64);
        let ranks = self.cluster.num_devices() as f64;
        let seconds = rows / self.evaluated_per_us(layout) * 1e-6;
        let interval_s = samples_per_interval / self.workload.samples * step_us * 1e-6;
        let fast_enough = (seconds * ranks / interval_s).ceil();
        let room = self.cluster.memory_bytes() as f64 * ROWS_OF_MEMORY;
        let rows =
            self.workload.tables.iter().map(|table| Count::from(table.rows) * table.weight_bytes);
        let all_rows: Count = rows.sum();
        let large_enough = (all_rows.as_f64() / room).ceil();
        let hiding = fast_enough.max(large_enough).max(1.0);
        let share = seconds / (seconds + interval_s);
        Some(EvaluationForecast {
            seconds,
            interval_s,
            share,
            ranks_that_hide: hiding as usize,
            hiding_pays: hiding < ranks && hiding / ranks < share,
        })
    }

    /// Samples that all ranks together score in a microsecond: the list of an evaluation, executed.
    fn evaluated_per_us(&self, layout: &Layout) -> f64 {
        let batch = self.workload.with_batch(self.workload.eval_batch_size);
        let placing = Placing { workload: &batch, ..*self };
        let layout = placing.lay_out(layout.strategy, layout.places.clone());
        let works = Works::new(&batch, self.cluster, self.practice, &layout);
        let program = &self.workload.program;
        let stages = program.evaluation(self.workload, &self.cluster.shape(), self.on_device());
        let times: Vec<_> =
            stages.iter().map(|stage| works.time(stage.name.trim_start_matches("eval_"))).collect();
        let run = simulator::run(&stages, &times, 1, &self.options());
        batch.samples / run.step_us()
    }

    /// How long training takes to the target, where it is known for this model and batch.
    pub fn target(&self, step_us: f64, evaluation: Option<&EvaluationForecast>) -> Option<Target> {
        let batch = self.workload.batch_size;
        let known = CONVERGED
            .iter()
            .find(|known| is_of(known, self.workload) && known.batch_size == batch)?;
        let steps =
            (known.epochs * self.workload.data_rows? as f64 / self.workload.samples).floor();
        let evaluations = evaluation.map_or(0.0, |evaluation| {
            let training_s = steps * step_us * 1e-6;
            (training_s / evaluation.interval_s).round() * evaluation.seconds
        });
        let minutes = (steps * step_us * 1e-6 + evaluations) / 60.0;
        Some(Target { auc: known.target, epochs: known.epochs, minutes })
    }
}
