//! `headlong data build-dictionary` and `inspect`.

use crate::commands::choice;
use crate::commands::described::DescribedArguments;
use crate::config::{Config, FormatChoice, validate::require_file};
use crate::data::key as data_key;
use crate::error::{Error, Result};
use crate::report::output::{self, JsonOutput, say};
use crate::report::progress::Progress;
use crate::report::{bytes, count, duration};
use crate::state::checkpoint::{Files as _, SystemFiles};
use crate::system::machine;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use headlong_device::pool::Pool;
use headlong_reader::convert::{self, is_folder_or_stem};
use headlong_reader::criteo::has_label;
use headlong_reader::dictionary::DictionaryRule;
use headlong_reader::formats::Format;
use headlong_reader::formats::named::{DenseReading, Others};
use headlong_reader::inspect::{self, InspectOptions};
use headlong_reader::io::DataFile;
use headlong_reader::make::{self, MakeOptions, MakeProgress, MakeReport, make_dictionary};
use headlong_reader::{BadRowPolicy, DenseTransform, Schema};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Arguments of `headlong data build-dictionary`.
#[derive(Debug, Args)]
pub struct DataMakeArguments {
    /// Criteo text files, plain, gzip or zstd; may be repeated
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub data: Vec<DataFile>,
    /// Folder for the dictionary; a stopped run continues there
    #[arg(long, value_name = "DIR")]
    pub output: PathBuf,
    /// Ids seen at least N times get rows of their own
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub min_count: u64,
    /// Most rows of a table, the shared one included; the most frequent ids win
    #[arg(long, value_name = "N")]
    pub max_rows: Option<u64>,
    /// Most memory for counting, in MiB, and again for the finished dictionary
    #[arg(long, value_name = "MIB", default_value_t = 2048, value_parser = memory(1 << 40))]
    pub memory_mib: u64,
    /// The same in GiB
    #[arg(long, value_name = "GIB", conflicts_with = "memory_mib", value_parser = memory(1 << 30))]
    pub memory_gib: Option<u64>,
    /// Threads; one per core by default
    #[arg(long, value_name = "N", value_parser = crate::config::ranges::threads)]
    pub threads: Option<usize>,
    /// What a malformed line does
    #[arg(
        long,
        value_name = "error|skip",
        default_value = "error",
        value_parser = choice::on_bad_row()
    )]
    pub on_bad_row: BadRowPolicy,
    /// Where the JSON goes
    #[command(flatten)]
    pub json: JsonOutput,
}

/// Arguments of `headlong data inspect`.
#[derive(Debug, Args)]
pub struct DataFilesArguments {
    /// Files of one format; for `npy` one file of each shard, for `split` its folders
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<DataFile>,
    /// What the data does not say itself
    #[command(flatten)]
    pub what: DescribedArguments,
    /// Where the JSON goes
    #[command(flatten)]
    pub json: JsonOutput,
}

fn memory(most: u64) -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=most)
}

/// Builds a dictionary with a frequency threshold: one streaming pass, resumable per file.
///
/// # Errors
/// [`Error::Config`] for files that are not there (exit code 2), [`Error::Failed`] for bad data or
/// a full disk.
pub fn make(arguments: &DataMakeArguments) -> Result<()> {
    arguments.data.iter().try_for_each(|file| require_file("--data", file.system_path()))?;
    if arguments.min_count == 0 || arguments.max_rows.is_some_and(|rows| rows < 2) {
        return Err(Error::Usage(
            "--min-count must be at least 1 and --max-rows at least 2".to_owned(),
        ));
    }
    if arguments.output.exists() && !arguments.output.is_dir() {
        let output = arguments.output.display();
        return Err(Error::Usage(format!(
            "--output {output}: expected a folder, which the dictionary is written into, \
             found a file"
        )));
    }
    let options = MakeOptions {
        on_bad_row: arguments.on_bad_row,
        rule: DictionaryRule { min_count: arguments.min_count, max_rows: arguments.max_rows },
        settings: data_key::of_ids(&text_config(arguments), &arguments.data)?,
        memory_bytes: arguments.memory_gib.map_or(arguments.memory_mib, |gib| gib << 10) << 20,
        ..MakeOptions::default()
    };
    let pool = Pool::new(arguments.threads.unwrap_or_else(machine::cores));
    say_what_it_takes(arguments, &options)?;
    let (mut progress, mut file) = (Progress::new(), None);
    let report = make_dictionary(&arguments.data, &arguments.output, &options, &pool, &mut |at| {
        show(&mut progress, &mut file, at, arguments);
    })
    .map_err(Error::failed("the dictionary cannot be built"))?;
    output::answer(&arguments.json, &make_text(&report, progress.seconds()), &make_json(&report))
}

/// The configuration of a run that reads the files as they are read here: its `train` may use the
/// dictionary.
fn text_config(arguments: &DataMakeArguments) -> Config {
    let mut config = Config::default();
    config.data.format = FormatChoice::Of(Format::Criteo);
    config.data.on_bad_row = arguments.on_bad_row;
    config
}

/// Rows, and the disk that their counts may take, before anything is written.
fn say_what_it_takes(arguments: &DataMakeArguments, options: &MakeOptions) -> Result<()> {
    if arguments.data.iter().any(DataFile::is_stream) {
        return Ok(());
    }
    let estimate = make::estimate(&arguments.data, options)
        .map_err(Error::failed("the data cannot be read"))?;
    let folder = arguments
        .output
        .ancestors()
        .find(|folder| folder.exists() || folder.as_os_str().is_empty());
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let free = SystemFiles.free_bytes(folder);
    say(format_args!(
        "about {} rows: at most {} on disk in {} while they are counted{}",
        count(estimate.rows),
        bytes(estimate.disk_bytes),
        arguments.output.display(),
        match free {
            Some(free) if free < estimate.disk_bytes => format!(
                ", more than the {} that are free there; ids that come again take no more, so it \
                 may do",
                bytes(free)
            ),
            Some(free) => format!(" ({} are free)", bytes(free)),
            None => String::new(),
        }
    ));
    Ok(())
}

/// Says which file is being counted: at once for each new one.
fn show(
    progress: &mut Progress,
    file: &mut Option<usize>,
    at: &MakeProgress,
    arguments: &DataMakeArguments,
) {
    let is_new = file.replace(at.file) != Some(at.file);
    // What a pipe will give is not known.
    let all = (!arguments.data.iter().any(DataFile::is_stream)).then_some(at.call_bytes);
    progress.show_bytes((at.call_bytes_read, all), is_new, &|| {
        let file = &arguments.data[at.file];
        format!("file {} of {}, {file}: {} rows counted", at.file + 1, at.num_files, count(at.rows))
    });
}

fn make_text(report: &MakeReport, seconds: f64) -> String {
    let mut text = format!(
        "{:<6} {:>13} {:>13} {:>22}\n",
        "column", "distinct ids", "table rows", "sights in shared row"
    );
    for (index, column) in report.dictionary.columns().iter().enumerate() {
        let share = 100.0 * column.shared_count as f64 / report.rows.max(1) as f64;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "C{:<5} {:>13} {:>13} {share:>20.2} %",
            index + 1,
            count(column.distinct),
            count(column.rows())
        );
    }
    let rows = report.dictionary.rows().iter().sum::<u64>();
    let size = std::fs::metadata(&report.file).map_or(0, |data| data.len());
    let _ = write!(
        text,
        "{}: {} table rows from {} rows of data, {}, in {}",
        report.file.display(),
        count(rows),
        count(report.rows),
        bytes(size),
        duration(seconds)
    );
    if report.resumed_files > 0 {
        let _ =
            write!(text, "\n{} files had been counted by an earlier call", report.resumed_files);
    }
    if report.skipped.total > 0 {
        let _ =
            write!(text, "\n{} malformed lines skipped, the first:", count(report.skipped.total));
        for row in &report.skipped.first {
            let _ = write!(text, "\n  {row}");
        }
    }
    text
}

fn make_json(report: &MakeReport) -> Value {
    let columns = report.dictionary.columns().iter().enumerate();
    let columns: Vec<Value> = columns
        .map(|(index, column)| {
            json!({
                "name": format!("C{}", index + 1),
                "distinct": column.distinct,
                "rows": column.rows(),
                "shared_count": column.shared_count,
            })
        })
        .collect();
    json!({
        "file": report.file.to_string_lossy(),
        "rows": report.rows,
        "columns": columns,
        "min_count": report.dictionary.rule().min_count,
        "max_rows": report.dictionary.rule().max_rows,
        "fingerprint": format!("{:016x}", report.dictionary.fingerprint()),
        "resumed_files": report.resumed_files,
        "skipped": report.skipped.total,
    })
}

/// Describes files of any format: rows, click rate, and for each column missing values, range and
/// distinct values. Malformed lines of Criteo's text are counted.
pub fn inspect(arguments: &DataFilesArguments) -> Result<()> {
    require_files(&arguments.files)?;
    let pool = Pool::new(arguments.what.threads.unwrap_or_else(machine::cores));
    let unread = Error::failed("the data cannot be read");
    let report = match arguments.what.format_of(&arguments.files[0])? {
        Format::Criteo => {
            let schema = Schema::criteo();
            let labelled = same_labels(&arguments.files, &schema)?;
            let options = InspectOptions {
                schema: schema.with_label(labelled),
                on_bad_row: BadRowPolicy::Skip,
                ..InspectOptions::default()
            };
            inspect::inspect(&arguments.files, &options, &pool, &mut |_| {}).map_err(unread)?
        }
        format => {
            let mut described = arguments.what.described()?;
            described.others = Others::Categorical;
            // What is in a file is asked before it is decided what its columns are for.
            if let Some(columns) = &mut described.columns
                && let DenseReading::Raw(_) = columns.dense_reading
            {
                columns.dense_reading = DenseReading::Raw(DenseTransform::Identity);
            }
            let source = convert::open(format, &arguments.files, &described)
                .map_err(Error::failed("the data cannot be read"))?;
            let (mut progress, all) = (Progress::new(), source.num_samples());
            let exact = InspectOptions::default().exact_distinct;
            let show = &mut |samples| progress.show_samples(samples, all);
            inspect::inspect_samples(&*source, &arguments.files, format, exact, &pool, show)
                .map_err(unread)?
        }
    };
    let document =
        serde_json::to_value(&report).map_err(Error::failed("the report has no JSON form"))?;
    output::answer(&arguments.json, &report.to_string(), &document)
}

/// Whether all of `files` have labels; refuses a mixture, whose columns cannot be described
/// together.
fn same_labels(files: &[DataFile], schema: &Schema) -> Result<bool> {
    let labels = files.iter().map(|file| has_label(file, schema)).collect::<Result<Vec<_>, _>>();
    let labels = labels.map_err(Error::failed("the data cannot be read"))?;
    match labels.iter().position(|label| *label != labels[0]) {
        None => Ok(labels[0]),
        Some(other) => Err(Error::Usage(format!(
            "one of {} and {} has labels and the other has none; inspect them apart",
            files[0], files[other]
        ))),
    }
}

pub(crate) fn require_files(files: &[DataFile]) -> Result<()> {
    let files = files.iter().filter(|file| !is_folder_or_stem(file.path()));
    files.into_iter().try_for_each(|file| require_file("FILE", file.system_path()))
}
