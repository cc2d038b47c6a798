//! Slices: each process reads its rank's samples of a batch, and no others.
//!
//! Where owners find out for themselves which rows are wanted, or rows are counted, every rank
//! needs the ids of the whole batch: then ranks tell each other those that they have read. Labels
//! and dense features stay where they are.

use crate::error::{Result, exchange_failed};
use crate::iteration::ranks::RankGroup;
use crate::iteration::share::Share;
use headlong_comm::Communicator;
use headlong_reader::order::Slice;
use headlong_reader::{Batch, Jagged};
use std::ops::Range;
use std::sync::Arc;

/// What this process reads of each batch: all of it where its ranks share one reader, else its
/// rank's slice.
pub(super) fn slice_of(group: &RankGroup) -> Slice {
    match group.has_remote_ranks() && group.len() == 1 {
        true => group.first().model().share.slice(),
        false => Slice::WHOLE,
    }
}

/// Makes slices whole again as far as ids go. Allocates nothing once it has held as much.
pub(super) struct Gather {
    communicator: Arc<Communicator>,
    share: Share,
    /// What this rank tells, how much each rank does, what all told, and the batch that is made of
    /// it.
    mine: Vec<u64>,
    lengths: Vec<u64>,
    all: Vec<u64>,
    whole: Batch,
    /// Samples of each micro-batch, rank after rank.
    runs: Vec<Range<usize>>,
    told: Vec<Told>,
}

/// Where what a rank told of one table and was not taken yet stands in [`Gather::all`]: the numbers
/// of ids, and the ids.
#[derive(Debug, Clone, Copy)]
struct Told {
    counts: usize,
    ids: usize,
}

impl Gather {
    pub(super) fn new(group: &RankGroup) -> Option<Self> {
        let share = group.first().model().share;
        group.link().map(|communicator| Self::between(communicator, share))
    }

    fn between(communicator: Arc<Communicator>, share: Share) -> Self {
        let (mine, lengths, all) = (Vec::new(), vec![0; communicator.num_ranks()], Vec::new());
        let (whole, runs, told) = (Batch::default(), Vec::new(), Vec::new());
        Self { communicator, share, mine, lengths, all, whole, runs, told }
    }

    /// Makes `batch`, this rank's slice, a whole batch, in which labels and dense features of other
    /// ranks' samples are zero. Nothing is done where it is whole already. All ranks call it for
    /// the same batch.
    pub(super) fn complete(&mut self, batch: &mut Batch) -> Result<()> {
        let Some(num_samples) = batch.share_of else { return Ok(()) };
        let lost = || exchange_failed("the ids of a batch");
        self.tell(batch);
        self.communicator
            .all_gather(&[self.mine.len() as u64], &mut self.lengths)
            .map_err(lost())?;
        let longest = self.lengths.iter().copied().max().unwrap_or(0) as usize;
        self.mine.resize(longest, 0);
        self.all.resize(longest * self.lengths.len(), 0);
        self.communicator.all_gather(&self.mine, &mut self.all).map_err(lost())?;
        self.assemble(batch, num_samples, longest);
        std::mem::swap(batch, &mut self.whole);
        Ok(())
    }

    /// For each table: the ids of each bag, behind their number.
    fn tell(&mut self, batch: &Batch) {
        self.mine.clear();
        for Jagged { values, offsets } in &batch.sparse {
            self.mine.extend(offsets.windows(2).map(|bag| u64::from(bag[1] - bag[0])));
            self.mine.extend_from_slice(values);
        }
    }

    fn assemble(&mut self, batch: &Batch, num_samples: usize, longest: usize) {
        let num_ranks = self.share.num_ranks();
        self.runs.clear();
        (0..num_ranks)
            .for_each(|rank| self.runs.extend(self.share.of_rank(rank).in_step(num_samples)));
        self.told.clear();
        self.told.extend((0..num_ranks).map(|rank| Told { counts: 0, ids: rank * longest }));
        let whole = &mut self.whole;
        (whole.num_samples, whole.share_of, whole.position) = (num_samples, None, batch.position);
        whole.sparse.resize_with(batch.sparse.len(), Jagged::default);
        for bags in &mut whole.sparse {
            merge(&self.all, &mut self.told, &self.runs, bags);
        }
        let micro_batches = self.runs.len() / num_ranks;
        let mine = &self.runs[self.communicator.rank().0 * micro_batches..][..micro_batches];
        scatter(&batch.labels, mine, num_samples, batch.num_samples, &mut whole.labels);
        scatter(&batch.dense, mine, num_samples, batch.num_samples, &mut whole.dense);
    }
}

/// Takes one table off what all ranks told: its bags in the order of the samples, rank by rank
/// within each micro-batch.
fn merge(all: &[u64], told: &mut [Told], runs: &[Range<usize>], bags: &mut Jagged) {
    bags.values.clear();
    bags.offsets.clear();
    bags.offsets.push(0);
    let micro_batches = runs.len() / told.len();
    let runs_of = |rank: usize| &runs[rank * micro_batches..][..micro_batches];
    for (rank, told) in told.iter_mut().enumerate() {
        // A table stands behind the ids of the table before.
        told.counts = told.ids;
        told.ids += runs_of(rank).iter().map(Range::len).sum::<usize>();
    }
    for micro_batch in 0..micro_batches {
        for (rank, told) in told.iter_mut().enumerate() {
            let counts = &all[told.counts..][..runs_of(rank)[micro_batch].len()];
            let ids = &all[told.ids..][..counts.iter().sum::<u64>() as usize];
            (told.counts, told.ids) = (told.counts + counts.len(), told.ids + ids.len());
            let mut end = bags.values.len() as u32;
            bags.values.extend_from_slice(ids);
            bags.offsets.extend(counts.iter().map(|&count| {
                end += count as u32;
                end
            }));
        }
    }
}

/// Puts the values of `runs`' samples where they belong among those of all samples; the others are
/// zero.
fn scatter(
    values: &[f32],
    runs: &[Range<usize>],
    num_samples: usize,
    held: usize,
    all: &mut Vec<f32>,
) {
    let width = values.len().checked_div(held).unwrap_or(0);
    all.clear();
    all.resize(num_samples * width, 0.0);
    let mut rest = values;
    for run in runs {
        let (part, later) = rest.split_at(run.len() * width);
        all[run.start * width..run.end * width].copy_from_slice(part);
        rest = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iteration::share::copy_share;
    use headlong_comm::{CommOptions, Rank, Topology};

    const RANKS: usize = 3;
    const SAMPLES: [usize; 6] = [40, 40, 27, 40, 5, 40];

    /// Bags of none to four ids in two tables.
    fn whole(num_samples: usize, seed: u64) -> Batch {
        let numbers =
            |table: u64| (0..num_samples as u64).map(move |sample| (sample * 7 + table + seed) % 5);
        let bags = |table| {
            let mut bags = Jagged { values: Vec::new(), offsets: vec![0].into() };
            for (sample, count) in (0..).zip(numbers(table)) {
                bags.values.extend((0..count).map(|id| seed * 1000 + sample * 10 + id));
                bags.offsets.push(bags.values.len() as u32);
            }
            bags
        };
        let labels = (0..num_samples).map(|sample| 1.0 + sample as f32).collect();
        let dense = (0..2 * num_samples).map(|value| 1.0 + value as f32).collect();
        Batch { num_samples, labels, dense, sparse: vec![bags(0), bags(1)], ..Batch::default() }
    }

    /// Where all buffers lie, in any order: the batch and the gather's own change places.
    fn buffers(gather: &Gather, batch: &Batch) -> Vec<usize> {
        let of_batch = |batch: &Batch| {
            let floats = [&batch.labels, &batch.dense].map(|floats| floats.as_ptr().addr());
            let bags = batch.sparse.iter();
            let bags =
                bags.flat_map(|bags| [bags.values.as_ptr().addr(), bags.offsets.as_ptr().addr()]);
            bags.chain(floats).collect::<Vec<_>>()
        };
        let own = [&gather.mine, &gather.lengths, &gather.all].map(|words| words.as_ptr().addr());
        let rest = [gather.runs.as_ptr().addr(), gather.told.as_ptr().addr()];
        let mut all =
            [of_batch(&gather.whole), of_batch(batch), own.to_vec(), rest.to_vec()].concat();
        all.sort_unstable();
        all
    }

    fn check_rank(communicator: Arc<Communicator>) {
        // Three micro-batches of 15 samples in 6 blocks, the last ones short.
        let share = Share::new(communicator.rank().0, RANKS, 2 * RANKS, 15);
        let mut gather = Gather::between(Arc::clone(&communicator), share);
        let (mut batch, mut places) = (Batch::default(), Vec::new());
        for (round, seed) in
            (0..3).flat_map(|round| (0..).take(SAMPLES.len()).map(move |seed| (round, seed)))
        {
            let all = whole(SAMPLES[seed as usize], seed);
            copy_share(&all, share.in_step(all.num_samples), &mut batch);
            batch.share_of = Some(all.num_samples);
            gather.complete(&mut batch).unwrap();
            assert_eq!(batch.sparse, all.sparse, "{share:?}, batch {seed}");
            assert_eq!((batch.num_samples, batch.share_of), (all.num_samples, None));
            for run in share.in_step(all.num_samples) {
                assert_eq!(batch.labels[run.clone()], all.labels[run.clone()]);
                let dense = 2 * run.start..2 * run.end;
                assert_eq!(batch.dense[dense.clone()], all.dense[dense]);
            }
            let own: usize = share.in_step(all.num_samples).map(|run| run.len()).sum();
            assert_eq!(batch.labels.iter().filter(|label| **label != 0.0).count(), own);
            if round > 1 {
                assert_eq!(buffers(&gather, &batch), places, "buffers are used again");
            }
            places = buffers(&gather, &batch);
        }
        communicator.close().unwrap();
    }

    #[test]
    fn slices_of_all_ranks_make_the_batch_and_buffers_are_used_again() {
        let communicators = Communicator::local(&Topology::one_node(RANKS), CommOptions::default());
        std::thread::scope(|scope| {
            for (rank, communicator) in communicators.into_iter().enumerate() {
                assert_eq!(communicator.rank(), Rank(rank));
                scope.spawn(move || check_rank(Arc::new(communicator)));
            }
        });
    }
}
