//! The data of a run: which files it reads, how their ids become rows, and the readers over them.

use crate::checkpoint::DataFingerprint;
use crate::config::{self, Config, Ids, OnBadRow};
use crate::error::{Error, Result};
use headlong_reader::hashing::HashFunction;
use headlong_reader::{
    BadRowPolicy, BlockOptions, CriteoTextReader, DenseTransform, IdMapper, IdPolicy, Position, Reader,
    ResidentData, Schema, TextOptions,
};
use std::path::PathBuf;
use std::sync::Arc;

/// Validation files up to this size are kept in memory, decoded; larger ones are read again for each evaluation.
const MOST_RESIDENT_STORED_BYTES: u64 = 1 << 30;

/// How the columns of `config`'s files are to be read.
pub fn block_options(config: &Config, labelled: bool, threads: usize) -> BlockOptions {
    let data = &config.data;
    BlockOptions {
        schema: Schema { labelled, num_dense: data.num_dense, num_sparse: data.num_sparse },
        on_bad_row: match data.on_bad_row {
            OnBadRow::Error => BadRowPolicy::Error,
            OnBadRow::Skip => BadRowPolicy::Skip,
        },
        // Note: one core parses several times faster than a DLRM of any published size trains on four.
        num_threads: threads.div_ceil(4),
        ..BlockOptions::default()
    }
}

/// The dense transform by the reader's name.
pub fn dense_transform(config: &Config) -> DenseTransform {
    match config.data.dense_transform {
        config::DenseTransform::None => DenseTransform::Identity,
        config::DenseTransform::LnPlus1 => DenseTransform::LnPlus1,
        config::DenseTransform::LnPlus3 => DenseTransform::LnPlus3,
        config::DenseTransform::FileMinimum => DenseTransform::FileMinimum,
    }
}

/// A mapper of ids that has seen nothing yet, for policies that need no dictionary.
///
/// # Errors
/// Tables that the policy cannot fill.
pub fn id_mapper(config: &Config, table_rows: &[u64]) -> Result<IdMapper> {
    let policy = match config.data.ids {
        Ids::Hash => IdPolicy::Hash { function: HashFunction::default() },
        Ids::Admitted => IdPolicy::Admitted { min_count: config.data.min_count },
        Ids::Dictionary => IdPolicy::Dictionary,
    };
    let mapper = IdMapper::new(policy, table_rows);
    let mapper = mapper.map_err(|error| failed("the ids cannot be mapped to rows", error))?;
    Ok(mapper.with_raw_columns(&config.raw_columns()))
}

/// What a checkpoint records of how raw data becomes numbers.
pub fn fingerprint(config: &Config, dictionary_checksum: Option<String>) -> DataFingerprint {
    let hashed = config.data.ids == Ids::Hash;
    let raw = config.raw_columns().into_iter().map(|column| format!("; C{} raw", column + 1));
    let raw_after = |policy: String| raw.fold(policy, |text, column| text + &column);
    DataFingerprint {
        dense_transform: dense_transform(config).name().to_owned(),
        id_policy: raw_after(match config.data.ids {
            Ids::Hash => "hash".to_owned(),
            Ids::Admitted => format!("admitted(min_count={})", config.data.min_count),
            Ids::Dictionary => "dictionary".to_owned(),
        }),
        hash: if hashed { HashFunction::default().name().to_owned() } else { String::new() },
        dictionary: dictionary_checksum,
    }
}

/// Opens the training files at `start`, with ids as they were there.
///
/// # Errors
/// Files that cannot be read.
pub fn open_training(
    config: &Config,
    files: &[PathBuf],
    ids: IdMapper,
    start: &Position,
    threads: usize,
) -> Result<CriteoTextReader> {
    let train = &config.train;
    let options = TextOptions {
        blocks: block_options(config, true, threads),
        batch_size: train.batch_size * train.accumulate,
        prefetch: config.data.prefetch_batches,
        dense_transform: dense_transform(config),
        // The session counts steps; the stream ends by itself only where whole epochs were asked for.
        epochs: (train.steps.is_none() && train.epochs.fract() == 0.0).then_some(train.epochs as u64),
    };
    CriteoTextReader::open(files, ids, &options, start)
        .map_err(|error| failed("the training data cannot be read", error))
}

/// Data that is predicted, any number of times: validation files, or the files of `eval` and `predict`.
pub struct EvaluationData {
    files: Vec<PathBuf>,
    options: TextOptions,
    resident: Option<Arc<ResidentData>>,
}

impl EvaluationData {
    /// Small files are read and decoded now, large ones when they are evaluated.
    ///
    /// # Errors
    /// Files that cannot be read.
    pub fn open(config: &Config, files: &[PathBuf], labelled: bool, threads: usize) -> Result<Self> {
        let options = TextOptions {
            blocks: block_options(config, labelled, threads),
            batch_size: config.eval.batch_size,
            prefetch: 2,
            dense_transform: dense_transform(config),
            epochs: Some(1),
        };
        let stored_bytes =
            files.iter().map(|file| std::fs::metadata(file).map_or(0, |data| data.len())).sum::<u64>();
        let resident = if stored_bytes <= MOST_RESIDENT_STORED_BYTES {
            let data = ResidentData::load(files, &options.blocks, options.dense_transform)
                .map_err(|error| failed("the evaluation data cannot be read", error))?;
            Some(Arc::new(data))
        } else {
            None
        };
        Ok(Self { files: files.to_vec(), options, resident })
    }

    /// A reader that goes through the data once, with the rows of `ids` as it is.
    ///
    /// # Errors
    /// Files that cannot be read.
    pub fn reader(&self, ids: &IdMapper) -> Result<Box<dyn Reader>> {
        let opened: headlong_reader::Result<Box<dyn Reader>> = match &self.resident {
            Some(data) => data
                .reader(Arc::new(ids.clone()), self.options.batch_size)
                .map(|reader| Box::new(reader) as Box<dyn Reader>),
            None => CriteoTextReader::open_frozen(&self.files, ids.clone(), &self.options)
                .map(|reader| Box::new(reader) as Box<dyn Reader>),
        };
        opened.map_err(|error| failed("the evaluation data cannot be read", error))
    }

    /// Samples, where they have been counted.
    pub fn num_samples(&self) -> Option<u64> {
        self.resident.as_ref().map(|data| data.num_samples())
    }
}

/// Samples of one pass over `files`: reads and parses them all.
///
/// # Errors
/// Files that cannot be read.
pub fn count_samples(config: &Config, files: &[PathBuf], threads: usize) -> Result<u64> {
    use headlong_reader::criteo::blocks::{BlockStream, Event};
    let counted = || -> headlong_reader::Result<u64> {
        let options = block_options(config, true, threads);
        let mut stream = BlockStream::open(files.to_vec(), &options, &Position::default(), Some(1))?;
        let mut samples = 0;
        while let Some(event) = stream.next()? {
            if let Event::Block(block) = event {
                samples += block.raw.num_samples as u64;
                stream.recycle(block);
            }
        }
        Ok(samples)
    };
    counted().map_err(|error| failed("the rows of the training data cannot be counted", error))
}

pub(crate) fn failed(context: &str, source: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Failed { context: context.to_owned(), source: source.into() }
}
