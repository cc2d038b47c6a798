//! Before the first step: files found or made, ids given rows, the plan printed and checked.

use crate::Registry;
use crate::config::{Config, Ids};
use crate::data::{self, DeviceRows, EvaluationData, key as data_key};
use crate::error::{Error, Result};
use crate::plan::placement::Placement;
use crate::plan::{Facts, Plan};
use crate::report::{DataSummary, Reporter, count};
use crate::run::dictionary::RunDictionary;
use crate::run::outlook::Outlook;
use crate::run::session::SessionData;
use crate::run::snapshots::check_room;
use crate::run::statistics::{self, Counting};
use crate::state::checkpoint::Checkpoint;
use crate::system::machine::Machine;
use headlong_comm::Topology;
use headlong_device::pool::Pool;
use headlong_embedding::hybrid::statistics::Statistics;
use headlong_reader::IdMapper;
use headlong_reader::io::DataFile;
use headlong_reader::multi_hot::MultiHot;
use headlong_reader::synthetic::{
    self, SyntheticData, SyntheticEvent, SyntheticOptions, SyntheticReport,
};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Folder of the synthetic data in the output folder.
pub(crate) const SYNTHETIC_FOLDER: &str = "synthetic-data";

/// The files of a run and what is known of them before training.
pub struct Prepared {
    pub train: Vec<DataFile>,
    pub valid: Vec<DataFile>,
    /// The synthetic data, where that is what the run trains on: no other run replaces it as long
    /// as this value lives.
    synthetic: Option<SyntheticData>,
    /// The dictionary, where ids come from one.
    pub dictionary: Option<RunDictionary>,
    /// Rows of the training files, where known.
    pub train_rows: Option<u64>,
    pub table_rows: Vec<u64>,
    /// Whether there is nothing to draw bags for: none are asked for, or none of the data is
    /// one-hot.
    needs_no_bags: bool,
    /// The bags that rows stand for, where several ids are made of one and somebody has asked for
    /// them.
    multi_hot: OnceLock<Option<Arc<MultiHot>>>,
    /// How frequent the rows are, where there are several ranks.
    pub statistics: Option<Statistics>,
    /// Ranks on this machine, where each is a process of its own.
    ranks_here: Option<usize>,
    /// Processes of this machine that only evaluate.
    evaluating_here: usize,
}

impl Prepared {
    /// Finds or makes the data. `resumed` is the checkpoint that the run resumes from: it brings
    /// its dictionary.
    pub fn new(
        config: &Config,
        resumed: Option<&Checkpoint>,
        threads: usize,
        reporter: &Reporter,
    ) -> Result<Self> {
        data::check_beginning(config)?;
        let mut prepared = Self::named_by(config);
        if prepared.train.is_empty() {
            prepared.make_synthetic(config, threads, reporter)?;
        } else {
            prepared.train_rows = data::known_training_rows(config, &prepared.train)?;
        }
        if config.data.ids == Ids::Dictionary {
            prepared.dictionary = Some(match resumed {
                Some(checkpoint) => RunDictionary::of_checkpoint(checkpoint, config)?,
                None => RunDictionary::find_or_build(config, &prepared.train, threads, reporter)?,
            });
        }
        prepared.count(config, resumed, (threads, true), reporter)?;
        Ok(prepared)
    }

    /// What is there already, for a plan: writes nothing. None where data or a dictionary would
    /// have to be made first.
    pub fn as_it_is(config: &Config, resumed: Option<&Checkpoint>) -> Result<Option<Self>> {
        let mut prepared = Self::named_by(config);
        if prepared.train.is_empty() {
            let folder = config.run.output_dir.join(SYNTHETIC_FOLDER);
            let Some(report) = synthetic::find(&synthetic_options(config), &folder) else {
                return Ok(None);
            };
            prepared.train_on(&report);
        } else {
            prepared.train_rows = data::known_training_rows(config, &prepared.train)?;
        }
        if config.data.ids == Ids::Dictionary {
            prepared.dictionary = RunDictionary::that_is_there(config, &prepared.train, resumed)?;
            if prepared.dictionary.is_none() {
                return Ok(None);
            }
        }
        let threads = config.threads();
        prepared.count(config, resumed, (threads, false), &Reporter::quiet(None))?;
        Ok(Some(prepared))
    }

    /// The files that the configuration names, of which nothing is known.
    fn named_by(config: &Config) -> Self {
        Self {
            train: config.data.train.clone(),
            valid: config.data.valid.clone(),
            synthetic: None,
            dictionary: None,
            train_rows: None,
            table_rows: Vec::new(),
            needs_no_bags: false,
            multi_hot: OnceLock::new(),
            statistics: None,
            ranks_here: None,
            evaluating_here: 0,
        }
    }

    /// Takes how many processes of this machine train, where each rank is one, and how many only
    /// evaluate.
    pub(crate) fn share_machine(&mut self, training: Option<usize>, evaluating: usize) {
        (self.ranks_here, self.evaluating_here) = (training, evaluating);
    }

    /// Counts what follows from files and dictionary: rows of tables, and how frequent they are.
    /// `is_kept`: statistics that are counted now are left for the next run.
    fn count(
        &mut self,
        config: &Config,
        resumed: Option<&Checkpoint>,
        (threads, is_kept): (usize, bool),
        reporter: &Reporter,
    ) -> Result<()> {
        self.needs_no_bags = !data::is_drawn(config, &[&self.train, &self.valid])?;
        let dictionary = self.dictionary.as_ref();
        self.train_rows = self.train_rows.or(dictionary.and_then(RunDictionary::counted_rows));
        self.table_rows =
            config.table_rows(dictionary.map(RunDictionary::table_rows).as_deref())?;
        dictionary.map_or(Ok(()), |found| found.check_rows(config, &self.table_rows))?;
        let kept = resumed.map(statistics::of_checkpoint).transpose()?.flatten();
        let pools_by_cost = (0..config.data.num_sparse).any(|table| config.pools_by_cost(table));
        self.statistics = match (config.run.ranks, kept) {
            // A single rank has all rows, but sums them as several would.
            (1, _) if !pools_by_cost => None,
            (_, Some(kept)) => Some(kept),
            (_, None) => {
                let counting = Counting {
                    table_rows: &self.table_rows,
                    files: &self.train,
                    ids: self.id_mapper(config)?,
                    dictionary: dictionary.map(RunDictionary::checksum),
                    is_kept,
                };
                Some(counting.find_or_count(config, threads, reporter)?)
            }
        };
        Ok(())
    }

    /// Where the rows lie.
    pub fn placement(
        &self,
        config: &Config,
        topology: &Topology,
        registry: &Registry,
    ) -> Result<Placement> {
        Placement::new(config, &self.table_rows, topology, self.statistics.as_ref(), registry)
    }

    fn make_synthetic(
        &mut self,
        config: &Config,
        threads: usize,
        reporter: &Reporter,
    ) -> Result<()> {
        let options = synthetic_options(config);
        let folder = config.run.output_dir.join(SYNTHETIC_FOLDER);
        let mut hear = |event| match event {
            SyntheticEvent::Begins => reporter.note(&format!(
                "no --data: writing synthetic Criteo-format data, {} + {} rows, to {}",
                count(options.train_rows),
                count(options.valid_rows),
                folder.display()
            )),
            SyntheticEvent::Waits => reporter.note(&format!(
                "no --data: another process writes synthetic data to {}: waiting for it",
                folder.display()
            )),
            SyntheticEvent::Rows(_) => {}
        };
        let data = synthetic::obtain(&options, &folder, &Pool::new(threads), &mut hear)
            .map_err(Error::failed("there is no synthetic data to train on"))?;
        let report = &data.report;
        reporter.result(&format!(
            "data      {} and {} ({}); click rate {:.4}; best possible AUC {:.5}, log loss {:.5}",
            report.train_file.display(),
            report.valid_file.display(),
            if report.reused { "made earlier" } else { "made now" },
            report.click_rate,
            report.best_auc,
            report.best_log_loss
        ));
        self.train_on(report);
        self.synthetic = Some(data);
        Ok(())
    }

    fn train_on(&mut self, report: &SyntheticReport) {
        self.train = vec![report.train_file.clone().into()];
        if self.valid.is_empty() {
            self.valid = vec![report.valid_file.clone().into()];
        }
        self.train_rows = Some(report.options.train_rows);
    }

    /// The report of the synthetic data, where that is what the run trains on.
    pub fn synthetic(&self) -> Option<&SyntheticReport> {
        self.synthetic.as_ref().map(|data| &data.report)
    }

    /// Prints the plan, briefly where it fits, and refuses what does not fit; `origin` says
    /// where the configuration is from.
    pub fn plan(
        &self,
        config: &Config,
        placement: &Placement,
        origin: &str,
        registry: &Registry,
        reporter: &Reporter,
    ) -> Result<Plan> {
        let config = &self.with_data(config);
        config.check_tables(&self.table_rows, registry)?;
        let machine = Machine::detect_with(config.run.device)?;
        let Outlook { kept_bytes, cached_bytes, .. } = Outlook::of(config)?;
        let facts = Facts {
            data_rows: self.train_rows,
            split: placement.split.as_ref(),
            ranks_here: self.ranks_here,
            separate: self.ranks_here.is_some(),
            evaluating_here: Some(self.evaluating_here),
            nodes: placement.num_nodes,
            kept_bytes,
            cached_bytes,
            device_rows: DeviceRows::of(config, self.train_rows),
            ..Facts::new(&self.table_rows, &machine, registry)
        };
        let plan = Plan::new(config, &facts);
        let text = if plan.fits { plan.summary() } else { plan.to_text() };
        reporter.result(&format!("plan of {origin}\n{text}"));
        plan.check(config, &facts)?;
        check_room(config, &plan)?;
        Ok(plan)
    }

    /// `config`, with what this data says of it.
    fn with_data(&self, config: &Config) -> Config {
        let mut config = config.clone();
        config.multi_hot.is_idle = self.needs_no_bags;
        config
    }

    /// The bags that ids are made into, drawn the first time that they are asked for: a plan
    /// alone has no need of them.
    fn multi_hot(&self, config: &Config) -> Result<Option<Arc<MultiHot>>> {
        if let Some(drawn) = self.multi_hot.get() {
            return Ok(drawn.clone());
        }
        let drawn = self.with_data(config).multi_hot_bags(&self.table_rows)?;
        Ok(self.multi_hot.get_or_init(|| drawn).clone())
    }

    /// The id mapper of the run, before it has seen a sample.
    pub fn id_mapper(&self, config: &Config) -> Result<IdMapper> {
        let ids = match &self.dictionary {
            Some(dictionary) => dictionary.mapper(config, &self.table_rows),
            None => data::id_mapper(config, &self.table_rows),
        };
        Ok(ids?.with_multi_hot(self.multi_hot(config)?))
    }

    pub fn session_data(&self, config: &Config, threads: usize) -> Result<SessionData> {
        let valid = match self.valid.is_empty() {
            true => None,
            false => Some(EvaluationData::open(config, &self.valid, true, threads)?),
        };
        let checksum = self.dictionary.as_ref().map(RunDictionary::checksum);
        Ok(SessionData {
            train: self.train.clone(),
            train_rows: self.train_rows,
            valid,
            ids: self.id_mapper(config)?,
            dictionary: self.dictionary.as_ref().map(RunDictionary::bytes),
            statistics: self.statistics.clone(),
            fingerprint: data::fingerprint(config, checksum),
            train_files: data_key::trained_files(config, &self.train)?,
            may_differ: false,
        })
    }

    /// What the log says about the data.
    pub fn summary(&self, valid_rows: Option<u64>) -> DataSummary {
        DataSummary {
            train: self.train.clone(),
            train_rows: self.train_rows,
            valid: self.valid.clone(),
            valid_rows,
            valid_is_frame: self.valid.iter().any(|file| file.frame().is_some()),
            synthetic: self.synthetic.is_some(),
        }
    }
}

/// The files of the synthetic data of a run.
pub(crate) fn synthetic_files(config: &Config) -> [PathBuf; 2] {
    synthetic_options(config).files(&config.run.output_dir.join(SYNTHETIC_FOLDER))
}

/// The synthetic data that a configuration asks for.
fn synthetic_options(config: &Config) -> SyntheticOptions {
    let settings = &config.synthetic;
    SyntheticOptions {
        seed: settings.seed,
        train_rows: settings.train_rows,
        valid_rows: settings.valid_rows,
        scale: settings.scale,
        gzip: settings.gzip,
    }
}
