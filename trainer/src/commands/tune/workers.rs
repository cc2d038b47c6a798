//! Trials side by side: each is a process of this program, `headlong train`, on one processor. A
//! trial that is killed, or whose parent is, resumes from its last checkpoint and ends in the same
//! bits.

use super::journal::{Line, Scored, Task};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::report::output::write_file;
use crate::report::{Done, Eval};
use crate::system::command_line;
use crate::system::signals::StopRequest;
use headlong_device::files::GrowingFile;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How often processes and signals are looked at.
const LOOK: Duration = Duration::from_millis(10);
/// A killed process has ended after that time, or never will.
const ORPHANS_END: Duration = Duration::from_secs(10);
const CONFIG: &str = "config.toml";
const LOG: &str = "log.json";
const SAID: &str = "output.txt";
/// Of the folder of a task, its checkpoints.
pub const CHECKPOINTS: &str = "checkpoints";
/// What else its run writes.
pub const OUTPUT: &str = "output";

/// A task, ready to be run.
pub struct Job {
    pub task: Task,
    pub config: Config,
    pub settings: serde_json::Map<String, Value>,
    /// Where its process writes everything.
    pub folder: PathBuf,
}

struct Running {
    job: Job,
    child: Child,
    since: Instant,
}

/// Runs `jobs`, `workers` at a time, in their order; `finished` hears of each as it ends.
///
/// # Errors
/// A process that cannot be started, or fails for a reason that is not in its settings; a signal,
/// on which all save and end.
pub fn run(
    jobs: Vec<Job>,
    workers: usize,
    stop: &StopRequest,
    finished: &mut dyn FnMut(Line) -> Result<()>,
) -> Result<()> {
    let mut waiting = jobs.into_iter();
    let mut running: Vec<Running> = Vec::new();
    let outcome = loop {
        if let Some(signal) = stop.asked() {
            break Err(interrupted(signal));
        }
        while running.len() < workers
            && let Some(job) = waiting.next()
        {
            match start(job) {
                Ok(started) => running.push(started),
                Err(error) => {
                    end_all(&mut running);
                    return Err(error);
                }
            }
        }
        if running.is_empty() {
            return Ok(());
        }
        if let Err(error) = reap(&mut running, stop, finished) {
            break Err(error);
        }
        std::thread::sleep(LOOK);
    };
    end_all(&mut running);
    outcome
}

fn interrupted(signal: i32) -> Error {
    let outcome = ": what is finished is kept; the same command resumes it".to_owned();
    Error::Interrupted { signal, outcome, is_said: false }
}

/// Takes what has ended.
fn reap(
    running: &mut Vec<Running>,
    stop: &StopRequest,
    finished: &mut dyn FnMut(Line) -> Result<()>,
) -> Result<()> {
    let mut index = 0;
    while index < running.len() {
        let ended = running[index].child.try_wait();
        match ended.map_err(Error::failed("waiting for a trial"))? {
            None => index += 1,
            Some(status) => {
                let Running { job, since, .. } = running.swap_remove(index);
                match line_of(&job, status, since.elapsed().as_secs_f64()) {
                    Ok(line) => finished(line)?,
                    // It got the signal, too.
                    Err(error) => return Err(stop.asked().map_or(error, interrupted)),
                }
            }
        }
    }
    Ok(())
}

/// Lets all save and end.
fn end_all(running: &mut Vec<Running>) {
    for Running { child, .. } in running.iter() {
        // One that has just ended needs no signal.
        let _ = kill_process(Pid::from_child(child), Signal::TERM);
    }
    running.drain(..).for_each(|mut running| drop(running.child.wait()));
}

fn start(job: Job) -> Result<Running> {
    let folder = &job.folder;
    std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    wait_for_orphan(&folder.join(LOG));
    let config = folder.join(CONFIG);
    write_file(&config, &job.config.to_commented_toml())?;
    let output = folder.join(SAID);
    // A new file: a link that lies there is not followed.
    match std::fs::remove_file(&output) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(Error::io("replace", &output)(error));
        }
        _ => {}
    }
    let output = File::create_new(&output).map_err(Error::io("write", &output))?;
    let mut command =
        command_line::again().map_err(Error::failed("finding this program's own file"))?;
    command.args(["train", "--resume", "--config"]).arg(&config);
    command.arg("--log-json").arg(folder.join(LOG));
    // It does not outlive this process.
    command.env("HEADLONG_LAUNCHER_PID", std::process::id().to_string());
    // A Ctrl-C of the terminal reaches this process alone, which hands it on.
    command.process_group(0);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output).spawn();
    let program = command.get_program().display();
    let child = child.map_err(Error::failed(format!("starting {program}")))?;
    Ok(Running { job, child, since: Instant::now() })
}

/// Where this process's forerunner was killed, so was what it had started, which may take a moment
/// to end: so long it has its log.
fn wait_for_orphan(log: &Path) {
    let begun = Instant::now();
    while begun.elapsed() < ORPHANS_END
        && GrowingFile::open(log, true).is_err_and(|error| error.kind() == ErrorKind::ResourceBusy)
    {
        std::thread::sleep(LOOK);
    }
}

/// The result of a process that has ended.
fn line_of(job: &Job, status: ExitStatus, seconds: f64) -> Result<Line> {
    let Task { trial, scored, epochs } = job.task;
    let line = Line {
        trial,
        scored,
        epochs,
        settings: job.settings.clone(),
        step: None,
        metrics: None,
        weights_digest: None,
        error: None,
        seconds,
        start_seconds: 0.0,
    };
    let failed = |what: String| {
        let said = std::fs::read_to_string(job.folder.join(SAID)).unwrap_or_default();
        let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing");
        let message = format!("{what}; its last words: {last}");
        Error::failed(format!("trial {trial} ({scored})"))(std::io::Error::other(message))
    };
    let events = events(&job.folder.join(LOG));
    match (status.code(), status.signal()) {
        (Some(0), _) => {}
        (_, Some(signal)) => return Err(failed(format!("signal {signal} ended it"))),
        (code, _) => {
            // Settings that cannot be, and losses that are no numbers, are found again each time.
            let error = events.iter().rfind(|event| event["event"] == "error");
            let diverged = error.filter(|event| event.get("place").is_some());
            let code = code.unwrap_or(1);
            if code == 2 && job.folder.join(CHECKPOINTS).exists() {
                // Its settings are good: it has begun with them, of data that was another.
                remove(&job.folder)?;
                return Err(failed("it cannot be resumed; now it begins again".to_owned()));
            }
            if trial == 0 || code != 2 && diverged.is_none() {
                return Err(failed(format!("it ended with exit code {code}")));
            }
            let message = error.and_then(|event| event["message"].as_str());
            let error = Some(message.unwrap_or("its settings are refused").to_owned());
            return Ok(Line { error, ..line });
        }
    }
    let done = events.iter().rfind(|event| event["event"] == "done");
    let done = done.ok_or_else(|| failed("its log has no end".to_owned()))?;
    let step = done["step"].as_u64();
    let done: Done = serde_json::from_value(done.clone())
        .map_err(Error::failed(format!("the log of trial {trial}")))?;
    if done.reason != "finished" {
        return Err(failed(format!("{} ended it", done.reason)));
    }
    // Of several models it is their mean that counts.
    let of_all = events.iter().rfind(|event| event["event"] == "ensemble");
    let of_all = of_all.map(|event| serde_json::from_value::<Eval>(event["ensemble_eval"].clone()));
    let of_all = of_all.transpose().map_err(Error::failed(format!("the log of trial {trial}")))?;
    let begun = events.iter().rfind(|event| event["event"] == "start");
    let start_seconds = begun.and_then(|event| event["time_s"].as_f64()).unwrap_or(0.0);
    Ok(Line {
        step,
        metrics: of_all.or(done.last_eval).map(|eval| eval.metrics),
        weights_digest: Some(done.weights_digest),
        start_seconds,
        ..line
    })
}

/// The whole lines of a log.
fn events(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Removes what a task has written: its result is known, and it is not trained further.
pub fn remove(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::io("remove", folder)(error))
        }
        _ => Ok(()),
    }
}

/// Where a task is done. Fold 0 is trained from rung to rung; on others one trial may have
/// several lengths, each from the beginning.
pub fn folder_of(output: &Path, task: &Task) -> PathBuf {
    let Task { trial, scored, epochs } = task;
    let name = match scored {
        Scored::Fold(0) => scored.to_string(),
        _ => format!("{scored}-of-{epochs}-epochs"),
    };
    output.join("trials").join(format!("{trial:03}")).join(name)
}
