//! Which trials are trained, and how far: successive halving, then a comparison of the best with
//! the base on rows that chose nothing, then the final score.

use super::journal::{Journal, Line, Scored, Task};
use super::plan::{Costs, MEASURED, Plan, rivals, rungs, stages, survivors};
use super::score::in_words;
use super::space::{Settings, Space};
use super::workers::{self, Job};
use crate::config::{Config, DeviceChoice, EvalEvery};
use crate::error::{Error, Result};
use crate::metrics::EvalMetric;
use crate::report::output::say;
use crate::system::signals::StopRequest;
use headlong_reader::formats::part::HoldoutBy;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A challenger is better where its mean advantage on other folds is more than so many standard
/// errors.
const STANDARD_ERRORS: f64 = 2.0;

/// Between two lines that say how far trials are.
const PAUSE: Duration = Duration::from_secs(2);

/// How trials become runs.
pub struct Trials<'a> {
    pub base: &'a Config,
    pub space: &'a Space,
    /// `cpu` or `cuda`, decided.
    pub device: DeviceChoice,
    pub seed: u64,
    pub workers: usize,
    pub stop: StopRequest,
    /// Share of the training rows that a fold is.
    pub share: f64,
    /// Share that no trial sees; 0 where there are validation files.
    pub test: f64,
}

/// A finalist and what it has on other folds.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    pub trial: usize,
    pub epochs: f64,
    /// By how much its score is higher than the base's, on each fold.
    pub differences: Vec<f64>,
}

/// Everything that is found out.
pub struct Found {
    pub settings: Vec<Settings>,
    pub compared: Vec<Compared>,
    /// The trial that is best, and for how many epochs.
    pub best: (usize, f64),
    /// On rows that no trial has seen: of the base, and of the best.
    pub finals: [Line; 2],
}

impl Compared {
    pub fn mean(&self) -> f64 {
        self.differences.iter().sum::<f64>() / self.differences.len() as f64
    }

    /// Of the mean.
    pub fn standard_error(&self) -> f64 {
        let (mean, count) = (self.mean(), self.differences.len() as f64);
        let squares = self.differences.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        (squares / (count - 1.0) / count).sqrt()
    }

    pub fn is_better(&self) -> bool {
        self.mean() > STANDARD_ERRORS * self.standard_error()
    }
}

impl Trials<'_> {
    /// Folds besides the one on which trials are selected. Of the last rows there is one fold:
    /// there, other seeds take the place of other rows.
    pub fn most_folds(&self) -> u64 {
        match self.base.data.holdout_by {
            HoldoutBy::Last => u64::MAX,
            HoldoutBy::Random => (((1.0 - self.test) / self.share + 1e-9) as u64).saturating_sub(1),
        }
    }

    fn metric(&self) -> EvalMetric {
        self.base.eval.metric
    }

    fn epochs(&self) -> f64 {
        self.base.train.epochs
    }

    /// Does what the plan says, makes one of the time where there is none, and finds the best.
    pub fn search(&self, journal: &mut Journal, seconds: f64) -> Result<Found> {
        let mut settings = vec![Settings::default()];
        if journal.plan().is_none() {
            let costs = self.measure(journal)?;
            let time = (seconds, self.workers);
            let (plan, expected) = Plan::of_time(time, costs, self.epochs(), self.most_folds());
            say(format_args!("{}", plan.in_words(Some(expected))));
            journal.decide(plan)?;
        }
        let plan = journal.plan().cloned().expect("decided before");
        for &group in &plan.groups {
            self.halve(journal, &plan, group, &mut settings)?;
        }
        let compared = self.compare(journal, &plan, &settings)?;
        let to_the_end = |of: &&Compared| of.differences.len() as u64 == plan.folds;
        let better = compared.iter().filter(to_the_end).filter(|of| of.is_better());
        let best = better.max_by(|one, other| one.mean().total_cmp(&other.mean()));
        let best = best.map_or((0, self.epochs()), |best| (best.trial, best.epochs));
        let finals = self.score_finally(journal, &settings, best)?;
        Ok(Found { settings, compared, best, finals })
    }

    /// Runs the first trials to the first rung, as any plan does.
    fn measure(&self, journal: &mut Journal) -> Result<Costs> {
        let epochs = rungs(self.epochs())[0];
        let mut settings = vec![Settings::default()];
        self.draw(MEASURED - 1, &Settings::default(), &mut settings);
        let tasks: Vec<Task> = (0..settings.len())
            .map(|trial| Task { trial, scored: Scored::Fold(0), epochs })
            .collect();
        self.run(journal, &settings, &tasks)?;
        let lines = tasks.iter().filter_map(|task| journal.line(task));
        let (mut count, mut start_s, mut train_s) = (0.0, 0.0, 0.0);
        for line in lines.filter(|line| line.error.is_none()) {
            count += 1.0;
            start_s += line.start_seconds;
            train_s += (line.seconds - line.start_seconds).max(0.0);
        }
        let models = self.base.train.seeds;
        Ok(Costs { epoch_s: train_s / count / epochs, start_s: start_s / count, models })
    }

    fn draw(&self, count: usize, centre: &Settings, settings: &mut Vec<Settings>) {
        for _ in 0..count {
            let drawn = self.space.draw(self.base, (self.seed, settings.len()), centre, settings);
            settings.push(drawn);
        }
    }

    /// A group of new trials around the best so far, of which half are trained further on each
    /// rung. The base goes along to the end.
    fn halve(
        &self,
        journal: &mut Journal,
        plan: &Plan,
        group: usize,
        settings: &mut Vec<Settings>,
    ) -> Result<()> {
        // Of later trials, an interrupted search knows some results already.
        let first = settings.len();
        let mut earlier = self.ranked(journal).into_iter().map(|best| best.0);
        let centre = settings[earlier.find(|&trial| trial < first).unwrap_or(0)].clone();
        self.draw(group, &centre, settings);
        let mut alive: Vec<usize> = (first..settings.len()).collect();
        for (rung, &epochs) in plan.rungs.iter().enumerate() {
            let base = std::iter::once(0);
            let task = |trial| Task { trial, scored: Scored::Fold(0), epochs };
            let tasks: Vec<Task> = base.chain(alive.iter().copied()).map(task).collect();
            self.run(journal, settings, &tasks)?;
            let mut ranked: Vec<(usize, f64)> = alive
                .iter()
                .filter_map(|&trial| Some((trial, self.score(journal, &task(trial))?)))
                .collect();
            ranked.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
            let is_last = rung + 1 == plan.rungs.len();
            let kept = if is_last { 0 } else { survivors(alive.len()) };
            let kept: Vec<usize> = ranked.iter().take(kept).map(|(trial, _)| *trial).collect();
            for &trial in alive.iter().filter(|trial| !kept.contains(trial)) {
                self.remove(journal, &task(trial))?;
            }
            alive = kept;
        }
        self.remove(journal, &Task { trial: 0, scored: Scored::Fold(0), epochs: 0.0 })
    }

    /// Trials that were trained on fold 0, each at its best length, the best first.
    fn ranked(&self, journal: &Journal) -> Vec<(usize, f64, f64)> {
        let of_fold = journal.lines().iter().filter(|line| line.scored == Scored::Fold(0));
        let mut ranked: Vec<(usize, f64, f64)> = of_fold
            .filter_map(|line| Some((line.trial, line.epochs, line.score(self.metric())?)))
            .collect();
        ranked.sort_by(|one, other| {
            let order = other.2.total_cmp(&one.2).then(one.0.cmp(&other.0));
            order.then(one.1.total_cmp(&other.1))
        });
        let mut seen = Vec::new();
        ranked.retain(|(trial, ..)| {
            let is_new = !seen.contains(trial);
            seen.push(*trial);
            is_new
        });
        ranked
    }

    /// The best trials and the base on folds on which no trial was selected: of those that are
    /// compared, the better half stays for further folds.
    fn compare(
        &self,
        journal: &mut Journal,
        plan: &Plan,
        settings: &[Settings],
    ) -> Result<Vec<Compared>> {
        let base = (0, self.epochs());
        let task = |(trial, epochs): (usize, f64), fold| {
            let scored = Scored::Fold(fold);
            Task { trial, scored, epochs }
        };
        let to_beat = self.score(journal, &task(base, 0)).unwrap_or(f64::NEG_INFINITY);
        let mut compared: Vec<Compared> = self
            .ranked(journal)
            .into_iter()
            .filter(|(trial, epochs, score)| (*trial, *epochs) != base && *score > to_beat)
            .map(|(trial, epochs, _)| Compared { trial, epochs, differences: Vec::new() })
            .take(plan.finalists)
            .collect();
        if compared.is_empty() {
            return Ok(compared);
        }
        let mut alive = compared.len();
        for stage in stages(plan.folds) {
            let others = compared[..alive].iter().map(|of| (of.trial, of.epochs));
            let all = std::iter::once(base).chain(others);
            let tasks: Vec<Task> =
                all.flat_map(|of| stage.clone().map(move |fold| task(of, fold))).collect();
            self.run(journal, settings, &tasks)?;
            tasks.iter().try_for_each(|task| self.remove(journal, task))?;
            for rival in &mut compared[..alive] {
                let differences = stage.clone().map(|fold| {
                    let of = [(rival.trial, rival.epochs), base];
                    let [score, of_base] = of.map(|of| self.score(journal, &task(of, fold)));
                    // One that fails there is not better.
                    score.zip(of_base).map_or(f64::NEG_INFINITY, |(score, base)| score - base)
                });
                rival.differences.extend(differences);
            }
            // Stable: where two are as good, the one that was better on fold 0.
            compared[..alive].sort_by(|one, other| other.mean().total_cmp(&one.mean()));
            alive = rivals(alive);
        }
        Ok(compared)
    }

    /// The base and the best, trained on all rows that are not scored: for the first time on these.
    fn score_finally(
        &self,
        journal: &mut Journal,
        settings: &[Settings],
        best: (usize, f64),
    ) -> Result<[Line; 2]> {
        let tasks = [(0, self.epochs()), best].map(|(trial, epochs)| Task {
            trial,
            scored: Scored::Final,
            epochs,
        });
        let is_same = tasks[0] == tasks[1];
        self.run(journal, settings, if is_same { &tasks[..1] } else { &tasks })?;
        let of = |task: &Task| {
            let line = journal.line(task).filter(|line| line.error.is_none());
            line.cloned().ok_or_else(|| {
                let trial = task.trial;
                let error = std::io::Error::other("trained on all rows, it has no score");
                Error::failed(format!("trial {trial}"))(error)
            })
        };
        Ok([of(&tasks[0])?, of(&tasks[1])?])
    }

    fn score(&self, journal: &Journal, task: &Task) -> Option<f64> {
        journal.line(task)?.score(self.metric())
    }

    /// Runs those of `tasks` of which nothing is known.
    fn run(&self, journal: &mut Journal, settings: &[Settings], tasks: &[Task]) -> Result<()> {
        let unknown: Vec<&Task> =
            tasks.iter().filter(|task| journal.line(task).is_none()).collect();
        let jobs: Result<Vec<Job>> = unknown
            .iter()
            .map(|task| {
                let folder = self.folder(journal, task);
                let config = self.config(&settings[task.trial], task, &folder)?;
                let settings = settings[task.trial].to_json();
                Ok(Job { task: **task, config, settings, folder })
            })
            .collect();
        let (mut left, metric) = (unknown.len(), self.metric());
        let then = [journal.asked().data.clone(), journal.asked().valid.clone()];
        let mut has_changed = false;
        let mut said: Option<Instant> = None;
        let done = workers::run(jobs?, self.workers, &self.stop, &mut |line| {
            left -= 1;
            // Until it is known to be the same.
            has_changed = true;
            has_changed = super::contents(self.base)? != then;
            if has_changed {
                let message = "the data has changed while trials read it: what is known is of the \
                               files as they were; put them back, and run the same command";
                return Err(Error::config("--data", message));
            }
            // Short trials would fill the screen.
            let is_said = line.error.is_some() || said.is_none_or(|said| said.elapsed() > PAUSE);
            if !is_said {
                return journal.add(line);
            }
            said = Some(Instant::now());
            let score = match (&line.error, line.metrics) {
                (Some(error), _) => format!("failed: {error}"),
                (None, Some(metrics)) => in_words(&metrics, metric),
                (None, None) => "no score".to_owned(),
            };
            let (trial, scored, epochs) = (line.trial, line.scored, line.epochs);
            let rest = if left > 0 { format!("  ({left} to go)") } else { String::new() };
            say(format_args!("trial {trial}  {scored}  {epochs} epochs  {score}{rest}"));
            journal.add(line)
        });
        if has_changed {
            // From the beginning they come to the same, and what they have kept is of other data.
            let unfinished = unknown.iter().filter(|task| journal.line(task).is_none());
            unfinished.into_iter().try_for_each(|task| self.remove(journal, task))?;
        }
        done
    }

    fn folder(&self, journal: &Journal, task: &Task) -> PathBuf {
        workers::folder_of(journal.folder(), task)
    }

    fn remove(&self, journal: &Journal, task: &Task) -> Result<()> {
        workers::remove(&self.folder(journal, task))
    }

    /// The configuration of a run of `headlong train` that does a task.
    fn config(&self, settings: &Settings, task: &Task, folder: &std::path::Path) -> Result<Config> {
        let mut config = tuned(self.base, settings, task.epochs)?;
        match task.scored {
            Scored::Fold(fold) => {
                let (seed, order_seed) = (&mut config.train.seed, &mut config.data.order_seed);
                (*seed, *order_seed) = (seed.wrapping_add(fold), order_seed.wrapping_add(fold));
                let data = &mut config.data;
                data.valid = data.train.clone();
                (data.holdout, data.holdout_test) = (self.share, self.test);
                data.holdout_fold = if data.holdout_by == HoldoutBy::Last { 0 } else { fold };
            }
            Scored::Final if self.test > 0.0 => {
                config.data.valid = config.data.train.clone();
                config.data.holdout = self.test;
            }
            Scored::Final => config.data.valid = self.base.data.valid.clone(),
        }
        config.checkpoint.dir = Some(folder.join(workers::CHECKPOINTS));
        (config.checkpoint.save_every, config.checkpoint.keep) = (0, 1);
        config.checkpoint.keep_best = false;
        config.run.output_dir = folder.join(workers::OUTPUT);
        config.run.device = self.device;
        config.run.threads = (self.device == DeviceChoice::Cpu).then_some(1);
        (config.run.ranks, config.run.eval_ranks) = (1, None);
        config.run.eval_processes = None;
        if matches!(task.scored, Scored::Fold(_)) {
            config.train.seeds = 1;
        }
        Ok(config)
    }
}

/// The configuration that `headlong train` takes to train a trial on all rows of the training
/// files. The length is chosen: nothing stops it before.
pub fn tuned(base: &Config, settings: &Settings, epochs: f64) -> Result<Config> {
    let mut config = settings.apply(base)?;
    config.train.epochs = epochs;
    (config.eval.every, config.eval.patience) = (EvalEvery::Steps(0), None);
    if config.data.holdout > 0.0 {
        config.data.valid.clear();
    }
    config.clear_holdout();
    Ok(config)
}
