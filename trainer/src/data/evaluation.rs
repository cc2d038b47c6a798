//! Data that is predicted: validation files, and the files of `eval` and `predict`.

use super::{block_options, check_columns, count_samples, format_of, is_one_hot, keep, open_part};
use crate::config::{CacheData, Config};
use crate::error::{Error, Result};
use crate::system::machine::Machine;
use headlong_reader::disk::DiskOptions;
use headlong_reader::format_reader::{FormatOptions, FormatReader};
use headlong_reader::formats::part::Part;
use headlong_reader::formats::{Format, Source};
use headlong_reader::io::DataFile;
use headlong_reader::multi_hot::MultiHotReader;
use headlong_reader::order::{Order, Slice};
use headlong_reader::{
    CriteoTextReader, DenseTransform, IdMapper, Position, Reader, ResidentData, TextOptions,
};
use std::sync::Arc;

/// Validation files up to this size are kept in memory, decoded; larger ones are read again for
/// each evaluation.
pub(crate) const MOST_RESIDENT_STORED_BYTES: u64 = 1 << 30;

/// Whether `files` are read once, because devices keep their batches from then on.
pub(crate) fn stays_on_devices(config: &Config, files: &[DataFile]) -> bool {
    config.data.cache == CacheData::Device && !files.iter().any(DataFile::is_stream)
}

/// Data that is predicted, any number of times: validation files, or the files of `eval` and
/// `predict`. What fits is kept in memory, decoded. A clone shares it.
#[derive(Clone)]
pub struct EvaluationData {
    contents: Contents,
    transform: DenseTransform,
    batch_size: usize,
}

#[derive(Clone)]
enum Contents {
    Text { files: Vec<DataFile>, options: TextOptions },
    ResidentText(Arc<ResidentData>),
    Format(Arc<dyn Source>),
}

impl EvaluationData {
    /// What fits into memory is read and decoded now, the rest when it is evaluated.
    pub fn open(
        config: &Config,
        files: &[DataFile],
        labelled: bool,
        threads: usize,
    ) -> Result<Self> {
        Self::open_to_keep(config, files, labelled, threads, true)
    }

    /// The same to be evaluated once: pipes are read on the way, however much comes.
    pub fn open_once(
        config: &Config,
        files: &[DataFile],
        labelled: bool,
        threads: usize,
    ) -> Result<Self> {
        let kept = !files.iter().any(DataFile::is_stream);
        Self::open_to_keep(config, files, labelled, threads, kept)
    }

    /// The same where only the first rows of labelled files are looked at: nothing is kept.
    pub fn open_front(config: &Config, files: &[DataFile], threads: usize) -> Result<Self> {
        Self::open_to_keep(config, files, true, threads, false)
    }

    fn open_to_keep(
        config: &Config,
        files: &[DataFile],
        labelled: bool,
        threads: usize,
        kept: bool,
    ) -> Result<Self> {
        let (transform, batch_size) = (config.data.dense_transform, config.eval.batch_size);
        let contents = match format_of(config, files)? {
            Format::Criteo if config.holdout().is_none() => {
                Self::open_text(config, files, labelled, threads, kept)?
            }
            _ => {
                let kept = kept && !stays_on_devices(config, files);
                Contents::Format(Self::open_format(config, files, labelled, threads, kept)?)
            }
        };
        Ok(Self { contents, transform, batch_size })
    }

    fn open_text(
        config: &Config,
        files: &[DataFile],
        labelled: bool,
        threads: usize,
        kept: bool,
    ) -> Result<Contents> {
        let options = TextOptions {
            blocks: block_options(config, labelled, threads),
            batch_size: config.eval.batch_size,
            prefetch: 2,
            dense_transform: config.data.dense_transform,
            epochs: Some(1),
        };
        let stored_bytes = files.iter().map(|file| file.stored_bytes().unwrap_or(0)).sum::<u64>();
        if stored_bytes > MOST_RESIDENT_STORED_BYTES || !kept {
            return Ok(Contents::Text { files: files.to_vec(), options });
        }
        // What a pipe will give is not known before.
        let most_bytes = match files.iter().any(DataFile::is_stream) {
            true => Machine::detect().usable_bytes() / 4,
            false => u64::MAX,
        };
        let data = ResidentData::load(files, &options.blocks, options.dense_transform, most_bytes)
            .map_err(Error::failed("the evaluation data cannot be read"))?;
        Ok(Contents::ResidentText(Arc::new(data)))
    }

    fn open_format(
        config: &Config,
        files: &[DataFile],
        labelled: bool,
        threads: usize,
        kept: bool,
    ) -> Result<Arc<dyn Source>> {
        let source = open_part(config, files, Part::HeldOut, threads)?;
        check_columns(config, &*source, labelled)?;
        match kept.then(|| keep(CacheData::Auto, &*source)).transpose()?.flatten() {
            Some(kept) => Ok(Arc::new(kept)),
            None => Ok(source.into()),
        }
    }

    /// A reader that goes through the data once, with the rows of `ids` as it is.
    pub fn reader(&self, ids: &IdMapper) -> Result<Box<dyn Reader>> {
        let opened: headlong_reader::Result<Box<dyn Reader>> = match &self.contents {
            Contents::ResidentText(data) => data
                .reader(Arc::new(ids.clone()), self.batch_size)
                .map(|reader| Box::new(reader) as Box<dyn Reader>),
            Contents::Text { files, options } => {
                CriteoTextReader::open_frozen(files, ids.clone(), options)
                    .map(|reader| Box::new(reader) as Box<dyn Reader>)
            }
            Contents::Format(source) => {
                let options = FormatOptions {
                    batch_size: self.batch_size,
                    slice: Slice::WHOLE,
                    prefetch: 2,
                    order: Order::Sequential,
                    epochs: Some(1),
                    dense_transform: self.transform,
                    ids: ids.clone(),
                    disk: DiskOptions::default(),
                };
                FormatReader::open(Arc::clone(source), options, &Position::default())
                    .map(|reader| Box::new(reader) as Box<dyn Reader>)
            }
        };
        let opened = opened.map_err(Error::failed("the evaluation data cannot be read"))?;
        let bags = ids.multi_hot().cloned().filter(|_| self.is_one_hot());
        Ok(Box::new(MultiHotReader::new(opened, bags)))
    }

    fn is_one_hot(&self) -> bool {
        match &self.contents {
            Contents::Text { .. } | Contents::ResidentText(_) => true,
            Contents::Format(source) => is_one_hot(&**source),
        }
    }

    /// Samples, counted where they have not been: reads and parses text. Of a pipe that does not
    /// fit into memory: 0.
    fn counted_samples(&self, config: &Config, threads: usize) -> Result<u64> {
        match &self.contents {
            Contents::Text { files, .. } => count_samples(config, files, threads),
            _ => Ok(self.num_samples().unwrap_or(0)),
        }
    }

    /// Batches that stay on devices, where those of evaluations do (`data.cache`).
    pub(crate) fn batches_that_stay(&self, config: &Config, threads: usize) -> Result<u64> {
        match config.data.cache {
            CacheData::Device => {
                let samples = self.counted_samples(config, threads)?;
                Ok(samples.div_ceil(self.batch_size as u64))
            }
            _ => Ok(0),
        }
    }

    /// Samples, where they have been counted.
    pub fn num_samples(&self) -> Option<u64> {
        match &self.contents {
            Contents::ResidentText(data) => Some(data.num_samples()),
            Contents::Text { .. } => None,
            Contents::Format(source) => source.num_samples(),
        }
    }
}
