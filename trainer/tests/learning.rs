//! The model learns what was planted in the synthetic data, and every part of it is needed for
//! that.

#![cfg(test)]

use headlong::config::Config;
use headlong::config::preset::preset;
use headlong::data::{EvaluationData, open_training};
use headlong::iteration::model::Ablation;
use headlong::iteration::ranks::{RankGroup, RankGroupOptions};
use headlong::metrics::MetricsAccumulator;
use headlong::report::Reporter;
use headlong::run::prepare::Prepared;
use headlong::run::session::{Session, Start};
use headlong_embedding::Registry;
use headlong_reader::order::Slice;
use headlong_reader::{Batch, Position, Reader as _};
use std::time::Instant;

const THREADS: usize = 2;

/// Trains as `headlong train` does without arguments, and evaluates.
fn auc_of_dlrm(config: &Config, prepared: &Prepared, ablation: Ablation) -> f64 {
    let registry = Registry::default();
    let options = RankGroupOptions { ablation, ..RankGroupOptions::new(THREADS, &registry) };
    let group = RankGroup::build(config, &prepared.table_rows, options).unwrap();
    let data = prepared.session_data(config, THREADS).unwrap();
    let mut session = Session::open(config, group, data, &Start::Fresh).unwrap();
    while session.step().unwrap().is_some() {}
    session.evaluate().unwrap().unwrap().auc.unwrap()
}

/// A weight for every row of every table and for every integer, trained sample by sample with
/// Adagrad.
struct LogisticRegression {
    /// Weight and sum of squared gradients.
    tables: Vec<Vec<[f32; 2]>>,
    dense: Vec<[f32; 2]>,
    bias: [f32; 2],
}

impl LogisticRegression {
    fn new(table_rows: &[u64], num_dense: usize) -> Self {
        let tables = table_rows.iter().map(|&rows| vec![[0.0; 2]; rows as usize]).collect();
        Self { tables, dense: vec![[0.0; 2]; num_dense], bias: [0.0; 2] }
    }

    fn logit(&self, batch: &Batch, sample: usize) -> f32 {
        let rows = batch
            .sparse
            .iter()
            .zip(&self.tables)
            .map(|(ids, table)| table[ids.values[sample] as usize][0]);
        let dense = batch.dense[sample * self.dense.len()..].iter().zip(&self.dense);
        self.bias[0]
            + rows.sum::<f32>()
            + dense.map(|(value, weight)| value * weight[0]).sum::<f32>()
    }

    fn train(&mut self, batch: &Batch, learning_rate: f32) {
        let moved = |weight: &mut [f32; 2], gradient: f32| {
            weight[1] += gradient * gradient;
            weight[0] -= learning_rate * gradient / (weight[1].sqrt() + 1e-8);
        };
        for sample in 0..batch.num_samples {
            let d_logit = 1.0 / (1.0 + (-self.logit(batch, sample)).exp()) - batch.labels[sample];
            for (ids, table) in batch.sparse.iter().zip(&mut self.tables) {
                moved(&mut table[ids.values[sample] as usize], d_logit);
            }
            let values = batch.dense[sample * self.dense.len()..].iter();
            for (weight, value) in self.dense.iter_mut().zip(values) {
                moved(weight, d_logit * value);
            }
            moved(&mut self.bias, d_logit);
        }
    }
}

/// The best of several learning rates: the comparison is with a regression that was given a chance.
fn auc_of_logistic_regression(config: &Config, prepared: &Prepared) -> f64 {
    let valid = EvaluationData::open(config, &prepared.valid, true, THREADS).unwrap();
    let ids = prepared.id_mapper(config).unwrap();
    let auc = |learning_rate| {
        let mut model = LogisticRegression::new(&prepared.table_rows, config.data.num_dense);
        let start = Position::default();
        let mut reader =
            open_training(config, &prepared.train, ids.clone(), (&start, Slice::WHOLE), THREADS)
                .unwrap();
        let mut batch = Batch::default();
        while reader.next(&mut batch).unwrap() {
            model.train(&batch, learning_rate);
        }
        let mut reader = valid.reader(&ids).unwrap();
        let mut metrics = MetricsAccumulator::default();
        while reader.next(&mut batch).unwrap() {
            let logits: Vec<f32> =
                (0..batch.num_samples).map(|sample| model.logit(&batch, sample)).collect();
            metrics.push(&logits, &batch.labels);
        }
        metrics.metrics().auc.unwrap()
    };
    [0.02, 0.06].map(auc).into_iter().fold(0.0, f64::max)
}

/// The first command of the README, without arguments: preset `tiny`, all of its data.
#[test]
fn the_model_learns_the_ground_truth_and_needs_all_of_its_parts() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = preset("tiny").unwrap();
    config.run.output_dir = folder.path().to_owned();
    let prepared = Prepared::new(&config, None, THREADS, &Reporter::quiet(None)).unwrap();
    let best = prepared.synthetic().unwrap().best_auc;

    let timed = |name: &str, auc: &dyn Fn() -> f64| {
        let started = Instant::now();
        let auc = auc();
        println!(
            "{name}: AUC {auc:.5}, {:.5} below the best possible, {:.1?}",
            best - auc,
            started.elapsed()
        );
        auc
    };
    println!("best possible: AUC {best:.5}");
    let full = timed("whole model", &|| auc_of_dlrm(&config, &prepared, Ablation::default()));
    let frozen = Ablation { freeze_tables: true, ..Ablation::default() };
    let frozen = timed("frozen tables", &|| auc_of_dlrm(&config, &prepared, frozen));
    let no_dense = Ablation { ignore_dense: true, ..Ablation::default() };
    let no_dense = timed("zeroed dense features", &|| auc_of_dlrm(&config, &prepared, no_dense));
    let regression =
        timed("logistic regression", &|| auc_of_logistic_regression(&config, &prepared));

    assert!(
        best - full <= 0.01,
        "the whole model is {:.5} below the best possible AUC",
        best - full
    );
    assert!(full < best + 0.005, "better than the truth itself: the evaluation is wrong");
    assert!(full - frozen >= 0.05, "frozen tables lose {:.5}", full - frozen);
    assert!(full - no_dense >= 0.01, "zeroed dense features lose {:.5}", full - no_dense);
    assert!(full - regression >= 0.01, "a logistic regression loses {:.5}", full - regression);
    assert!(
        regression > 0.6,
        "a logistic regression that learns nothing is no comparison: {regression:.5}"
    );
}
