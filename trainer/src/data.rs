//! The data of a run: which files it reads, how their ids become rows, and the readers over them.

mod cached;
mod evaluation;
pub mod key;
mod labels;
mod pipes;
mod training;

use crate::error::{Error, Result};
pub use cached::DeviceRows;
pub(crate) use cached::{MOST_COMPRESSION, cached_bytes, decoded_bytes, training_stays};
pub use evaluation::EvaluationData;
pub(crate) use evaluation::{MOST_RESIDENT_STORED_BYTES, stays_on_devices};
pub use labels::{has_labels_to_skip, ignore_labels, is_labelled};
pub use pipes::{Reads, check_pipes, refuse_shared_pipes};
pub use training::TrainingReader;

use crate::config::{CacheData, ColumnEntry, Config, FormatChoice, Ids, OrderChoice};
use crate::state::checkpoint::DataFingerprint;
use crate::system::machine::Machine;
use headlong_reader::convert::{self, Described};
use headlong_reader::criteo::blocks::{BlockStream, Event};
use headlong_reader::disk::DiskOptions;
use headlong_reader::format_reader::{FormatOptions, FormatReader};
use headlong_reader::formats::carried::{self, Carried};
use headlong_reader::formats::memory::MemorySource;
use headlong_reader::formats::named::{DenseReading, NamedColumns, Others};
use headlong_reader::formats::part::{Part, PartSource};
use headlong_reader::formats::records::DCNV2_HOTNESS;
use headlong_reader::formats::{Format, Source};
use headlong_reader::hashing::HashFunction;
use headlong_reader::io::DataFile;
use headlong_reader::multi_hot::MultiHotReader;
use headlong_reader::order::{Order, Slice};
use headlong_reader::samples::{DenseKind, Hotness, SparseColumn};
use headlong_reader::{
    BadRowPolicy, BlockOptions, CriteoTextReader, IdMapper, Position, Schema, TextOptions,
};
use std::sync::Arc;

/// How the columns of `config`'s files are to be read.
pub fn block_options(config: &Config, labelled: bool, threads: usize) -> BlockOptions {
    let data = &config.data;
    BlockOptions {
        schema: Schema {
            labelled,
            num_dense: data.num_dense,
            num_sparse: data.num_sparse.saturating_sub(config.num_binned()),
        },
        columns: config.dense_columns(),
        on_bad_row: data.on_bad_row,
        // Note: one core parses several times faster than a DLRM of any published size trains on
        // four.
        num_threads: threads.div_ceil(4),
        ..BlockOptions::default()
    }
}

/// A mapper of ids that has seen nothing yet, for policies that need no dictionary.
pub fn id_mapper(config: &Config, table_rows: &[u64]) -> Result<IdMapper> {
    let mapper = IdMapper::new(config.id_policy(), table_rows);
    let mapper = mapper.map_err(Error::failed("the ids cannot be mapped to rows"))?;
    Ok(mapper.with_raw_columns(&config.raw_columns()))
}

/// What a checkpoint records of how raw data becomes numbers.
pub fn fingerprint(config: &Config, dictionary_checksum: Option<String>) -> DataFingerprint {
    let hashed = config.data.ids == Ids::Hash;
    let raw = config.raw_columns().into_iter().map(|column| format!("; C{} raw", column + 1));
    let raw_after =
        |policy: String| raw.fold(policy, |text, column| text + &column) + &config.multi_hot_text();
    DataFingerprint {
        dense_transform: config.data.dense_transform.name().to_owned(),
        id_policy: raw_after(match config.data.ids {
            Ids::Hash => "hash".to_owned(),
            Ids::Admitted => format!("admitted(min_count={})", config.data.min_count),
            Ids::Dictionary => "dictionary".to_owned(),
            Ids::Modulo => "modulo".to_owned(),
            Ids::Rows => "rows".to_owned(),
        }),
        hash: if hashed { HashFunction::default().name().to_owned() } else { String::new() },
        dictionary: dictionary_checksum,
        columns: config.column.iter().map(ColumnEntry::in_words).collect(),
    }
}

/// Opens the training files at `start`, with ids as they were there. Batches are cut to `slice`
/// where the format allows: not Criteo's text, of which no one knows where a sample begins, nor
/// Parquet.
pub fn open_training(
    config: &Config,
    files: &[DataFile],
    ids: IdMapper,
    (start, slice): (&Position, Slice),
    threads: usize,
) -> Result<MultiHotReader<TrainingReader>> {
    let train = &config.train;
    let bags = ids.multi_hot().cloned();
    let batch_size = train.batch_size * train.accumulate;
    let epochs = whole_epochs(config);
    if is_streamed(config, files)? {
        let options = TextOptions {
            blocks: block_options(config, true, threads),
            batch_size,
            prefetch: config.data.prefetch_batches,
            dense_transform: config.data.dense_transform,
            epochs,
        };
        return CriteoTextReader::open(files, ids, &options, start)
            .map(|reader| MultiHotReader::new(TrainingReader::of_text(reader), bags))
            .map_err(Error::failed("the training data cannot be read"));
    }
    let (source, is_random) = training_source(config, files, threads)?;
    let bags = bags.filter(|_| is_one_hot(&*source));
    let options = FormatOptions {
        batch_size,
        slice: if is_random { slice } else { Slice::WHOLE },
        prefetch: config.data.prefetch_batches,
        order: order(config),
        epochs,
        dense_transform: config.data.dense_transform,
        ids: ids.clone(),
        disk: DiskOptions::default(),
    };
    let reader = FormatReader::open(source, options, start)
        .map_err(Error::failed("the training data cannot be read"))?;
    Ok(MultiHotReader::new(TrainingReader::of_format(reader, ids), bags))
}

/// Epochs of the data, where whole ones were asked for: then it ends by itself. Else the session
/// counts steps.
pub(crate) fn whole_epochs(config: &Config) -> Option<u64> {
    let train = &config.train;
    (train.steps.is_none() && train.epochs.fract() == 0.0).then_some(train.epochs as u64)
}

/// Whether each sample has one id in each column: what is multi-hot already stays as it is.
fn is_one_hot(source: &dyn Source) -> bool {
    source.schema().sparse.iter().all(|column| column.hotness == Hotness::Fixed(1))
}

/// Whether any of these data sets is one-hot, so that multi-hot ids must be drawn. Each group of
/// files is one data set; where there are no files, data is made, and has one id a sample.
pub fn is_drawn(config: &Config, groups: &[&[DataFile]]) -> Result<bool> {
    if config.multi_hot.sizes.counts()?.is_empty() {
        return Ok(false);
    }
    let groups: Vec<_> = groups.iter().filter(|files| !files.is_empty()).collect();
    for files in &groups {
        if format_of(config, files)? == Format::Criteo
            || is_one_hot(&*open_source(config, files, 1)?)
        {
            return Ok(true);
        }
    }
    Ok(groups.is_empty())
}

/// The training data, in memory where it is to be kept; and whether its files are read in any
/// order, which is the same on every rank, however much memory it has.
fn training_source(
    config: &Config,
    files: &[DataFile],
    threads: usize,
) -> Result<(Arc<dyn Source>, bool)> {
    let source = open_part(config, files, Part::Kept, threads)?;
    check_columns(config, &*source, true)?;
    let (is_shuffled, is_random) =
        (config.data.order != OrderChoice::Sequential, source.about().is_random);
    let cache =
        if is_counted_in_memory(config, files)? { CacheData::Off } else { config.data.cache };
    match keep(cache, &*source)? {
        Some(kept) => Ok((Arc::new(kept), is_random)),
        None if is_shuffled && !is_random => Err(only_in_order(format_of(config, files)?)),
        None => Ok((source.into(), is_random)),
    }
}

/// What is said to another order than that of files that have no other.
fn only_in_order(format: Format) -> Error {
    let message = format!(
        "{format} files are read from front to back: for another order convert them (`headlong \
         data convert --to headlong`), or keep them in the host's memory (data.cache = \"host\")"
    );
    Error::config("data.order", message)
}

/// Whether rows are held out of data that must be read to be counted: then all of it is in memory.
fn is_counted_in_memory(config: &Config, files: &[DataFile]) -> Result<bool> {
    Ok(config.holdout().is_some() && format_of(config, files)? == Format::Criteo)
}

/// Opens `files` for training or validation: where rows are held out, the `part` that is meant.
pub fn open_part(
    config: &Config,
    files: &[DataFile],
    part: Part,
    threads: usize,
) -> Result<Box<dyn Source>> {
    let source = open_source(config, files, threads)?;
    let Some(holdout) = config.holdout() else { return Ok(source) };
    let whole: Arc<dyn Source> = match is_counted_in_memory(config, files)? {
        true => match keep(CacheData::Host, &*source)? {
            Some(kept) => Arc::new(kept),
            None => source.into(),
        },
        false => source.into(),
    };
    let part = PartSource::new(whole, holdout, part);
    Ok(Box::new(part.map_err(Error::failed("no rows can be held out (data.holdout)"))?))
}

/// The samples of `source` in memory, where they are to be and fit.
fn keep(cache: CacheData, source: &dyn Source) -> Result<Option<MemorySource>> {
    let available = Machine::detect().usable_bytes();
    let most = match cache {
        CacheData::Off | CacheData::Device => return Ok(None),
        CacheData::Host => available / 10 * 9,
        CacheData::Auto if source.about().stored_bytes > available / 4 => return Ok(None),
        CacheData::Auto => available / 4,
    };
    let kept = MemorySource::load(source, &DiskOptions::default(), most)
        .map_err(Error::failed("the data cannot be read into memory"))?;
    match kept {
        None if cache == CacheData::Host => {
            let message = format!(
                "the decoded data needs more than {most} bytes, nine tenths of what is free"
            );
            Err(Error::config("data.cache", message))
        }
        kept => Ok(kept),
    }
}

/// The format of `files`: as configured, or told from the first one.
///
/// # Errors
/// Files that cannot be read, or whose format nothing tells.
pub fn format_of(config: &Config, files: &[DataFile]) -> Result<Format> {
    let format = match (config.data.format, files.first()) {
        (FormatChoice::Of(format), _) => format,
        (FormatChoice::Auto, None) => Format::Criteo,
        (FormatChoice::Auto, Some(first)) => {
            let told = convert::detect(first);
            match told.map_err(Error::failed("the data's format cannot be told"))? {
                // Text of which columns are named has a header.
                Format::Criteo if !config.data.columns.is_empty() => Format::Csv,
                format => format,
            }
        }
    };
    if !files.is_empty() {
        labels::check_format(config, format)?;
    }
    if format == Format::Criteo && config.data.ids == Ids::Rows {
        let message = "\"rows\" says that the ids of the data are rows already, and those of \
                       Criteo's text are hashes of 32 bits: take \"hash\", \"modulo\", \
                       \"admitted\" or \"dictionary\"";
        return Err(Error::config("data.ids", message));
    }
    Ok(format)
}

/// How files to predict are read: as `asked`, else as they say of themselves, else as those that
/// were trained on.
pub fn format_to_predict(
    config: &Config,
    files: &[DataFile],
    asked: Option<Format>,
) -> FormatChoice {
    let trained = config.data.format;
    let told = || files.first().and_then(|first| convert::detect(first).ok());
    match (asked, trained) {
        (Some(format), _) => FormatChoice::Of(format),
        (None, FormatChoice::Auto) => trained,
        (None, FormatChoice::Of(format)) => match (told(), format) {
            // Nothing but text looks like text, and one text like the other.
            (None, _) | (Some(Format::Criteo), Format::Criteo | Format::Csv) => trained,
            (Some(found), _) => FormatChoice::Of(found),
        },
    }
}

/// Whether the files are read as a stream of text, ids being mapped on the way: the only way for
/// ids that are admitted.
fn is_streamed(config: &Config, files: &[DataFile]) -> Result<bool> {
    let plain =
        config.data.order == OrderChoice::Sequential && config.data.cache != CacheData::Host;
    Ok(plain && config.holdout().is_none() && format_of(config, files)? == Format::Criteo)
}

/// How the place of a run is counted: what a run that continues must not change.
pub fn order_name(config: &Config, files: &[DataFile]) -> Result<String> {
    let data = &config.data;
    let batch_size = config.train.batch_size * config.train.accumulate;
    Ok(match data.order {
        OrderChoice::Sequential if is_streamed(config, files)? => "text".to_owned(),
        OrderChoice::Sequential => "sequential".to_owned(),
        OrderChoice::Batches => {
            format!("batches of {batch_size} samples, seed {}", data.order_seed)
        }
        OrderChoice::Samples => {
            format!("samples in windows of {}, seed {}", data.order_window, data.order_seed)
        }
    })
}

pub(crate) fn order(config: &Config) -> Order {
    let data = &config.data;
    match data.order {
        OrderChoice::Sequential => Order::Sequential,
        OrderChoice::Batches => Order::Batches { seed: data.order_seed },
        OrderChoice::Samples => Order::Samples { seed: data.order_seed, window: data.order_window },
    }
}

/// Columns `names` of `files`, as they are written there, next to the samples.
pub fn carried(config: &Config, files: &[DataFile], names: &[String]) -> Result<Carried> {
    Carried::new(format_of(config, files)?, files, names, &described(config))
        .map_err(Error::failed("columns cannot be carried"))
}

/// Those of `names` that all `files` have.
pub fn present(config: &Config, files: &[DataFile], names: &[String]) -> Result<Vec<String>> {
    let mut present = names.to_vec();
    if !present.is_empty() {
        let format = format_of(config, files)?;
        for file in files {
            let found = carried::names_of(format, file, &described(config))
                .map_err(Error::failed("the data cannot be read"))?;
            present.retain(|name| found.contains(name));
        }
    }
    Ok(present)
}

/// Opens `files` as samples of any format.
pub fn open_source(config: &Config, files: &[DataFile], threads: usize) -> Result<Box<dyn Source>> {
    let data = &config.data;
    let format = format_of(config, files)?;
    if data.on_bad_row == BadRowPolicy::Skip && !matches!(format, Format::Criteo | Format::Csv) {
        let message = format!(
            "\"skip\" leaves out bad lines of text, and the data is {format}: what is wrong there \
             is an error"
        );
        return Err(Error::config("data.on_bad_row", message));
    }
    let described = Described { text: block_options(config, true, threads), ..described(config) };
    convert::open(format, files, &described).map_err(Error::failed("the data cannot be read"))
}

/// What has to be said of data that does not say it itself.
fn described(config: &Config) -> Described {
    let (data, transform) = (&config.data, config.data.dense_transform);
    let hotness = match &data.hotness[..] {
        [] if (data.num_dense, data.num_sparse) == (13, 26) => DCNV2_HOTNESS.to_vec(),
        [] => vec![1; data.num_sparse],
        hotness => hotness.to_vec(),
    };
    Described {
        transform,
        raw: (data.num_dense, DenseKind::Transformed(transform), hotness),
        text: block_options(config, true, 1),
        columns: (!data.columns.is_empty()).then(|| named_columns(config)),
        dense_columns: config.dense_columns(),
        others: if data.ignores_others { Others::Ignored } else { Others::Refused },
        dense_reading: DenseReading::Raw(transform),
        hotness: data.hotness.iter().map(|&count| hotness_of(count)).collect(),
    }
}

/// The columns that `data.columns` names.
pub fn named_columns(config: &Config) -> NamedColumns {
    let columns = &config.data.columns;
    let sparse = columns.categorical.iter().enumerate().map(|(column, name)| SparseColumn {
        name: name.clone(),
        hotness: match config.data.hotness.get(column) {
            Some(&count) => hotness_of(count),
            None => hotness_of(u32::from(!columns.lists.contains(name))),
        },
    });
    NamedColumns {
        label: columns.label.clone(),
        weight: columns.weight.clone(),
        dense: columns.dense.clone(),
        dense_reading: DenseReading::Raw(config.data.dense_transform),
        dense_columns: config.dense_columns(),
        sparse: sparse.collect(),
        times: config.times(),
        separator: columns.separator.map(|separator| separator as u8),
        list_separator: columns.list_separator.unwrap_or('|') as u8,
        ignored: match config.data.ignores_others {
            true => vec!["*".to_owned()],
            false => {
                let others = columns.carry.iter().chain(&columns.group);
                columns.ignored.iter().chain(others).cloned().collect()
            }
        },
    }
}

/// Ids a sample as `data.hotness` writes them.
fn hotness_of(count: u32) -> Hotness {
    if count == 0 { Hotness::Varying } else { Hotness::Fixed(count) }
}

/// Refuses data that has other columns than the configuration.
pub(crate) fn check_columns(config: &Config, source: &dyn Source, labelled: bool) -> Result<()> {
    let (schema, data) = (source.schema(), &config.data);
    if labelled {
        labels::check(config, schema)?;
    }
    let counts = [
        ("data.num_dense", data.num_dense, schema.dense.len()),
        ("data.num_sparse", data.num_sparse, schema.sparse.len()),
    ];
    for (key, expected, found) in counts {
        if expected != found {
            return Err(Error::config(
                key,
                format!("{expected} columns, but the data has {found}"),
            ));
        }
    }
    for (column, (&expected, found)) in data.hotness.iter().zip(&schema.sparse).enumerate() {
        let found = match found.hotness {
            Hotness::Fixed(count) => count,
            Hotness::Varying => 0,
        };
        if expected != found && expected != 0 {
            let message = format!(
                "column {}: expected {expected} ids a sample, the data has {found} (0: any number)",
                config.column_name(column)
            );
            return Err(Error::config("data.hotness", message));
        }
    }
    Ok(())
}

/// `config` with what the training files say of themselves: ids a sample.
pub fn resolve(config: &Config) -> Result<Config> {
    let (mut config, files) = (config.clone(), &config.data.train);
    if files.is_empty() {
        return Ok(config);
    }
    config.check_files()?;
    let format = format_of(&config, files)?;
    let stays_in_order =
        config.data.order == OrderChoice::Sequential || config.data.cache.is_on_host();
    if format == Format::Criteo && !stays_in_order && config.holdout().is_none() {
        return Err(only_in_order(format));
    }
    if format != Format::Criteo {
        if config.data.ids == Ids::Admitted {
            return Err(Error::contradiction(
                "data.ids = \"admitted\"",
                format!("data of the format {format}"),
                "ids are admitted only while Criteo's text is read: take \"hash\", \"modulo\" \
                 or \"dictionary\"",
            ));
        }
        let source = open_source(&config, files, 1)?;
        check_columns(&config, &*source, true)?;
        if !(stays_in_order || source.about().is_random) {
            return Err(only_in_order(format));
        }
        let hotness = source.schema().sparse.iter().map(|column| match column.hotness {
            Hotness::Fixed(count) => count,
            Hotness::Varying => 0,
        });
        config.data.hotness = hotness.collect();
    }
    Ok(config)
}

/// Refuses data that begins with something else than the configuration says, before anything is
/// planned for it.
pub fn check_beginning(config: &Config) -> Result<()> {
    check_beginnings(config, &config.data.train)?;
    check_beginnings(config, &config.data.valid)
}

fn check_beginnings(config: &Config, files: &[DataFile]) -> Result<()> {
    let Some(first) = files.first() else { return Ok(()) };
    let format = format_of(config, files)?;
    for file in files {
        let other = format_of(config, std::slice::from_ref(file))?;
        if other != format {
            let message =
                format!("{first} is {format} and {file} is {other}: name files of one format");
            return Err(Error::config("data.format", message));
        }
    }
    // What comes through a pipe is parsed once; of another format, what is opened is gone.
    let is_stream = files.iter().any(DataFile::is_stream);
    match format {
        Format::Criteo if config.data.on_bad_row == BadRowPolicy::Skip => Ok(()),
        Format::Criteo => files.iter().try_for_each(|file| match is_labelled(config, file)? {
            false if !file.is_stream() => parse_beginning(config, file),
            _ => Ok(()),
        }),
        _ if is_stream => Ok(()),
        _ => check_columns(config, &*open_source(config, files, 1)?, true),
    }
}

/// Lets the parser say what is missing in the first line of text, which a block without rows comes
/// before.
fn parse_beginning(config: &Config, file: &DataFile) -> Result<()> {
    let (files, options) = (vec![file.clone()], block_options(config, true, 1));
    BlockStream::open(files, &options, &Position::default(), Some(1))
        .and_then(|mut stream| stream.next().and_then(|_| stream.next()).map(drop))
        .map_err(Error::failed("the data cannot be read"))
}

/// Samples of one pass over `files`, where their format says so.
pub fn known_samples(config: &Config, files: &[DataFile]) -> Result<Option<u64>> {
    match format_of(config, files)? {
        Format::Criteo => Ok(None),
        _ => Ok(open_source(config, files, 1)?.num_samples()),
    }
}

/// Rows of `files` that are trained on, where their format says so.
pub fn known_training_rows(config: &Config, files: &[DataFile]) -> Result<Option<u64>> {
    let rows = known_samples(config, files)?;
    Ok(rows.map(|rows| part_of(config, Part::Kept, rows)))
}

/// Rows of `files` that are trained on: reads and parses text.
pub fn count_training_rows(config: &Config, files: &[DataFile], threads: usize) -> Result<u64> {
    Ok(part_of(config, Part::Kept, count_samples(config, files, threads)?))
}

fn part_of(config: &Config, part: Part, rows: u64) -> u64 {
    config.holdout().map_or(rows, |holdout| holdout.count(part, rows))
}

/// Samples of one pass over `files`: reads and parses text.
pub fn count_samples(config: &Config, files: &[DataFile], threads: usize) -> Result<u64> {
    if let Some(samples) = known_samples(config, files)? {
        return Ok(samples);
    }
    let counted = || -> headlong_reader::Result<u64> {
        let options = block_options(config, true, threads);
        let mut stream =
            BlockStream::open(files.to_vec(), &options, &Position::default(), Some(1))?;
        let mut samples = 0;
        while let Some(event) = stream.next()? {
            if let Event::Block(block) = event {
                samples += block.raw.num_samples as u64;
                stream.recycle(block);
            }
        }
        Ok(samples)
    };
    counted().map_err(Error::failed("the rows of the training data cannot be counted"))
}

/// Whether data could not be read.
pub(crate) fn is_of_data(error: &Error) -> bool {
    let first: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(first), |error| error.source())
        .any(|error| error.is::<headlong_reader::ReaderError>())
}
