//! ```text
//! headlong-mutation run [--format NAME]... [--mutants N] [--first SEED] [--jobs N]
//!     [--limit-s S] [--seconds S] [--keep FOLDER]
//! headlong-mutation read NAME [--first SEED] [--mutants N]
//! headlong-mutation write NAME SEED FOLDER
//! headlong-mutation seeds NAME FOLDER
//! headlong-mutation formats
//! ```
//!
//! Exits with 0 where nothing is wrong, 1 with findings, 2 where it could not run.

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use headlong_mutation::allocator::PeakAllocator;
use headlong_mutation::subjects::{self, SUBJECTS, Subject};
use headlong_mutation::watch::{Report, Task, watch};
use headlong_mutation::worker;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Longer than any run.
const WEEK_S: f64 = 7.0 * 24.0 * 3600.0;

#[global_allocator]
static ALLOCATOR: PeakAllocator = PeakAllocator;

/// Damages inputs of every format and watches what reads them.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Reads mutants of every format, in processes that may die of them.
    Run {
        /// A format; may be repeated. Without it, every format.
        #[arg(long = "format")]
        formats: Vec<String>,
        /// Mutants of each format.
        #[arg(long, default_value_t = 2000)]
        mutants: u64,
        /// The first seed.
        #[arg(long, default_value_t = 0)]
        first: u64,
        /// Formats at a time.
        #[arg(long, default_value_t = 2)]
        jobs: usize,
        /// Seconds that a mutant may take.
        #[arg(long, default_value_t = 20.0)]
        limit_s: f64,
        /// Seconds that each format may take; what is not read by then is left out.
        #[arg(long, default_value_t = WEEK_S)]
        seconds: f64,
        /// Where mutants that are findings are kept.
        #[arg(long, default_value = "target/mutants")]
        keep: PathBuf,
    },
    /// Reads mutants of one format in this process, and prints what their reader says of each.
    Read {
        /// Their format.
        format: String,
        /// The first seed.
        #[arg(long, default_value_t = 0)]
        first: u64,
        /// How many.
        #[arg(long, default_value_t = 1)]
        mutants: u64,
    },
    /// Writes the files of one mutant.
    Write {
        /// Its format.
        format: String,
        /// Its seed.
        seed: u64,
        /// Where to.
        folder: PathBuf,
    },
    /// Writes the first file of each good input, as a corpus to begin with for `fuzz/`.
    Seeds {
        /// Their format.
        format: String,
        /// Where to.
        folder: PathBuf,
    },
    /// Names the formats, with the memory that a mutant may take.
    Formats,
    /// Reads mutants, in the process that is watched.
    #[command(hide = true)]
    Worker {
        /// Their format.
        format: String,
        /// The first seed.
        first: u64,
        /// One more than the last.
        end: u64,
        /// A folder for what is read.
        folder: PathBuf,
        /// Seconds after which it ends early.
        seconds: f64,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn find(name: &str) -> Result<&'static Subject> {
    subjects::find(name).with_context(|| {
        let names: Vec<_> = SUBJECTS.iter().map(|subject| subject.name).collect();
        format!("expected one of {}, found \"{name}\"", names.join(", "))
    })
}

/// Does it; false says that there are findings.
fn run(action: Action) -> Result<bool> {
    match action {
        Action::Run { formats, mutants, first, jobs, limit_s, seconds, keep } => {
            let chosen: Vec<&'static Subject> = match &formats[..] {
                [] => SUBJECTS.iter().collect(),
                names => names.iter().map(|name| find(name)).collect::<Result<_>>()?,
            };
            let task = Task {
                seeds: first..first.saturating_add(mutants),
                share: Duration::try_from_secs_f64(seconds).context("--seconds")?,
                jobs,
                limit: Duration::try_from_secs_f64(limit_s).context("--limit-s")?,
                keep,
                program: std::env::current_exe().context("the path of this program")?,
            };
            println!(
                "format           tried      read   refused  most memory   of seed       slowest   \
                 of seed   seconds"
            );
            let reports = watch(&chosen, &task, &say)?;
            Ok(verdict(&reports))
        }
        Action::Read { format, first, mutants } => {
            let (subject, place) = (find(&format)?, tempfile::tempdir()?);
            let good = worker::good_inputs(subject, place.path())?;
            for seed in first..first.saturating_add(mutants) {
                let files = subjects::mutant(subject, &good, seed);
                worker::write_files(&files, place.path())?;
                match (subject.read)(place.path(), &files) {
                    Ok(()) => println!("{seed}: read"),
                    Err(reason) => println!("{seed}: {}", reason.replace('\n', " ")),
                }
            }
            Ok(true)
        }
        Action::Write { format, seed, folder } => {
            let subject = find(&format)?;
            let place = tempfile::tempdir()?;
            let good = worker::good_inputs(subject, place.path())?;
            worker::write_files(&subjects::mutant(subject, &good, seed), &folder)?;
            Ok(true)
        }
        Action::Seeds { format, folder } => {
            let subject = find(&format)?;
            let place = tempfile::tempdir()?;
            for (index, mut files) in
                worker::good_inputs(subject, place.path())?.into_iter().enumerate()
            {
                files.truncate(1);
                files[0].0 = format!("good-{index}");
                worker::write_files(&files, &folder)?;
            }
            Ok(true)
        }
        Action::Formats => {
            SUBJECTS
                .iter()
                .for_each(|subject| println!("{:<15}{:>5} MiB", subject.name, subject.bound_mib));
            Ok(true)
        }
        Action::Worker { format, first, end, folder, seconds } => {
            let share = Duration::try_from_secs_f64(seconds)?;
            worker::work(find(&format)?, first..end, &folder, share)?;
            Ok(true)
        }
    }
}

fn say(report: &Report) {
    let total = &report.total;
    println!(
        "{:<13}{:>9} {:>9} {:>9} {:>8.2} MiB {:>9} {:>10.1} ms {:>9} {:>9.1}",
        report.name,
        report.tried,
        total.accepted,
        total.refused,
        total.peak.0 as f64 / f64::from(1 << 20),
        total.peak.1,
        total.slowest.0 as f64 * 1e-3,
        total.slowest.1,
        report.seconds,
    );
    for finding in &report.findings {
        println!("{}: seed {}: {}", report.name, finding.seed, finding.what);
        println!("    kept in {}", finding.kept.display());
        println!(
            "    again: headlong-mutation run --format {} --first {} --mutants 1",
            report.name, finding.seed
        );
    }
}

/// The last lines; whether nothing is wrong.
fn verdict(reports: &[Report]) -> bool {
    let tried: u64 = reports.iter().map(|report| report.tried).sum();
    let findings: usize = reports.iter().map(|report| report.findings.len()).sum();
    println!("{tried} mutants of {} formats, {findings} findings", reports.len());
    findings == 0
}
