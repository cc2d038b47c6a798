//! What a run says: a progress bar on a terminal, plain lines elsewhere, and the JSON log.
//!
//! Results (the plan, evaluations, the end) go to standard output, progress and warnings to
//! standard error. Where the JSON log goes to standard output, it alone does, and everything else
//! goes to standard error. Escape codes are written to a terminal only, and lines are folded there
//! alone.

pub mod axis;
mod bar;
pub mod events;
pub mod history;
mod json_log;
pub mod lines;
pub mod mllog;
pub mod output;
pub mod progress;
pub mod svg;
pub mod tensorboard;

pub use crate::units::{bytes, columns, count, duration, short_time, some};
pub use bar::{Bar, Fact};
pub use events::{
    At, Checkpoint, DataSummary, Done, Eval, ExchangeBytes, Scaling, Snapshot, StageTime, Start,
    Step, Times,
};
pub use json_log::{JsonLog, LogTarget};

use crate::error::{Error, Result, chain};
use history::History;
use serde_json::{Map, Value, json};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tensorboard::EventFile;

/// The bar's facts are renewed at most this often.
const SHOWN_EVERY: Duration = Duration::from_millis(500);

/// Gets what is written, a line at a time.
pub type Listen = Arc<dyn Fn(&[u8]) + Send + Sync>;

#[derive(Debug)]
pub struct Reporter {
    log: Option<JsonLog>,
    /// What the run keeps for a report.
    history: Option<History>,
    tensorboard: Option<EventFile>,
    at: At,
    results_to_stderr: bool,
    /// Says nothing but the log.
    is_quiet: bool,
    bar: Option<Bar>,
    /// Whether it was said that standard output cannot be written.
    has_lost_output: AtomicBool,
    started: Instant,
    shown: Option<Instant>,
    /// What part was done when that was first known, and when.
    first_fraction: Option<(f64, Instant)>,
    fraction: f64,
}

impl Reporter {
    /// A reporter to the terminal, and to the JSON log where there is one. A resumed run appends to
    /// the log's file.
    pub fn new(log: Option<&LogTarget>, resumed: bool) -> Result<Self> {
        let started = Instant::now();
        Ok(Self {
            results_to_stderr: log == Some(&LogTarget::Stdout),
            log: log.map(|target| JsonLog::open(target, resumed, started)).transpose()?,
            is_quiet: false,
            bar: Bar::on_terminal(),
            started,
            ..Self::quiet(None)
        })
    }

    /// A reporter that writes nothing but `log`: for tests and libraries.
    pub fn quiet(log: Option<JsonLog>) -> Self {
        Self {
            log,
            history: None,
            tensorboard: None,
            at: At::default(),
            results_to_stderr: true,
            is_quiet: true,
            bar: None,
            has_lost_output: AtomicBool::new(false),
            started: Instant::now(),
            shown: None,
            first_fraction: None,
            fraction: 0.0,
        }
    }

    /// A reporter to a program that has called for the run: every line of the log as it comes, and
    /// the bar where it is asked for.
    pub fn to_caller(listen: &Listen, shows_bar: bool) -> Self {
        let out = Box::new(Listener(Arc::clone(listen)));
        let log = JsonLog::new(out, "the caller".into(), Instant::now());
        let bar = shows_bar.then(Bar::on_terminal).flatten();
        Self { bar, ..Self::quiet(Some(log)) }
    }

    /// From now on keeps the history of a run, which is at `at`, in `folder`. Where it cannot, a
    /// note says so: no run ends for it.
    pub fn keep_history(&mut self, folder: &Path, appends: bool, at: At) {
        match History::open(folder, appends, at, self.started) {
            Ok(history) => (self.history, self.at) = (Some(history), at),
            Err(error) => {
                self.note(&format!("no history is kept for `headlong report`: {}", chain(&error)))
            }
        }
    }

    /// From now on writes event files for TensorBoard.
    pub fn write_tensorboard(&mut self, file: EventFile) {
        self.tensorboard = Some(file);
    }

    /// Seconds since the reporter was made: the log's `time_s`.
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    pub fn start(&mut self, start: &Start) -> Result<()> {
        self.show(|file| file.start(start))?;
        self.log_event("start", start)
    }

    /// A result for people, such as the plan or a table: one or more lines on standard output.
    pub fn result(&self, text: &str) {
        if self.results_to_stderr {
            return self.note(text);
        }
        let folded = lines::fold(text.trim_end(), lines::width(std::io::stdout()));
        // A reader that has gone (`| head`), or a full disk, must not end a training run.
        let mut failed = None;
        self.above_bar(|| {
            let mut out = std::io::stdout();
            failed = writeln!(out, "{folded}").and_then(|()| out.flush()).err();
        });
        let failed = failed.filter(|error| error.kind() != ErrorKind::BrokenPipe);
        if let Some(error) = failed
            && !self.has_lost_output.swap(true, Ordering::Relaxed)
        {
            self.note(&format!("warning: cannot write standard output: {error}: results are lost"));
        }
    }

    /// A remark for people: lines on standard error.
    pub fn note(&self, text: &str) {
        let folded = lines::fold(text.trim_end(), lines::width(std::io::stderr()));
        self.above_bar(|| lines::to_stderr(&folded));
    }

    fn above_bar(&self, print: impl FnOnce()) {
        match &self.bar {
            _ if self.is_quiet => {}
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Where the run stands, after every step: moves the bar. `fraction` of the run that is done,
    /// where it is known, 0 to 1. Takes no memory where there is no terminal.
    pub fn advance(&mut self, at: At, fraction: Option<f64>) {
        self.set_position(at);
        let Some(fraction) = fraction else { return };
        self.fraction = fraction.clamp(0.0, 1.0);
        self.first_fraction.get_or_insert((self.fraction, Instant::now()));
        if let Some(bar) = &self.bar {
            bar.advance(self.fraction);
        }
    }

    /// Seconds until the end at the pace since training began, where it can be told.
    pub fn seconds_left(&self) -> Option<f64> {
        let (first, since) = self.first_fraction?;
        let done = self.fraction - first;
        (done > 0.0).then(|| since.elapsed().as_secs_f64() * (1.0 - self.fraction) / done)
    }

    /// Whether there is a bar whose facts are old.
    pub fn is_progress_due(&self) -> bool {
        self.bar.is_some() && self.shown.is_none_or(|shown| shown.elapsed() >= SHOWN_EVERY)
    }

    /// Progress since the last call, for the bar alone.
    pub fn progress(&mut self, at: At, step: &Step) {
        self.shown = Some(Instant::now());
        let Some(bar) = &self.bar else { return };
        let mut facts = vec![
            (1, format!("step {}", count(at.step))),
            (0, loss_text(step)),
            (3, format!("{} samples/s", count(step.samples_per_s as u64))),
            (5, format!("data wait {:.1} %", step.data_wait_share * 100.0)),
        ];
        facts.extend(step.scaling.map(|scaling| (6, scaling.to_string())));
        facts.extend(self.seconds_left().map(|left| (2, format!("ETA {}", duration(left)))));
        bar.show(facts);
    }

    /// Progress, every `train.log_every` steps: a line where there is no bar.
    pub fn step(&mut self, at: At, step: &Step) -> Result<()> {
        if self.bar.is_none() {
            self.note(&step_text(at, step, self.seconds_left()));
        }
        self.set_position(at);
        self.keep(|history| history.step(at, step))?;
        self.show(|file| file.step(at, step))?;
        self.log_alone("step", step)
    }

    pub fn eval(&mut self, at: At, eval: &Eval) -> Result<()> {
        self.result(&format!("step {}  {}", count(at.step), eval_text(eval)));
        self.set_position(at);
        self.keep(|history| history.eval(at, eval))?;
        self.show(|file| file.eval(at, eval))?;
        self.log_alone("eval", eval)?;
        if let Some(warning) = eval.metrics.warning() {
            let is_of_one_class = eval.metrics.auc.is_none() && eval.metrics.eval_samples > 0;
            let advice = match is_of_one_class {
                true => {
                    "; validate on more rows: a larger share held out (--holdout), or files of \
                     their own (--valid)"
                }
                false => "",
            };
            return self.warning(&format!("{warning}{advice}"), Map::new());
        }
        match eval.metrics.auc {
            // A coin reaches 0.5 ± 0.005 on as few samples.
            Some(auc) if (auc - 0.5).abs() <= 0.005 && eval.metrics.eval_samples >= 10_000 => {
                let message = format!(
                    "the model has learned nothing so far: AUC {auc:.4}; is the learning rate \
                     right for this optimizer, and is the data what the preset expects?"
                );
                self.warning(&message, Map::new())
            }
            _ => Ok(()),
        }
    }

    /// What the mean of several models comes to; `of_each` says how they differ.
    pub fn ensemble(&mut self, models: usize, eval: &Eval, of_each: &str) -> Result<()> {
        self.result(&format!("mean of {models} models  {}\n{of_each}", eval_text(eval)));
        self.log_event("ensemble", &json!({ "models": models, "ensemble_eval": eval }))
    }

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

    /// A snapshot, into the log alone: there are many.
    pub fn snapshot(&mut self, at: At, snapshot: &Snapshot) -> Result<()> {
        self.set_position(at);
        self.log_alone("snapshot", snapshot)
    }

    /// Something that the user should know; `fields` identify the place (`file`, `line`, `table`,
    /// …).
    pub fn warning(&mut self, message: &str, fields: Map<String, Value>) -> Result<()> {
        let text = lines::warning(message, lines::width(std::io::stderr()));
        self.above_bar(|| lines::to_stderr(&text));
        self.log_message("warning", message, fields)
    }

    /// The run fails: into the log alone, because the program prints the error itself.
    pub fn error(&mut self, error: &Error, mut fields: Map<String, Value>) -> Result<()> {
        self.finish_bar();
        fields.insert("exit_code".to_owned(), error.exit_code().into());
        self.log_message("error", &chain(error), fields)
    }

    /// Where the time went, into the history alone.
    pub fn times(&mut self, at: At, times: &Times) -> Result<()> {
        self.keep(|history| history.times(at, times))
    }

    pub fn done(&mut self, at: At, done: &Done) -> Result<()> {
        self.finish_bar();
        self.result(&format!(
            "done ({}): {} steps, {} samples in {}, {} samples/s while training, peak memory {}\n\
             {}weights {}",
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
        if let Some(bar) = self.bar.take() {
            bar.clear();
        }
    }

    fn set_position(&mut self, at: At) {
        self.at = at;
        if let Some(log) = &mut self.log {
            log.set_position(at);
        }
    }

    fn log_event<T: serde::Serialize>(&mut self, event: &str, fields: &T) -> Result<()> {
        let at = self.at;
        self.keep(|history| history.other(at, event, fields))?;
        self.log_alone(event, fields)
    }

    fn log_alone<T: serde::Serialize>(&mut self, event: &str, fields: &T) -> Result<()> {
        self.log.as_mut().map_or(Ok(()), |log| log.write(event, fields))
    }

    /// Writes to the history. Where that fails, there is none from then on.
    fn keep(&mut self, write: impl FnOnce(&mut History) -> Result<()>) -> Result<()> {
        match self.history.as_mut().map_or(Ok(()), write) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.history = None;
                let message = format!("the history of this run ends here: {}", chain(&error));
                self.warning(&message, Map::new())
            }
        }
    }

    /// Writes to TensorBoard's event file. Where that fails, training continues without, and says
    /// so.
    fn show(&mut self, write: impl FnOnce(&mut EventFile) -> Result<()>) -> Result<()> {
        match self.tensorboard.as_mut().map_or(Ok(()), write) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.tensorboard = None;
                let message = format!(
                    "TensorBoard gets nothing more of this run, which continues: {}",
                    chain(&error)
                );
                self.warning(&message, Map::new())
            }
        }
    }

    fn log_message(
        &mut self,
        event: &str,
        message: &str,
        mut fields: Map<String, Value>,
    ) -> Result<()> {
        fields.insert("message".to_owned(), message.into());
        self.log_event(event, &fields)
    }
}

/// Hands on what is written.
struct Listener(Listen);

impl Write for Listener {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        (self.0)(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn loss_text(step: &Step) -> String {
    format!("loss {:.5}", step.loss)
}

fn step_text(at: At, step: &Step, seconds_left: Option<f64>) -> String {
    let scaling = step.scaling.map_or(String::new(), |scaling| format!("  {scaling}"));
    let left = seconds_left.map_or(String::new(), |left| format!("  ETA {}", duration(left)));
    format!(
        "step {}  samples {}  lr {}  {}  {} samples/s  data wait {:.1} %{scaling}{left}",
        count(at.step),
        count(at.samples),
        step.learning_rate,
        loss_text(step),
        count(step.samples_per_s as u64),
        step.data_wait_share * 100.0,
    )
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

/// An evaluation as text: `AUC 0.76380  log loss 0.48500  NE 0.84400  calibration 0.934  …`.
pub fn eval_text(eval: &Eval) -> String {
    let metrics = &eval.metrics;
    let or_undefined = |value: Option<f64>, digits: usize| {
        value.map_or("undefined".to_owned(), |value| format!("{value:.digits$}"))
    };
    let predicted = metrics.mean_prediction.map(|mean| 100.0 * mean);
    [
        format!("AUC {}", or_undefined(metrics.auc, 5)),
        format!("log loss {}", or_undefined(metrics.logloss, 5)),
        format!("NE {}", or_undefined(metrics.ne, 5)),
        format!("calibration {}", or_undefined(metrics.calibration, 3)),
        format!("calibration error {}", or_undefined(metrics.calibration_error, 5)),
        format!(
            "click rate {:.2} % (predicted {} %)",
            100.0 * metrics.base_rate,
            or_undefined(predicted, 2)
        ),
        format!(
            "accuracy {:.2} % (always \"no\" {:.2} %)",
            100.0 * metrics.accuracy,
            100.0 * (1.0 - metrics.base_rate)
        ),
        format!("{} samples in {}", count(metrics.eval_samples), duration(eval.eval_s)),
    ]
    .join("  ")
}

#[cfg(test)]
mod tests;
