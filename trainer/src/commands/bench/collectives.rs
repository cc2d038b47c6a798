//! `headlong bench all_reduce` and its siblings: latency and bandwidth of collectives over one
//! backend or several, with the options and columns of nccl-tests and what they lack: percentiles,
//! skew, sample counts, a baseline, a picture.
//!
//! `docs/benchmarking.md` explains every column.

pub mod arguments;
pub mod backend;
pub mod baseline;
mod compat;
pub mod device;
pub mod dtype;
pub mod job;
pub mod known;
pub mod measure;
mod nics;
pub mod operation;
mod plot;
pub mod statistics;
pub mod subject;
pub mod table;

use crate::error::{Error, Result};
use crate::report::lines;
use crate::report::output::{self, say};
use arguments::CollectiveArguments;
use backend::Backend;
use job::{Answer, Outcome};
use operation::Operation;
use std::time::Duration;
use table::{Report, Row};

pub fn run(operation: Operation, arguments: &CollectiveArguments) -> Result<()> {
    arguments.check()?;
    let baseline = arguments.baseline.as_ref().map(|file| baseline::read(file)).transpose()?;
    if let Some(backend) = arguments.worker {
        return job::run(backend, &[operation], arguments).map(drop);
    }
    end_after(arguments.timeout);
    let Some(report) = measure(operation, arguments)? else { return Ok(()) };
    let text = if arguments.compat { compat::text(&report, arguments) } else { report.text() };
    if let Some(file) = &arguments.plot {
        output::write_file(file, &plot::draw(&report))?;
    }
    output::answer(&arguments.json, &text, &report.document())?;
    if arguments.json.json || arguments.compat {
        report.skipped.iter().for_each(|(backend, reason)| {
            say(format_args!("{}: skipped: {reason}", backend.name()))
        });
    }
    judge(&report, baseline.as_ref(), arguments)
}

/// All backends, round after round in rotated order. None: another process has the answer.
fn measure(operation: Operation, arguments: &CollectiveArguments) -> Result<Option<Report>> {
    let mut answers: Vec<(Backend, Option<Answer>)> =
        arguments.backend.iter().map(|&backend| (backend, None)).collect();
    let mut skipped: Vec<(Backend, String)> = Vec::new();
    let (backends, mut is_elsewhere) = (answers.len(), false);
    for round in 0..arguments.rounds {
        for turn in 0..backends {
            let (backend, answer) = &mut answers[(round + turn) % backends];
            if skipped.iter().any(|(other, _)| other == backend) {
                continue;
            }
            match (job::run(*backend, &[operation], arguments)?, answer) {
                (Outcome::Measured(more), Some(answer)) => answer.append(more),
                (Outcome::Measured(first), answer) => *answer = Some(first),
                (Outcome::Skipped(reason), _) => skipped.push((*backend, reason)),
                (Outcome::Elsewhere, _) => is_elsewhere = true,
            }
        }
    }
    if is_elsewhere {
        return Ok(None);
    }
    let rows = answers.iter().filter_map(|(backend, answer)| Some((*backend, answer.as_ref()?)));
    let rows = rows.flat_map(|(backend, answer)| {
        answer.cases.iter().map(move |case| Row::new(backend, answer, case, arguments))
    });
    Ok(Some(Report::new(operation, rows.collect(), skipped, arguments)))
}

fn judge(
    report: &Report,
    baseline: Option<&baseline::Baseline>,
    arguments: &CollectiveArguments,
) -> Result<()> {
    if report.rows.is_empty() {
        let reason =
            |(backend, reason): &(Backend, String)| format!("{}: {reason}", backend.name());
        let reasons: Vec<String> = report.skipped.iter().map(reason).collect();
        return Err(Error::Skipped(reasons.join("; ")));
    }
    match report.wrong() {
        0 => baseline.map_or(Ok(()), |baseline| baseline.compare(report, arguments.max_regress.0)),
        wrong => Err(Error::Failed {
            context: format!("headlong bench {}", report.operation.name()),
            source: format!("{wrong} elements have arrived wrong").into(),
        }),
    }
}

/// Ends the whole command when its time is over, with all processes that it has started: they are
/// tied to this one.
fn end_after(seconds: f64) {
    if seconds <= 0.0 {
        return;
    }
    let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    let watch = move || {
        std::thread::sleep(time);
        let error = Error::TimedOut { seconds };
        lines::to_stderr(&lines::error(&format!("headlong bench: {error}")));
        std::process::exit(i32::from(error.exit_code()));
    };
    // Where there is no thread to be had, the command runs without an end: its ranks have deadlines
    // all the same.
    drop(std::thread::Builder::new().name("bench-timeout".into()).spawn(watch));
}
