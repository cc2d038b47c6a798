//! One batch in host memory, and where the stream stands after it.

use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::criteo::parse::RawBlock;
use crate::schema::Schema;
use crate::transform::function::DenseFunction;

/// One batch in host memory; buffers are reused, so after the first few batches nothing is
/// allocated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Samples in the batch: `batch_size`, or fewer at the end of an epoch.
    pub num_samples: usize,
    /// Samples of all ranks' shares, where these are one rank's; none where they are everybody's.
    pub share_of: Option<usize>,
    /// 0 or 1 for each sample, or with a weight ([`headlong_device::label`]); empty when the file
    /// has no labels.
    pub labels: Vec<f32>,
    /// `num_samples × num_dense`, row-major, dense transform already applied.
    pub dense: Vec<f32>,
    /// One per table: row indices, after hashing, dictionary or admission.
    pub sparse: Vec<Jagged>,
    /// Where the next sample of the stream stands: the exact point to resume at.
    pub position: Position,
}

/// Bags of row indices of one table: sample `i` has `values[offsets[i]..offsets[i + 1]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Jagged {
    /// Row indices.
    pub values: Vec<u64>,
    /// `num_samples + 1` offsets into `values`, from 0, never decreasing.
    pub offsets: Offsets,
}

/// Where bags begin. Those of tables that have one value a sample are the same: the reader keeps
/// them once for all, so that looking at all of them is looking at the same memory. A vector to its
/// users (`Deref`): one that is shared is copied before it is changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offsets(Arc<Vec<u32>>);

impl Deref for Offsets {
    type Target = Vec<u32>;

    fn deref(&self) -> &Vec<u32> {
        &self.0
    }
}

impl DerefMut for Offsets {
    fn deref_mut(&mut self) -> &mut Vec<u32> {
        Arc::make_mut(&mut self.0)
    }
}

impl From<Vec<u32>> for Offsets {
    fn from(offsets: Vec<u32>) -> Self {
        Self(Arc::new(offsets))
    }
}

impl FromIterator<u32> for Offsets {
    fn from_iter<I: IntoIterator<Item = u32>>(offsets: I) -> Self {
        offsets.into_iter().collect::<Vec<_>>().into()
    }
}

/// Sets the offsets of `lists` for exactly one value in each of `num_samples` samples. Those that
/// are as long already stay: they are these, or `MultiHot::expand`, which made whole bags of the
/// last batch's, sets them again.
pub(crate) fn set_one_hot<'a>(lists: impl IntoIterator<Item = &'a mut Jagged>, num_samples: usize) {
    let mut shared = None;
    for bags in lists {
        if bags.offsets.len() != num_samples + 1 {
            let offsets = shared.get_or_insert_with(|| (0..=num_samples as u32).collect());
            bags.offsets = Offsets::clone(offsets);
        }
    }
}

/// A place between two samples of a stream of files, exact to the line.
///
/// It points at the first line after the last delivered sample, at the start of the next file when
/// the file has no sample left, and at the start of the next epoch when the last file has none
/// left; so it does not depend on threads, block sizes or compression.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// Epochs finished.
    pub epoch: u64,
    /// Samples delivered within this epoch.
    pub sample: u64,
    /// The file, as an index into the list of files.
    pub file: u64,
    /// Lines of that file before the position, bad ones included.
    pub line: u64,
    /// Bytes of that file's text (after decompression) before the position.
    pub byte: u64,
    /// Bad lines skipped so far, over all epochs.
    pub skipped: u64,
}

#[derive(Debug)]
pub struct BatchBuilder {
    schema: Schema,
    batch_size: usize,
    filled: usize,
    batch: Batch,
}

impl BatchBuilder {
    /// A builder of batches of `batch_size` samples.
    pub fn new(schema: Schema, batch_size: usize) -> Self {
        let mut builder = Self { schema, batch_size, filled: 0, batch: Batch::default() };
        builder.resize(batch_size);
        builder
    }

    pub fn room(&self) -> usize {
        self.batch_size - self.filled
    }

    /// Whether nothing fits.
    pub fn is_full(&self) -> bool {
        self.filled == self.batch_size
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Adds `samples` of `block`; `map_ids(sparse, at)` writes their rows from index `at` on.
    ///
    /// # Panics
    /// If there is no room for them.
    pub fn add(
        &mut self,
        block: &RawBlock,
        samples: Range<usize>,
        dense: &DenseFunction,
        map_ids: impl FnOnce(&mut [Jagged], usize),
    ) {
        let (at, count) = (self.filled, samples.len());
        assert!(count <= self.room(), "{count} samples do not fit");
        if self.schema.labelled {
            let labels = &block.labels[samples.clone()];
            for (label, &raw) in self.batch.labels[at..].iter_mut().zip(labels) {
                *label = raw as f32;
            }
        }
        let width = self.schema.num_dense;
        let raw = &block.dense[samples.start * width..samples.end * width];
        dense.apply(raw, &mut self.batch.dense[at * width..(at + count) * width]);
        map_ids(&mut self.batch.sparse, at);
        self.filled += count;
    }

    /// Gives the batch out, cut to what it holds, and continues with the buffers of `spare`.
    pub fn finish(&mut self, position: Position, spare: Batch) -> Batch {
        if self.filled < self.batch_size {
            self.resize(self.filled);
        }
        let mut batch = std::mem::replace(&mut self.batch, spare);
        (batch.num_samples, batch.position) = (self.filled, position);
        self.filled = 0;
        self.resize(self.batch_size);
        batch
    }

    fn resize(&mut self, num_samples: usize) {
        self.batch.labels.resize(if self.schema.labelled { num_samples } else { 0 }, 0.0);
        self.batch.dense.resize(num_samples * self.schema.num_dense, 0.0);
        self.batch.sparse.resize_with(self.schema.num_sparse, Jagged::default);
        set_one_hot(&mut self.batch.sparse, num_samples);
        self.batch.sparse.iter_mut().for_each(|bags| bags.values.resize(num_samples, 0));
    }
}
