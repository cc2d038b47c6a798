//! Runs of scores change ranks, so that each rank has all samples of one range of logits, and no
//! rank has them all.
//!
//! Every rank shows a few of its keys, evenly spaced (a regular sample: Shi and Schaeffer 1992,
//! "Parallel sorting by regular sampling"). The ranges' borders are chosen from all of these: so no
//! range holds more than about twice its part of the runs, whatever the scores. Samples of one
//! logit are one run on each rank, so that ties cannot make a range large.

use crate::metrics::runs::Runs;
use crate::metrics::scores::{TALLY_WORDS, Tally};
use headlong_comm::{Communicator, Result};

/// Keys that a rank shows for each range.
const SAMPLES_PER_RANGE: usize = 32;
/// The key of no number: fills up the sample of a rank that has few runs.
const NO_KEY: u32 = u32::MAX;

/// Gives every rank the runs of its range, in no order. They have weights where any rank's have.
pub(super) fn exchange(communicator: &Communicator, runs: Runs) -> Result<Runs> {
    let num_ranks = communicator.num_ranks();
    let mut mine = sample(&runs, num_ranks);
    let num_keys = mine.len();
    mine.extend([u32::from(runs.is_weighted()), runs.heaviest().to_bits()]);
    let mut all = vec![0; mine.len() * num_ranks];
    communicator.all_gather(&mine, &mut all)?;
    let (mut keys, mut is_weighted, mut heaviest) = (Vec::new(), false, 0.0_f32);
    for of_rank in all.chunks(mine.len()) {
        keys.extend_from_slice(&of_rank[..num_keys]);
        is_weighted |= of_rank[num_keys] == 1;
        heaviest = heaviest.max(f32::from_bits(of_rank[num_keys + 1]));
    }
    let borders = borders(&mut keys, num_ranks);
    match runs {
        Runs::Plain(runs) if !is_weighted => {
            Ok(Runs::Plain(give_ranges(communicator, &runs, &borders)?))
        }
        runs => {
            let received = give_ranges(communicator, &runs.into_weighted(), &borders)?;
            Ok(Runs::Weighted(received, heaviest))
        }
    }
}

/// The same of runs of any number of words, between these borders.
fn give_ranges<const WORDS: usize>(
    communicator: &Communicator,
    runs: &[[u32; WORDS]],
    borders: &[u32],
) -> Result<Vec<[u32; WORDS]>> {
    let num_ranks = communicator.num_ranks();
    let parts = parts(runs, borders);
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

/// Keys of a rank's runs, evenly spaced.
fn sample(runs: &Runs, num_ranks: usize) -> Vec<u32> {
    let len = SAMPLES_PER_RANGE * num_ranks;
    let place = |index: usize| match runs.num_runs() {
        few if few <= len => index,
        many => index * many / len,
    };
    (0..len).map(|index| runs.key(place(index)).unwrap_or(NO_KEY)).collect()
}

/// The last key of each range but the highest.
fn borders(samples: &mut Vec<u32>, num_ranks: usize) -> Vec<u32> {
    samples.retain(|&key| key != NO_KEY);
    samples.sort_unstable();
    (1..num_ranks)
        .map(|range| samples.get(range * samples.len() / num_ranks).copied().unwrap_or(NO_KEY))
        .collect()
}

fn parts<'a, const WORDS: usize>(
    mut runs: &'a [[u32; WORDS]],
    borders: &[u32],
) -> Vec<&'a [[u32; WORDS]]> {
    let mut parts = Vec::with_capacity(borders.len() + 1);
    for &border in borders {
        let (part, rest) = runs.split_at(runs.partition_point(|run| run[0] <= border));
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
    use headlong_device::label;
    use proptest::prelude::*;

    /// Scores of one rank.
    fn scores(samples: &[(f32, f32)]) -> Scores {
        let mut scores = Scores::default();
        samples.iter().for_each(|&(logit, label)| scores.push(logit, label));
        scores
    }

    /// The tally by ranks, each of which has its part of the samples; and the most runs that a rank
    /// got.
    fn by_ranks(parts: &[Vec<(f32, f32)>]) -> (Vec<Tally>, usize) {
        let all = run_ranks(&Topology::from_node_sizes(&[parts.len()]), |communicator| {
            let runs = scores(&parts[communicator.rank().0]).runs();
            let received = exchange(communicator, runs)?;
            let len = received.num_runs();
            Ok::<_, headlong_comm::CommError>((
                add_up(communicator, received.in_groups(Tally::of))?,
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

        /// Coarse logits tie across ranks; some ranks have nothing, or samples without weights
        /// alone; some logits are no number.
        #[test]
        fn ranks_find_what_one_sorted_list_has(
            samples in prop::collection::vec((-40_i8..40, any::<bool>(), 0_usize..5), 0..300),
            divisor in prop::sample::select(vec![1.0_f32, 7.0, 1000.0]),
            num_ranks in 1_usize..6,
            not_a_number in prop::option::weighted(0.2, any::<bool>()),
            weights in prop::sample::select(vec![&[1.0_f32][..], &[0.3, 1.0, 0.0, 1e-3, 7.0]]),
        ) {
            let weighted =
                |label, rank: usize| label::weighted(label, weights[rank % weights.len()]);
            let mut parts = vec![Vec::new(); num_ranks];
            for &(logit, label, rank) in &samples {
                let sample = (f32::from(logit) / divisor, weighted(label, rank));
                parts[rank.min(num_ranks - 1)].push(sample);
            }
            parts[0].extend(not_a_number.map(|label| (f32::NAN, weighted(label, 0))));
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
                (0..len).map(move |i| {
                    let label = f32::from(u8::from(i % 3 == 0));
                    (random(rank * len + i) * spread + rank as f32, label)
                })
            };
            let parts: Vec<Vec<_>> = (0..ranks).map(|rank| part(rank).collect()).collect();
            let (tallies, most) = by_ranks(&parts);
            assert_eq!(tallies[0], scores(&parts.concat()).tally());
            assert!(most as u64 <= 2 * len, "a rank got {most} of {} runs", ranks * len);
        }
        // All scores tie: one run of each rank, and nothing else, is all that travels.
        let tied = vec![vec![(0.5, 1.0), (0.5, 0.0), (0.5, 0.0)]; 4];
        let (tallies, most) = by_ranks(&tied);
        assert_eq!((tallies[3].auc(), most), (Some(0.5), 4));
    }
}
