//! `headlong data convert`: data of one format to another.

use crate::commands::described::DescribedArguments;
use crate::config::preset::cardinalities;
use crate::config::ranges::{Range, range_of};
use crate::config::{TableRows, check_multi_hot_memory, multi_hot_memory_bytes};
use crate::error::{Error, Result};
use crate::report::output::{self, JsonOutput, say};
use crate::report::progress::Progress;
use crate::report::{bytes, count, duration};
use clap::Args;
use clap::builder::{RangedU64ValueParser, TypedValueParser};
use headlong_device::files::is_stdout;
use headlong_reader::convert::{self, Conversion, ConvertOptions, Converted, split_rows};
use headlong_reader::disk::DiskOptions;
use headlong_reader::formats::named::DenseReading;
use headlong_reader::formats::{Format, Source};
use headlong_reader::io::DataFile;
use headlong_reader::multi_hot::{Distribution, MLPERF_SIZES, MultiHot, MultiHotSpec};
use headlong_reader::{DenseTransform, ReaderError};
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Arguments of `headlong data convert`.
#[derive(Debug, Args)]
pub struct ConvertArguments {
    /// What to convert: files, for `npy` one file of each shard (or `day_0`), for `split` its
    /// folders
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub data: Vec<DataFile>,
    /// The format to write: headlong, mlperf, raw, npy, split, parquet, csv, criteo
    #[arg(long, value_name = "FORMAT")]
    pub to: Format,
    /// The file, or - (standard output); for `npy` what its files' names begin with, for `split` a
    /// folder (`DIR/train`)
    #[arg(long, value_name = "PATH")]
    pub output: PathBuf,
    /// Turn ids into rows, id mod rows: a number for all columns, one for each (3,5,…), or a
    /// published list's name
    #[arg(long, value_name = "ROWS")]
    pub rows: Option<String>,
    /// What the data does not say itself
    #[command(flatten)]
    pub what: DescribedArguments,
    /// Where the JSON goes
    #[command(flatten)]
    pub json: JsonOutput,
}

/// Arguments of `headlong data multi-hot`.
#[derive(Debug, Args)]
pub struct MultiHotArguments {
    /// What is converted, and to what; `--rows` is needed
    #[command(flatten)]
    pub conversion: ConvertArguments,
    /// Ids a sample in each column, the first of them the file's (3,2,1,…); MLPerf's where it is
    /// not given
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = ids_of_a_bag())]
    pub sizes: Vec<u32>,
    /// No table has more rows than this; MLPerf: 40000000
    #[arg(long, value_name = "ROWS")]
    pub max_rows: Option<u64>,
    /// How the other ids are drawn: uniform (MLPerf) or pareto
    #[arg(long, value_name = "NAME", default_value = "uniform")]
    pub distribution: Distribution,
    /// Where numpy's generator starts; MLPerf: 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u32,
    /// Most memory for what is drawn, in MiB; 0: all that it takes
    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    pub memory_mib: u64,
    /// The same in GiB
    #[arg(long, value_name = "GIB", conflicts_with = "memory_mib")]
    pub memory_gib: Option<u64>,
}

pub fn run(arguments: &ConvertArguments) -> Result<()> {
    let opened = Opened::new(arguments)?;
    let rows = rows(arguments, opened.from, opened.num_columns())?;
    convert_with(arguments, opened, rows, None)
}

/// As `multi_hot.sizes`.
fn ids_of_a_bag() -> impl TypedValueParser<Value = u32> {
    let Range { least, most } = range_of("multi_hot.sizes").expect("this key has a range");
    RangedU64ValueParser::new().range(least..=most)
}

/// Makes multi-hot data of one-hot data, as MLPerf's generator does.
pub fn run_multi_hot(arguments: &MultiHotArguments) -> Result<()> {
    let MultiHotArguments { conversion, sizes, max_rows, distribution, seed, .. } = arguments;
    let sizes = if sizes.is_empty() { MLPERF_SIZES.to_vec() } else { sizes.clone() };
    let opened = Opened::new(conversion)?;
    let (expected, found) = (opened.num_columns(), sizes.len());
    if expected != found {
        return Err(Error::Usage(format!(
            "--sizes: expected {expected} counts, one for each column, found {found}"
        )));
    }
    let Some(rows) = rows(conversion, Format::Criteo, expected)? else {
        return Err(Error::Usage(
            "--rows: ids are drawn from the rows of each column's table".to_owned(),
        ));
    };
    let rows: Vec<u64> = rows.into_iter().map(|rows| rows.min(max_rows.unwrap_or(rows))).collect();
    let memory_mib =
        arguments.memory_gib.map_or(arguments.memory_mib, |gib| gib.saturating_mul(1 << 10));
    let memory_bytes = multi_hot_memory_bytes(memory_mib);
    check_multi_hot_memory(&rows, &sizes, memory_bytes, "--memory-mib")?;
    let spec = MultiHotSpec { sizes, distribution: *distribution, seed: *seed, memory_bytes };
    convert_with(conversion, opened, Some(rows), Some(&spec))
}

/// Draws, after saying what memory that takes.
fn draw(rows: &[u64], spec: &MultiHotSpec) -> Result<MultiHot> {
    let [held, all] =
        [spec.memory_bytes, None].map(|most| MultiHot::bytes_needed(rows, &spec.sizes, most));
    let rest = if held < all {
        format!(" of {}, the rest made again when it is asked for", bytes(all))
    } else {
        String::new()
    };
    say(format_args!("multi-hot ids: {} of memory for what is drawn{rest}", bytes(held)));
    MultiHot::new(rows, spec).map_err(Error::failed("multi-hot ids cannot be drawn"))
}

struct Opened {
    from: Format,
    source: Box<dyn Source>,
}

impl Opened {
    fn new(arguments: &ConvertArguments) -> Result<Self> {
        target(arguments)?;
        let from = arguments.what.format_of(&arguments.data[0])?;
        let mut described = arguments.what.described()?;
        if let (Format::Csv, None, Some(columns)) =
            (arguments.to, arguments.what.dense_transform, &mut described.columns)
            && let DenseReading::Raw(_) = columns.dense_reading
        {
            // The configuration transforms them when it reads what is written.
            columns.dense_reading = DenseReading::Raw(DenseTransform::Identity);
        }
        let source = convert::open(from, &arguments.data, &described)
            .map_err(Error::failed("the data cannot be read"))?;
        Ok(Self { from, source })
    }

    fn num_columns(&self) -> usize {
        self.source.schema().sparse.len()
    }
}

/// Converts; ids become these rows, and then their bags.
fn convert_with(
    arguments: &ConvertArguments,
    Opened { from, source }: Opened,
    rows: Option<Vec<u64>>,
    multi_hot: Option<&MultiHotSpec>,
) -> Result<()> {
    let target = target(arguments)?;
    let transform = match from {
        Format::Npy | Format::Split => None,
        Format::Csv | Format::Parquet if !arguments.what.integers => None,
        _ => arguments.what.dense_transform,
    };
    let keep_integers = arguments.what.integers;
    let sizes = multi_hot.map(|spec| spec.sizes.clone());
    let options =
        ConvertOptions { transform, keep_integers, rows, sizes, disk: DiskOptions::default() };
    // What does not fit is refused before anything is drawn, which can take minutes.
    // A reader that has gone (`| head`) is no error.
    let has_gone = |error: &ReaderError| is_stdout(target) && is_broken_pipe(error);
    let conversion = match Conversion::begin(&*source, arguments.to, target, &options) {
        Err(error) if has_gone(&error) => return Ok(()),
        begun => begun.map_err(refused)?,
    };
    let bags = match (multi_hot, &options.rows) {
        (Some(spec), Some(rows)) => Some(draw(rows, spec)?),
        _ => None,
    };
    let (mut progress, all) = (Progress::new(), source.num_samples());
    let show = &mut |samples| progress.show_samples(samples, all);
    let converted = match conversion.run(bags.as_ref(), show) {
        Err(error) if has_gone(&error) => return Ok(()),
        done => done.map_err(refused)?,
    };
    let seconds = progress.seconds();
    let size =
        if is_stdout(target) { String::new() } else { format!(", {}", bytes(converted.bytes)) };
    let text = format!(
        "{} samples of {from} written as {}: {}{size}, in {}",
        count(converted.num_samples),
        arguments.to,
        names(&converted),
        duration(seconds)
    );
    let mut document = document(&converted, from, arguments.to, seconds);
    if is_stdout(target) {
        // Not known: others may have written there, too.
        document["bytes"] = Value::Null;
    }
    match is_stdout(target) {
        true => output::answer_aside(&arguments.json, &text, &document),
        false => output::answer(&arguments.json, &text, &document),
    }
}

/// Where the data goes; refuses names that would say something else of it than it is.
fn target(arguments: &ConvertArguments) -> Result<&Path> {
    let (path, to) = (&*arguments.output, arguments.to);
    let refuse =
        |message: String| Err(Error::Usage(format!("--output {}: {message}", path.display())));
    let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    if let Some(program) = [("gz", "gzip"), ("zst", "zstd")]
        .into_iter()
        .find_map(|(name, program)| (name == ending).then_some(program))
    {
        return refuse(match to {
            Format::Csv | Format::Criteo => {
                format!(
                    "nothing is compressed here: write to `--output - | {program} > {}`",
                    path.display()
                )
            }
            _ => format!("nothing is compressed here: name a file without .{ending}"),
        });
    }
    if path != Path::new("-") && !is_stdout(path) {
        return Ok(path);
    }
    if matches!(to, Format::Npy | Format::Split) {
        return refuse(format!(
            "{to} is several files, which standard output cannot hold: name a place for them"
        ));
    }
    if arguments.json.json {
        return refuse(
            "standard output has the data, so that --json cannot go there: use --json-file"
                .to_owned(),
        );
    }
    Ok(Path::new("/dev/stdout"))
}

fn is_broken_pipe(error: &ReaderError) -> bool {
    matches!(error, ReaderError::Write { source, .. } if source.kind() == ErrorKind::BrokenPipe)
}

/// An option that is missing or makes no sense is the user's to mend.
fn refused(error: ReaderError) -> Error {
    match error {
        ReaderError::Invalid { message } => Error::Usage(message),
        error => Error::failed("the data cannot be converted")(error),
    }
}

fn rows(
    arguments: &ConvertArguments,
    from: Format,
    num_columns: usize,
) -> Result<Option<Vec<u64>>> {
    let Some(text) = &arguments.rows else {
        let known = from == Format::Split && arguments.to == Format::Split;
        let rows = known.then(|| split_rows(arguments.data[0].path())).transpose();
        return rows.map_err(Error::failed("the data cannot be read"));
    };
    let numbers: std::result::Result<Vec<u64>, _> =
        text.split(',').map(|number| number.trim().parse()).collect();
    let rows = match numbers {
        Ok(numbers) if numbers.len() == 1 => TableRows::Each(numbers[0]),
        Ok(numbers) => TableRows::List(numbers),
        Err(_) => TableRows::Named(text.clone()),
    };
    let rows = match rows {
        TableRows::Each(rows) => vec![rows; num_columns],
        TableRows::List(rows) => rows,
        TableRows::Named(name) => cardinalities(&name)?.to_vec(),
    };
    if rows.len() != num_columns || rows.contains(&0) {
        return Err(Error::Usage(format!(
            "--rows: expected {num_columns} counts of at least 1, one for each column; found {}",
            rows.len()
        )));
    }
    Ok(Some(rows))
}

fn names(converted: &Converted) -> String {
    match &converted.files[..] {
        [one] => one.display().to_string(),
        files => format!("{} files, the last {}", files.len(), files[files.len() - 1].display()),
    }
}

fn document(converted: &Converted, from: Format, to: Format, seconds: f64) -> Value {
    json!({
        "from": from.name(),
        "to": to.name(),
        "files": converted.files.iter().map(|file| file.to_string_lossy()).collect::<Vec<_>>(),
        "samples": converted.num_samples,
        "bytes": converted.bytes,
        "seconds": seconds,
    })
}
