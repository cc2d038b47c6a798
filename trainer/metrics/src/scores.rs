//! The scores of an evaluation, and what they add up to.
//!
//! All that the metrics need of a sample is its logit, its class and its weight. Samples of equal
//! logit are one [`Group`]; a [`Tally`] is what a range of logits comes to, in integers. So neither
//! the order of samples, nor how they lie on ranks, nor who counts which range changes a bit of a
//! metric. Where weights differ, they are counted in units of the heaviest one's last bit.

use super::auc::{score_of, sort, sort_key};
use super::runs::{Group, Runs, not_a_number, power_of_two};
use crate::{exact_probability, log_loss};
use headlong_device::label::parts;

/// Logits and labels of samples, one sortable 32-bit key a sample, a list for each class.
#[derive(Clone, Debug, Default)]
pub struct Scores {
    positives: Vec<u32>,
    negatives: Vec<u32>,
    scratch: Vec<u32>,
    /// Samples whose logit is not a number: of label 0, of label 1.
    not_numbers: [u64; 2],
    /// Samples of another weight than 1: key, bits of the weight and class of each, which sort by
    /// key.
    weighted: Vec<u64>,
}

impl Scores {
    /// No scores, and room for `num_samples` samples of either class: pushing that many allocates
    /// nothing, where they have no weights. Untouched room costs address space, not memory.
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
        self.weighted.clear();
    }

    /// Adds a sample: its label is 0 or 1, or has a weight ([`headlong_device::label`]). One of
    /// weight 0 is left out.
    #[inline]
    pub fn push(&mut self, logit: f32, label: f32) {
        let (is_positive, weight) = parts(label);
        if weight != 1.0 {
            if weight > 0.0 {
                self.weighted.push(Runs::entry(logit, is_positive, weight));
            }
            return;
        }
        if logit.is_nan() {
            self.not_numbers[usize::from(is_positive)] += 1;
            return;
        }
        let keys = if is_positive { &mut self.positives } else { &mut self.negatives };
        keys.push(sort_key(logit));
    }

    /// Adds samples: one logit and one label each.
    ///
    /// # Panics
    /// When there are not as many labels as logits.
    pub fn extend(&mut self, logits: &[f32], labels: &[f32]) {
        assert_eq!(logits.len(), labels.len(), "one label per logit");
        logits.iter().zip(labels).for_each(|(&logit, &label)| self.push(logit, label));
    }

    /// Adds the samples of `other`.
    pub fn absorb(&mut self, other: &Self) {
        self.positives.extend_from_slice(&other.positives);
        self.negatives.extend_from_slice(&other.negatives);
        for (mine, others) in self.not_numbers.iter_mut().zip(other.not_numbers) {
            *mine += others;
        }
        self.weighted.extend_from_slice(&other.weighted);
    }

    /// How many there are.
    pub fn num_samples(&self) -> u64 {
        (self.positives.len() + self.negatives.len() + self.weighted.len()) as u64
            + self.not_numbers[0]
            + self.not_numbers[1]
    }

    /// What all samples add up to. Sorts, which for n samples without weights is O(n).
    pub fn tally(&mut self) -> Tally {
        if !self.weighted.is_empty() {
            return self.runs().in_groups(Tally::of);
        }
        self.sort();
        Tally::of(&mut self.plain().map(Group::from), 0)
    }

    /// The runs of all samples, rising.
    pub fn runs(&mut self) -> Runs {
        self.sort();
        self.weighted.sort_unstable();
        Runs::new(self.plain().collect(), &self.weighted)
    }

    /// Runs of weight 1, those of no number last.
    fn plain(&self) -> impl Iterator<Item = [u32; 3]> {
        let [no, yes] = self
            .not_numbers
            .map(|count| u32::try_from(count).expect("a rank evaluates fewer than 2^32 samples"));
        let last = (no + yes > 0).then(|| [not_a_number(), yes, no]);
        Runs::plain(&self.positives, &self.negatives).chain(last)
    }

    fn sort(&mut self) {
        sort(&mut self.positives, &mut self.scratch);
        sort(&mut self.negatives, &mut self.scratch);
    }
}

/// What the samples of a range of logits add up to, in units of their weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Samples, whatever they weigh.
    samples: u64,
    /// A unit of all that follows is 2^`exponent`: 1 where samples have no weights.
    exponent: i64,
    positives: u64,
    negatives: u64,
    num_right: u64,
    /// Samples whose logit is not a number: of label 0, of label 1.
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
/// Parts of one: of [`Tally::loss`] in a nat, of [`Tally::excess`] in a sample's unit.
const UNITS: f64 = 18_446_744_073_709_551_616.0;
/// Words of a [`Tally`] that travels.
pub const TALLY_WORDS: usize = WORDS + 2 * (2 + CALIBRATION_BINS);
/// Those of numbers of 64 bits.
const WORDS: usize = 7;

/// The bin of a probability. A border between two bins belongs to the upper one, and 1 to the last.
fn bin_of(probability: f64) -> usize {
    ((probability * CALIBRATION_BINS as f64) as usize).min(CALIBRATION_BINS - 1)
}

impl Tally {
    /// Of groups in rising order, one for each logit, whose unit has this exponent.
    pub fn of(groups: &mut dyn Iterator<Item = Group>, exponent: i64) -> Self {
        let mut tally = Self { exponent, ..Self::default() };
        for Group { key, positives, negatives, samples } in groups {
            tally.samples += samples;
            if key == not_a_number() {
                tally.not_numbers = [negatives, positives];
                continue;
            }
            let logit = score_of(key);
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

    /// This and the tally of all higher logits.
    #[must_use]
    pub fn and_above(self, above: Self) -> Self {
        let [low, high] = [self.not_numbers, above.not_numbers];
        Self {
            samples: self.samples + above.samples,
            // A range without samples says nothing of the unit.
            exponent: if self.samples == 0 { above.exponent } else { self.exponent },
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

    /// As it travels.
    pub fn to_words(self) -> [u64; TALLY_WORDS] {
        let [no, yes] = self.not_numbers;
        let mut words = [0; TALLY_WORDS];
        let (samples, exponent) = (self.samples, self.exponent.cast_unsigned());
        let numbers = [samples, exponent, self.positives, self.negatives, self.num_right, no, yes];
        words[..WORDS].copy_from_slice(&numbers);
        let excess = self.excess.map(i128::cast_unsigned);
        let wide = [self.doubled_wins, self.loss].into_iter().chain(excess);
        for (pair, number) in words[WORDS..].chunks_exact_mut(2).zip(wide) {
            pair.copy_from_slice(&[number as u64, (number >> 64) as u64]);
        }
        words
    }

    /// The tally that travelled as `words`.
    pub fn from_words(words: &[u64]) -> Self {
        let wide = |index: usize| {
            let low = WORDS + 2 * index;
            u128::from(words[low]) | u128::from(words[low + 1]) << 64
        };
        Self {
            samples: words[0],
            exponent: words[1].cast_signed(),
            positives: words[2],
            negatives: words[3],
            num_right: words[4],
            not_numbers: [words[5], words[6]],
            doubled_wins: wide(0),
            loss: wide(1),
            excess: std::array::from_fn(|bin| wide(2 + bin).cast_signed()),
        }
    }

    /// Samples, whatever they weigh; those of weight 0 are none.
    pub fn num_samples(&self) -> u64 {
        self.samples
    }

    /// Units of all samples: as many as there are samples, where these have no weights.
    pub fn num_units(&self) -> u64 {
        self.positives + self.negatives + self.not_numbers[0] + self.not_numbers[1]
    }

    /// The sum of the weights of all samples.
    pub fn weight(&self) -> f64 {
        self.num_units() as f64 * power_of_two(self.exponent)
    }

    /// Units of samples of label 1.
    pub fn num_positives(&self) -> u64 {
        self.positives + self.not_numbers[1]
    }

    /// Units of samples on the right side of probability one half. What is not a number is not
    /// above it.
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

    /// Sum of the losses in nats, times units; `None` where it is not finite (2^64 and more are
    /// not).
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

    /// `sum`, divided by the units of all samples: the one division is all that is rounded.
    fn per_sample(&self, sum: i128) -> Option<f64> {
        let samples = self.num_units();
        (samples > 0 && !self.has_not_numbers()).then(|| sum as f64 / UNITS / samples as f64)
    }
}
