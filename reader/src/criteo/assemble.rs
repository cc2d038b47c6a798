//! Parsed blocks to batches: cuts, transforms, maps ids, and knows where every batch ends.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};

use crate::Progress;
use crate::batch::{Batch, BatchBuilder, Position};
use crate::criteo::blocks::{BlockStream, Event, ParsedBlock};
use crate::error::Result;
use crate::formats::{names_of, no_samples};
use crate::history::MapperHistory;
use crate::io::DataFile;
use crate::lock;
use crate::prefetch::Spares;
use crate::skipped::SharedReport;
use crate::transform::DenseFunction;

#[derive(Debug, Default)]
pub(super) struct Delivery {
    pub batch: Batch,
    pub progress: Progress,
}

struct Dropped;

pub(super) struct AssembleThread {
    pub stream: BlockStream,
    pub files: Vec<DataFile>,
    pub functions: Vec<DenseFunction>,
    pub history: Arc<Mutex<MapperHistory>>,
    pub skip_report: SharedReport,
    pub output: SyncSender<Result<Option<Delivery>>>,
    pub spare: Spares<Batch>,
    pub builder: BatchBuilder,
    pub place: Place,
}

/// Where the assembly stands.
#[derive(Debug)]
pub(super) struct Place {
    /// After the last sample taken.
    after: Position,
    file: usize,
    /// Bad lines before that file and before the block at hand.
    skipped_before_file: u64,
    skipped_before_block: u64,
    /// Stored bytes of each file, and those read of the file before the block at hand.
    stored_bytes: Vec<u64>,
    stored_before_block: u64,
    progress: Progress,
}

impl Place {
    /// The place `start` in `files`.
    pub fn new(start: &Position, files: &[DataFile]) -> Result<Self> {
        let sizes = files.iter().map(DataFile::stored_bytes);
        let stored_bytes = sizes.collect::<Result<Vec<u64>>>()?;
        let progress = Progress { stored_bytes: stored_bytes.iter().sum(), ..Progress::default() };
        Ok(Self {
            after: *start,
            file: start.file as usize,
            skipped_before_file: start.skipped,
            skipped_before_block: start.skipped,
            stored_bytes,
            stored_before_block: 0,
            progress,
        })
    }

    fn enter_block(&mut self, block: &ParsedBlock) {
        if block.file != self.file {
            self.file = block.file;
            self.skipped_before_file = self.skipped_before_block;
            self.stored_before_block = 0;
        }
    }

    fn leave_block(&mut self, block: &ParsedBlock) {
        self.skipped_before_block += block.raw.bad_lines.len() as u64;
        self.stored_before_block = block.stored_bytes_read;
    }

    /// `count` more samples were taken, the last of them being sample `last` of `block`.
    fn take(&mut self, block: &ParsedBlock, last: usize, count: usize) {
        self.after.sample += count as u64;
        self.after.file = block.file as u64;
        self.after.line = block.first_line + block.raw.lines_through(last) as u64;
        self.after.byte = block.first_byte + block.raw.line_ends[last] as u64;
        self.after.skipped = self.skipped_before_block + block.raw.bad_through(last) as u64;
        let earlier_files: u64 = self.stored_bytes[..block.file].iter().sum();
        let of_block = block.stored_bytes_read.saturating_sub(self.stored_before_block);
        let share = of_block * (last as u64 + 1) / block.raw.num_samples as u64;
        self.progress.stored_bytes_read = earlier_files + self.stored_before_block + share;
    }

    /// The position of a batch's end, when the next sample is known to stand in the file at hand.
    fn before_next_sample(&self) -> Position {
        if self.after.file == self.file as u64 {
            return self.after;
        }
        let (file, skipped) = (self.file as u64, self.skipped_before_file);
        Position { file, line: 0, byte: 0, skipped, ..self.after }
    }

    fn end_epoch(&mut self) -> Position {
        self.progress.samples_per_epoch = Some(self.after.sample);
        self.progress.stored_bytes_read = self.progress.stored_bytes;
        let (epoch, skipped) = (self.after.epoch + 1, self.skipped_before_block);
        self.after = Position { epoch, skipped, ..Position::default() };
        self.file = 0;
        self.skipped_before_file = skipped;
        self.stored_before_block = 0;
        self.after
    }
}

impl AssembleThread {
    pub fn run(mut self) {
        // An error means that no one listens any more.
        let _ = self.assemble();
    }

    fn assemble(&mut self) -> Result<(), Dropped> {
        loop {
            match self.stream.next() {
                Ok(Some(Event::Block(block))) => {
                    self.take_block(&block)?;
                    self.stream.recycle(block);
                }
                Ok(Some(Event::EndOfEpoch)) => self.end_epoch()?,
                Ok(None) => return self.send(Ok(None)),
                Err(error) => {
                    // A full batch waits only for the place of the sample after it, which is not to
                    // come.
                    if self.builder.is_full() {
                        self.emit(self.place.after)?;
                    }
                    return self.send(Err(error));
                }
            }
        }
    }

    fn take_block(&mut self, block: &ParsedBlock) -> Result<(), Dropped> {
        self.place.enter_block(block);
        let num_samples = block.raw.num_samples;
        let mut taken = 0;
        while taken < num_samples {
            if self.builder.is_full() {
                self.emit(self.place.before_next_sample())?;
            }
            let count = self.builder.room().min(num_samples - taken);
            let samples = taken..taken + count;
            let history = &self.history;
            self.builder.add(
                &block.raw,
                samples.clone(),
                &self.functions[block.file],
                |sparse, at| {
                    lock(history).map(&block.raw, samples, sparse, at);
                },
            );
            taken += count;
            self.place.take(block, taken - 1, count);
        }
        self.report_bad_lines(block);
        self.place.leave_block(block);
        Ok(())
    }

    fn end_epoch(&mut self) -> Result<(), Dropped> {
        if self.place.after.sample == 0 {
            self.send(Err(no_samples(&names_of(&self.files), &self.skip_report.now())))?;
            return Err(Dropped);
        }
        let position = self.place.end_epoch();
        if self.builder.is_empty() { Ok(()) } else { self.emit(position) }
    }

    fn emit(&mut self, position: Position) -> Result<(), Dropped> {
        lock(&self.history).finish_batch(position);
        let batch = self.builder.finish(position, self.spare.take());
        self.send(Ok(Some(Delivery { batch, progress: self.place.progress })))
    }

    fn report_bad_lines(&self, block: &ParsedBlock) {
        if block.raw.bad_lines.is_empty() {
            return;
        }
        let file = &self.files[block.file];
        self.skip_report.add(|report| block.report_bad_rows(file, report));
    }

    fn send(&self, message: Result<Option<Delivery>>) -> Result<(), Dropped> {
        self.output.send(message).map_err(|_| Dropped)
    }
}
