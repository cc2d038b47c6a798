//! A rank's share of a batch: which samples it trains on.
//!
//! A micro-batch of all ranks is cut into `sum_blocks` blocks (docs/numerics.md), and a rank holds
//! a run of them: so sums over blocks have the same shape on every rank. The last shares of
//! a short batch are shorter, or empty.
//!
//! ```text
//! 10 samples, 4 blocks of 3, 2 ranks     samples 0 1 2 | 3 4 5 | 6 7 8 | 9
//!                                        rank    0       0       1       1
//! ```

use headlong_reader::order::Slice;
use headlong_reader::{Batch, Jagged};
use std::ops::Range;

/// Which samples of every batch belong to one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    rank: usize,
    num_ranks: usize,
    sum_blocks: usize,
    micro_batch_size: usize,
}

impl Share {
    /// The share of `rank` in steps of micro-batches of `micro_batch_size` samples (over all
    /// ranks), cut into `sum_blocks`.
    ///
    /// # Panics
    /// When the blocks cannot be divided among the ranks; configurations are checked before.
    pub fn new(rank: usize, num_ranks: usize, sum_blocks: usize, micro_batch_size: usize) -> Self {
        assert!(rank < num_ranks, "rank {rank} of {num_ranks}");
        assert!(sum_blocks.is_multiple_of(num_ranks), "{sum_blocks} blocks for {num_ranks} ranks");
        Self { rank, num_ranks, sum_blocks, micro_batch_size }
    }

    /// The share of rank `rank` in the same batches.
    pub fn of_rank(&self, rank: usize) -> Self {
        Self::new(rank, self.num_ranks, self.sum_blocks, self.micro_batch_size)
    }

    pub fn num_ranks(&self) -> usize {
        self.num_ranks
    }

    /// Blocks over all ranks.
    pub fn sum_blocks(&self) -> usize {
        self.sum_blocks
    }

    pub fn blocks(&self) -> Range<usize> {
        let own = self.sum_blocks / self.num_ranks;
        self.rank * own..(self.rank + 1) * own
    }

    /// Samples of all ranks in one micro-batch of training.
    pub fn micro_batch_size_of_all(&self) -> usize {
        self.micro_batch_size
    }

    /// This rank's samples in a whole micro-batch.
    pub fn micro_batch_size(&self) -> usize {
        self.in_micro_batch(self.micro_batch_size).len()
    }

    /// The same for readers.
    pub fn slice(&self) -> Slice {
        Slice {
            index: self.rank as u64,
            of: self.num_ranks as u64,
            blocks: self.sum_blocks as u64,
            part: self.micro_batch_size as u64,
        }
    }

    /// This rank's samples of a micro-batch of `num_samples`.
    pub fn in_micro_batch(&self, num_samples: usize) -> Range<usize> {
        here(self.slice().of_part(num_samples as u64))
    }

    /// This rank's samples of a step of `num_samples`: a run from each micro-batch.
    pub fn in_step(
        &self,
        num_samples: usize,
    ) -> impl Iterator<Item = Range<usize>> + Clone + use<> {
        self.slice().of_batch(num_samples as u64).map(here)
    }

    /// This rank's samples of an evaluation batch, which is cut into one run a rank.
    pub fn in_evaluation(&self, num_samples: usize) -> Range<usize> {
        let len = num_samples.div_ceil(self.num_ranks);
        (self.rank * len).min(num_samples)..((self.rank + 1) * len).min(num_samples)
    }
}

/// A range of samples of a batch that is in memory.
fn here(range: Range<u64>) -> Range<usize> {
    range.start as usize..range.end as usize
}

/// Copies the samples of `runs` from `all` to `share`: labels, dense features and ids. Allocates
/// nothing once `share` has held as much.
pub fn copy_share(
    all: &Batch,
    runs: impl Iterator<Item = Range<usize>> + Clone,
    share: &mut Batch,
) {
    share.num_samples = runs.clone().map(|run| run.len()).sum();
    (share.position, share.share_of) = (all.position, None);
    share.labels.clear();
    share.dense.clear();
    let width = all.dense.len().checked_div(all.num_samples).unwrap_or(0);
    for run in runs.clone() {
        if !all.labels.is_empty() {
            share.labels.extend_from_slice(&all.labels[run.clone()]);
        }
        share.dense.extend_from_slice(&all.dense[run.start * width..run.end * width]);
    }
    share.sparse.resize_with(all.sparse.len(), Jagged::default);
    for (all, share) in all.sparse.iter().zip(&mut share.sparse) {
        copy_bags(all, runs.clone(), share);
    }
}

fn copy_bags(all: &Jagged, runs: impl Iterator<Item = Range<usize>>, share: &mut Jagged) {
    share.values.clear();
    share.offsets.clear();
    share.offsets.push(0);
    for run in runs {
        let offsets = &all.offsets[run.start..=run.end];
        let (first, last) = (offsets[0], offsets[run.len()]);
        // Note: wraps where the run lies further behind in the batch than in the share; the sum is
        // right again.
        let shift = (share.values.len() as u32).wrapping_sub(first);
        share.offsets.extend(offsets[1..].iter().map(|offset| offset.wrapping_add(shift)));
        share.values.extend_from_slice(&all.values[first as usize..last as usize]);
    }
}

/// `batch`, up to `full` samples: with the last id again where each sample has one, else with bags
/// of none, as there may be no room for more ids than the data has.
pub(crate) fn pad(padded: &mut Batch, batch: &Batch, full: usize) {
    padded.clone_from(batch);
    let (samples, missing) = (batch.num_samples, full - batch.num_samples);
    padded.num_samples = full;
    if !batch.labels.is_empty() {
        padded.labels.resize(full, 0.0);
    }
    padded.dense.resize(batch.dense.len() / samples * full, 0.0);
    for bags in &mut padded.sparse {
        let last = bags.values.last().copied().filter(|_| bags.values.len() == samples);
        for _ in 0..missing {
            bags.values.extend(last);
            bags.offsets.push(bags.values.len() as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_every_step_once() {
        for (ranks, blocks, micro, samples) in [
            (1, 1, 8, 20),
            (2, 4, 10, 30),
            (2, 4, 10, 27),
            (4, 8, 5, 13),
            (3, 3, 7, 1),
            (8, 8, 3, 3),
            (2, 2, 4, 0),
        ] {
            let mut seen = vec![0; samples];
            for rank in 0..ranks {
                let share = Share::new(rank, ranks, blocks, micro);
                share.in_step(samples).flatten().for_each(|sample| seen[sample] += 1);
                assert!(
                    share.micro_batch_size()
                        <= Share::new(0, ranks, blocks, micro).micro_batch_size()
                );
            }
            assert!(
                seen.iter().all(|&times| times == 1),
                "{ranks} ranks, {samples} samples: {seen:?}"
            );
            let evaluated: usize = (0..ranks)
                .map(|rank| Share::new(rank, ranks, blocks, micro).in_evaluation(samples).len())
                .sum();
            assert_eq!(evaluated, samples);
        }
    }

    #[test]
    fn the_share_of_the_drawing() {
        let share = |rank| Share::new(rank, 2, 4, 10).in_step(10).next();
        assert_eq!((share(0), share(1)), (Some(0..6), Some(6..10)));
    }

    #[test]
    fn bags_are_copied_with_their_samples() {
        let all = Batch {
            num_samples: 4,
            labels: vec![0.0, 1.0, 2.0, 3.0],
            dense: (0..8).map(|i| i as f32).collect(),
            sparse: vec![Jagged {
                values: vec![10, 20, 21, 30],
                offsets: vec![0, 1, 3, 3, 4].into(),
            }],
            ..Batch::default()
        };
        let mut share = Batch::default();
        copy_share(&all, [1..2, 3..4].into_iter(), &mut share);
        assert_eq!(
            (share.num_samples, &share.labels[..], &share.dense[..]),
            (2, &[1.0, 3.0][..], &[2.0, 3.0, 6.0, 7.0][..])
        );
        assert_eq!(
            share.sparse[0],
            Jagged { values: vec![20, 21, 30], offsets: vec![0, 2, 3].into() }
        );
        copy_share(&all, std::iter::empty(), &mut share);
        assert_eq!((share.num_samples, &share.sparse[0].offsets[..]), (0, &[0][..]));
    }
}
