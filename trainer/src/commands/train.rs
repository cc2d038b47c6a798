//! `headlong train`: from a configuration to a trained model, and everything a person or a script
//! wants to hear on the way.

mod caller;
mod ensemble;
mod evaluations;
mod evaluator;
mod history;
mod milestones;
mod progress;
pub(crate) mod resume;
mod snapshots;
mod start;

use crate::commands::remarks;
use crate::run::open::{OpenArgs, open_session};
use crate::run::prepare::Prepared;

use crate::commands::launch::{launched, with_device};
use crate::commands::plan::{OfRun, Planned};
use crate::commands::train_arguments::TrainOptions;
use crate::config::{Config, DeviceChoice, EvalEvery};
use crate::data;
use crate::error::{Error, Result, signal_name};
use crate::iteration::arithmetic::Ceiling;
use crate::iteration::job::{Busy, Job};
use crate::plan::{Plan, evaluation};
use crate::report::mllog::MlLog;
use crate::report::{self, At, Done, Reporter};
use crate::run::outlook::{self, Place};
use crate::run::session::{Session, Start, dismiss, steps_of_epochs};
use crate::run::sums;
use crate::state::checkpoint::{self, Checkpoint};
use crate::system::machine::Machine;
use crate::system::signals::StopRequest;
pub use caller::from_arguments;
use caller::reporter;
use headlong_reader::Reader as _;
use progress::Meter;
use resume::{asked_for, initial_weights, repeats_its_report};
use serde_json::Map;
use snapshots::Taken;
use start::{begin, note_the_start};
use std::time::{Duration, Instant};

/// Trains as `config` says, one model or several.
///
/// # Errors
/// Everything in [`Error`]; what was saved before stays.
pub fn run(config: &Config, options: &TrainOptions) -> Result<()> {
    match config.train.seeds {
        1 => run_model(config, options),
        _ => ensemble::run(config, options),
    }
}

fn run_model(config: &Config, options: &TrainOptions) -> Result<()> {
    // Before anything is made or read: a device that is not there will not come.
    Machine::detect_with(config.run.device)?;
    if launched().is_some() {
        data::refuse_shared_pipes(config)?;
    }
    let config = with_device(&data::resolve(config)?, &options.registry)?;
    let config = &sums::decide_for_run(&config, options.flags.resume);
    let mut job = Job::join(config)?;
    if job.evaluates() {
        let outcome = evaluator::run(&mut job, options);
        return job.end(outcome);
    }
    let preparing = job.busy("prepares its run");
    let (resumed, mut reporter) = match begin(&job, options) {
        Ok(begun) => begun,
        Err(error) => {
            job.bridge().inspect(|bridge| bridge.abort(&error));
            return job.end(Err(error));
        }
    };
    let outcome = run_with(&mut job, preparing, options, resumed.as_ref(), &mut reporter);
    if let Some(bridge) = job.bridge() {
        // The run has ended before its first step.
        match &outcome {
            Ok(()) => dismiss(bridge),
            Err(error) => bridge.abort(error),
        }
    }
    let outcome = job.end(outcome).map_err(|error| error.naming_columns(&config.table_names()));
    match &outcome {
        // The event `done` has said it, with the signal as its reason.
        Err(Error::Interrupted { .. }) | Ok(()) => {}
        Err(error) => reporter.error(error, remarks::place(error))?,
    }
    outcome
}

fn run_with(
    job: &mut Job,
    preparing: Option<Busy>,
    options: &TrainOptions,
    resumed: Option<&Checkpoint>,
    reporter: &mut Reporter,
) -> Result<()> {
    let config = &job.config.clone();
    if repeats_its_report(job, resumed, reporter)? {
        return Ok(());
    }
    note_the_start(job, options, resumed, reporter)?;
    if options.flags.dry_run {
        return dry_run(job, options, resumed, reporter);
    }
    refuse_what_cannot_fit(job, options, reporter)?;
    let stop = caller::stop_request(options)?;
    let mllog = milestones::open_logs(job, options, resumed, reporter)?;
    let threads = config.threads();
    let mut prepared = job.leader_first(|| Prepared::new(config, resumed, threads, reporter))?;
    prepared.share_machine(job.processes_here(), job.evaluating_here());
    let placement = prepared.placement(config, &job.topology(), &options.registry)?;
    job.check_same("the places of rows", placement.fingerprint())?;
    let plan = prepared.plan(config, &placement, &options.origin, &options.registry, reporter)?;
    prepared.train_rows = train_rows(config, options, &prepared, threads, reporter)?;
    let session = open_session(
        job,
        OpenArgs {
            prepared: &prepared,
            placement,
            start: Start::new(resumed, initial_weights(options)?.as_ref()),
            may_differ: options.flags.data_changed,
            record: history::record(config, options),
            registry: &options.registry,
        },
    )?;
    history::keep(job, options, resumed.is_some(), &session, reporter);
    announce(config, options, &prepared, &plan, (&session, resumed), reporter)
        .inspect_err(|error| session.abort(error))?;
    let rows = prepared.train_rows;
    let (saved_at, snapshots) = Taken::of_resumed(config, resumed);
    let mut run = Run {
        ends_at_step: session.last_step().or_else(|| Some(steps_of_epochs(config, rows?))),
        eval_every: eval_every(config, rows.filter(|_| !prepared.valid.is_empty())),
        train_rows: rows,
        mllog,
        meter: Meter::new(&session),
        saving: Duration::ZERO,
        saved_at,
        snapshots,
        is_first_step: true,
        best_possible_auc: prepared.synthetic().map(|report| report.best_auc),
        stop,
        session,
        config,
        options,
        reporter,
    };
    drop(preparing);
    let outcome = run.until_the_end();
    // Ranks of other processes hear why this one ends; after a signal all have agreed and said
    // goodbye.
    if let Err(error) = &outcome
        && !matches!(error, Error::Interrupted { .. })
    {
        run.session.abort(error);
        run.say_what_is_lost()?;
    }
    outcome
}

/// Refuses what fits in no case, with its plan, before data is made or read.
fn refuse_what_cannot_fit(job: &Job, options: &TrainOptions, reporter: &Reporter) -> Result<()> {
    let mut config = job.config.clone();
    config.multi_hot.is_idle = !data::is_drawn(&config, &[&config.data.train, &config.data.valid])?;
    let ranks_here = job.processes_here();
    let machine = Machine::detect_with(config.run.device)?;
    let place = Place {
        machine: &machine,
        ranks_here,
        evaluating_here: Some(job.evaluating_here()),
        separate: ranks_here.is_some(),
        registry: &options.registry,
    };
    match outlook::what_cannot_fit(&config, &place)? {
        Some((plan, error)) => {
            reporter.result(&format!("plan of {}\n{}", options.origin, plan.to_text()));
            Err(error)
        }
        None => Ok(()),
    }
}

/// Prints the plan, made of what is there, and refuses what does not fit. Writes nothing.
fn dry_run(
    job: &Job,
    options: &TrainOptions,
    resumed: Option<&Checkpoint>,
    reporter: &Reporter,
) -> Result<()> {
    let ranks_here = job.processes_here();
    let machine = Machine::detect_with(job.config.run.device)?;
    let place = Place {
        machine: &machine,
        ranks_here,
        evaluating_here: Some(job.evaluating_here()),
        separate: ranks_here.is_some(),
        registry: &options.registry,
    };
    let of_run = OfRun { resumed, topology: &job.topology(), data_rows: None };
    let planned = Planned::new(&job.config, &place, &of_run)?;
    reporter.result(&planned.text(&options.origin));
    planned.fits
}

fn announce(
    config: &Config,
    options: &TrainOptions,
    prepared: &Prepared,
    plan: &Plan,
    (session, resumed): (&Session, Option<&Checkpoint>),
    reporter: &mut Reporter,
) -> Result<()> {
    session.cleaned().for_each(|left| reporter.note(&format!("checkpoints: {left}")));
    evaluation::missing_data(config).iter().for_each(|note| reporter.note(note));
    if let Some(rows) = session.valid_samples().filter(|_| config.holdout().is_some()) {
        reporter.note(&format!(
            "{} rows of the training files are held out to validate on",
            report::count(rows)
        ));
    }
    if let Some(file) = evaluation::in_training(config) {
        reporter.note(&format!(
            "{file} is trained on and validated on: its metrics say nothing of other rows"
        ));
    }
    if session.steps() > 0 {
        reporter.note(&snapshots::resumed(config, session, resumed));
    }
    let to_value = |value: serde_json::Result<serde_json::Value>| value.unwrap_or_default();
    reporter.start(&report::Start {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        command: options.command.clone(),
        config: to_value(serde_json::to_value(config)),
        plan: to_value(serde_json::to_value(plan)),
        data: prepared.summary(session.valid_samples()),
        seed: config.train.seed,
    })?;
    snapshots::say_restarts(session, reporter)?;
    options.warnings.iter().try_for_each(|warning| reporter.warning(warning, Map::new()))
}

/// Rows of the training files; counted where they are not known and somebody needs them: for parts
/// of an epoch.
fn train_rows(
    config: &Config,
    options: &TrainOptions,
    prepared: &Prepared,
    threads: usize,
    reporter: &Reporter,
) -> Result<Option<u64>> {
    let ends_in_epoch = config.train.steps.is_none() && config.train.epochs.fract() != 0.0;
    let evaluates_in_epoch =
        matches!(config.eval.every, EvalEvery::EpochFraction(_)) && !prepared.valid.is_empty();
    match prepared.train_rows {
        None if ends_in_epoch || evaluates_in_epoch || options.flags.mllog.is_some() => {
            counted(config, prepared, threads, reporter).map(Some)
        }
        known => Ok(known),
    }
}

/// Steps between two evaluations; none where there is one at the end alone.
fn eval_every(config: &Config, rows: Option<u64>) -> Option<u64> {
    let per_step = (config.train.batch_size * config.train.accumulate) as f64;
    match config.eval.every {
        EvalEvery::Steps(steps) => (steps > 0).then_some(steps),
        // MLPerf's rule rounds down; a fraction below one step means every step.
        EvalEvery::EpochFraction(fraction) => {
            rows.map(|rows| ((rows as f64 * fraction / per_step).floor() as u64).max(1))
        }
    }
}

fn counted(
    config: &Config,
    prepared: &Prepared,
    threads: usize,
    reporter: &Reporter,
) -> Result<u64> {
    let started = Instant::now();
    let rows = data::count_training_rows(config, &prepared.train, threads)?;
    let seconds = started.elapsed().as_secs_f64();
    reporter.note(&format!(
        "counted {} training rows in {}",
        report::count(rows),
        report::duration(seconds)
    ));
    Ok(rows)
}

struct Run<'a> {
    config: &'a Config,
    options: &'a TrainOptions,
    reporter: &'a mut Reporter,
    session: Session,
    stop: StopRequest,
    meter: Meter,
    /// Where that is known before the data ends.
    ends_at_step: Option<u64>,
    eval_every: Option<u64>,
    train_rows: Option<u64>,
    mllog: Option<MlLog>,
    /// For how long training has stood still for checkpoints.
    saving: Duration,
    /// The step of the last checkpoint: of the one that the run began from, too.
    saved_at: Option<u64>,
    snapshots: Taken,
    is_first_step: bool,
    /// The synthetic data's best possible AUC, where that is the data.
    best_possible_auc: Option<f64>,
}

impl Run<'_> {
    fn until_the_end(&mut self) -> Result<()> {
        self.log_begin()?;
        loop {
            if let Some(signal) = self.agreed_stop()? {
                return self.interrupted(signal);
            }
            if !self.one_step()? {
                break;
            }
            let step = self.session.steps();
            if self.evaluate_when_due()? {
                return self.finish("target_auc");
            }
            if self.is_to_be_saved(step) {
                self.save(None)?;
            } else if self.snapshot_is_due(step) {
                self.take_snapshot()?;
            }
            if self.is_patience_over(step) {
                return self.finish("patience");
            }
        }
        match self.evaluate_last()? {
            true => self.finish("target_auc"),
            false => self.finish("finished"),
        }
    }

    /// The signal that ends the run. Ranks of other processes may have got it at another moment, or
    /// not at all: they agree with the gradients of a step.
    fn agreed_stop(&self) -> Result<Option<i32>> {
        let asked = self.stop.asked();
        if !self.session.group().has_remote_ranks() {
            return Ok(asked);
        }
        let agreed = self.session.stop_is_agreed()?;
        self.session.vote_to_stop(asked)?;
        Ok(agreed.then(|| asked.unwrap_or(libc::SIGTERM)))
    }

    /// One step and its progress; false where training has ended.
    fn one_step(&mut self) -> Result<bool> {
        let before = self.at();
        let enqueued = self.session.enqueue();
        // Ranks of other processes may have got their data, and wait for a step: with them nothing
        // can be saved.
        let may_save = before.step > 0 && !self.session.group().has_remote_ranks();
        if may_save && enqueued.as_ref().is_err_and(data::is_of_data) && self.is_unsaved() {
            // Where this fails, the end of the run says what is lost.
            let _ = self.save(None).and_then(|()| self.finish_saves());
        }
        let Some(step) = enqueued? else { return Ok(false) };
        self.log_training(before)?;
        if std::mem::take(&mut self.is_first_step) {
            let seconds = self.session.reader().skip_time().as_secs_f64();
            if seconds > 0.0 {
                self.reporter
                    .note(&format!("skipped to the first sample in {}", report::duration(seconds)));
            }
        }
        self.meter.add(&step, &self.session);
        let at = self.at();
        let fraction =
            self.meter.fraction(&self.session, self.ends_at_step, self.config.train.epochs);
        self.reporter.advance(at, fraction);
        if self.reporter.is_progress_due()
            && let Some(step) = self.meter.look(&self.session)
        {
            self.reporter.progress(at, &step);
        }
        if at.step.is_multiple_of(self.config.train.log_every.max(1)) {
            self.session.drain()?;
            let step = self.meter.report(&self.session);
            let _busy = self.session.group().busy("writes its log");
            self.reporter.step(at, &step)?;
        }
        Ok(true)
    }

    /// Every so many steps, and whenever an evaluation was the best so far: what is not saved
    /// cannot be kept. The last step is saved once, when the run ends.
    fn is_to_be_saved(&self, step: u64) -> bool {
        let settings = &self.config.checkpoint;
        let memory = self.session.memory();
        let is_best = memory.best.is_some_and(|best| best.step == step);
        let is_due = settings.save_every > 0 && step.is_multiple_of(settings.save_every);
        let has_folder = settings.dir.is_some() && !self.session.has_ended();
        has_folder && (is_due || is_best && self.config.saves_best())
    }

    fn at(&self) -> At {
        At { step: self.session.steps(), samples: self.session.samples() }
    }

    fn save(&mut self, finished: Option<&str>) -> Result<()> {
        // A checkpoint holds no evaluation half done: all that have begun are concluded first.
        self.conclude_evaluation()?;
        let started = Instant::now();
        let report = self.session.save(finished)?;
        self.saving += started.elapsed();
        // Of all ranks, though one alone has the folder: they agree on what is saved.
        self.saved_at = Some(self.session.steps());
        let Some(report) = report else { return Ok(()) };
        let seconds = started.elapsed().as_secs_f64();
        let at = self.at();
        let event = report::Checkpoint { path: report.path, bytes: report.bytes, seconds };
        self.reporter.checkpoint(at, &event)?;
        report.warnings.iter().try_for_each(|warning| self.reporter.warning(warning, Map::new()))
    }

    /// Whether there is a folder for checkpoints, and none of this step in it.
    fn is_unsaved(&self) -> bool {
        self.config.checkpoint.dir.is_some() && self.saved_at != Some(self.session.steps())
    }

    fn say_what_is_lost(&mut self) -> Result<()> {
        match self.session.steps() {
            step if step > 0 && self.is_unsaved() => {
                let saved = (self.saved_at, self.snapshots.last);
                self.reporter.warning(&remarks::lost(step, saved), Map::new())
            }
            _ => Ok(()),
        }
    }

    /// Waits for what saves have left to do.
    fn finish_saves(&mut self) -> Result<()> {
        let warnings = self.session.finish_saves();
        warnings.iter().try_for_each(|warning| self.reporter.warning(warning, Map::new()))
    }

    /// Saves, says the last words and ends with the signal's exit code.
    fn interrupted(&mut self, signal: i32) -> Result<()> {
        self.conclude_evaluation()?;
        let step = self.session.steps();
        if self.is_unsaved() {
            let (name, step) = (signal_name(signal), report::count(step));
            let rest = "a second signal ends the run at once, without saving";
            self.reporter.note(&format!("{name}: saving step {step}; {rest}"));
            self.save(None)?;
        }
        if self.config.checkpoint.dir.is_none() {
            // No one will go on with it.
            self.log_stop(false)?;
        }
        self.finish_saves()?;
        self.end_snapshots()?;
        let done = self.done(&signal_name(signal))?;
        self.say_what_is_wrong_with_the_data()?;
        let at = self.at();
        self.reporter.times(at, &self.times())?;
        self.reporter.done(at, &done)?;
        self.session.close()?;
        let folder = self.config.checkpoint.dir.as_ref().zip(self.saved_at);
        let folder = folder.map(|(dir, step)| dir.join(checkpoint::step_name(step)));
        let is_single_process = !self.session.group().has_remote_ranks();
        let (outcome, is_said) = match self.session.group().leads() {
            true => (remarks::stopped(step, folder.as_deref(), is_single_process), false),
            false => (String::new(), true),
        };
        Err(Error::Interrupted { signal, outcome, is_said })
    }

    fn finish(&mut self, reason: &str) -> Result<()> {
        let busy = self.session.group().busy("ends its run");
        self.log_stop(reason == "target_auc" || self.config.eval.target_auc.is_none())?;
        let done = self.done(reason)?;
        let memory = self.session.memory_mut();
        memory.asked_for = Some(asked_for(self.config));
        memory.reached = None;
        memory.done = serde_json::to_value(&done).ok();
        self.save(Some(reason))?;
        self.finish_saves()?;
        self.end_snapshots()?;
        if self.options.flags.time {
            let ceiling = self.ceiling();
            self.reporter.result(&self.session.group().first().recorder().table(ceiling.as_ref()));
        }
        if let Some(file) = &self.options.flags.trace {
            let file = self.session.group().write_trace(file)?;
            let what = match crate::iteration::trace::is_picture(&file) {
                true => "a picture of the last step, for any browser",
                false => "open it with https://ui.perfetto.dev",
            };
            self.reporter.note(&format!("trace {}: {what}", file.display()));
        }
        self.say_what_is_wrong_with_the_data()?;
        let last = done.last_eval.and_then(|eval| remarks::worse_than_none(&eval.metrics));
        let few = remarks::few_steps(self.config, self.session.steps());
        few.into_iter().chain(last).for_each(|note| self.reporter.note(&note));
        let reached = done.last_eval.and_then(|eval| eval.metrics.auc).zip(self.best_possible_auc);
        self.reporter.result(&remarks::what_was_reached(self.config, &done, reached));
        let at = self.at();
        self.reporter.times(at, &self.times())?;
        self.reporter.done(at, &done)?;
        drop(busy);
        self.session.close()
    }

    /// What a processor's stages are compared with.
    fn ceiling(&self) -> Option<Ceiling> {
        let threads = self.config.threads();
        let ranks_here = self.session.group().len();
        (self.config.run.device != DeviceChoice::Cuda)
            .then(|| Ceiling::measure(self.config, threads, ranks_here))
    }

    fn say_what_is_wrong_with_the_data(&mut self) -> Result<()> {
        let training = remarks::skipped("training data", &self.session.reader().skip_report());
        let validation = remarks::skipped("validation data", self.session.skipped_in_evaluation());
        for (message, fields) in [training, validation].into_iter().flatten() {
            self.reporter.warning(&message, fields)?;
        }
        match self.session.reader().only_label() {
            Some((samples, label)) => {
                self.reporter.warning(&remarks::one_class(samples, label), Map::new())
            }
            None => Ok(()),
        }
    }

    fn done(&self, reason: &str) -> Result<Done> {
        Ok(Done {
            reason: reason.to_owned(),
            wall_s: self.reporter.seconds(),
            samples_per_s: self.meter.samples_per_s(&self.session),
            peak_rss_bytes: crate::system::machine::peak_rss_bytes(),
            weights_digest: self.session.weights_digest()?,
            exchange_bytes_per_step: self.session.group().sent_per_step()?,
            data_bytes_read: Some(self.session.reader().progress().bytes_read)
                .filter(|&bytes| bytes > 0),
            eval_share: self.meter.eval_share(&self.session),
            eval_step: self.session.memory().last_eval_step,
            best_eval: self.session.memory().best,
            last_eval: self.meter.last_eval(),
        })
    }
}
