//! Watches workers: whatever becomes of one, the mutant that it was at is named and the next ones are read.

use crate::subjects::Subject;
use crate::worker::Progress;
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// How often a worker is looked at.
const PAUSE: Duration = Duration::from_millis(20);
/// Mutants that one process reads.
const SEEDS_OF_A_WORKER: u64 = 20_000;
/// So many findings of one format are enough.
const MOST_FINDINGS: usize = 20;

/// What to do.
#[derive(Clone, Debug)]
pub struct Task {
    /// The seeds of each format.
    pub seeds: Range<u64>,
    /// Formats at a time.
    pub jobs: usize,
    /// The longest that one mutant may take.
    pub limit: Duration,
    /// No new mutants after so long; those of a format that are left are said.
    pub stop_after: Option<Duration>,
    /// Where mutants that are findings are kept.
    pub keep: PathBuf,
    /// This program.
    pub program: PathBuf,
}

/// A mutant that something is wrong with.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Its seed.
    pub seed: u64,
    /// What is wrong.
    pub what: String,
    /// Where its files are.
    pub kept: PathBuf,
}

/// What became of one format's mutants.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The format.
    pub name: &'static str,
    /// Mutants that were tried.
    pub tried: u64,
    /// The sums and peaks of all workers.
    pub total: Progress,
    /// How long it took.
    pub seconds: f64,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

/// Reads the mutants of `subjects`, several formats at a time; `say` hears of each as it ends.
///
/// # Errors
/// A worker that cannot be started; folders that cannot be written.
pub fn watch(
    subjects: &[&'static Subject],
    task: &Task,
    say: &(dyn Fn(&Report) + Sync),
) -> Result<Vec<Report>> {
    let (started, waiting) = (Instant::now(), Mutex::new(subjects.iter()));
    let reports = thread::scope(|scope| {
        let job = || -> Result<Vec<Report>> {
            let mut reports = Vec::new();
            loop {
                let next = waiting.lock().expect("no job panics while it takes the next format").next();
                let Some(subject) = next else { return Ok(reports) };
                let report = one_format(subject, task, started)?;
                say(&report);
                reports.push(report);
            }
        };
        let jobs: Vec<_> = (0..task.jobs.max(1)).map(|_| scope.spawn(job)).collect();
        let join = |job: thread::ScopedJoinHandle<'_, Result<Vec<Report>>>| {
            job.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread that watches workers panicked")))
        };
        jobs.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    Ok(reports.into_iter().flatten().collect())
}

fn one_format(subject: &'static Subject, task: &Task, all_started: Instant) -> Result<Report> {
    let started = Instant::now();
    let mut report = Report { name: subject.name, ..Report::default() };
    let mut next = task.seeds.start;
    while next < task.seeds.end && report.findings.len() < MOST_FINDINGS {
        if task.stop_after.is_some_and(|most| all_started.elapsed() > most) {
            break;
        }
        let folder = scratch()?;
        let seeds = next..task.seeds.end.min(next + SEEDS_OF_A_WORKER);
        let (ended, progress) = one_worker(subject, &seeds, task, folder.path())?;
        report.add(&progress);
        next = match ended {
            None => seeds.end,
            Some(what) => {
                report.findings.push(keep(subject, progress.seed, what, task)?);
                progress.seed + 1
            }
        };
        report.tried = next - task.seeds.start;
    }
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

/// A folder in memory, where there is one.
fn scratch() -> Result<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).context("a temporary folder")
}

impl Report {
    fn add(&mut self, progress: &Progress) {
        self.total.accepted += progress.accepted;
        self.total.refused += progress.refused;
        self.total.peak = self.total.peak.max(progress.peak);
        self.total.slowest = self.total.slowest.max(progress.slowest);
    }
}

/// Runs a worker to its end, or to that of its patience; says what was wrong, if anything was, and how far it came.
fn one_worker(
    subject: &Subject,
    seeds: &Range<u64>,
    task: &Task,
    folder: &Path,
) -> Result<(Option<String>, Progress)> {
    let errors = folder.join("errors");
    let mut worker = Command::new(&task.program)
        .args(["worker", subject.name, &seeds.start.to_string(), &seeds.end.to_string()])
        .arg(folder)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&errors)?)
        .spawn()
        .with_context(|| format!("cannot start {}", task.program.display()))?;
    let begun = Progress { seed: seeds.start, ..Progress::default() };
    let (mut last, mut since) = (begun.seed, Instant::now());
    let late = loop {
        if let Some(status) = worker.try_wait()? {
            break what_ended(status, &errors);
        }
        let seed = Progress::read(folder).unwrap_or(begun).seed;
        if seed != last {
            (last, since) = (seed, Instant::now());
        }
        if since.elapsed() > task.limit {
            worker.kill()?;
            worker.wait()?;
            break Some(format!("it was not read within {} s", task.limit.as_secs_f64()));
        }
        thread::sleep(PAUSE);
    };
    Ok((late, Progress::read(folder).unwrap_or(begun)))
}

/// What a worker died of; nothing where it came to its end.
fn what_ended(status: ExitStatus, errors: &Path) -> Option<String> {
    if status.success() {
        return None;
    }
    let bytes = fs::read(errors).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(4)..].join(" | ");
    Some(format!("{status}: {last}"))
}

/// Keeps the files of a mutant, which another process makes again: making them may be what went wrong.
fn keep(subject: &Subject, seed: u64, what: String, task: &Task) -> Result<Finding> {
    let kept = task.keep.join(format!("{}-{seed}", subject.name));
    let written = Command::new(&task.program)
        .args(["write", subject.name, &seed.to_string()])
        .arg(&kept)
        .stdout(Stdio::null())
        .status()?;
    let what = if written.success() { what } else { format!("{what} (its files could not be made again)") };
    Ok(Finding { seed, what, kept })
}
