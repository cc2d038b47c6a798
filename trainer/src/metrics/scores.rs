//! The scores of an evaluation, and what they add up to.
//!
//! All that the metrics need of a sample is its logit and its class. Samples of equal logit are one
//! `Run`; a [`Tally`] is what a range of logits comes to, in integers. So neither the order of
//! samples, nor how they lie on ranks, nor who counts which range changes a bit of a metric.

use super::auc::{score_of, sort, sort_key};
use crate::metrics::{exact_probability, log_loss};

/// Logits and labels of samples, one sortable 32-bit key a sample, a list for each class.
#[derive(Clone, Debug, Default)]
pub struct Scores {
    positives: Vec<u32>,
    negatives: Vec<u32>,
    scratch: Vec<u32>,
    /// Samples whose logit is not a number: of label 0, of label 1.
    not_numbers: [u64; 2],
}

/// All samples of one logit: its key, those of label 1, those of label 0.
pub(crate) type Run = [u32; 3];

impl Scores {
    /// No scores, and room for `num_samples` samples of either class: pushing that many allocates
    /// nothing. Untouched room costs address space, not memory.
    pub fn with_capacity(num_samples: usize) -> Self {
        Self {
            positives: Vec::with_capacity(num_samples),
            negatives: Vec::with_capacity(num_samples),
            ..Self::default()
        }
    }

    /// Forgets all samples and keeps the memory.
    pub fn clear(&mut self) {
        self.positives.clear();
        self.negatives.clear();
        self.not_numbers = [0; 2];
    }

    #[inline]
    pub fn push(&mut self, logit: f32, is_positive: bool) {
        if logit.is_nan() {
            self.not_numbers[usize::from(is_positive)] += 1;
            return;
        }
        let keys = if is_positive { &mut self.positives } else { &mut self.negatives };
        keys.push(sort_key(logit));
    }

    /// Adds samples: one logit and one label (1 where above 0.5, else 0) each.
    ///
    /// # Panics
    /// When there are not as many labels as logits.
    pub fn extend(&mut self, logits: &[f32], labels: &[f32]) {
        assert_eq!(logits.len(), labels.len(), "one label per logit");
        logits.iter().zip(labels).for_each(|(&logit, &label)| self.push(logit, label > 0.5));
    }

    /// Adds the samples of `other`.
    pub fn absorb(&mut self, other: &Self) {
        self.positives.extend_from_slice(&other.positives);
        self.negatives.extend_from_slice(&other.negatives);
        for (mine, others) in self.not_numbers.iter_mut().zip(other.not_numbers) {
            *mine += others;
        }
    }

    pub fn num_samples(&self) -> u64 {
        (self.positives.len() + self.negatives.len()) as u64
            + self.not_numbers[0]
            + self.not_numbers[1]
    }

    /// What all samples add up to. Sorts, which for n samples is O(n).
    pub fn tally(&mut self) -> Tally {
        self.sort();
        let tally = Tally::of(runs(&self.positives, &self.negatives));
        Tally { not_numbers: self.not_numbers, ..tally }
    }

    /// The runs of all samples that have a number, rising, and what the others come to.
    pub(crate) fn runs(&mut self) -> (Vec<Run>, Tally) {
        self.sort();
        let rest = Tally { not_numbers: self.not_numbers, ..Tally::default() };
        (runs(&self.positives, &self.negatives).collect(), rest)
    }

    fn sort(&mut self) {
        sort(&mut self.positives, &mut self.scratch);
        sort(&mut self.negatives, &mut self.scratch);
    }
}

fn runs<'a>(mut positives: &'a [u32], mut negatives: &'a [u32]) -> impl Iterator<Item = Run> + 'a {
    let take = |keys: &mut &[u32], key: u32| {
        let len = keys.iter().take_while(|&&other| other == key).count();
        *keys = &keys[len..];
        u32::try_from(len).expect("a rank evaluates fewer than 2^32 samples")
    };
    std::iter::from_fn(move || {
        let key = match (positives.first(), negatives.first()) {
            (Some(&one), Some(&other)) => one.min(other),
            (one, other) => *one.or(other)?,
        };
        Some([key, take(&mut positives, key), take(&mut negatives, key)])
    })
}

/// What the samples of a range of logits add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    positives: u64,
    negatives: u64,
    num_right: u64,
    not_numbers: [u64; 2],
    /// Twice the pairs of one positive and one negative sample that the positive wins, ties counted
    /// one half.
    doubled_wins: u128,
    /// Sum of the samples' losses, each rounded to a multiple of 2^-64 nats. At the largest number
    /// it is infinite.
    loss: u128,
    /// For each bin of predicted probabilities: their sum, each rounded to a multiple of 2^-64,
    /// less the samples of label 1.
    excess: [i128; CALIBRATION_BINS],
}

/// Bins of equal width in which predicted probabilities are compared with labels.
pub const CALIBRATION_BINS: usize = 15;
/// Units in one: of [`Tally::loss`] in a nat, of [`Tally::excess`] in a sample.
const UNITS: f64 = 18_446_744_073_709_551_616.0;
/// Words of a [`Tally`] that travels.
pub(crate) const TALLY_WORDS: usize = 9 + 2 * CALIBRATION_BINS;

/// The bin of a probability. A border between two bins belongs to the upper one, and 1 to the last.
fn bin_of(probability: f64) -> usize {
    ((probability * CALIBRATION_BINS as f64) as usize).min(CALIBRATION_BINS - 1)
}

impl Tally {
    /// Of runs in rising order.
    pub(crate) fn of(runs: impl Iterator<Item = Run>) -> Self {
        let mut tally = Self::default();
        for [key, positives, negatives] in runs {
            let (positives, negatives, logit) =
                (u64::from(positives), u64::from(negatives), score_of(key));
            let loss = |is_positive, count: u64| {
                if count == 0 {
                    return 0;
                }
                // Rounds down, and to the largest number what lies above it.
                let units = (log_loss(logit, is_positive) * UNITS) as u128;
                units.saturating_mul(u128::from(count))
            };
            let probability = exact_probability(logit);
            let predicted = (probability * UNITS) as i128 * i128::from(positives + negatives);
            tally.excess[bin_of(probability)] += predicted - (i128::from(positives) << 64);
            tally.doubled_wins +=
                u128::from(positives) * u128::from(2 * tally.negatives + negatives);
            tally.loss = tally
                .loss
                .saturating_add(loss(true, positives))
                .saturating_add(loss(false, negatives));
            tally.num_right += if logit > 0.0 { positives } else { negatives };
            tally.positives += positives;
            tally.negatives += negatives;
        }
        tally
    }

    #[must_use]
    pub(crate) fn and_above(self, above: Self) -> Self {
        let [low, high] = [self.not_numbers, above.not_numbers];
        Self {
            positives: self.positives + above.positives,
            negatives: self.negatives + above.negatives,
            num_right: self.num_right + above.num_right,
            not_numbers: [low[0] + high[0], low[1] + high[1]],
            doubled_wins: self.doubled_wins
                + above.doubled_wins
                + 2 * u128::from(above.positives) * u128::from(self.negatives),
            loss: self.loss.saturating_add(above.loss),
            excess: std::array::from_fn(|bin| self.excess[bin] + above.excess[bin]),
        }
    }

    pub(crate) fn to_words(self) -> [u64; TALLY_WORDS] {
        let [no, yes] = self.not_numbers;
        let mut words = [0; TALLY_WORDS];
        words[..5].copy_from_slice(&[self.positives, self.negatives, self.num_right, no, yes]);
        let excess = self.excess.map(i128::cast_unsigned);
        let wide = [self.doubled_wins, self.loss].into_iter().chain(excess);
        for (pair, number) in words[5..].chunks_exact_mut(2).zip(wide) {
            pair.copy_from_slice(&[number as u64, (number >> 64) as u64]);
        }
        words
    }

    pub(crate) fn from_words(words: &[u64]) -> Self {
        let wide = |index: usize| {
            let low = 5 + 2 * index;
            u128::from(words[low]) | u128::from(words[low + 1]) << 64
        };
        Self {
            positives: words[0],
            negatives: words[1],
            num_right: words[2],
            not_numbers: [words[3], words[4]],
            doubled_wins: wide(0),
            loss: wide(1),
            excess: std::array::from_fn(|bin| wide(2 + bin).cast_signed()),
        }
    }

    pub fn num_samples(&self) -> u64 {
        self.positives + self.negatives + self.not_numbers[0] + self.not_numbers[1]
    }

    pub fn num_positives(&self) -> u64 {
        self.positives + self.not_numbers[1]
    }

    /// Samples on the right side of probability one half. What is not a number is not above it.
    pub fn num_right(&self) -> u64 {
        self.num_right + self.not_numbers[0]
    }

    fn has_not_numbers(&self) -> bool {
        self.not_numbers != [0; 2]
    }

    /// The exact AUC in [0, 1]; `None` where it is undefined: no positive sample, no negative one,
    /// or a logit that is not a number. The one division at the end is all that is rounded.
    pub fn auc(&self) -> Option<f64> {
        let pairs = u128::from(self.positives) * u128::from(self.negatives);
        (pairs > 0 && !self.has_not_numbers())
            .then(|| self.doubled_wins as f64 / (2 * pairs) as f64)
    }

    /// Sum of the losses in nats; `None` where it is not finite (2^64 nats and more are not).
    pub fn loss_sum(&self) -> Option<f64> {
        (self.loss < u128::MAX && !self.has_not_numbers()).then(|| self.loss as f64 / UNITS)
    }

    /// Mean of the predicted probabilities; `None` without samples, or where a logit is not a
    /// number.
    pub fn mean_prediction(&self) -> Option<f64> {
        let predicted = self.excess.iter().sum::<i128>() + (i128::from(self.positives) << 64);
        self.per_sample(predicted)
    }

    /// Expected calibration error: over [`CALIBRATION_BINS`] bins of equal width, the mean of |mean
    /// prediction − share of label 1|, weighted by the bins' samples. `None` as
    /// [`Tally::mean_prediction`].
    pub fn calibration_error(&self) -> Option<f64> {
        // A bin's samples cancel: n_b · |predicted_b / n_b − positives_b / n_b|.
        self.per_sample(self.excess.iter().map(|excess| excess.abs()).sum())
    }

    /// `sum` units, divided by the samples: the one division is all that is rounded.
    fn per_sample(&self, sum: i128) -> Option<f64> {
        let samples = self.num_samples();
        (samples > 0 && !self.has_not_numbers()).then(|| sum as f64 / UNITS / samples as f64)
    }
}
