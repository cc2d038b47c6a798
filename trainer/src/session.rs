//! Training from a program of one's own.

use crate::config::Config;
use crate::data::{self, EvaluationData, Reads};
use crate::error::{Error, Result};
use crate::iteration::job::Job;
use crate::iteration::trace::Record;
use crate::metrics::{EvalMetrics, probability};
use crate::report::Reporter;
use crate::run::device::{self, RanksHere};
use crate::run::open::{OpenArgs, open_session};
use crate::run::prepare::Prepared;
use crate::run::session::{self as run, Start, StepOutcome, find_checkpoint, predict_all};
use crate::run::sums;
use crate::state::checkpoint;
use crate::table::Registry;
use headlong_reader::io::DataFile;
use std::path::PathBuf;

/// A model in training, its data and its checkpoints; all ranks are threads of this process.
///
/// Every setting is a key of the [`Config`]. A step is the whole iteration of `headlong train`:
/// the same configuration gives the same weights here and there, bit for bit.
pub struct Session {
    inner: run::Session,
    config: Config,
    threads: usize,
    failure: Option<Failure>,
}

/// Why a session trains no more.
struct Failure {
    text: String,
    /// Bad data leaves the weights as they were.
    is_of_data: bool,
}

/// How a [`Session`] is opened.
pub struct SessionBuilder {
    config: Config,
    registry: Registry,
    resume: bool,
    weights_of: Option<PathBuf>,
}

impl SessionBuilder {
    /// Tables of kinds that `registry` knows, besides those that Headlong brings.
    #[must_use]
    pub fn registry(mut self, registry: &Registry) -> Self {
        self.registry = registry.clone();
        self
    }

    /// Resumes from the newest checkpoint in `checkpoint.dir`, in the same bits; starts from the
    /// beginning where there is none yet. Without `checkpoint.dir`, opening fails.
    #[must_use]
    pub fn resume(mut self) -> Self {
        self.resume = true;
        self
    }

    /// Starts with the weights of a checkpoint: its folder, or the folder of several. With
    /// [`SessionBuilder::resume`], opening fails: a run that resumes has weights.
    #[must_use]
    pub fn weights_of(mut self, checkpoint: impl Into<PathBuf>) -> Self {
        self.weights_of = Some(checkpoint.into());
        self
    }

    /// Checks the configuration, finds or makes the data, plans all memory, refuses what does not
    /// fit, and builds the model.
    ///
    /// # Errors
    /// A configuration that contradicts itself, or whose transport joins processes; files that
    /// cannot be read; a plan that does not fit; a checkpoint of another model, or, without
    /// [`SessionBuilder::resume`], a folder that has checkpoints of an earlier run.
    pub fn open(self) -> Result<Session> {
        let Self { mut config, registry, resume, weights_of } = self;
        config.resolve_holdout();
        if config.train.seeds != 1 {
            let reason = "a session trains one model: open one for each seed";
            return Err(Error::config("train.seeds", reason));
        }
        config.validate_with(&registry)?;
        config.require_data()?;
        if resume && config.checkpoint.dir.is_none() {
            return Err(Error::config("checkpoint.dir", "no folder to resume from is named"));
        }
        if resume && weights_of.is_some() {
            let reason = "a run that resumes takes the weights of its own checkpoint";
            return Err(Error::contradiction("resume()", "weights_of(…)", reason));
        }
        let config = data::resolve(&config)?;
        let here = RanksHere::single_process(&config);
        let config = device::decide(&config, here, &registry)?.config;
        let config = sums::decide_for_run(&config, resume);
        let mut job = Job::single_process(&config)?;
        let config = job.config.clone();
        let resumed = find_checkpoint(&config, resume, true)?;
        data::check_pipes(&config, Reads { is_resumed: resumed.is_some(), has_mllog: false })?;
        let initial = weights_of.as_deref().map(checkpoint::open).transpose();
        let initial = initial.map_err(Error::failed("the checkpoint cannot be used"))?;
        let threads = config.threads();
        let quiet = Reporter::quiet(None);
        let prepared = Prepared::new(&config, resumed.as_ref(), threads, &quiet)?;
        let placement = prepared.placement(&config, &job.topology(), &registry)?;
        prepared.plan(&config, &placement, "this program", &registry, &quiet)?;
        let args = OpenArgs {
            prepared: &prepared,
            placement,
            start: Start::new(resumed.as_ref(), initial.as_ref()),
            may_differ: false,
            record: Record::default(),
            registry: &registry,
        };
        Ok(Session { inner: open_session(&mut job, args)?, config, threads, failure: None })
    }
}

impl Session {
    /// Opens a session with the tables that Headlong brings.
    ///
    /// # Errors
    /// As [`SessionBuilder::open`].
    pub fn open(config: &Config) -> Result<Self> {
        Self::builder(config).open()
    }

    /// A session of `config`, to be opened.
    pub fn builder(config: &Config) -> SessionBuilder {
        let (config, registry) = (config.clone(), Registry::default());
        SessionBuilder { config, registry, resume: false, weights_of: None }
    }

    /// Trains on the next batch and waits for its loss; `None` where training has ended: after
    /// `train.steps` steps, or `train.epochs` passes over the data.
    ///
    /// # Errors
    /// Bad data (names file and line); a loss that is not finite (names step and layer). After an
    /// error, every further call fails: open the session again.
    pub fn step(&mut self) -> Result<Option<StepOutcome>> {
        if let Some(failure) = &self.failure {
            return Err(failed_before(failure));
        }
        self.inner.step().inspect_err(|error| {
            let is_of_data = data::is_of_data(error);
            self.failure = Some(Failure { text: format!("{error:?}"), is_of_data });
        })
    }

    /// Trains until the end. It evaluates and saves nothing on the way: `eval.every` and
    /// `checkpoint.save_every` are for `headlong train`.
    ///
    /// # Errors
    /// As [`Session::step`].
    pub fn train(&mut self) -> Result<()> {
        while self.step()?.is_some() {}
        Ok(())
    }

    /// Evaluates the weights as they are on `data.valid`; `None` where there is none.
    ///
    /// # Errors
    /// Data that cannot be read.
    pub fn evaluate(&mut self) -> Result<Option<EvalMetrics>> {
        self.inner.evaluate()
    }

    /// The click probability of every row of `files`, labelled or not, in their order, with the
    /// weights as they are.
    ///
    /// # Errors
    /// Data that cannot be read.
    pub fn predict<P: Into<PathBuf>>(
        &mut self,
        files: impl IntoIterator<Item = P>,
    ) -> Result<Vec<f32>> {
        let files: Vec<_> = files.into_iter().map(|file| DataFile::from(file.into())).collect();
        let mut config = self.config.clone();
        config.data.format = data::format_to_predict(&config, &files, None);
        config.data.ignores_others = true;
        data::ignore_labels(&mut config);
        config.clear_holdout();
        let ids = self.inner.ids_now()?;
        let mut probabilities = Vec::new();
        for file in &files {
            let labelled = data::has_labels_to_skip(&config, file)?;
            let file = std::slice::from_ref(file);
            let rows = EvaluationData::open_once(&config, file, labelled, self.threads)?;
            predict_all(self.inner.group(), &mut *rows.reader(&ids)?, &mut |logits, _| {
                probabilities.extend(logits.iter().map(|&logit| probability(logit)));
                Ok(())
            })?;
        }
        Ok(probabilities)
    }

    /// Saves a checkpoint in `checkpoint.dir`, and returns its folder. A crash at any moment leaves
    /// the one before it whole. After bad data, the steps before it can be saved.
    ///
    /// # Errors
    /// No `checkpoint.dir`; a full disk, or whatever else the system says; training that has failed
    /// by anything but bad data, whose weights may be of no use.
    pub fn save(&mut self) -> Result<PathBuf> {
        if let Some(failure) = self.failure.as_ref().filter(|failure| !failure.is_of_data) {
            return Err(failed_before(failure));
        }
        let has_ended = self.failure.is_none() && self.inner.has_ended();
        let finished = has_ended.then_some("finished");
        let report = self.inner.save(finished)?;
        let folder = report.map(|report| report.path);
        folder.ok_or_else(|| Error::config("checkpoint.dir", "no folder to save in is named"))
    }

    /// Steps trained, those of the run that was resumed included.
    pub fn steps(&self) -> u64 {
        self.inner.steps()
    }

    /// A short text that is equal for equal weights and optimiser states.
    ///
    /// # Errors
    /// A device that has failed.
    pub fn weights_digest(&self) -> Result<String> {
        self.inner.weights_digest()
    }
}

fn failed_before(failure: &Failure) -> Error {
    Error::Usage(format!("this session has failed before ({}): open it again", failure.text))
}
