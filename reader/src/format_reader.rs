//! Batches of data that is read at random: in any order, a slice for each rank, and from the sample
//! a run stopped at.
//!
//! ```text
//! disk ─ blocks ─ samples ─ this thread: transform, rows ─ batches ─ next()
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

use crate::batch::{Batch, Jagged, Position, set_one_hot};
use crate::disk::DiskOptions;
use crate::error::{ReaderError, Result, refuse};
use crate::formats::{SampleStream, Source, no_samples};
use crate::ids::IdMapper;
use crate::order::{Order, Slice, batches, permutation, windows};
use crate::prefetch::{Deliveries, OwnedThreads, Returns, Spares, deliveries, recycle};
use crate::samples::{DataSchema, DenseKind, DenseValues, Hotness, Samples};
use crate::schema::Schema;
use crate::skipped::SkipReport;
use crate::transform::{DenseFunction, DenseTransform};
use crate::{Progress, Reader, ReaderState};

const CHUNK: u64 = 64;

/// How data becomes batches.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Samples of a batch, over all ranks.
    pub batch_size: usize,
    /// This rank's part of every batch.
    pub slice: Slice,
    /// Finished batches that may wait for the consumer.
    pub prefetch: usize,
    /// In which order.
    pub order: Order,
    /// Epochs in all, counted from position 0; `None` never ends.
    pub epochs: Option<u64>,
    /// How integers become numbers; data that is transformed already must have gone through the
    /// same.
    pub dense_transform: DenseTransform,
    /// How ids become rows; not by admission, whose state knows the ids of text alone.
    pub ids: IdMapper,
    /// How the disk is read.
    pub disk: DiskOptions,
}

/// Reads data of a [`Source`] as batches. Dropping it stops and joins its threads.
pub struct FormatReader {
    state: ReaderState,
    /// Samples of an epoch, where they have been counted.
    source: Arc<dyn Source>,
    num_samples: Option<u64>,
    stored_bytes: u64,
    bytes_read: Arc<AtomicU64>,
    batches: Deliveries<Batch>,
    used: Returns<Batch>,
    _threads: OwnedThreads,
}

impl FormatReader {
    /// Begins to read at `start`, which is the end of a batch of the same order and batch size.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`] for options that do not fit the data: another number of tables, a
    /// dense transform that it has not gone through; a batch size of 0.
    pub fn open(source: Arc<dyn Source>, options: FormatOptions, start: &Position) -> Result<Self> {
        let function = check(source.schema(), &options)?;
        let num_samples = source.num_samples();
        check_start(num_samples, &options, start)?;
        let data = source.schema();
        let schema = Schema {
            labelled: data.labelled,
            num_dense: data.dense.len(),
            num_sparse: data.sparse.len(),
        };
        let stored_bytes = source.about().stored_bytes;
        let (output, batches) = deliveries(options.prefetch);
        let (used, spare) = recycle(options.prefetch + 2);
        let bytes_read = Arc::new(AtomicU64::new(0));
        let assemble = Assemble {
            schema: data.clone(),
            source: Arc::clone(&source),
            function,
            num_samples: num_samples.unwrap_or(0),
            is_counted: num_samples.is_some(),
            at: Position { epoch: start.epoch, sample: start.sample, ..Position::default() },
            filling: Batch::default(),
            output,
            spare,
            bytes_read: Arc::clone(&bytes_read),
            read_before: 0,
            options,
        };
        let mut threads = OwnedThreads::default();
        threads.spawn("reader-assemble".to_owned(), move || assemble.run())?;
        let state = ReaderState::new(schema, *start);
        Ok(Self {
            state,
            source,
            num_samples,
            stored_bytes,
            bytes_read,
            batches,
            used,
            _threads: threads,
        })
    }
}

/// Whether reading can begin at `start`. Uncounted samples can only be read from the first one.
fn check_start(num_samples: Option<u64>, options: &FormatOptions, start: &Position) -> Result<()> {
    let size = options.batch_size as u64;
    let Some(num_samples) = num_samples else {
        if options.order != Order::Sequential
            || options.slice.of > 1
            || (start.epoch, start.sample) != (0, 0)
        {
            refuse!(
                "this data can only be read from front to back, by one process and from its first \
                 sample: write it to a file, or convert it"
            );
        }
        return Ok(());
    };
    if num_samples == 0 {
        refuse!("the data has no samples");
    }
    let is_border = start.sample.is_multiple_of(size) || start.sample == num_samples;
    if start.sample > num_samples || matches!(options.order, Order::Batches { .. }) && !is_border {
        refuse!(
            "cannot continue at sample {} of {num_samples} in batches of {size}: have the files or \
             the batch size changed?",
            start.sample
        );
    }
    Ok(())
}

/// Finds out before anything is read whether data and options agree.
fn check(schema: &DataSchema, options: &FormatOptions) -> Result<Option<DenseFunction>> {
    if options.batch_size == 0 {
        refuse!("batch_size: expected at least 1");
    }
    options.slice.check()?;
    let (columns, tables) = (schema.sparse.len(), options.ids.rows().len());
    if columns != tables {
        refuse!("the data has {columns} categorical columns, the model {tables} tables");
    }
    if options.ids.admission().is_some() {
        refuse!(
            "ids = admitted: only Criteo's text is admitted on the way; take hash, modulo or \
             dictionary"
        );
    }
    match schema.dense_kind {
        DenseKind::Integers => match options.dense_transform.function() {
            Some(function) => Ok(Some(function)),
            None => refuse!(
                "dense transform {}: this format has no minimum of a file",
                options.dense_transform
            ),
        },
        DenseKind::Transformed(done)
            if done == options.dense_transform || schema.dense.is_empty() =>
        {
            Ok(None)
        }
        DenseKind::Transformed(done) => refuse!(
            "the dense numbers of the data have gone through {done}, the model expects {}: set \
             data.dense_transform or make the data again from its integers",
            options.dense_transform
        ),
    }
}

impl Reader for FormatReader {
    fn next(&mut self, batch: &mut Batch) -> Result<bool> {
        let Some(mut delivered) = self.batches.next(&mut self.state.wait_time)? else {
            return Ok(false);
        };
        std::mem::swap(batch, &mut delivered);
        self.used.give(delivered);
        self.state.position = batch.position;
        Ok(true)
    }

    fn state(&self) -> &ReaderState {
        &self.state
    }

    fn skip_report(&self) -> SkipReport {
        self.source.skip_report()
    }

    fn progress(&self) -> Progress {
        let sample = self.state.position.sample as f64;
        let share = self.num_samples.map_or(0.0, |all| sample / all as f64);
        Progress {
            stored_bytes_read: (self.stored_bytes as f64 * share) as u64,
            stored_bytes: self.stored_bytes,
            samples_per_epoch: self.num_samples,
            bytes_read: self.bytes_read.load(Ordering::Relaxed),
        }
    }
}

enum Stop {
    Dropped,
    Failed(ReaderError),
}

impl From<ReaderError> for Stop {
    fn from(error: ReaderError) -> Self {
        Stop::Failed(error)
    }
}

struct Assemble {
    schema: DataSchema,
    source: Arc<dyn Source>,
    function: Option<DenseFunction>,
    num_samples: u64,
    /// Whether somebody has counted them; else they are known after the first epoch.
    is_counted: bool,
    /// After the last sample taken.
    at: Position,
    filling: Batch,
    output: SyncSender<Result<Option<Batch>>>,
    spare: Spares<Batch>,
    /// Bytes read of the disk, and those of streams that have ended.
    bytes_read: Arc<AtomicU64>,
    read_before: u64,
    options: FormatOptions,
}

impl Assemble {
    fn run(mut self) {
        let last = match self.read_epochs() {
            Ok(()) => Ok(None),
            Err(Stop::Dropped) => return,
            Err(Stop::Failed(error)) => Err(error),
        };
        // No one may be there to hear it.
        let _ = self.output.send(last);
    }

    fn read_epochs(&mut self) -> Result<(), Stop> {
        while self.options.epochs.is_none_or(|epochs| self.at.epoch < epochs) {
            match self.options.order {
                _ if !self.is_counted => self.read_to_the_end()?,
                Order::Samples { seed, window } => self.read_windows(seed, window)?,
                order => self.read_batches(order)?,
            }
        }
        Ok(())
    }

    /// An epoch of samples that no one has counted, from front to back.
    fn read_to_the_end(&mut self) -> Result<(), Stop> {
        let size = self.options.batch_size as u64;
        let mut stream =
            self.source.read(Box::new(std::iter::once(0..u64::MAX)), &self.options.disk)?;
        let (mut samples, mut used, mut taken) = (Samples::default(), 0, 0);
        self.num_samples = u64::MAX;
        self.begin_batch();
        loop {
            if used == samples.num_samples {
                used = 0;
                if !stream.next(&mut samples)? {
                    break;
                }
                continue;
            }
            // Not before there is a sample after it: the last batch ends the epoch.
            if taken == size {
                self.deliver(std::mem::take(&mut taken))?;
                self.begin_batch();
            }
            let count = (samples.num_samples - used).min((size - taken) as usize);
            self.add(&samples, used..used + count)?;
            (used, taken) = (used + count, taken + count as u64);
        }
        self.num_samples = self.at.sample + taken;
        if self.num_samples == 0 {
            return Err(Stop::Failed(no_samples(
                &self.source.about().names,
                &self.source.skip_report(),
            )));
        }
        self.deliver(taken)
    }

    fn read_batches(&mut self, order: Order) -> Result<(), Stop> {
        let size = self.options.batch_size as u64;
        let all = batches(order, self.at.epoch, self.num_samples, size, self.at.sample);
        let slice = self.options.slice;
        let wanted = move |batch: &Range<u64>| {
            let first = batch.start;
            slice
                .of_batch(batch.end - first)
                .map(move |range| first + range.start..first + range.end)
        };
        let ranges: Vec<Range<u64>> =
            all.iter().flat_map(wanted).filter(|range| !range.is_empty()).collect();
        let mut stream = self.source.read(Box::new(ranges.into_iter()), &self.options.disk)?;
        let mut samples = Samples::default();
        for whole in all {
            self.begin_batch();
            let mut missing: u64 = wanted(&whole).map(|range| range.end - range.start).sum();
            while missing > 0 {
                self.next_of(&mut *stream, &mut samples)?;
                missing -= samples.num_samples as u64;
                self.add(&samples, 0..samples.num_samples)?;
            }
            self.deliver(whole.end - whole.start)?;
        }
        // The end of the stream is where changed files are noticed.
        stream.next(&mut samples)?;
        self.read_before += stream.bytes_read();
        Ok(())
    }

    fn read_windows(&mut self, seed: u64, window: u64) -> Result<(), Stop> {
        let mut delivered = self.at.sample;
        let size = self.options.batch_size as u64;
        let mut taken = 0;
        self.begin_batch();
        for (seed, ranges) in windows(seed, window, CHUNK, self.at.epoch, self.num_samples) {
            let count: u64 = ranges.iter().map(|range| range.end - range.start).sum();
            if delivered >= count {
                // This window had been delivered whole.
                delivered -= count;
                continue;
            }
            let held = self.read_window(ranges)?;
            for &index in &permutation(count, seed)[std::mem::take(&mut delivered) as usize..] {
                let whole = size.min(self.num_samples - self.at.sample);
                if self.options.slice.of_batch(whole).any(|here| here.contains(&taken)) {
                    self.add(&held, index as usize..index as usize + 1)?;
                }
                taken += 1;
                if taken == size || self.at.sample + taken == self.num_samples {
                    self.deliver(std::mem::take(&mut taken))?;
                    self.begin_batch();
                }
            }
        }
        Ok(())
    }

    /// Note: all of it, whatever the slice: who trains on a sample is known once all are shuffled.
    fn read_window(&mut self, ranges: Vec<Range<u64>>) -> Result<Samples, Stop> {
        let mut stream = self.source.read(Box::new(ranges.into_iter()), &self.options.disk)?;
        let (mut all, mut some) = (Samples::default(), Samples::default());
        all.clear(&self.schema);
        while stream.next(&mut some)? {
            all.extend_from(&some, 0..some.num_samples, &self.schema);
        }
        self.read_before += stream.bytes_read();
        self.bytes_read.store(self.read_before, Ordering::Relaxed);
        Ok(all)
    }

    fn next_of(&self, stream: &mut dyn SampleStream, samples: &mut Samples) -> Result<(), Stop> {
        let more = stream.next(samples)?;
        self.bytes_read.store(self.read_before + stream.bytes_read(), Ordering::Relaxed);
        match more {
            true => Ok(()),
            false => Err(Stop::Failed(ReaderError::Stopped { thread: "samples" })),
        }
    }

    fn begin_batch(&mut self) {
        let batch = &mut self.filling;
        batch.num_samples = 0;
        batch.labels.clear();
        batch.dense.clear();
        batch.sparse.resize_with(self.schema.sparse.len(), Jagged::default);
        for (bags, column) in batch.sparse.iter_mut().zip(&self.schema.sparse) {
            bags.values.clear();
            // Those of one id a sample are set when the batch is whole.
            if column.hotness != Hotness::Fixed(1) {
                bags.offsets.clear();
                bags.offsets.push(0);
            }
        }
    }

    fn add(&mut self, samples: &Samples, range: Range<usize>) -> Result<(), Stop> {
        let batch = &mut self.filling;
        batch.num_samples += range.len();
        if self.schema.labelled {
            batch.labels.extend_from_slice(&samples.labels[range.clone()]);
        }
        let width = self.schema.dense.len();
        let dense = range.start * width..range.end * width;
        match (&samples.dense, &self.function) {
            (DenseValues::Integers(values), Some(function)) => {
                let from = batch.dense.len();
                batch.dense.resize(from + dense.len(), 0.0);
                function.apply(&values[dense], &mut batch.dense[from..]);
            }
            (DenseValues::Integers(_), None) => {
                debug_assert!(dense.is_empty(), "integers have a transform")
            }
            (DenseValues::Numbers(values), _) => batch.dense.extend_from_slice(&values[dense]),
        }
        for (column, bags) in samples.sparse.iter().enumerate() {
            let named = &self.schema.sparse[column];
            let ids = bags.range(range.clone(), named.hotness);
            let to = &mut batch.sparse[column];
            let first = to.values.len() as u32;
            match named.hotness {
                Hotness::Fixed(1) => {}
                Hotness::Fixed(count) => {
                    to.offsets.extend((1..=range.len() as u32).map(|index| first + index * count));
                }
                Hotness::Varying => {
                    let before = bags.offsets[range.start];
                    let ends = bags.offsets[range.start + 1..=range.end].iter();
                    to.offsets.extend(ends.map(|end| first + end - before));
                }
            }
            self.options.ids.map_ids(column, &bags.ids[ids], &mut to.values).map_err(|id| {
                let rows = self.options.ids.rows()[column];
                let message = format!(
                    "epoch {}, near sample {}, column {}: expected a row below {rows}, found {id}: \
                     the table is too small, or the ids are not rows (data.ids)",
                    self.at.epoch, self.at.sample, named.name
                );
                Stop::Failed(ReaderError::Invalid { message })
            })?;
        }
        Ok(())
    }

    /// Gives the batch out, which stands for `whole` samples over all ranks.
    fn deliver(&mut self, whole: u64) -> Result<(), Stop> {
        self.at.sample += whole;
        if self.at.sample == self.num_samples {
            self.at = Position { epoch: self.at.epoch + 1, ..Position::default() };
        }
        let mut batch = std::mem::replace(&mut self.filling, self.spare.take());
        let columns = batch.sparse.iter_mut().zip(&self.schema.sparse);
        let one_hot = columns.filter(|(_, column)| column.hotness == Hotness::Fixed(1));
        set_one_hot(one_hot.map(|(bags, _)| bags), batch.num_samples);
        batch.position = self.at;
        batch.share_of = (self.options.slice.of > 1).then_some(whole as usize);
        self.output.send(Ok(Some(batch))).map_err(|_| Stop::Dropped)
    }
}

#[cfg(test)]
mod tests;
