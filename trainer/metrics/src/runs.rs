//! Samples of one logit, as they travel between ranks and are added up.
//!
//! Samples of weight 1 are counted. Where one has another weight, all are counted in units: the
//! last of the 24 bits of the heaviest one, a power of two, so that weights that are not much
//! lighter are exact, and weights that are all the same power of two give the metrics that none
//! give, bit for bit. A sample has one unit at least.

use super::auc::sort_key;

/// All samples of one logit: its key, those of label 1, those of label 0.
pub type Plain = [u32; 3];
/// All samples of one logit and one weight: key, bits of the weight, and as before.
pub type Weighted = [u32; 4];

/// The key of logits that are not a number: above all others.
pub fn not_a_number() -> u32 {
    sort_key(f32::NAN)
}

/// Runs of samples, those of one rank or those of one range of logits.
#[derive(Clone, Debug)]
pub enum Runs {
    /// Samples of weight 1.
    Plain(Vec<Plain>),
    /// Samples of any weight, the heaviest of which has this one.
    Weighted(Vec<Weighted>, f32),
}

/// All samples of one logit, counted in units.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// The key of the logit.
    pub key: u32,
    /// Units of samples of label 1.
    pub positives: u64,
    /// Units of samples of label 0.
    pub negatives: u64,
    /// Samples, whatever they weigh.
    pub samples: u64,
}

impl From<Plain> for Group {
    fn from([key, positives, negatives]: Plain) -> Self {
        let (positives, negatives) = (u64::from(positives), u64::from(negatives));
        Self { key, positives, negatives, samples: positives + negatives }
    }
}

/// Samples of a list, as many as there may be on a rank.
fn count(samples: usize) -> u32 {
    u32::try_from(samples).expect("a rank evaluates fewer than 2^32 samples")
}

impl Runs {
    /// Of sorted keys of each class.
    pub fn plain<'a>(
        mut positives: &'a [u32],
        mut negatives: &'a [u32],
    ) -> impl Iterator<Item = Plain> + 'a {
        let take = |keys: &mut &[u32], key: u32| {
            let len = keys.iter().take_while(|&&other| other == key).count();
            *keys = &keys[len..];
            count(len)
        };
        std::iter::from_fn(move || {
            let key = match (positives.first(), negatives.first()) {
                (Some(&one), Some(&other)) => one.min(other),
                (one, other) => *one.or(other)?,
            };
            Some([key, take(&mut positives, key), take(&mut negatives, key)])
        })
    }

    /// A sample of any weight above 0 as one number, which sorts by key, weight and class.
    pub fn entry(logit: f32, is_positive: bool, weight: f32) -> u64 {
        let key = if logit.is_nan() { not_a_number() } else { sort_key(logit) };
        // The sign of a weight is always the same.
        u64::from(key) << 32 | u64::from(weight.to_bits()) << 1 | u64::from(is_positive)
    }

    /// Of runs of weight 1, rising, and of sorted entries of other weights.
    pub fn new(plain: Vec<Plain>, entries: &[u64]) -> Self {
        if entries.is_empty() {
            return Self::Plain(plain);
        }
        let mut heaviest = if plain.is_empty() { 0.0 } else { 1.0_f32 };
        let mut runs = weigh(plain);
        for of_weight in entries.chunk_by(|one, other| one >> 1 == other >> 1) {
            let weight = (of_weight[0] as u32) >> 1;
            let yes = of_weight.iter().filter(|entry| **entry & 1 == 1).count();
            let no = of_weight.len() - yes;
            runs.push([(of_weight[0] >> 32) as u32, weight, count(yes), count(no)]);
            heaviest = heaviest.max(f32::from_bits(weight));
        }
        runs.sort_by_key(|&[key, ..]| key);
        Self::Weighted(runs, heaviest)
    }

    /// How many there are.
    pub fn num_runs(&self) -> usize {
        match self {
            Self::Plain(runs) => runs.len(),
            Self::Weighted(runs, _) => runs.len(),
        }
    }

    /// The key of a run.
    pub fn key(&self, index: usize) -> Option<u32> {
        match self {
            Self::Plain(runs) => runs.get(index).map(|run| run[0]),
            Self::Weighted(runs, _) => runs.get(index).map(|run| run[0]),
        }
    }

    /// The heaviest weight; 0 without samples.
    pub fn heaviest(&self) -> f32 {
        match self {
            Self::Plain(runs) => f32::from(u8::from(!runs.is_empty())),
            Self::Weighted(_, heaviest) => *heaviest,
        }
    }

    /// Whether a sample has another weight than 1.
    pub fn is_weighted(&self) -> bool {
        matches!(self, Self::Weighted(..))
    }

    /// The same, with the weights named.
    pub fn into_weighted(self) -> Vec<Weighted> {
        match self {
            Self::Plain(runs) => weigh(runs),
            Self::Weighted(runs, _) => runs,
        }
    }

    /// Hands to `take` one group for each logit, rising, and the exponent of the unit: a unit is
    /// that power of two. Runs may be in any order, and several of one logit.
    pub fn in_groups<T>(self, take: impl FnOnce(&mut dyn Iterator<Item = Group>, i64) -> T) -> T {
        // A stable sort finds what is in order already: it merges.
        match self {
            Self::Plain(mut runs) => {
                runs.sort_by_key(|&[key, ..]| key);
                take(&mut merged(runs.into_iter().map(Group::from)), 0)
            }
            Self::Weighted(mut runs, heaviest) => {
                runs.sort_by_key(|&[key, ..]| key);
                let exponent = exponent_of(heaviest);
                let group = |[key, weight, yes, no]: Weighted| {
                    let (units, yes) = (units(f32::from_bits(weight), exponent), u64::from(yes));
                    let no = u64::from(no);
                    Group { key, positives: yes * units, negatives: no * units, samples: yes + no }
                };
                take(&mut merged(runs.into_iter().map(group)), exponent)
            }
        }
    }
}

fn weigh(runs: Vec<Plain>) -> Vec<Weighted> {
    runs.into_iter().map(|[key, yes, no]| [key, 1.0_f32.to_bits(), yes, no]).collect()
}

/// One group for each key of sorted ones.
fn merged(groups: impl Iterator<Item = Group>) -> impl Iterator<Item = Group> {
    let mut rest = groups.peekable();
    std::iter::from_fn(move || {
        let mut group = rest.next()?;
        while let Some(more) = rest.next_if(|more| more.key == group.key) {
            group.positives += more.positives;
            group.negatives += more.negatives;
            group.samples += more.samples;
        }
        Some(group)
    })
}

/// The exponent of the last bit of a weight above 0: the weight is 2^23 to 2^24 units.
fn exponent_of(heaviest: f32) -> i64 {
    (f64::from(heaviest).to_bits() >> 52) as i64 - 1023 - 23
}

fn units(weight: f32, exponent: i64) -> u64 {
    (f64::from(weight) * power_of_two(-exponent)).round().max(1.0) as u64
}

/// 2^`exponent`, which a f64 can have.
pub(super) fn power_of_two(exponent: i64) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use crate::{EvalMetrics, Scores, log_loss, probability};
    use headlong_device::label;

    const COUNT: usize = 300;

    /// Logits that tie, and classes.
    fn samples() -> Vec<(f32, bool)> {
        (0..COUNT).map(|i| ((i * 37 % 41) as f32 / 10.0 - 2.0, i * i % 7 < 3)).collect()
    }

    fn metrics(samples: impl Iterator<Item = (f32, f32)>) -> EvalMetrics {
        let mut scores = Scores::default();
        samples.for_each(|(logit, label)| scores.push(logit, label));
        EvalMetrics::of(&scores.tally())
    }

    fn weighted(weight: impl Fn(usize) -> f32) -> EvalMetrics {
        let label = |(i, (logit, label))| (logit, label::weighted(label, weight(i)));
        metrics(samples().into_iter().enumerate().map(label))
    }

    #[test]
    fn whole_weights_are_samples_that_come_so_often() {
        let often = samples().into_iter().enumerate().flat_map(|(i, (logit, label))| {
            std::iter::repeat_n((logit, f32::from(u8::from(label))), i % 4)
        });
        let (expected, found) = (metrics(often), weighted(|i| (i % 4) as f32));
        let eval_samples = (0..COUNT).filter(|i| i % 4 > 0).count() as u64;
        assert_eq!(found, EvalMetrics { eval_samples, ..expected });
        assert_ne!(found.auc, weighted(|_| 1.0).auc, "the weights change nothing");
    }

    #[test]
    fn equal_weights_of_any_size_are_no_weights() {
        let expected = weighted(|_| 1.0);
        for weight in [2.0, f32::from_bits(1), 2.0_f32.powi(127)] {
            assert_eq!(weighted(|_| weight), expected, "{weight}");
        }
        for weight in [0.3, 1e-40, 3e38] {
            let found = weighted(|_| weight);
            for (found, expected) in [(found.auc, expected.auc), (found.logloss, expected.logloss)]
            {
                // Sums are rounded once more before they are divided.
                let off = found.unwrap() / expected.unwrap() - 1.0;
                assert!(off.abs() <= 4.0 * f64::EPSILON, "{weight}: {off:e}");
            }
        }
    }

    /// Pair by pair and sample by sample, in f64.
    #[test]
    fn metrics_agree_with_their_definitions() {
        let weight = |i: usize| [0.25, 1.0, 3.7, 0.0, 0.011][i % 5];
        let all: Vec<(f32, bool, f64)> = samples()
            .into_iter()
            .enumerate()
            .map(|(i, (logit, label))| (logit, label, f64::from(weight(i) as f32)))
            .collect();
        let (mut pairs, mut won, mut sum, mut loss, mut predicted) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for &(logit, label, weight) in &all {
            sum += weight;
            loss += weight * log_loss(logit, label);
            predicted += weight * f64::from(probability(logit));
            for &(other, _, of_other) in all.iter().filter(|other| label && !other.1) {
                pairs += weight * of_other;
                let share = if logit > other { 1.0 } else { 0.5 * f64::from(logit == other) };
                won += share * weight * of_other;
            }
        }
        let found = weighted(|i| weight(i) as f32);
        // Weights are rounded to 2^-24 of the heaviest, 3.7, and weigh 1 on average.
        assert!((found.auc.unwrap() - won / pairs).abs() < 1e-6);
        assert!((found.logloss.unwrap() - loss / sum).abs() < 1e-6);
        assert!((found.mean_prediction.unwrap() - predicted / sum).abs() < 1e-6);
        assert_eq!(found.eval_samples, COUNT as u64 / 5 * 4);
        let none = weighted(|_| 0.0);
        assert_eq!((none.auc, none.logloss, none.eval_samples), (None, None, 0));
    }

    #[test]
    fn a_logit_that_is_no_number_counts_unless_it_weighs_nothing() {
        let with = |weight| {
            let others = samples().into_iter().map(|(logit, label)| (logit, label, 2.0));
            let all = others.chain([(f32::NAN, true, weight)]);
            metrics(all.map(|(logit, label, weight)| (logit, label::weighted(label, weight))))
        };
        assert_eq!((with(2.0).auc, with(1.0).logloss), (None, None));
        assert_eq!(with(0.0), weighted(|_| 2.0));
    }
}
