//! What one walk through a list works on.

use super::BatchSlot;
use headlong_device::optimizer::Step;
use headlong_reader::{Batch, Position};

/// A batch that comes in.
#[derive(Debug, Clone, Copy)]
pub enum Incoming<'a> {
    /// From the reader: all ranks' batch, or this rank's share of it.
    Read(&'a Batch),
    /// The same, which stays on the device as number `index` of those that do.
    Keep { batch: &'a Batch, index: usize },
    /// One that has stayed. Behind it the data stands at `position`.
    Kept { index: usize, position: Position },
}

impl<'a> From<&'a Batch> for Incoming<'a> {
    fn from(batch: &'a Batch) -> Self {
        Self::Read(batch)
    }
}

impl<'a> Incoming<'a> {
    /// What the reader gave; none of a batch that has stayed on the device.
    pub(crate) fn batch(self) -> Option<&'a Batch> {
        match self {
            Self::Read(batch) | Self::Keep { batch, .. } => Some(batch),
            Self::Kept { .. } => None,
        }
    }

    /// The same with another batch of the reader.
    pub(crate) fn with<'b>(self, batch: &'b Batch) -> Incoming<'b> {
        match self {
            Self::Read(_) => Incoming::Read(batch),
            Self::Keep { index, .. } => Incoming::Keep { batch, index },
            Self::Kept { index, position } => Incoming::Kept { index, position },
        }
    }
}

/// What one walk through the list works on.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// The batch that the stage at hand works on.
    pub slot: &'a BatchSlot,
    /// The batch that is trained on or evaluated.
    pub now: &'a BatchSlot,
    /// The slot of the batch that is prepared ahead; none at the end of the data.
    pub next: Option<&'a BatchSlot>,
    /// The batch of all ranks that `next` (in an evaluation `now`) takes its share of.
    pub incoming: Option<Incoming<'a>>,
    /// This rank's samples in the batch of now.
    pub num_samples: usize,
    /// Samples of all ranks in the batch of now.
    pub num_samples_of_all: usize,
    /// This rank's samples in one micro-batch; the last one may be smaller.
    pub micro_batch_size: usize,
    /// Micro-batches of the batch of now, the same on all ranks.
    pub num_micro_batches: usize,
    /// Samples of all ranks in one micro-batch; the last one may be smaller.
    pub micro_batch_size_of_all: usize,
    /// Blocks that sums over the samples of a micro-batch are cut into, over all ranks.
    pub sum_blocks: usize,
    /// Which micro-batch this is, from 0.
    pub micro_batch: usize,
    /// Learning rate and number of the step, for the dense parameters.
    pub dense_step: Step,
    /// The same for the tables.
    pub sparse_step: Step,
}

impl Call<'_> {
    /// The same call for another micro-batch.
    pub fn micro_batch(&self, micro_batch: usize) -> Self {
        Self { micro_batch, ..*self }
    }

    /// First sample of the micro-batch, and how many it has, of this rank's.
    pub fn samples(&self) -> (usize, usize) {
        let first = (self.micro_batch * self.micro_batch_size).min(self.num_samples);
        let rest = self.num_samples - first;
        // Note: of a short micro-batch, which is the last, a rank may have more samples than of a
        // whole one. 10 samples in 5 blocks are 2 for each of 5 ranks; 21 samples are 5 for each
        // but the last, which has 1.
        let is_last = self.micro_batch + 1 >= self.num_micro_batches;
        (first, if is_last { rest } else { self.micro_batch_size.min(rest) })
    }

    /// Samples of one block of the sums over this micro-batch.
    pub fn block_len(&self) -> usize {
        let before = self.micro_batch * self.micro_batch_size_of_all;
        let samples = self.micro_batch_size_of_all.min(self.num_samples_of_all - before);
        headlong_mlp::sum::block_len(samples, self.sum_blocks)
    }
}
