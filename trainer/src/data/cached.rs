//! What data takes where it is kept in memory, before any of it is read; and what is kept where.

use super::{format_of, is_counted_in_memory, is_streamed, known_samples, open_source};
use crate::config::{CacheData, Config, OrderChoice};
use crate::system::machine::Machine;
use headlong_reader::formats::{Format, Source};
use headlong_reader::io::{Compression, DataFile, LineBlocks, TextBlock, TextFile};
use headlong_reader::samples::Hotness;

/// Bytes of text or of decoded samples of one stored byte of a compressed file, at most.
pub(crate) const MOST_COMPRESSION: u64 = 4;

/// Bytes of text at the beginning of a file that tell how long its rows are.
const LOOKED_AT_BYTES: usize = 64 << 10;

/// One part in so many is added where the number of rows is estimated.
const MARGIN: u64 = 16;

/// Bytes of a decoded id.
const ID_BYTES: u64 = 8;

/// Bytes of decoded training data that `data.cache` keeps in memory: exact where the files say how
/// many samples of how many ids they have, else an upper estimate from their bytes. What a pipe
/// will give is not known: 0.
pub(crate) fn cached_bytes(config: &Config) -> u64 {
    let files = &config.data.train;
    // Files that cannot be opened are refused where they are read.
    match is_streamed(config, files) {
        Ok(false) => decoded_bytes(config, files, config.data.cache),
        _ => 0,
    }
}

/// The same of any files that are kept as `cache` says.
pub(crate) fn decoded_bytes(config: &Config, files: &[DataFile], cache: CacheData) -> u64 {
    // What is counted in memory, to hold rows of it out, stays there.
    let cache = match is_counted_in_memory(config, files) {
        Ok(true) => CacheData::Host,
        _ => cache,
    };
    let is_kept = matches!(cache, CacheData::Host | CacheData::Auto)
        && !files.iter().any(DataFile::is_stream);
    if !is_kept {
        return 0;
    }
    let decoded = match (files.is_empty(), format_of(config, files)) {
        (true, _) if !config.synthetic.enabled => 0,
        (true, _) => config.synthetic.train_rows.saturating_mul(text_sample_bytes(config)),
        (false, Ok(Format::Criteo)) => bytes_of_text(config, files),
        (false, _) => {
            open_source(config, files, 1).map_or(0, |source| bytes_of_samples(&*source, files))
        }
    };
    if cache == CacheData::Host {
        return decoded;
    }
    // Data is read until it has taken so much, and then left.
    let most = Machine::detect().usable_bytes() / 4;
    if stored_bytes(files) > most { 0 } else { decoded.min(most) }
}

/// Rows whose batches stay on the devices of ranks; 0: none do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceRows {
    pub train: u64,
    pub valid: u64,
}

impl DeviceRows {
    pub(crate) const NONE: Self = Self { train: 0, valid: 0 };

    /// Those of `config`, `train_rows` where these are known, else no fewer than there are.
    pub(crate) fn of(config: &Config, train_rows: Option<u64>) -> Self {
        if config.data.cache != CacheData::Device {
            return Self::NONE;
        }
        let (data, synthetic) = (&config.data, &config.synthetic);
        let at_most = |files: &[DataFile], made_up: u64| match files.is_empty() {
            true if data.train.is_empty() && synthetic.enabled => made_up,
            true => 0,
            false => rows_at_most(config, files),
        };
        let trained = || train_rows.unwrap_or_else(|| at_most(&data.train, synthetic.train_rows));
        Self {
            train: training_stays(config, train_rows).map_or(0, |()| trained()),
            valid: at_most(&data.valid, synthetic.valid_rows),
        }
    }

    pub(crate) fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

/// Whether batches of training stay on devices, where `data.cache` says so; else why they do not.
/// `rows`: those of an epoch, where known.
pub(crate) fn training_stays(config: &Config, rows: Option<u64>) -> Result<(), &'static str> {
    let train = &config.train;
    let per_step = (train.batch_size * train.accumulate) as u64;
    let comes_twice = match (train.steps, rows) {
        (None, _) => train.epochs > 1.0,
        (Some(steps), Some(rows)) => steps > rows.div_ceil(per_step),
        (Some(_), None) => true,
    };
    match config.data.order {
        OrderChoice::Samples => Err("data.order = \"samples\" makes other batches in each epoch"),
        _ if config.data.train.iter().any(DataFile::is_stream) => Err("a pipe is read once"),
        _ if !comes_twice => Err("no batch of training comes twice"),
        _ => Ok(()),
    }
}

/// Rows of `files` where they say so, else an upper estimate from the beginning of their text. What
/// a pipe will give is not known: 0.
fn rows_at_most(config: &Config, files: &[DataFile]) -> u64 {
    if files.iter().any(DataFile::is_stream) {
        return 0;
    }
    match known_samples(config, files) {
        Ok(Some(rows)) => rows,
        _ => estimated_rows(files),
    }
}

fn estimated_rows(files: &[DataFile]) -> u64 {
    let rows = files.iter().filter_map(rows_of_text).fold(0, u64::saturating_add);
    rows.saturating_add(rows / MARGIN)
}

fn stored_bytes(files: &[DataFile]) -> u64 {
    files.iter().map(|file| file.stored_bytes().unwrap_or(0)).fold(0, u64::saturating_add)
}

/// Bytes of a decoded sample of Criteo's text.
fn text_sample_bytes(config: &Config) -> u64 {
    4 * (1 + config.data.num_dense as u64) + ID_BYTES * config.data.num_sparse as u64
}

/// What Criteo's text comes to: the beginning of each file tells how long its rows are.
fn bytes_of_text(config: &Config, files: &[DataFile]) -> u64 {
    estimated_rows(files).saturating_mul(text_sample_bytes(config))
}

fn rows_of_text(file: &DataFile) -> Option<u64> {
    let text = TextFile::look(file).ok()?;
    let factor = if text.compression() == Compression::Plain { 1 } else { MOST_COMPRESSION };
    let bytes = text.stored_bytes().saturating_mul(factor);
    let mut block = TextBlock::default();
    LineBlocks::of(text, LOOKED_AT_BYTES).next(&mut block).ok()?;
    let looked_at = block.text();
    let rows = looked_at.split_inclusive(|&byte| byte == b'\n').count().max(1) as u64;
    let of_each = (looked_at.len() as u64 / rows).max(1);
    Some(bytes.div_ceil(of_each))
}

/// What data of another format comes to.
fn bytes_of_samples(source: &dyn Source, files: &[DataFile]) -> u64 {
    let schema = source.schema();
    let ids: Option<u64> = schema
        .sparse
        .iter()
        .map(|column| match column.hotness {
            Hotness::Fixed(count) => Some(u64::from(count)),
            Hotness::Varying => None,
        })
        .sum();
    let numbers = u64::from(schema.labelled) + schema.dense.len() as u64;
    match (source.num_samples(), ids) {
        (Some(samples), Some(ids)) => samples.saturating_mul(4 * numbers + ID_BYTES * ids),
        // Where bags have any number of ids, an id takes two bytes of a file at least, a digit and
        // what separates it.
        _ => stored_bytes(files).saturating_mul(MOST_COMPRESSION),
    }
}
