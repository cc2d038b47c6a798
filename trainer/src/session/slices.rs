//! Slices: each process reads its rank's samples of a batch, and no others.
//!
//! Where owners find out for themselves which rows are wanted, or rows are counted, every rank needs the ids of the whole batch: then ranks
//! tell each other those that they have read. Labels and dense features stay where they are.

use crate::crew::{Crew, exchange_failed};
use crate::error::Result;
use crate::share::Share;
use headlong_comm::Communicator;
use headlong_reader::order::Slice;
use headlong_reader::{Batch, Jagged};
use std::ops::Range;
use std::sync::Arc;

/// What this process reads of each batch: all of it where its ranks share one reader, else its rank's slice.
pub(super) fn slice_of(crew: &Crew) -> Slice {
    match crew.has_remote_ranks() && crew.len() == 1 {
        true => crew.first().model().share.slice(),
        false => Slice::WHOLE,
    }
}

/// Makes slices whole again as far as ids go.
pub(super) struct Gather {
    communicator: Arc<Communicator>,
    share: Share,
    /// What this rank tells, what all told, and the batch that is made of it.
    mine: Vec<u64>,
    all: Vec<u64>,
    whole: Batch,
}

impl Gather {
    /// Between the ranks of these processes.
    pub(super) fn new(crew: &Crew) -> Option<Self> {
        let share = crew.first().model().share;
        crew.link().map(|communicator| Self {
            communicator,
            share,
            mine: Vec::new(),
            all: Vec::new(),
            whole: Batch::default(),
        })
    }

    /// Makes `batch`, this rank's slice, a whole batch, in which labels and dense features of other ranks' samples are zero. Nothing is
    /// done where it is whole already. All ranks call it for the same batch.
    ///
    /// # Errors
    /// A rank that is gone.
    pub(super) fn complete(&mut self, batch: &mut Batch) -> Result<()> {
        let Some(num_samples) = batch.share_of else { return Ok(()) };
        let lost = || exchange_failed("the ids of a batch");
        self.tell(batch);
        let mut lengths = vec![0; self.communicator.num_ranks()];
        self.communicator.all_gather(&[self.mine.len() as u64], &mut lengths).map_err(lost())?;
        let longest = lengths.iter().copied().max().unwrap_or(0) as usize;
        self.mine.resize(longest, 0);
        self.all.resize(longest * lengths.len(), 0);
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
        let whole = &mut self.whole;
        (whole.num_samples, whole.share_of, whole.position) = (num_samples, None, batch.position);
        let runs: Vec<Vec<Range<usize>>> = (0..self.share.num_ranks())
            .map(|rank| self.share.of_rank(rank).in_step(num_samples).collect())
            .collect();
        whole.sparse.resize_with(batch.sparse.len(), Jagged::default);
        let mut told: Vec<&[u64]> = self.all.chunks(longest.max(1)).collect();
        for bags in &mut whole.sparse {
            let parts: Vec<[&[u64]; 2]> =
                told.iter_mut().zip(&runs).map(|(told, runs)| take_table(told, runs)).collect();
            merge(&parts, &runs, bags);
        }
        let mine = &runs[self.communicator.rank().0];
        scatter(&batch.labels, mine, num_samples, batch.num_samples, &mut whole.labels);
        scatter(&batch.dense, mine, num_samples, batch.num_samples, &mut whole.dense);
    }
}

/// Takes one table off what a rank told: the numbers of ids, and the ids.
fn take_table<'a>(told: &mut &'a [u64], runs: &[Range<usize>]) -> [&'a [u64]; 2] {
    let samples = runs.iter().map(Range::len).sum();
    let (counts, rest) = told.split_at(samples);
    let (ids, rest) = rest.split_at(counts.iter().sum::<u64>() as usize);
    *told = rest;
    [counts, ids]
}

/// The bags of all ranks in the order of the samples: rank by rank within each micro-batch.
fn merge(parts: &[[&[u64]; 2]], runs: &[Vec<Range<usize>>], bags: &mut Jagged) {
    bags.values.clear();
    bags.offsets.clear();
    bags.offsets.push(0);
    let mut parts = parts.to_vec();
    for micro_batch in 0..runs[0].len() {
        for (part, runs) in parts.iter_mut().zip(runs) {
            let (counts, later) = part[0].split_at(runs[micro_batch].len());
            let (ids, rest) = part[1].split_at(counts.iter().sum::<u64>() as usize);
            *part = [later, rest];
            let mut end = bags.values.len() as u32;
            bags.values.extend_from_slice(ids);
            bags.offsets.extend(counts.iter().map(|&count| {
                end += count as u32;
                end
            }));
        }
    }
}

/// Puts the values of `runs`' samples where they belong among those of all samples; the others are zero.
fn scatter(values: &[f32], runs: &[Range<usize>], num_samples: usize, held: usize, all: &mut Vec<f32>) {
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
