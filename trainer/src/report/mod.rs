//! What a run says: a progress bar on a terminal, plain lines elsewhere, and the JSON log.
//!
//! Results (the plan, evaluations, the end) go to standard output, progress and warnings to standard error. Where the
//! JSON log goes to standard output, it alone does, and everything else goes to standard error. Escape codes are written
//! to a terminal only.

pub mod events;
mod format;
mod json_log;

pub use events::{At, Checkpoint, DataSummary, Done, Eval, ExchangeBytes, Scaling, Start, Step};
pub use format::{bytes, count, duration};
pub use json_log::JsonLog;

use crate::cli::LogTarget;
use crate::error::{Error, Result, chain};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value};
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// The bar is full at this position.
const BAR_UNITS: u64 = 10_000;

/// Says what a run does.
#[derive(Debug)]
pub struct Reporter {
    log: Option<JsonLog>,
    results_to_stderr: bool,
    bar: Option<ProgressBar>,
    started: Instant,
    first_fraction: Option<(f64, Instant)>,
    fraction: f64,
}

impl Reporter {
    /// A reporter to the terminal, and to the JSON log where there is one. A resumed run appends to the log's file.
    ///
    /// # Errors
    /// [`Error::Io`] where the log cannot be opened.
    pub fn new(log: Option<&LogTarget>, resumed: bool) -> Result<Self> {
        let started = Instant::now();
        Ok(Self {
            results_to_stderr: log == Some(&LogTarget::Stdout),
            log: log.map(|target| JsonLog::open(target, resumed, started)).transpose()?,
            bar: std::io::stderr().is_terminal().then(new_bar),
            started,
            first_fraction: None,
            fraction: 0.0,
        })
    }

    /// A reporter that writes nothing but `log`: for tests and libraries.
    pub fn quiet(log: Option<JsonLog>) -> Self {
        Self {
            log,
            results_to_stderr: true,
            bar: Some(ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden())),
            started: Instant::now(),
            first_fraction: None,
            fraction: 0.0,
        }
    }

    /// Seconds since the reporter was made: the log's `time_s`.
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// The run begins.
    ///
    /// # Errors
    /// [`Error::Io`] where the log cannot be written; so for every event below.
    pub fn start(&mut self, start: &Start) -> Result<()> {
        self.log_event("start", start)
    }

    /// A result for people, such as the plan or a table: one or more lines on standard output.
    pub fn result(&self, text: &str) {
        let to_stderr = self.results_to_stderr;
        self.beside_bar(|| {
            // Note: a closed pipe must not end a training run, so failures to print are not errors.
            let _ = if to_stderr {
                writeln!(std::io::stderr(), "{}", text.trim_end())
            } else {
                let mut out = std::io::stdout();
                writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush())
            };
        });
    }

    /// A remark for people: lines on standard error.
    pub fn note(&self, text: &str) {
        self.beside_bar(|| {
            let _ = writeln!(std::io::stderr(), "{}", text.trim_end());
        });
    }

    fn beside_bar(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) if bar.is_hidden() => {}
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Where the run stands, after every step: moves the bar. `fraction` of the run that is done, where it is known, 0
    /// to 1. Takes no memory where there is no terminal.
    pub fn advance(&mut self, at: At, fraction: Option<f64>) {
        if let Some(log) = &mut self.log {
            log.set_position(at);
        }
        if let Some(fraction) = fraction {
            self.fraction = fraction.clamp(0.0, 1.0);
            self.first_fraction.get_or_insert((self.fraction, Instant::now()));
        }
        if let Some(bar) = &self.bar {
            bar.set_position((self.fraction * BAR_UNITS as f64) as u64);
        }
    }

    /// Seconds until the end at the pace since training began, where it can be told.
    pub fn seconds_left(&self) -> Option<f64> {
        let (first, since) = self.first_fraction?;
        let done = self.fraction - first;
        (done > 0.0).then(|| since.elapsed().as_secs_f64() * (1.0 - self.fraction) / done)
    }

    /// Progress, every `train.log_every` steps.
    ///
    /// # Errors
    /// As [`Reporter::start`].
    pub fn step(&mut self, at: At, step: &Step) -> Result<()> {
        let left = self.seconds_left().map_or(String::new(), |left| format!("  ETA {}", duration(left)));
        let numbers = format!(
            "loss {:.5}  {} samples/s  data wait {:.1} %{}{left}",
            step.loss,
            count(step.samples_per_s as u64),
            step.data_wait_share * 100.0,
            step.scaling.map_or(String::new(), |scaling| scaling.to_string()),
        );
        match &self.bar {
            Some(bar) => bar.set_message(format!("step {}  {numbers}", count(at.step))),
            None => self.note(&format!(
                "step {}  samples {}  lr {}  {numbers}",
                count(at.step),
                count(at.samples),
                step.learning_rate
            )),
        }
        self.set_position(at);
        self.log_event("step", step)
    }

    /// An evaluation.
    ///
    /// # Errors
    /// As [`Reporter::start`].
    pub fn eval(&mut self, at: At, eval: &Eval) -> Result<()> {
        self.result(&format!("step {}  {}", count(at.step), eval_text(eval)));
        self.set_position(at);
        self.log_event("eval", eval)?;
        if let Some(warning) = eval.metrics.warning() {
            return self.warning(warning, Map::new());
        }
        match eval.metrics.auc {
            // A coin reaches 0.5 ± 0.005 on as few samples.
            Some(auc) if (auc - 0.5).abs() <= 0.005 && eval.metrics.eval_samples >= 10_000 => {
                let message = format!(
                    "the model has learned nothing so far: AUC {auc:.4}; is the learning rate right for this optimizer, \
                     and is the data what the preset expects?"
                );
                self.warning(&message, Map::new())
            }
            _ => Ok(()),
        }
    }

    /// A checkpoint was written.
    ///
    /// # Errors
    /// As [`Reporter::start`].
    pub fn checkpoint(&mut self, at: At, checkpoint: &Checkpoint) -> Result<()> {
        self.note(&format!(
            "step {}  checkpoint {} ({}, {})",
            count(at.step),
            checkpoint.path.display(),
            bytes(checkpoint.bytes),
            duration(checkpoint.seconds)
        ));
        self.set_position(at);
        self.log_event("checkpoint", checkpoint)
    }

    /// Something that the user should know; `fields` identify the place (`file`, `line`, `table`, …).
    ///
    /// # Errors
    /// As [`Reporter::start`].
    pub fn warning(&mut self, message: &str, fields: Map<String, Value>) -> Result<()> {
        self.note(&format!("warning: {message}"));
        self.log_message("warning", message, fields)
    }

    /// The run fails: into the log alone, because the program prints the error itself.
    ///
    /// # Errors
    /// As [`Reporter::start`].
    pub fn error(&mut self, error: &Error, mut fields: Map<String, Value>) -> Result<()> {
        self.finish_bar();
        fields.insert("exit_code".to_owned(), error.exit_code().into());
        self.log_message("error", &chain(error), fields)
    }

    /// The run ends.
    ///
    /// # Errors
    /// As [`Reporter::start`].
    pub fn done(&mut self, at: At, done: &Done) -> Result<()> {
        self.finish_bar();
        self.result(&format!(
            "done ({}): {} steps, {} samples in {}, {} samples/s, peak memory {}\n{}weights {}",
            reason_text(done),
            count(at.step),
            count(at.samples),
            duration(done.wall_s),
            count(done.samples_per_s as u64),
            bytes(done.peak_rss_bytes),
            done.eval_step.map_or(String::new(), |_| format!(
                "training stood still for evaluations in {:.2} % of the time\n",
                done.eval_share * 100.0
            )),
            done.weights_digest
        ));
        self.set_position(at);
        self.log_event("done", done)
    }

    fn finish_bar(&mut self) {
        if let Some(bar) = self.bar.as_ref().filter(|bar| !bar.is_hidden()) {
            bar.finish_and_clear();
            self.bar = None;
        }
    }

    fn set_position(&mut self, at: At) {
        if let Some(log) = &mut self.log {
            log.set_position(at);
        }
    }

    fn log_event<T: serde::Serialize>(&mut self, event: &str, fields: &T) -> Result<()> {
        self.log.as_mut().map_or(Ok(()), |log| log.write(event, fields))
    }

    fn log_message(&mut self, event: &str, message: &str, mut fields: Map<String, Value>) -> Result<()> {
        fields.insert("message".to_owned(), message.into());
        self.log_event(event, &fields)
    }
}

fn new_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:24} {percent:>3} %  {elapsed_precise}  {msg}");
    let style = style.expect("the template is a constant and well formed");
    let bar = ProgressBar::with_draw_target(Some(BAR_UNITS), ProgressDrawTarget::stderr()).with_style(style);
    // The clock goes on while data is awaited.
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// Why a run has ended: `target_auc, by the weights of step 3,200`.
fn reason_text(done: &Done) -> String {
    match done.eval_step {
        Some(step) if done.reason == "target_auc" => {
            format!("target_auc, by the weights of step {}", count(step))
        }
        _ => done.reason.clone(),
    }
}

/// An evaluation as text: `AUC 0.76380  log loss 0.48500  NE 0.84400  accuracy 77.61 % (base rate 26.12 %)  …`.
pub fn eval_text(eval: &Eval) -> String {
    let metrics = &eval.metrics;
    let or_undefined =
        |value: Option<f64>| value.map_or("undefined".to_owned(), |value| format!("{value:.5}"));
    format!(
        "AUC {}  log loss {}  NE {}  accuracy {:.2} % (always \"no\" {:.2} %, click rate {:.2} %)  {} samples in {}",
        or_undefined(metrics.auc),
        or_undefined(metrics.logloss),
        or_undefined(metrics.ne),
        metrics.accuracy * 100.0,
        (1.0 - metrics.base_rate) * 100.0,
        metrics.base_rate * 100.0,
        count(metrics.eval_samples),
        duration(eval.eval_s)
    )
}

/// Largest resident memory of this process so far, in bytes.
pub fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests;
