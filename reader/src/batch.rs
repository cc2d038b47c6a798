//! One batch in host memory, and where the stream stands after it.

use serde::{Deserialize, Serialize};

/// One batch in host memory; buffers are reused, so after the first few batches nothing is allocated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Samples in the batch: `batch_size`, or fewer at the end of an epoch.
    pub num_samples: usize,
    /// 0 or 1 for each sample; empty when the file has no labels.
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
    pub offsets: Vec<u32>,
}

impl Jagged {
    /// Sets offsets for exactly one value a sample, leaving `values` to the caller.
    pub fn set_one_hot(&mut self, num_samples: usize) {
        if self.offsets.len() != num_samples + 1 {
            self.offsets.clear();
            self.offsets.extend(0..=num_samples as u32);
        }
        self.values.resize(num_samples, 0);
    }
}

/// A place between two samples of a stream of files, exact to the line.
///
/// It points at the first line after the last delivered sample, at the start of the next file when the file
/// has no sample left, and at the start of the next epoch when the last file has none left; so it does not
/// depend on threads, block sizes or compression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
