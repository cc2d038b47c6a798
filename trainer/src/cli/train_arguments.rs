//! The flags of `headlong train`, which are also those of `plan` and `config`, and what they do to the configuration.

use crate::Registry;
use crate::config::{
    CacheData, Config, DeviceChoice, EvalEvery, Hybrid, OnBadRow, Precision, ScheduleChoice, TransportChoice,
};
use crate::error::{Error, Result};
use crate::preset;
use clap::Args;
use std::path::PathBuf;

/// The flags of `headlong train`. A flag overrides `--set`'s layers below it; both for the same key is an error.
#[derive(Debug, Clone, Default, Args)]
pub struct TrainArguments {
    /// TOML configuration (`headlong config show` prints one)
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    pub config: Option<PathBuf>,
    /// tiny, criteo-hashed, criteo-sample, criteo-kaggle or criteo-terabyte-dlrm
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,
    /// Override one key of the configuration; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// Training file (Criteo text, plain, .gz or .zst); may be repeated
    #[arg(long, value_name = "FILE", num_args = 1.., help_heading = "Data")]
    pub data: Vec<PathBuf>,
    /// Validation file; may be repeated
    #[arg(long, value_name = "FILE", num_args = 1.., help_heading = "Data")]
    pub valid: Vec<PathBuf>,
    /// Where everything is written that has no folder of its own
    #[arg(long, value_name = "DIR", help_heading = "Data")]
    pub output_dir: Option<PathBuf>,
    /// What a malformed line does: end the run, or be skipped and counted
    #[arg(long, value_name = "error|skip", help_heading = "Data")]
    pub on_bad_row: Option<OnBadRow>,
    /// Keep decoded data between epochs
    #[arg(long, value_name = "off|host|device|auto", help_heading = "Data")]
    pub cache_data: Option<CacheData>,

    /// Samples of one batch, over all ranks
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub batch_size: Option<usize>,
    /// Batches whose gradients are summed before one step
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub accumulate: Option<usize>,
    /// Passes over the data
    #[arg(long, value_name = "X", conflicts_with = "steps", help_heading = "Training")]
    pub epochs: Option<f64>,
    /// Steps, instead of --epochs
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub steps: Option<u64>,
    /// Learning rate after the warm-up
    #[arg(long, value_name = "X", help_heading = "Training")]
    pub learning_rate: Option<f64>,
    /// sgd, adagrad, adam (lazy for tables), rowwise_adagrad or ftrl (tables; adagrad for the dense network)
    #[arg(long, value_name = "NAME", help_heading = "Training")]
    pub optimizer: Option<String>,
    /// Arithmetic of the dense layers
    #[arg(long, value_name = "f32|tf32|bf16|f16", help_heading = "Training")]
    pub precision: Option<Precision>,
    /// Decides the initial weights
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub seed: Option<u64>,

    /// Stop at the first evaluation that reaches this AUC
    #[arg(long, value_name = "X", help_heading = "Evaluation")]
    pub target_auc: Option<f64>,
    /// Evaluate every N steps, or every FRACTION of an epoch (written with a point); 0: at the end alone
    #[arg(long, value_name = "N|FRACTION", value_parser = parse_eval_every, help_heading = "Evaluation")]
    pub eval_every: Option<EvalEvery>,
    /// Samples of one evaluation batch
    #[arg(long, value_name = "N", help_heading = "Evaluation")]
    pub eval_batch_size: Option<usize>,
    /// Ranks that only evaluate, while the others train on
    #[arg(long, value_name = "N", help_heading = "Evaluation")]
    pub eval_ranks: Option<usize>,

    /// Folder of the checkpoints
    #[arg(long, value_name = "DIR", help_heading = "Checkpoints")]
    pub checkpoint_dir: Option<PathBuf>,
    /// Steps between checkpoints
    #[arg(long, value_name = "N", help_heading = "Checkpoints")]
    pub save_every: Option<u64>,
    /// Newest checkpoints that are kept
    #[arg(long, value_name = "N", help_heading = "Checkpoints")]
    pub keep: Option<usize>,
    /// Go on from the newest checkpoint; from the beginning where there is none
    #[arg(long, conflicts_with = "init_from", help_heading = "Checkpoints")]
    pub resume: bool,
    /// Start with the weights of this checkpoint, and nothing else of it
    #[arg(long, value_name = "DIR", help_heading = "Checkpoints")]
    pub init_from: Option<PathBuf>,

    /// Where the arithmetic happens
    #[arg(long, value_name = "auto|cpu|cuda", help_heading = "Machine")]
    pub device: Option<DeviceChoice>,
    /// Folder of compiled kernels that `headlong kernels build` has written; without it they are compiled when first used
    #[arg(long, value_name = "DIR", help_heading = "Machine")]
    pub kernels: Option<PathBuf>,
    /// Threads of this process; one per core by default; changes no result
    #[arg(long, value_name = "N", help_heading = "Machine")]
    pub threads: Option<usize>,
    /// Data-parallel ranks
    #[arg(long, value_name = "N", help_heading = "Machine")]
    pub ranks: Option<usize>,
    /// Rows replicated on every rank
    #[arg(long, value_name = "off|auto|rows=N", help_heading = "Machine")]
    pub hybrid: Option<Hybrid>,
    /// How the stages of an iteration are laid on lanes; changes no result
    #[arg(long, value_name = "serial|overlapped|captured", help_heading = "Machine")]
    pub schedule: Option<ScheduleChoice>,
    /// How bytes travel between ranks
    #[arg(long, value_name = "auto|local|shm|tcp|nccl|verbs", help_heading = "Machine")]
    pub transport: Option<TransportChoice>,

    /// Processes on several machines may do without a secret: whoever can reach rank 0 can join
    #[arg(long, help_heading = "Machine")]
    pub insecure: bool,

    /// Write one JSON object a line; `-`: to standard output, which then holds nothing else
    #[arg(long, value_name = "FILE|-", help_heading = "Output")]
    pub log_json: Option<LogTarget>,
    /// Write a log of MLPerf's form (:::MLLOG lines)
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub mllog: Option<PathBuf>,
    /// Write every stage of every step as a trace that Perfetto opens; FILE.svg: a picture of the last step
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub trace: Option<PathBuf>,
    /// Print the stages with their microseconds at the end
    #[arg(long, help_heading = "Output")]
    pub time: bool,
    /// Stop after the plan
    #[arg(long, help_heading = "Output")]
    pub dry_run: bool,
}

/// Where the JSON log goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// A file, appended to on `--resume`, replaced otherwise.
    File(PathBuf),
}

impl std::str::FromStr for LogTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(if text == "-" { Self::Stdout } else { Self::File(text.into()) })
    }
}

/// What a run does besides its configuration: nothing here changes a weight, except what it starts from.
#[derive(Debug, Clone, Default)]
pub struct TrainOptions {
    /// Go on from the newest checkpoint of `checkpoint.dir`.
    pub resume: bool,
    /// Start with the weights of this checkpoint.
    pub init_from: Option<PathBuf>,
    /// Where the JSON log goes, if anywhere.
    pub log_json: Option<LogTarget>,
    /// Where a log of MLPerf's form goes, if anywhere.
    pub mllog: Option<PathBuf>,
    /// Print the stages with their microseconds at the end.
    pub time: bool,
    /// Where a trace for Perfetto goes, if anywhere.
    pub trace: Option<PathBuf>,
    /// Stop after the plan.
    pub dry_run: bool,
    /// What the configuration started from: `preset tiny`, or the file's name.
    pub origin: String,
    /// The command line, as the log gives it.
    pub command: String,
    /// The kinds of tables that the configuration may name.
    pub registry: Registry,
}

fn parse_eval_every(text: &str) -> Result<EvalEvery, String> {
    if let Ok(steps) = text.parse() {
        return Ok(EvalEvery::Steps(steps));
    }
    match text.parse::<f64>() {
        Ok(fraction) if fraction.is_finite() && fraction > 0.0 => Ok(EvalEvery::EpochFraction(fraction)),
        _ => Err("expected a number of steps, or a fraction of an epoch such as 0.05".to_owned()),
    }
}

impl TrainArguments {
    /// The effective configuration, checked, and what the run does besides; `registry` knows the kinds of tables.
    ///
    /// # Errors
    /// Everything that is wrong with the usage or the configuration (exit code 2), named by flag or key.
    pub fn resolve(&self, registry: &Registry) -> Result<(Config, TrainOptions)> {
        let (mut config, origin) = self.base()?;
        self.refuse_set_and_flag()?;
        config.set_all(&self.set)?;
        self.apply_files(&mut config);
        self.apply_training(&mut config)?;
        self.apply_run(&mut config);
        config.optimizer.resolve()?;
        self.refuse_contradictions(&config)?;
        config.validate_with(registry)?;
        let options = TrainOptions {
            resume: self.resume,
            init_from: self.init_from.clone(),
            log_json: self.log_json.clone(),
            mllog: self.mllog.clone(),
            time: self.time,
            trace: self.trace.clone(),
            dry_run: self.dry_run,
            origin,
            command: std::env::args().collect::<Vec<_>>().join(" "),
            registry: registry.clone(),
        };
        Ok((config, options))
    }

    /// The layer under `--set`: the file, the preset, or the preset that fits what is named.
    fn base(&self) -> Result<(Config, String)> {
        match (&self.config, &self.preset) {
            (Some(file), _) => Ok((Config::from_file(file)?, file.display().to_string())),
            (None, Some(name)) => Ok((preset::preset(name)?, format!("preset {name}"))),
            (None, None) => {
                let named = !self.data.is_empty() || self.sets("data.train");
                let name = if named { preset::DEFAULT_FOR_DATA } else { preset::DEFAULT };
                Ok((preset::preset(name)?, format!("preset {name} (the default)")))
            }
        }
    }

    fn sets(&self, key: &str) -> bool {
        self.set.iter().any(|argument| argument.split_once('=').is_some_and(|(name, _)| name.trim() == key))
    }

    /// `(flag, whether it is given, the key it sets)`.
    fn flags(&self) -> [(&'static str, bool, &'static str); 28] {
        [
            ("--data", !self.data.is_empty(), "data.train"),
            ("--valid", !self.valid.is_empty(), "data.valid"),
            ("--output-dir", self.output_dir.is_some(), "run.output_dir"),
            ("--on-bad-row", self.on_bad_row.is_some(), "data.on_bad_row"),
            ("--cache-data", self.cache_data.is_some(), "data.cache"),
            ("--batch-size", self.batch_size.is_some(), "train.batch_size"),
            ("--accumulate", self.accumulate.is_some(), "train.accumulate"),
            ("--epochs", self.epochs.is_some(), "train.epochs"),
            ("--epochs", self.epochs.is_some(), "train.steps"),
            ("--steps", self.steps.is_some(), "train.steps"),
            ("--learning-rate", self.learning_rate.is_some(), "train.learning_rate"),
            ("--optimizer", self.optimizer.is_some(), "optimizer.sparse.name"),
            ("--optimizer", self.optimizer.is_some(), "optimizer.dense.name"),
            ("--precision", self.precision.is_some(), "train.precision"),
            ("--seed", self.seed.is_some(), "train.seed"),
            ("--target-auc", self.target_auc.is_some(), "eval.target_auc"),
            ("--eval-every", self.eval_every.is_some(), "eval.every"),
            ("--eval-batch-size", self.eval_batch_size.is_some(), "eval.batch_size"),
            ("--eval-ranks", self.eval_ranks.is_some(), "run.eval_ranks"),
            ("--checkpoint-dir", self.checkpoint_dir.is_some(), "checkpoint.dir"),
            ("--save-every", self.save_every.is_some(), "checkpoint.save_every"),
            ("--keep", self.keep.is_some(), "checkpoint.keep"),
            ("--device", self.device.is_some(), "run.device"),
            ("--kernels", self.kernels.is_some(), "run.kernels"),
            ("--threads", self.threads.is_some(), "run.threads"),
            ("--ranks", self.ranks.is_some(), "run.ranks"),
            ("--hybrid", self.hybrid.is_some(), "run.hybrid"),
            ("--insecure", self.insecure, "comm.insecure"),
        ]
    }

    fn refuse_set_and_flag(&self) -> Result<()> {
        for (flag, given, key) in self.flags() {
            if given && self.sets(key) {
                return Err(Error::contradiction(flag, format!("--set {key}"), "both set it; leave one out"));
            }
        }
        Ok(())
    }

    fn apply_files(&self, config: &mut Config) {
        if !self.data.is_empty() || self.sets("data.train") {
            // Real data takes the place of the made-up; the rest of the preset stays.
            config.synthetic.enabled = false;
        }
        if !self.data.is_empty() {
            config.data.train = self.data.clone();
        }
        if !self.valid.is_empty() {
            config.data.valid = self.valid.clone();
        }
        set(&mut config.run.output_dir, &self.output_dir);
        set(&mut config.data.on_bad_row, &self.on_bad_row);
        set(&mut config.data.cache, &self.cache_data);
    }

    fn apply_training(&self, config: &mut Config) -> Result<()> {
        let train = &mut config.train;
        set(&mut train.batch_size, &self.batch_size);
        set(&mut train.accumulate, &self.accumulate);
        set(&mut train.learning_rate, &self.learning_rate);
        set(&mut train.precision, &self.precision);
        set(&mut train.seed, &self.seed);
        if let Some(epochs) = self.epochs {
            (train.epochs, train.steps) = (epochs, None);
        }
        set_optional(&mut train.steps, &self.steps);
        self.optimizer.as_ref().map_or(Ok(()), |name| config.optimizer.set_both(name))
    }

    fn apply_run(&self, config: &mut Config) {
        set_optional(&mut config.eval.target_auc, &self.target_auc);
        set(&mut config.eval.every, &self.eval_every);
        set(&mut config.eval.batch_size, &self.eval_batch_size);
        set_optional(&mut config.checkpoint.dir, &self.checkpoint_dir);
        set(&mut config.checkpoint.save_every, &self.save_every);
        set(&mut config.checkpoint.keep, &self.keep);
        let run = &mut config.run;
        set(&mut run.device, &self.device);
        set_optional(&mut run.kernels, &self.kernels);
        set_optional(&mut run.threads, &self.threads);
        set(&mut run.ranks, &self.ranks);
        set_optional(&mut run.eval_ranks, &self.eval_ranks);
        set(&mut run.hybrid, &self.hybrid);
        set(&mut run.schedule, &self.schedule);
        set(&mut run.transport, &self.transport);
        config.comm.insecure |= self.insecure;
    }

    /// Pairs that only the effective configuration shows to exclude each other.
    fn refuse_contradictions(&self, config: &Config) -> Result<()> {
        if config.checkpoint.dir.is_none() {
            for (flag, given) in [
                ("--resume", self.resume),
                ("--save-every", self.save_every.is_some()),
                ("--keep", self.keep.is_some()),
            ] {
                if given {
                    return Err(Error::contradiction(
                        flag,
                        "no --checkpoint-dir",
                        "there is no folder of checkpoints; name one with --checkpoint-dir DIR",
                    ));
                }
            }
        }
        if !self.valid.is_empty() && config.data.train.is_empty() {
            return Err(Error::contradiction(
                "--valid",
                "no --data",
                "a validation file needs training files; name them with --data FILE",
            ));
        }
        Ok(())
    }
}

fn set<T: Clone>(target: &mut T, flag: &Option<T>) {
    if let Some(value) = flag {
        *target = value.clone();
    }
}

fn set_optional<T: Clone>(target: &mut Option<T>, flag: &Option<T>) {
    if flag.is_some() {
        target.clone_from(flag);
    }
}
