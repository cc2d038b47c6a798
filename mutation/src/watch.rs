//! Watches workers: whatever becomes of one, the mutant that it was at is named and the next ones
//! are read.

use crate::subjects::Subject;
use crate::worker::Progress;
use anyhow::{Context, Result, bail};
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
    /// The longest that each format may take: what is left of the seeds then is not read.
    pub share: Duration,
    /// Formats at a time.
    pub jobs: usize,
    /// The longest that one mutant may take.
    pub limit: Duration,
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
    let waiting = Mutex::new(subjects.iter());
    let reports = thread::scope(|scope| {
        let job = || -> Result<Vec<Report>> {
            let mut reports = Vec::new();
            loop {
                let next =
                    waiting.lock().expect("no job panics while it takes the next format").next();
                let Some(subject) = next else { return Ok(reports) };
                let report = one_format(subject, task)?;
                say(&report);
                reports.push(report);
            }
        };
        let jobs: Vec<_> = (0..task.jobs.max(1)).map(|_| scope.spawn(job)).collect();
        let join = |job: thread::ScopedJoinHandle<'_, Result<Vec<Report>>>| {
            job.join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("a thread that watches workers panicked")))
        };
        jobs.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    Ok(reports.into_iter().flatten().collect())
}

fn one_format(subject: &'static Subject, task: &Task) -> Result<Report> {
    let started = Instant::now();
    let mut report = Report { name: subject.name, ..Report::default() };
    let mut next = task.seeds.start;
    while next < task.seeds.end && report.findings.len() < MOST_FINDINGS {
        let left = task.share.saturating_sub(started.elapsed());
        if left.is_zero() {
            break;
        }
        let folder = scratch()?;
        let seeds = next..task.seeds.end.min(next + SEEDS_OF_A_WORKER);
        let (ended, progress) = one_worker(subject, &seeds, (task, left), folder.path())?;
        report.add(&progress);
        next = match ended {
            None => progress.seed + 1,
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

/// Runs a worker to its end, or to that of its patience; says what was wrong, if anything was, and
/// how far it came.
///
/// # Errors
/// It did not come to its first mutant.
fn one_worker(
    subject: &Subject,
    seeds: &Range<u64>,
    (task, left): (&Task, Duration),
    folder: &Path,
) -> Result<(Option<String>, Progress)> {
    let errors = folder.join("errors");
    let mut worker = Command::new(&task.program);
    worker
        .args(["worker", subject.name, &seeds.start.to_string(), &seeds.end.to_string()])
        .arg(folder)
        .arg(left.as_secs_f64().to_string())
        .env("RUST_BACKTRACE", "0")
        .stderr(File::create(&errors)?);
    let status =
        run_within(&mut worker, task, || Progress::read(folder).map(|progress| progress.seed))?;
    let wrong = match status {
        Some(status) => what_ended(status, &errors),
        None => Some(format!("it was not read within {} s", task.limit.as_secs_f64())),
    };
    match (wrong, Progress::read(folder)) {
        (wrong, Some(progress)) => Ok((wrong, progress)),
        (wrong, None) => {
            bail!("{}: no mutant was read: {}", subject.name, wrong.unwrap_or_default())
        }
    }
}

/// Runs a process to its end; none where it had to be ended, because for as long as a mutant may
/// take `at` said the same.
fn run_within(
    command: &mut Command,
    task: &Task,
    at: impl Fn() -> Option<u64>,
) -> Result<Option<ExitStatus>> {
    let mut process = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {}", task.program.display()))?;
    let (mut last, mut since) = (None, Instant::now());
    loop {
        if let Some(status) = process.try_wait()? {
            return Ok(Some(status));
        }
        let now = at();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        if since.elapsed() > task.limit {
            process.kill()?;
            process.wait()?;
            return Ok(None);
        }
        thread::sleep(PAUSE);
    }
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

/// Keeps the files of a mutant, which another process makes again: making them may be what went
/// wrong.
fn keep(subject: &Subject, seed: u64, what: String, task: &Task) -> Result<Finding> {
    let kept = task.keep.join(format!("{}-{seed}", subject.name));
    let mut writer = Command::new(&task.program);
    writer.args(["write", subject.name, &seed.to_string()]).arg(&kept);
    let written = run_within(&mut writer, task, || None)?;
    let what = if written.is_some_and(|status| status.success()) {
        what
    } else {
        format!("{what} (its files could not be made again)")
    };
    Ok(Finding { seed, what, kept })
}
