//! The reader of Criteo's text: files to batches, ahead of the consumer, in bounded memory.
//!
//! ```text
//! files ─ source thread ─ blocks of lines ─ parse threads ─ samples ─ assemble thread ─ batches ─ next()
//!         decompress, cut                   numbers                   transform, map ids   bounded
//! ```

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::assemble::{AssembleThread, Delivery, Place};
use crate::batch::{Batch, BatchBuilder, Position};
use crate::criteo::blocks::{BlockOptions, BlockStream, SkipClock};
use crate::error::{Result, invalid, refuse};
use crate::history::MapperHistory;
use crate::ids::IdMapper;
use crate::io::DataFile;
use crate::lock;
use crate::prefetch::{Deliveries, OwnedThreads, Returns, deliveries, recycle};
use crate::skipped::{SharedReport, SkipReport};
use crate::transform::DenseTransform;
use crate::{Reader, ReaderState};

/// How text files become batches.
#[derive(Clone, Debug)]
pub struct TextOptions {
    /// Columns, bad rows, threads.
    pub blocks: BlockOptions,
    /// Samples in a batch; the last one of an epoch has what is left.
    pub batch_size: usize,
    /// Finished batches that may wait for the consumer.
    pub prefetch: usize,
    /// How integers become numbers.
    pub dense_transform: DenseTransform,
    /// Epochs in all, counted from position 0; `None` never ends.
    pub epochs: Option<u64>,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self {
            blocks: BlockOptions::default(),
            batch_size: 2048,
            prefetch: 4,
            dense_transform: DenseTransform::default(),
            epochs: Some(1),
        }
    }
}

/// Reads Criteo's text, plain or compressed. Dropping it stops and joins its threads.
pub struct CriteoTextReader {
    state: ReaderState,
    skip_clock: SkipClock,
    history: Arc<Mutex<MapperHistory>>,
    skip_report: SharedReport,
    /// Bad lines before the place where reading began.
    skipped_before: u64,
    batches: Deliveries<Delivery>,
    used: Returns<Batch>,
    _threads: OwnedThreads,
}

impl CriteoTextReader {
    /// Opens `files`, to be read in order, and begins to read at `start`, for which `ids` has the
    /// state.
    ///
    /// # Errors
    /// As [`BlockStream::open`]; [`ReaderError::Invalid`](crate::ReaderError::Invalid) if `ids` has
    /// another number of tables than the schema, or the batch size is 0. `file-minimum` reads all
    /// files first, so their faults come now.
    pub fn open(
        files: &[DataFile],
        ids: IdMapper,
        options: &TextOptions,
        start: &Position,
    ) -> Result<Self> {
        let schema = options.blocks.sample_schema();
        check(&ids, options)?;
        let stream = BlockStream::open(files.to_vec(), &options.blocks, start, options.epochs)?;
        let functions = options.dense_transform.functions(files, &options.blocks)?;
        let skip_clock = stream.skip_clock();
        let history = Arc::new(Mutex::new(MapperHistory::new(ids, *start)));
        let skip_report = SharedReport::default();
        let (output, batches) = deliveries(options.prefetch);
        let (used, spare) = recycle(options.prefetch + 2);
        let place = Place::new(start, files)?;
        let assemble = AssembleThread {
            stream,
            files: files.to_vec(),
            functions,
            history: Arc::clone(&history),
            skip_report: skip_report.clone(),
            output,
            spare,
            builder: BatchBuilder::new(schema, options.batch_size),
            place,
        };
        let mut threads = OwnedThreads::default();
        threads.spawn("reader-assemble".to_owned(), move || assemble.run())?;
        Ok(Self {
            state: ReaderState::new(schema, *start),
            skip_clock,
            history,
            skip_report,
            skipped_before: start.skipped,
            batches,
            used,
            _threads: threads,
        })
    }

    /// Opens `files` from their beginning with a mapping that learns nothing: for evaluation and
    /// prediction.
    pub fn open_frozen(files: &[DataFile], ids: IdMapper, options: &TextOptions) -> Result<Self> {
        Self::open(files, ids.frozen(), options, &Position::default())
    }

    /// The id mapper as it was at `position`: after one of the last few batches delivered (or
    /// prefetched), or where reading began.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`](crate::ReaderError::Invalid) if the position is none of these.
    pub fn mapper_at(&self, position: &Position) -> Result<IdMapper> {
        lock(&self.history).mapper_at(position).ok_or_else(|| {
            let Position { epoch, sample, .. } = position;
            invalid!("the id state at sample {sample} of epoch {epoch} is not known any more")
        })
    }

    /// How long it took to skip to the starting position; known once the first batch has come.
    pub fn skip_time(&self) -> Duration {
        self.skip_clock.time()
    }
}

fn check(ids: &IdMapper, options: &TextOptions) -> Result<()> {
    ids.check_text()?;
    let (expected, found) = (options.blocks.sample_schema().num_sparse, ids.rows().len());
    if expected != found {
        refuse!("the schema has {expected} categories, the id policy {found} tables");
    }
    if options.batch_size == 0 {
        refuse!("batch_size: expected at least 1, found 0");
    }
    Ok(())
}

impl Reader for CriteoTextReader {
    fn next(&mut self, batch: &mut Batch) -> Result<bool> {
        let Some(mut delivery) = self.batches.next(&mut self.state.wait_time)? else {
            return Ok(false);
        };
        std::mem::swap(batch, &mut delivery.batch);
        self.used.give(delivery.batch);
        lock(&self.history).deliver_batch();
        (self.state.position, self.state.progress) = (batch.position, delivery.progress);
        Ok(true)
    }

    /// Bad lines skipped up to the batch delivered last, however far the threads have read ahead.
    fn skip_report(&self) -> SkipReport {
        let mut report = self.skip_report.now();
        report.total = self.state.position.skipped - self.skipped_before;
        report.first.truncate(report.total as usize);
        report
    }

    fn state(&self) -> &ReaderState {
        &self.state
    }
}

#[cfg(test)]
mod tests;
