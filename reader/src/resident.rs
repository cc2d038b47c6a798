//! A file kept in memory: read once, gone through as often as one likes, for validation and tests.

use std::sync::Arc;

use crate::batch::{Batch, BatchBuilder, Position};
use crate::criteo::blocks::{BlockOptions, BlockStream, Event, ParsedBlock};
use crate::error::{Result, refuse};
use crate::formats::{names_of, no_samples};
use crate::ids::IdMapper;
use crate::io::DataFile;
use crate::schema::Schema;
use crate::skipped::SkipReport;
use crate::transform::{DenseFunction, DenseTransform};
use crate::{Reader, ReaderState};

/// The samples of some files, as numbers but not yet mapped to rows, so that a mapping that learns
/// meanwhile can be applied again each time. Takes about 165 bytes a sample of Criteo's.
#[derive(Debug)]
pub struct ResidentData {
    schema: Schema,
    functions: Vec<DenseFunction>,
    blocks: Vec<ParsedBlock>,
    num_samples: u64,
    skip_report: SkipReport,
}

impl ResidentData {
    /// Reads `files` whole.
    ///
    /// # Errors
    /// Those of reading, [`NoSamples`](crate::ReaderError::NoSamples) where every line was bad and
    /// skipped, and [`Invalid`](crate::ReaderError::Invalid) where the samples take more than
    /// `most_bytes`.
    pub fn load(
        files: &[DataFile],
        options: &BlockOptions,
        transform: DenseTransform,
        most_bytes: u64,
    ) -> Result<Self> {
        let mut stream = BlockStream::open(files.to_vec(), options, &Position::default(), Some(1))?;
        let functions = transform.functions(files, options)?;
        let schema = options.sample_schema();
        let mut data = Self {
            schema,
            functions,
            blocks: Vec::new(),
            num_samples: 0,
            skip_report: SkipReport::default(),
        };
        let mut bytes = 0;
        while let Some(event) = stream.next()? {
            let Event::Block(block) = event else { continue };
            bytes += block.raw.bytes() as u64;
            if bytes > most_bytes {
                refuse!(
                    "the data takes more than {most_bytes} bytes of memory, where it has to be \
                     kept: write it to a file"
                );
            }
            data.keep(block, files);
        }
        if data.num_samples == 0 {
            return Err(no_samples(&names_of(files), &data.skip_report));
        }
        Ok(data)
    }

    fn keep(&mut self, mut block: ParsedBlock, files: &[DataFile]) {
        block.report_bad_rows(&files[block.file], &mut self.skip_report);
        block.raw.bad_lines.clear();
        block.raw.shrink();
        self.num_samples += block.raw.num_samples as u64;
        self.blocks.push(block);
    }

    /// All samples.
    pub fn num_samples(&self) -> u64 {
        self.num_samples
    }

    /// Bad lines that were skipped while reading.
    pub fn skip_report(&self) -> &SkipReport {
        &self.skip_report
    }

    /// A reader that goes through the samples once, in batches, with rows of `ids` as it is.
    ///
    /// # Errors
    /// [`Invalid`](crate::ReaderError::Invalid) if `ids` has another number of tables than the
    /// schema, or the batch size is 0.
    pub fn reader(
        self: &Arc<Self>,
        ids: Arc<IdMapper>,
        batch_size: usize,
    ) -> Result<ResidentReader> {
        ids.check_text()?;
        let (expected, found) = (self.schema.num_sparse, ids.rows().len());
        if expected != found || batch_size == 0 {
            refuse!(
                "{expected} categories need as many tables and batches of at least 1, found \
                 {found} and {batch_size}"
            );
        }
        let mut state = ReaderState::new(self.schema, Position::default());
        state.progress.samples_per_epoch = Some(self.num_samples);
        let builder = BatchBuilder::new(self.schema, batch_size);
        Ok(ResidentReader { data: Arc::clone(self), ids, builder, block: 0, sample: 0, state })
    }
}

/// Batches of a [`ResidentData`]; its position counts samples only.
pub struct ResidentReader {
    data: Arc<ResidentData>,
    ids: Arc<IdMapper>,
    builder: BatchBuilder,
    block: usize,
    sample: usize,
    state: ReaderState,
}

impl Reader for ResidentReader {
    fn next(&mut self, batch: &mut Batch) -> Result<bool> {
        while !self.builder.is_full() && self.block < self.data.blocks.len() {
            let block = &self.data.blocks[self.block];
            let count = self.builder.room().min(block.raw.num_samples - self.sample);
            let samples = self.sample..self.sample + count;
            let function = &self.data.functions[block.file];
            self.builder.add(&block.raw, samples.clone(), function, |sparse, at| {
                self.ids.map(&block.raw, samples, sparse, at);
            });
            self.sample += count;
            self.state.position.sample += count as u64;
            if self.sample == block.raw.num_samples {
                (self.block, self.sample) = (self.block + 1, 0);
            }
        }
        if self.builder.is_empty() {
            return Ok(false);
        }
        if self.state.position.sample == self.data.num_samples {
            self.state.position = Position { epoch: 1, ..Position::default() };
        }
        *batch = self.builder.finish(self.state.position, std::mem::take(batch));
        Ok(true)
    }

    fn skip_report(&self) -> SkipReport {
        self.data.skip_report.clone()
    }

    fn state(&self) -> &ReaderState {
        &self.state
    }
}
