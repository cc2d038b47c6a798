//! Runs of scores change ranks, so that each rank has all samples of one range of logits, and no
//! rank has them all.
//!
//! Every rank shows a few of its keys, evenly spaced (a regular sample: Shi and Schaeffer 1992,
//! "Parallel sorting by regular sampling"). The ranges' borders are chosen from all of these: so no
//! range holds more than about twice its part of the runs, whatever the scores. Samples of one
//! logit are one run on each rank, so that ties cannot make a range large.

use crate::metrics::scores::{Run, TALLY_WORDS, Tally};
use headlong_comm::{Communicator, Result};

/// Keys that a rank shows for each range.
const SAMPLES_PER_RANGE: usize = 32;
/// The key of no number: fills up the sample of a rank that has few runs.
const NO_KEY: u32 = u32::MAX;

/// Gives every rank the runs of its range, in no order.
pub(super) fn exchange(communicator: &Communicator, runs: &[Run]) -> Result<Vec<Run>> {
    let num_ranks = communicator.num_ranks();
    let mine = sample(runs, num_ranks);
    let mut samples = vec![0; mine.len() * num_ranks];
    communicator.all_gather(&mine, &mut samples)?;
    let parts = parts(runs, &borders(&mut samples, num_ranks));
    let sent: Vec<usize> = parts.iter().map(|part| part.as_flattened().len()).collect();
    let words: Vec<u64> = sent.iter().map(|&count| count as u64).collect();
    let mut all = vec![0; num_ranks * num_ranks];
    communicator.all_gather(&words, &mut all)?;
    let me = communicator.rank().0;
    let received: Vec<usize> = all.chunks(num_ranks).map(|of_rank| of_rank[me] as usize).collect();
    let mut flat = vec![0_u32; received.iter().sum()];
    communicator.all_to_all_v(runs.as_flattened(), &sent, &mut flat, &received)?;
    Ok(flat.as_chunks().0.to_vec())
}

/// What all ranks' ranges add up to.
pub(crate) fn add_up(communicator: &Communicator, mine: Tally) -> Result<Tally> {
    let mut all = vec![0; TALLY_WORDS * communicator.num_ranks()];
    communicator.all_gather(&mine.to_words(), &mut all)?;
    let tallies = all.chunks(TALLY_WORDS).map(Tally::from_words);
    Ok(tallies.reduce(Tally::and_above).unwrap_or_default())
}

/// What runs that came from several ranks add up to; those of one logit may be several.
pub(super) fn merge(mut runs: Vec<Run>) -> Tally {
    // A stable sort finds what is in order already: it merges.
    runs.sort_by_key(|&[key, ..]| key);
    let mut rest = runs.into_iter().peekable();
    Tally::of(std::iter::from_fn(|| {
        let [key, mut positives, mut negatives] = rest.next()?;
        while let Some([_, more_positives, more_negatives]) =
            rest.next_if(|&[other, ..]| other == key)
        {
            positives = positives
                .checked_add(more_positives)
                .expect("fewer than 2^32 samples of one logit");
            negatives = negatives
                .checked_add(more_negatives)
                .expect("fewer than 2^32 samples of one logit");
        }
        Some([key, positives, negatives])
    }))
}

/// Keys of a rank's runs, evenly spaced.
fn sample(runs: &[Run], num_ranks: usize) -> Vec<u32> {
    let len = SAMPLES_PER_RANGE * num_ranks;
    let key = |index: usize| match runs.len() {
        few if few <= len => runs.get(index).map_or(NO_KEY, |run| run[0]),
        many => runs[index * many / len][0],
    };
    (0..len).map(key).collect()
}

/// The last key of each range but the highest.
fn borders(samples: &mut Vec<u32>, num_ranks: usize) -> Vec<u32> {
    samples.retain(|&key| key != NO_KEY);
    samples.sort_unstable();
    (1..num_ranks)
        .map(|range| samples.get(range * samples.len() / num_ranks).copied().unwrap_or(NO_KEY))
        .collect()
}

fn parts<'a>(mut runs: &'a [Run], borders: &[u32]) -> Vec<&'a [Run]> {
    let mut parts = Vec::with_capacity(borders.len() + 1);
    for &border in borders {
        let (part, rest) = runs.split_at(runs.partition_point(|&[key, ..]| key <= border));
        parts.push(part);
        runs = rest;
    }
    parts.push(runs);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Scores;
    use headlong_comm::Topology;
    use headlong_comm::testing::run_ranks;
    use proptest::prelude::*;

    /// Scores of one rank.
    fn scores(samples: &[(f32, bool)]) -> Scores {
        let mut scores = Scores::default();
        samples.iter().for_each(|&(logit, label)| scores.push(logit, label));
        scores
    }

    /// The tally by ranks, each of which has its part of the samples; and the most runs that a rank
    /// got.
    fn by_ranks(parts: &[Vec<(f32, bool)>]) -> (Vec<Tally>, usize) {
        let all = run_ranks(&Topology::from_node_sizes(&[parts.len()]), |communicator| {
            let (runs, rest) = scores(&parts[communicator.rank().0]).runs();
            let received = exchange(communicator, &runs)?;
            let len = received.len();
            Ok::<_, headlong_comm::CommError>((
                add_up(communicator, merge(received).and_above(rest))?,
                len,
            ))
        });
        let all: Vec<_> = all.into_iter().map(|one| one.expect("the ranks are well")).collect();
        (
            all.iter().map(|(tally, _)| *tally).collect(),
            all.iter().map(|(_, len)| *len).max().unwrap_or(0),
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Coarse logits tie across ranks; some ranks have nothing; some logits are no number.
        #[test]
        fn ranks_find_what_one_sorted_list_has(
            samples in prop::collection::vec((-40_i8..40, any::<bool>(), 0_usize..5), 0..300),
            divisor in prop::sample::select(vec![1.0_f32, 7.0, 1000.0]),
            num_ranks in 1_usize..6,
            not_a_number in prop::option::weighted(0.2, any::<bool>()),
        ) {
            let mut parts = vec![Vec::new(); num_ranks];
            for &(logit, label, rank) in &samples {
                parts[rank.min(num_ranks - 1)].push((f32::from(logit) / divisor, label));
            }
            parts[0].extend(not_a_number.map(|label| (f32::NAN, label)));
            let whole = scores(&parts.concat()).tally();
            let (tallies, _) = by_ranks(&parts);
            prop_assert!(
                tallies.iter().all(|tally| *tally == whole),
                "{:?} against {:?}",
                tallies,
                whole
            );
        }

        #[test]
        fn words_bring_a_tally_back(words in prop::collection::vec(any::<u64>(), TALLY_WORDS)) {
            prop_assert_eq!(&Tally::from_words(&words).to_words()[..], &words[..]);
        }
    }

    #[test]
    fn no_rank_gets_all_scores() {
        let random = |i: u64| ((i * 0x9e37_79b9_7f4a_7c15) >> 40) as f32 / 4096.0;
        let (ranks, len) = (4_u64, 20_000_u64);
        for spread in [1.0, 1e-3] {
            // One rank's scores lie below all others': each rank's own borders would be wrong.
            let part = |rank: u64| {
                (0..len).map(move |i| (random(rank * len + i) * spread + rank as f32, i % 3 == 0))
            };
            let parts: Vec<Vec<_>> = (0..ranks).map(|rank| part(rank).collect()).collect();
            let (tallies, most) = by_ranks(&parts);
            assert_eq!(tallies[0], scores(&parts.concat()).tally());
            assert!(most as u64 <= 2 * len, "a rank got {most} of {} runs", ranks * len);
        }
        // All scores tie: one run of each rank, and nothing else, is all that travels.
        let tied = vec![vec![(0.5, true), (0.5, false), (0.5, false)]; 4];
        let (tallies, most) = by_ranks(&tied);
        assert_eq!((tallies[3].auc(), most), (Some(0.5), 4));
    }
}
