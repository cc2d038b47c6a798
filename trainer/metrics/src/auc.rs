//! Exact area under the ROC curve, with ties, over any number of samples.
//!
//! AUC = (pairs of one positive and one negative sample in which the positive scores higher, ties
//! counted one half) / (all such pairs). Counted in integers, so the result does not depend on the
//! order of the samples, and the only rounding is the one division at the end.

/// Maps a number to an integer of the same order: a < b exactly where key(a) < key(b), and −0 has
/// the key of +0.
#[inline]
pub fn sort_key(score: f32) -> u32 {
    // Adding +0 turns −0 into +0 and changes nothing else.
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 }
}

/// The number that [`sort_key`] gave `key`.
pub fn score_of(key: u32) -> f32 {
    f32::from_bits(if key >> 31 == 1 { key & 0x7fff_ffff } else { !key })
}

/// Below this length comparison sorting is faster than counting.
const RADIX_FROM: usize = 1 << 14;
const DIGIT_BITS: u32 = 11;
const NUM_DIGITS: u32 = 3;

/// Sorts `keys` ascending: least significant digit first, three digits of 11 bits, each skipped
/// where all keys share it.
pub fn sort(keys: &mut Vec<u32>, scratch: &mut Vec<u32>) {
    if keys.len() < RADIX_FROM {
        keys.sort_unstable();
        return;
    }
    scratch.clear();
    scratch.resize(keys.len(), 0);
    for digit in 0..NUM_DIGITS {
        let shift = digit * DIGIT_BITS;
        let place = |key: u32| ((key >> shift) & ((1 << DIGIT_BITS) - 1)) as usize;
        let mut starts = [0_usize; 1 << DIGIT_BITS];
        for &key in keys.iter() {
            starts[place(key)] += 1;
        }
        if starts[place(keys[0])] == keys.len() {
            continue;
        }
        let mut next = 0;
        for start in &mut starts {
            next += std::mem::replace(start, next);
        }
        for &key in keys.iter() {
            let slot = &mut starts[place(key)];
            scratch[*slot] = key;
            *slot += 1;
        }
        std::mem::swap(keys, scratch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Scores, auc};
    use proptest::prelude::*;

    /// The definition, pair by pair.
    fn brute_force(scores: &[f32], labels: &[f32]) -> Option<f64> {
        let (mut doubled, mut pairs) = (0_u64, 0_u64);
        for (&high, _) in scores.iter().zip(labels).filter(|(_, label)| **label > 0.5) {
            for (&low, _) in scores.iter().zip(labels).filter(|(_, label)| **label <= 0.5) {
                pairs += 1;
                doubled += if high > low { 2 } else { u64::from(high == low) };
            }
        }
        (pairs > 0).then(|| doubled as f64 / (2 * pairs) as f64)
    }

    #[test]
    fn hand_values() {
        assert_eq!(auc(&[0.1, 0.4, 0.35, 0.8], &[0.0, 0.0, 1.0, 1.0]), Some(0.75));
        assert_eq!(auc(&[1.0, 2.0, 3.0], &[0.0, 0.0, 1.0]), Some(1.0));
        assert_eq!(auc(&[3.0, 2.0, 1.0], &[0.0, 0.0, 1.0]), Some(0.0));
        // One pair won, one tied: (1 + 1/2) / 2.
        assert_eq!(auc(&[0.5, 0.5, 0.2], &[1.0, 0.0, 0.0]), Some(0.75));
    }

    #[test]
    fn equal_scores_give_one_half_and_one_class_gives_nothing() {
        assert_eq!(auc(&[0.3; 7], &[0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0]), Some(0.5));
        assert_eq!(auc(&[0.3, 0.4], &[1.0, 1.0]), None);
        assert_eq!(auc(&[0.3, 0.4], &[0.0, 0.0]), None);
        assert_eq!(auc(&[], &[]), None);
        assert_eq!(auc(&[0.3, f32::NAN], &[0.0, 1.0]), None);
    }

    #[test]
    fn signed_zeros_tie_and_infinities_are_extremes() {
        assert_eq!(auc(&[-0.0, 0.0], &[1.0, 0.0]), Some(0.5));
        let scores = [f32::NEG_INFINITY, -3.0, -0.0, 1e-45, f32::INFINITY];
        assert!(scores.windows(2).all(|pair| sort_key(pair[0]) < sort_key(pair[1])));
        assert_eq!(auc(&scores, &[0.0, 0.0, 0.0, 1.0, 1.0]), Some(1.0));
        assert!(scores.iter().all(|&score| score_of(sort_key(score)) == score));
    }

    /// A small generator, so that the large case needs no crate: the numbers of splitmix64.
    fn mixed(index: u64) -> u64 {
        let mut z = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    #[test]
    fn a_million_samples_agree_with_average_ranks() {
        let num_samples = 1_000_000;
        let scores: Vec<f32> =
            (0..num_samples).map(|i| (mixed(i) % 40_000) as f32 / 8000.0 - 2.5).collect();
        let labels: Vec<f32> = (0..num_samples)
            .map(|i| {
                f32::from(u8::from(mixed(i + num_samples) % 1000 < 250 + mixed(i) % 40_000 / 200))
            })
            .collect();
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[a].total_cmp(&scores[b]));
        let (mut rank_sum, mut first) = (0.0_f64, 0);
        while first < order.len() {
            let tied =
                order[first..].iter().take_while(|&&i| scores[i] == scores[order[first]]).count();
            let average_rank = first as f64 + (tied as f64 + 1.0) / 2.0;
            let hits = order[first..first + tied].iter().filter(|&&i| labels[i] > 0.5).count();
            rank_sum += average_rank * hits as f64;
            first += tied;
        }
        let positives = labels.iter().filter(|&&label| label > 0.5).count() as f64;
        let negatives = labels.len() as f64 - positives;
        let expected = (rank_sum - positives * (positives + 1.0) / 2.0) / (positives * negatives);
        let found = auc(&scores, &labels).unwrap();
        // Rank sums are exact here (halves below 2^52); the two divisions round once each.
        assert!((found - expected).abs() <= 4.0 * f64::EPSILON, "{found} against {expected}");
        assert!(found > 0.55, "the scores are informative: {found}");
    }

    #[test]
    fn the_two_sorts_agree() {
        let mut keys: Vec<u32> = (0..50_000).map(|i| mixed(i) as u32).collect();
        let mut expected = keys.clone();
        expected.sort_unstable();
        sort(&mut keys, &mut Vec::new());
        assert_eq!(keys, expected);
        let mut narrow: Vec<u32> = (0..50_000).map(|i| mixed(i) as u32 & 0x7ff).collect();
        let mut expected = narrow.clone();
        expected.sort_unstable();
        sort(&mut narrow, &mut Vec::new());
        assert_eq!(narrow, expected);
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(
            samples in prop::collection::vec((-4_i8..4, any::<bool>()), 0..60),
        ) {
            let scores: Vec<f32> =
                samples.iter().map(|(score, _)| f32::from(*score) * 0.25).collect();
            let labels: Vec<f32> =
                samples.iter().map(|(_, label)| f32::from(u8::from(*label))).collect();
            prop_assert_eq!(auc(&scores, &labels), brute_force(&scores, &labels));
        }

        #[test]
        fn order_does_not_matter(
            mut samples in prop::collection::vec((-1e3_f32..1e3, any::<bool>()), 2..50),
        ) {
            let of = |samples: &[(f32, bool)]| {
                let mut scores = Scores::default();
                let label = |one: bool| f32::from(u8::from(one));
                samples.iter().for_each(|&(score, one)| scores.push(score, label(one)));
                scores.tally().auc()
            };
            let forward = of(&samples);
            samples.reverse();
            prop_assert_eq!(forward, of(&samples));
        }
    }
}
