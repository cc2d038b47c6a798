//! What an evaluation says: AUC, log loss, normalised entropy, accuracy, base rate, calibration;
//! and, in [`columns`], what the columns of data say before a training.
//!
//! Where samples have weights, each of them is weighted: a sample of weight 2 counts as two of
//! weight 1, in AUC as in all others, and one of weight 0 as none.

pub mod auc;
pub mod columns;
pub mod runs;
pub mod scores;

pub use scores::{Scores, TALLY_WORDS, Tally};

use serde::{Deserialize, Serialize};

/// The result of one evaluation. The names are those of the JSON log's `eval` event.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvalMetrics {
    /// Exact area under the ROC curve, ties counted one half. `None` where only one class was seen
    /// or a logit was not a number.
    pub auc: Option<f64>,
    /// Mean binary cross entropy in nats. `None` where there was no sample, or where it is not
    /// finite.
    pub logloss: Option<f64>,
    /// Normalised entropy: log loss over the entropy of the base rate (He et al. 2014, "Practical
    /// lessons from predicting clicks on ads at Facebook", §2.1). `None` where only one class was
    /// seen.
    pub ne: Option<f64>,
    /// Share of samples on the right side of probability 0.5.
    pub accuracy: f64,
    /// Share of positive samples.
    pub base_rate: f64,
    /// Mean of the predicted probabilities. `None` without samples, or where a logit was not a
    /// number.
    #[serde(default)]
    pub mean_prediction: Option<f64>,
    /// Mean prediction over base rate: above 1, too many clicks are predicted. `None` also where no
    /// sample is positive.
    #[serde(default)]
    pub calibration: Option<f64>,
    /// Expected calibration error in 15 bins of equal width. `None` as the mean prediction.
    #[serde(default)]
    pub calibration_error: Option<f64>,
    /// Samples evaluated.
    pub eval_samples: u64,
}

/// Which of two evaluations is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvalMetric {
    /// That with the higher area under the ROC curve.
    Auc,
    /// That with the lower log loss.
    LogLoss,
}

/// The best evaluation of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BestEvaluation {
    /// Step of the weights.
    pub step: u64,
    /// What was found.
    pub metrics: EvalMetrics,
}

impl EvalMetrics {
    /// What `metric` goes by: the higher, the better. `None` where it is undefined.
    pub fn score(&self, metric: EvalMetric) -> Option<f64> {
        match metric {
            EvalMetric::Auc => self.auc,
            EvalMetric::LogLoss => self.logloss.map(|loss| -loss),
        }
    }

    /// The metrics of samples that add up to `tally`.
    pub fn of(tally: &Tally) -> Self {
        let samples = tally.num_units().max(1) as f64;
        let base_rate = tally.num_positives() as f64 / samples;
        let logloss = tally.loss_sum().filter(|_| tally.num_samples() > 0).map(|sum| sum / samples);
        let entropy = binary_entropy(base_rate);
        let mean_prediction = tally.mean_prediction();
        Self {
            auc: tally.auc(),
            logloss,
            ne: logloss.filter(|_| entropy > 0.0).map(|loss| loss / entropy),
            accuracy: tally.num_right() as f64 / samples,
            base_rate,
            mean_prediction,
            calibration: mean_prediction.filter(|_| base_rate > 0.0).map(|mean| mean / base_rate),
            calibration_error: tally.calibration_error(),
            eval_samples: tally.num_samples(),
        }
    }

    /// What makes a part of the metrics undefined, as a sentence for a warning; `None` where all
    /// are defined.
    pub fn warning(&self) -> Option<&'static str> {
        if self.eval_samples == 0 {
            Some("no samples were evaluated")
        } else if self.base_rate == 0.0 {
            Some("AUC and normalised entropy are undefined: no evaluated sample has label 1")
        } else if self.base_rate == 1.0 {
            Some("AUC and normalised entropy are undefined: no evaluated sample has label 0")
        } else if self.auc.is_none() {
            Some("AUC is undefined: a logit is not a number")
        } else {
            None
        }
    }
}

/// Collects the logits of an evaluation, batch by batch. Everything is counted and summed in
/// integers: the order of the samples changes no bit of the result.
#[derive(Clone, Debug, Default)]
pub struct MetricsAccumulator {
    scores: Scores,
}

impl MetricsAccumulator {
    /// An empty accumulator with room for `num_samples` samples: pushing that many allocates
    /// nothing.
    pub fn with_capacity(num_samples: usize) -> Self {
        Self { scores: Scores::with_capacity(num_samples) }
    }

    /// Forgets all samples and keeps the memory.
    pub fn clear(&mut self) {
        self.scores.clear();
    }

    /// Adds a batch: one logit and one label (0 or 1, or with a weight:
    /// [`headlong_device::label`]) per sample. Padding must be cut off by the caller.
    pub fn push(&mut self, logits: &[f32], labels: &[f32]) {
        self.scores.extend(logits, labels);
    }

    /// The metrics of everything pushed since the last `clear`. Sorts, which for n samples is O(n).
    pub fn metrics(&mut self) -> EvalMetrics {
        EvalMetrics::of(&self.scores.tally())
    }
}

/// Binary cross entropy of one sample from its logit z, in nats: max(z, 0) − z·y + ln(1 + e^−|z|),
/// which neither overflows nor cancels.
pub fn log_loss(logit: f32, is_positive: bool) -> f64 {
    let z = f64::from(logit);
    let target = if is_positive { z } else { 0.0 };
    // The difference first: for an infinite logit on the right side it is 0, not ∞ − ∞.
    let linear = if z > 0.0 { if is_positive { 0.0 } else { z } } else { -target };
    linear + (-z.abs()).exp().ln_1p()
}

/// Probability of a logit: 1 / (1 + e^−z), without overflow, computed in double precision and
/// rounded once.
pub fn probability(logit: f32) -> f32 {
    exact_probability(logit) as f32
}

/// The same in double precision: what means and sums are made of.
pub fn exact_probability(logit: f32) -> f64 {
    let z = f64::from(logit);
    let e = (-z.abs()).exp();
    if z >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) }
}

/// Entropy of a coin that shows 1 with probability `rate`, in nats.
fn binary_entropy(rate: f64) -> f64 {
    let term = |p: f64| if p > 0.0 { -p * p.ln() } else { 0.0 };
    term(rate) + term(1.0 - rate)
}

/// The exact AUC of `scores` with `labels` (0 or 1, or with weights), both of the same length.
/// `None` where it is undefined: no positive sample, no negative one, or a score that is not a
/// number.
pub fn auc(scores: &[f32], labels: &[f32]) -> Option<f64> {
    let mut all = Scores::with_capacity(scores.len());
    all.extend(scores, labels);
    all.tally().auc()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(logits: &[f32], labels: &[f32]) -> EvalMetrics {
        let mut accumulator = MetricsAccumulator::with_capacity(logits.len());
        accumulator.push(logits, labels);
        accumulator.metrics()
    }

    #[test]
    fn hand_values() {
        let found = metrics(&[0.0, 0.0, 0.0, 0.0], &[0.0, 1.0, 0.0, 1.0]);
        assert_eq!(found.auc, Some(0.5));
        assert!((found.logloss.unwrap() - std::f64::consts::LN_2).abs() < 1e-15);
        assert!((found.ne.unwrap() - 1.0).abs() < 1e-15);
        assert_eq!((found.accuracy, found.base_rate, found.eval_samples), (0.5, 0.5, 4));
        assert_eq!(found.warning(), None);
        // ln 3 is the logit of 3/4: losses −ln 3/4 and −ln 1/4.
        let found = metrics(&[3_f32.ln(), 3_f32.ln()], &[1.0, 0.0]);
        let expected = -(0.75_f64.ln() + 0.25_f64.ln()) / 2.0;
        // The logit is rounded to 24 bits; the loss moves by at most that much.
        assert!((found.logloss.unwrap() - expected).abs() < 1e-7);
        assert_eq!(found.accuracy, 0.5);
    }

    #[test]
    fn the_constant_base_rate_has_normalised_entropy_one() {
        let labels: Vec<f32> = (0..1000).map(|i| f32::from(u8::from(i % 4 == 0))).collect();
        let found = metrics(&vec![(0.25_f32 / 0.75).ln(); 1000], &labels);
        assert!((found.ne.unwrap() - 1.0).abs() < 1e-7);
        assert_eq!((found.base_rate, found.accuracy), (0.25, 0.75));
    }

    #[test]
    fn one_class_is_undefined_and_says_so() {
        let found = metrics(&[1.0, 2.0], &[0.0, 0.0]);
        assert_eq!((found.auc, found.ne), (None, None));
        assert!(found.logloss.is_some());
        assert!(found.warning().unwrap().contains("no evaluated sample has label 1"));
        assert!(metrics(&[1.0], &[1.0]).warning().unwrap().contains("label 0"));
        assert!(metrics(&[], &[]).warning().unwrap().contains("no samples"));
        assert!(metrics(&[f32::NAN, 1.0], &[1.0, 0.0]).warning().unwrap().contains("not a number"));
    }

    /// The definition in f64: bin by bin, sample by sample.
    fn calibration_by_bins(logits: &[f32], labels: &[f32], bins: usize) -> (f64, f64) {
        let mut of_bins = vec![(0.0, 0.0, 0.0); bins];
        for (&logit, &label) in logits.iter().zip(labels) {
            let probability = 1.0 / (1.0 + (-f64::from(logit)).exp());
            let (samples, predicted, clicks) =
                &mut of_bins[((probability * bins as f64).floor() as usize).min(bins - 1)];
            *samples += 1.0;
            *predicted += probability;
            *clicks += f64::from(label);
        }
        let samples = logits.len() as f64;
        let filled = of_bins.iter().filter(|(count, ..)| *count > 0.0);
        let error = filled
            .map(|(count, predicted, clicks)| {
                count / samples * (predicted / count - clicks / count).abs()
            })
            .sum();
        (of_bins.iter().map(|(_, predicted, _)| predicted).sum::<f64>() / samples, error)
    }

    #[test]
    fn calibration_agrees_with_its_definition() {
        // Rates of a few percent as well as of a half; predictions that are too low and too high.
        for (shift, every) in [(-3.0_f32, 30), (-1.0, 4), (0.5, 2)] {
            let logits: Vec<f32> =
                (0..2999).map(|i| (i as f32 * 0.731).sin() * 2.0 + shift).collect();
            let labels: Vec<f32> = (0..2999).map(|i| f32::from(u8::from(i % every == 0))).collect();
            let found = metrics(&logits, &labels);
            let (mean, error) = calibration_by_bins(&logits, &labels, 15);
            // Sums of 2,999 probabilities in f64: each addition rounds by 2^-53 of at most 2,999.
            assert!((found.mean_prediction.unwrap() - mean).abs() < 1e-12);
            assert!((found.calibration.unwrap() - mean / found.base_rate).abs() < 1e-10);
            assert!((found.calibration_error.unwrap() - error).abs() < 1e-12);
            assert!(error > 0.01, "the case is worth nothing: {error}");
        }
    }

    #[test]
    fn calibration_of_hand_values_and_of_nothing() {
        let (even, sure) = (0.0, f32::INFINITY);
        // All of [7/15, 8/15]: one half predicted, three quarters seen.
        let found = metrics(&[even; 4], &[1.0, 1.0, 1.0, 0.0]);
        assert_eq!((found.mean_prediction, found.calibration_error), (Some(0.5), Some(0.25)));
        assert_eq!(found.calibration, Some(0.5 / 0.75));
        // Two bins whose errors do not cancel: the mean is right, the bins are not.
        let found = metrics(&[sure, -sure], &[0.0, 1.0]);
        assert_eq!((found.calibration, found.calibration_error), (Some(1.0), Some(1.0)));
        assert_eq!(metrics(&[even], &[0.0]).calibration, None, "no click: no ratio");
        assert_eq!(metrics(&[even], &[0.0]).calibration_error, Some(0.5));
        for undefined in [metrics(&[], &[]), metrics(&[f32::NAN, 1.0], &[1.0, 0.0])] {
            let found =
                (undefined.mean_prediction, undefined.calibration, undefined.calibration_error);
            assert_eq!(found, (None, None, None));
        }
    }

    #[test]
    fn extreme_logits_neither_overflow_nor_vanish() {
        assert_eq!(log_loss(1000.0, true), 0.0);
        assert_eq!(log_loss(1000.0, false), 1000.0);
        assert_eq!(log_loss(-1000.0, true), 1000.0);
        assert_eq!(log_loss(f32::INFINITY, true), 0.0);
        assert_eq!(log_loss(f32::NEG_INFINITY, false), 0.0);
        assert!(log_loss(f32::NAN, true).is_nan() && log_loss(f32::NAN, false).is_nan());
        assert_eq!((probability(200.0), probability(-200.0), probability(0.0)), (1.0, 0.0, 0.5));
        assert!(probability(-80.0) > 0.0);
    }

    #[test]
    fn batches_do_not_change_a_bit() {
        let logits: Vec<f32> = (0..997).map(|i| (i as f32 * 0.731).sin() * 3.0).collect();
        let labels: Vec<f32> = (0..997).map(|i| f32::from(u8::from(i % 3 == 0))).collect();
        let whole = metrics(&logits, &labels);
        let mut accumulator = MetricsAccumulator::default();
        for size in [64, 100] {
            accumulator.clear();
            for (logits, labels) in logits.chunks(size).zip(labels.chunks(size)) {
                accumulator.push(logits, labels);
            }
            assert_eq!(accumulator.metrics(), whole);
        }
    }
}
