//! Files to batches: formats, preprocessing, asynchronous input, order, prefetch.
//!
//! What it is for: turning raw click logs (Criteo's tab-separated text; plain, gzip or zstd) into batches of
//! labels, dense features and row indices, in order, ahead of the training that consumes them, in bounded memory.
//!
//! What it will never do: know a table's weights, a rank (beyond "slice k of n"), or a model.
//!
//! Its words: a *line* of text becomes a *sample* (or is *bad*); samples form *batches*; a categorical field is
//! a raw **id**, which an id policy turns into a **row index** of its column's table.

pub mod admission;
pub mod batch;
pub mod criteo;
pub mod error;
pub mod hashing;
pub mod history;
pub mod ids;
pub mod io;
pub mod prefetch;
pub mod resident;
pub mod schema;
pub mod synthetic;
pub mod skipped;
pub mod transform;

use std::time::Duration;

pub use batch::{Batch, Jagged, Position};
pub use criteo::{BadRowPolicy, BlockOptions, CriteoTextReader, TextOptions};
pub use error::{ReaderError, Result};
pub use ids::{IdMapper, IdPolicy, RowLookup};
pub use resident::{ResidentData, ResidentReader};
pub use schema::{Column, Schema};
pub use skipped::{BadRow, SkipReport};
pub use transform::DenseTransform;

/// A stream of batches.
pub trait Reader: Send {
    /// Fills `batch` with the next samples, taking its old buffers in exchange; false at the end of the stream.
    /// Waits until the batch is there.
    ///
    /// # Errors
    /// Whatever is wrong with the data at this place; the stream has ended then.
    fn next(&mut self, batch: &mut Batch) -> Result<bool>;

    /// The columns.
    fn schema(&self) -> Schema;

    /// Where the stream stands after the batch delivered last.
    fn position(&self) -> Position;

    /// How far that is, where it is known.
    fn progress(&self) -> Progress;

    /// How long all calls of [`Reader::next`] have waited so far.
    fn wait_time(&self) -> Duration;
}

/// How far a reader has come in its epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the files read in this epoch, as stored (compressed); close to the batch delivered last.
    pub stored_bytes_read: u64,
    /// Bytes of all files, as stored.
    pub stored_bytes: u64,
    /// Samples of an epoch, known once one has been read to its end.
    pub samples_per_epoch: Option<u64>,
}
