//! In which order samples are visited: seeded, and exact to resume.
//!
//! An epoch is a list of batches. They are taken in the order of the data, or in a shuffled order
//! (a batch keeps its samples: cheap, for data that is shuffled already), or the samples themselves
//! are shuffled within windows of bounded size. Everything follows from seed, epoch and number of
//! the sample, so a position needs no state besides them.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::{Result, invalid};
use crate::hashing::fmix64;

/// How samples are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case", deny_unknown_fields)]
#[expect(missing_docs, reason = "the variants say what their fields are")]
pub enum Order {
    /// As they are.
    #[default]
    Sequential,
    /// Batches in a random order, the same on every rank.
    Batches { seed: u64 },
    /// Samples in a random order: chunks of the data in a random order are gathered to windows of
    /// about `window` samples, within which any sample can come anywhere.
    Samples { seed: u64, window: u64 },
}

/// A rank's share of every batch.
///
/// A batch is cut into parts (micro-batches), and each part into blocks of equal length, of which
/// the last are shorter, or empty. A slice is the same run of blocks of every part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Which, from 0.
    pub index: u64,
    /// Of how many.
    pub of: u64,
    /// Blocks of a part: a multiple of `of`.
    pub blocks: u64,
    /// Samples of a part.
    pub part: u64,
}

impl Slice {
    /// Everything.
    pub const WHOLE: Self = Self::one_of(0, 1);

    /// One of `of` slices of batches of one part, with one block each.
    pub const fn one_of(index: u64, of: u64) -> Self {
        Self { index, of, blocks: of, part: u64::MAX }
    }

    /// Its samples of a part of `len` samples.
    pub fn of_part(self, len: u64) -> Range<u64> {
        let block_len = len.div_ceil(self.blocks);
        let own = self.blocks / self.of;
        let border = |index: u64| (index * own * block_len).min(len);
        border(self.index)..border(self.index + 1)
    }

    /// Its samples of a batch of `len` samples: a run of each part.
    pub fn of_batch(self, len: u64) -> impl Iterator<Item = Range<u64>> + Clone + use<> {
        let parts = std::iter::successors(Some(0_u64), move |first| first.checked_add(self.part));
        parts.take_while(move |first| *first < len).map(move |first| {
            let Range { start, end } = self.of_part(self.part.min(len - first));
            first + start..first + end
        })
    }

    fn exists(self) -> bool {
        self.index < self.of
            && self.blocks > 0
            && self.blocks.is_multiple_of(self.of)
            && self.part > 0
    }

    /// Refuses a slice that is none.
    pub(crate) fn check(self) -> Result<()> {
        match self.exists() {
            true => Ok(()),
            false => Err(invalid!(
                "slice {} of {} in {} blocks: expected one of those there are, and as many \
                 blocks for each",
                self.index,
                self.of,
                self.blocks
            )),
        }
    }
}

/// A random permutation of `0..length`, by Fisher and Yates.
pub fn permutation(length: u64, seed: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..length).collect();
    let mut state = fmix64(seed ^ 0x9e37_79b9_7f4a_7c15);
    for index in (1..order.len()).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        // A product instead of a remainder: the bias is below 2⁻³² for any length in use.
        let other = (u128::from(fmix64(state)) * (index as u128 + 1)) >> 64;
        order.swap(index, other as usize);
    }
    order
}

fn of_epoch(seed: u64, epoch: u64) -> u64 {
    fmix64(seed ^ fmix64(epoch.wrapping_add(1)))
}

/// The batches of an epoch, as ranges of samples of the data.
///
/// `start` samples have been delivered already: any number in sequential order, else a multiple of
/// the batch size, or everything.
pub fn batches(
    order: Order,
    epoch: u64,
    num_samples: u64,
    batch_size: u64,
    start: u64,
) -> Vec<Range<u64>> {
    let num_batches = num_samples.div_ceil(batch_size);
    let range = |index: u64| index * batch_size..((index + 1) * batch_size).min(num_samples);
    let first = start.div_ceil(batch_size);
    match order {
        Order::Sequential => {
            let next = |from: &u64| Some(from + batch_size).filter(|from| *from < num_samples);
            let starts =
                std::iter::successors(Some(start).filter(|start| *start < num_samples), next);
            starts.map(|from| from..(from + batch_size).min(num_samples)).collect()
        }
        Order::Samples { .. } => unreachable!("a shuffle of samples has windows"),
        Order::Batches { seed } => {
            // The short batch stays the last: the others then have one size for a captured step.
            let full = num_samples / batch_size;
            let order = permutation(full, of_epoch(seed, epoch));
            (first..num_batches)
                .map(|index| range(if index < full { order[index as usize] } else { index }))
                .collect()
        }
    }
}

/// The windows of an epoch: chunks of `chunk` samples in a random order, so many that a window
/// holds about `window` samples. A window's samples, read in the order of its ranges, are delivered
/// in the order of `permutation(its samples, its seed)`.
pub fn windows(
    seed: u64,
    window: u64,
    chunk: u64,
    epoch: u64,
    num_samples: u64,
) -> Vec<(u64, Vec<Range<u64>>)> {
    let seed = of_epoch(seed, epoch);
    let num_chunks = num_samples.div_ceil(chunk);
    let order = permutation(num_chunks, seed);
    let per_window = (window / chunk).max(1) as usize;
    let range = |&index: &u64| index * chunk..((index + 1) * chunk).min(num_samples);
    let windows = order.chunks(per_window).enumerate();
    windows
        .map(|(index, chunks)| (of_epoch(seed, index as u64), chunks.iter().map(range).collect()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutations_are_whole_and_depend_on_the_seed() {
        for length in [0, 1, 2, 1000] {
            let mut order = permutation(length, 5);
            assert!(length < 1000 || order != permutation(length, 6));
            assert_eq!(order, permutation(length, 5));
            order.sort_unstable();
            assert_eq!(order, (0..length).collect::<Vec<_>>());
        }
        // Every element comes first about equally often.
        let mut firsts = [0; 5];
        (0..5000).for_each(|seed| firsts[permutation(5, seed)[0] as usize] += 1);
        assert!(firsts.iter().all(|count| (850..1150).contains(count)), "{firsts:?}");
    }

    #[test]
    fn batches_cover_an_epoch_and_resume_in_the_middle() {
        for order in [Order::Sequential, Order::Batches { seed: 9 }] {
            let all = batches(order, 3, 1003, 100, 0);
            let mut samples: Vec<u64> = all.iter().cloned().flatten().collect();
            assert_eq!(all.last(), Some(&(1000..1003)), "the short batch is the last");
            samples.sort_unstable();
            assert_eq!(samples, (0..1003).collect::<Vec<_>>());
            assert_eq!(batches(order, 3, 1003, 100, 400), all[4..]);
            assert!(batches(order, 3, 1003, 100, 1003).is_empty());
        }
        assert_eq!(batches(Order::Sequential, 0, 1003, 100, 850), [850..950, 950..1003]);
        let shuffled = |epoch| batches(Order::Batches { seed: 9 }, epoch, 1003, 100, 0);
        assert_ne!(shuffled(0), shuffled(1));
    }

    #[test]
    fn windows_cover_an_epoch() {
        let all = windows(4, 64, 16, 0, 1000);
        let mut samples: Vec<u64> =
            all.iter().flat_map(|(_, ranges)| ranges.iter().cloned().flatten()).collect();
        assert!(all.iter().all(|(_, ranges)| ranges.len() <= 4));
        samples.sort_unstable();
        assert_eq!(samples, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn slices_are_a_batch() {
        for (of, blocks, part, len) in
            [(1, 1, 9, 23), (3, 3, 100, 23), (3, 12, 7, 23), (4, 8, 23, 3), (2, 2, 5, 0)]
        {
            let slices = (0..of).map(|index| Slice { index, of, blocks, part });
            assert!(slices.clone().all(Slice::exists));
            let mut all: Vec<u64> =
                slices.flat_map(|slice| slice.of_batch(len)).flatten().collect();
            all.sort_unstable();
            assert_eq!(all, (0..len).collect::<Vec<_>>());
        }
        assert!(
            (0..3)
                .map(|index| Slice::one_of(index, 3))
                .flat_map(|slice| slice.of_batch(23))
                .flatten()
                .eq(0..23)
        );
        assert!(Slice { blocks: 4, ..Slice::one_of(0, 3) }.check().is_err());
        assert!(Slice::one_of(3, 3).check().is_err());
    }
}
