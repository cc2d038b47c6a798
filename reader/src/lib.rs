//! Files to batches: formats, preprocessing, asynchronous input, order, prefetch.
//!
//! What it is for: turning raw click logs (Criteo's tab-separated text; plain, gzip or zstd) into
//! batches of labels, dense features and row indices, in order, ahead of the training that consumes
//! them, in bounded memory.
//!
//! What it will never do: know a table's weights, a rank (beyond "slice k of n"), or a model.
//!
//! Its words: a *line* of text becomes a *sample* (or is *bad*); samples form *batches*; a
//! categorical field is a raw **id**, which an id policy turns into a **row index** of its column's
//! table.
//!
//! ```
//! use headlong_reader::{
//!     Batch, CriteoTextReader, IdMapper, IdPolicy, Position, Reader, TextOptions,
//! };
//!
//! # fn main() -> headlong_reader::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("headlong-reader-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder).expect("a temporary folder");
//! # let file = folder.join("day_0");
//! let row = format!("1{}{}\n", "\t5".repeat(13), "\t68fd1e64".repeat(26));
//! std::fs::write(&file, row.repeat(300)).expect("a small file");
//!
//! // Ids are hashed into 26 tables of 1000 rows; batches hold 128 samples, the last what is left.
//! let ids = IdMapper::new(IdPolicy::Hash { function: Default::default() }, &[1000; 26])?;
//! let options = TextOptions { batch_size: 128, ..TextOptions::default() };
//! let mut reader = CriteoTextReader::open(&[file.into()], ids, &options, &Position::default())?;
//! let mut batch = Batch::default();
//! let mut samples = 0;
//! while reader.next(&mut batch)? {
//!     assert_eq!(batch.sparse[0].values.len(), batch.num_samples);
//!     samples += batch.num_samples;
//! }
//! assert_eq!(samples, 300);
//! # std::fs::remove_dir_all(&folder).expect("the folder is there");
//! # Ok(())
//! # }
//! ```

mod admission;
mod batch;
pub mod columns;
pub mod convert;
pub mod criteo;
pub mod dictionary;
pub mod disk;
mod error;
pub mod excerpt;
pub mod format_reader;
pub mod formats;
pub mod frame;
pub mod hashing;
mod history;
mod identity;
mod ids;
pub mod inspect;
pub mod io;
pub mod make;
pub mod multi_hot;
pub mod order;
mod output;
mod prefetch;
mod resident;
pub mod samples;
mod schema;
mod skipped;
pub mod synthetic;
pub mod times;
mod transform;
pub mod verify;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use batch::{Batch, Jagged, Offsets, Position};
pub use criteo::{BadRowPolicy, BlockOptions, CriteoTextReader, TextOptions};
pub use error::{ReaderError, Result};
pub use identity::FileIdentity;
pub use ids::{IdMapper, IdPolicy, RowLookup};
pub use resident::{ResidentData, ResidentReader};
pub use schema::{Column, Schema};
pub use skipped::{BadRow, SkipReport};
pub use transform::DenseTransform;

/// A stream of batches.
pub trait Reader: Send {
    /// Fills `batch` with the next samples, taking its old buffers in exchange; false at the end of
    /// the stream. Waits until the batch is there.
    ///
    /// # Errors
    /// Whatever is wrong with the data at this place; the stream has ended then.
    fn next(&mut self, batch: &mut Batch) -> Result<bool>;

    /// Where the reader is after the batch delivered last.
    fn state(&self) -> &ReaderState;

    /// How far that is, where it is known.
    fn progress(&self) -> Progress {
        self.state().progress
    }

    /// The bad lines that were skipped so far.
    fn skip_report(&self) -> SkipReport {
        SkipReport::default()
    }

    /// The columns.
    fn schema(&self) -> Schema {
        self.state().schema
    }

    /// Where the stream stands after the batch delivered last.
    fn position(&self) -> Position {
        self.state().position
    }

    /// How long all calls of [`Reader::next`] have waited so far.
    fn wait_time(&self) -> Duration {
        self.state().wait_time
    }
}

/// What every reader knows of itself.
#[derive(Clone, Copy, Debug)]
pub struct ReaderState {
    /// The columns.
    pub schema: Schema,
    /// Where the stream stands after the batch delivered last.
    pub position: Position,
    /// How far that is, where it is known.
    pub progress: Progress,
    /// How long all calls of [`Reader::next`] have waited so far.
    pub wait_time: Duration,
}

impl ReaderState {
    pub(crate) fn new(schema: Schema, position: Position) -> Self {
        Self { schema, position, progress: Progress::default(), wait_time: Duration::ZERO }
    }
}

impl Reader for Box<dyn Reader> {
    fn next(&mut self, batch: &mut Batch) -> Result<bool> {
        (**self).next(batch)
    }

    fn state(&self) -> &ReaderState {
        (**self).state()
    }

    fn progress(&self) -> Progress {
        (**self).progress()
    }

    fn skip_report(&self) -> SkipReport {
        (**self).skip_report()
    }
}

/// Locks even after a panic elsewhere: what is shared is replaced in whole steps, or the panic is
/// passed on by the pool.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How far a reader has come in its epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the files read in this epoch, as stored (compressed); close to the batch delivered
    /// last.
    pub stored_bytes_read: u64,
    /// Bytes of all files, as stored.
    pub stored_bytes: u64,
    /// Samples of an epoch, known once one has been read to its end.
    pub samples_per_epoch: Option<u64>,
    /// Bytes that this reader has asked the disk for so far, where it reads at random: whole pages,
    /// over all epochs.
    pub bytes_read: u64,
}
