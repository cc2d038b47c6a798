//! `headlong data verify`: whether data can be read to its end, and what is in it.

use crate::commands::data::require_files;
use crate::commands::described::DescribedArguments;
use crate::error::{Error, Result};
use crate::report::count;
use crate::report::output::{self, JsonOutput};
use crate::report::progress::Progress;
use crate::system::input::read_text;
use crate::system::machine;
use clap::Args;
use headlong_device::pool::Pool;
use headlong_reader::criteo::has_label;
use headlong_reader::formats::Format;
use headlong_reader::io::DataFile;
use headlong_reader::verify::{self, FileVerdict, VerifyOptions, VerifyReport};
use headlong_reader::{BadRow, Schema, convert};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Arguments of `headlong data verify`.
#[derive(Debug, Args)]
pub struct VerifyArguments {
    /// Files of one format; for `npy` one file of each shard, for `split` its folders
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<DataFile>,
    /// Compare the files with these sums first: lines of `md5sum`
    #[arg(long, value_name = "SUMS")]
    pub md5: Option<PathBuf>,
    /// What the data does not say itself
    #[command(flatten)]
    pub what: DescribedArguments,
    /// Where the JSON goes
    #[command(flatten)]
    pub json: JsonOutput,
}

/// Checks every line of text, each sample of other formats; the first hundred malformed ones are
/// printed with their numbers as they are found, all are counted.
pub fn verify(arguments: &VerifyArguments) -> Result<()> {
    require_files(&arguments.files)?;
    if let Some(sums) = &arguments.md5 {
        DataFile::refuse_pipes(&arguments.files, "its MD5 sum is compared first")
            .map_err(Error::failed("the sums cannot be compared"))?;
        check_sums(sums, &arguments.files)?;
    }
    let format = arguments.what.format_of(&arguments.files[0])?;
    if format != Format::Criteo {
        return verify_samples(format, arguments);
    }
    let report = verdict_on(&arguments.files, arguments)?;
    let mut document =
        serde_json::to_value(&report).map_err(Error::failed("the report has no JSON form"))?;
    document["sound"] = report.is_sound().into();
    output::answer(&arguments.json, &verdict(&report), &document)?;
    if report.is_sound() {
        return Ok(());
    }
    Err(Error::Failed {
        context: "the data is not sound".to_owned(),
        source: what_is_wrong(&report).into(),
    })
}

/// How many lines are malformed, and which files are not sound.
fn what_is_wrong(report: &VerifyReport) -> String {
    let is_unread = |file: &&FileVerdict| file.failure.is_some();
    let unread: Vec<_> = report.files.iter().filter(is_unread).collect();
    let with_bad_rows: Vec<_> = report.files.iter().filter(|file| file.bad_rows > 0).collect();
    let of_files = |files: &[&FileVerdict]| match files {
        [file] => file.path.clone(),
        files => format!("{} files", count(files.len() as u64)),
    };
    let bad = (report.bad_rows > 0)
        .then(|| format!("{} in {}", malformed(report.bad_rows), of_files(&with_bad_rows)));
    let cut = match unread.len() {
        0 => None,
        1 => Some(format!("{} cannot be read to its end", of_files(&unread))),
        _ => Some(format!("{} cannot be read to their end", of_files(&unread))),
    };
    bad.into_iter().chain(cut).collect::<Vec<_>>().join("; ")
}

/// So many malformed lines, in words.
fn malformed(lines: u64) -> String {
    format!("{} malformed {}", count(lines), if lines == 1 { "line" } else { "lines" })
}

/// Reads all samples and says what they are.
fn verify_samples(format: Format, arguments: &VerifyArguments) -> Result<()> {
    let unsound = Error::failed("the data is not sound");
    let described = arguments.what.described()?;
    let source = convert::open(format, &arguments.files, &described)
        .map_err(Error::failed("the data is not sound"))?;
    let (mut progress, all) = (Progress::new(), source.num_samples());
    let report =
        verify::verify_samples(&*source, &mut |samples| progress.show_samples(samples, all));
    let report = report.map_err(unsound)?;
    let mut document =
        serde_json::to_value(&report).map_err(Error::failed("the report has no JSON form"))?;
    document["sound"] = true.into();
    document["format"] = format.name().into();
    document["click_rate"] = report.click_rate().into();
    output::answer(&arguments.json, &format!("{format}: {report}every sample is sound"), &document)
}

/// Compares the MD5 of each of `files` with its line in `sums`.
fn check_sums(sums: &Path, files: &[DataFile]) -> Result<()> {
    let text = read_text(sums).map_err(Error::io("read", sums))?;
    for file in files {
        let name = file.path().file_name().unwrap_or_default().to_string_lossy();
        // `md5sum` puts two blanks, or a blank and an asterisk, before a path.
        let of_file = text.lines().filter_map(|line| line.split_once(' ')).find(|(_, path)| {
            Path::new(path.trim_start_matches([' ', '*']))
                .file_name()
                .is_some_and(|found| *found == *name)
        });
        let Some((expected, _)) = of_file else {
            return Err(Error::config(
                "--md5",
                format!("{} has no line for {name}", sums.display()),
            ));
        };
        let found = md5_of(file.path())?;
        if !found.eq_ignore_ascii_case(expected) {
            let source = format!("{}: MD5 expected {expected}, found {found}", file).into();
            return Err(Error::Failed { context: "the data is not sound".to_owned(), source });
        }
    }
    Ok(())
}

fn md5_of(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(Error::io("open", path))?;
    let (mut hasher, mut buffer) = (md5::Context::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer).map_err(Error::io("read", path))? {
            0 => break,
            read => hasher.consume(&buffer[..read]),
        }
    }
    Ok(format!("{:x}", hasher.finalize()))
}

/// One verdict on all of `files`: those with labels first, then those without.
fn verdict_on(files: &[DataFile], arguments: &VerifyArguments) -> Result<VerifyReport> {
    let schema = Schema::criteo();
    // A first line that is no row of either kind is the verdict's business.
    let is_labelled = |file: &DataFile| has_label(file, &schema).unwrap_or(true);
    let (labelled, unlabelled) = files.iter().cloned().partition::<Vec<_>, _>(is_labelled);
    let pool = Pool::new(arguments.what.threads.unwrap_or_else(machine::cores));
    let mut report = VerifyReport::default();
    for (files, labelled) in [(labelled, true), (unlabelled, false)] {
        let most_bad_rows =
            VerifyOptions::default().most_bad_rows.saturating_sub(report.first_bad_rows.len());
        let options = VerifyOptions { schema: schema.with_label(labelled), most_bad_rows };
        let mut printed = Ok(());
        let mut print_row = |row: &BadRow| {
            if !arguments.json.json && printed.is_ok() {
                printed = output::print(&row.to_string());
            }
        };
        let part = verify::verify(&files, &options, &pool, &mut print_row, &mut |_| {})
            .map_err(Error::failed("the data cannot be checked"))?;
        printed?;
        report.rows += part.rows;
        report.bad_rows += part.bad_rows;
        report.files.extend(part.files);
        report.first_bad_rows.extend(part.first_bad_rows);
        report.anomalies.extend(part.anomalies);
    }
    Ok(report)
}

/// The verdict for people; the malformed lines stand above it.
fn verdict(report: &VerifyReport) -> String {
    let mut text = String::new();
    for file in &report.files {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{}: {} rows, {}",
            file.path,
            count(file.rows),
            malformed(file.bad_rows)
        );
        if let Some(failure) = &file.failure {
            let _ = writeln!(text, "  {failure}");
        }
    }
    let unnamed = report.bad_rows - report.first_bad_rows.len() as u64;
    if unnamed > 0 {
        let lines = if unnamed == 1 { "line is" } else { "lines are" };
        let _ = writeln!(text, "{} more malformed {lines} not listed", count(unnamed));
    }
    for anomaly in &report.anomalies {
        let _ = writeln!(text, "note: column {}: {}", anomaly.column, anomaly.message);
    }
    text.push_str(if report.is_sound() {
        "every line is a row"
    } else {
        "not every line is a row"
    });
    text
}
