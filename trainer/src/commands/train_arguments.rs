//! The flags of `headlong train`, which are also those of `plan` and `config`, and what they do to
//! the configuration.

mod settings;

use crate::Registry;
use crate::auto::Asked;
use crate::auto::files::{OfFiles, choose_for};
use crate::auto::text;
use crate::commands::choice;
use crate::commands::files::CommandFiles;
use crate::commands::launch::{launch_of_several, launched};
use crate::config::ranges::whole;
use crate::config::{
    BadRowPolicy, CacheData, Config, DeviceChoice, EvalEvery, FormatChoice, HybridMode, Ids,
    Precision, ScheduleChoice, TransportChoice, asks_for_auto, former_keys, keys, preset,
};
use crate::error::{Error, Result};
use crate::iteration::job::as_launched;
use crate::report::output::say;
use crate::report::{Listen, LogTarget};
use crate::run::{dictionary, prepare};
use crate::system::command_line;
use crate::system::elastic;
use crate::system::input::read_text;
use crate::system::machine::Machine;
use crate::system::signals::StopRequest;
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser as _};
use headlong_reader::excerpt::OfText;
use headlong_reader::formats::Format;
use headlong_reader::io::DataFile;
use std::path::PathBuf;

/// The flags of `headlong train`. A flag overrides `--set`'s layers below it; both for the same key
/// is an error.
#[derive(Debug, Clone, Default, Args)]
pub struct TrainArguments {
    /// TOML configuration (`headlong config show` prints one)
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    pub config: Option<PathBuf>,
    /// A configuration with a name
    #[arg(long, value_name = "NAME", help = preset::names())]
    pub preset: Option<String>,
    /// Override one key of the configuration; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Choose what columns are and how to train from a look at the training files, and say why;
    /// other flags and --set override it
    #[arg(long, conflicts_with_all = ["config", "preset"], requires = "data")]
    pub auto: bool,
    /// Whether a program has called, which hears warnings as events
    #[arg(skip)]
    pub is_called: bool,
    /// With --auto: the column to predict, where its name does not tell
    #[arg(long, value_name = "COL", requires = "auto")]
    pub label: Option<String>,
    /// With --auto: the column that says how much each row counts (data.columns.weight)
    #[arg(long, value_name = "COL", requires = "auto")]
    pub weight: Option<String>,

    /// Training files: Criteo text, CSV or TSV (plain, gzip or Zstandard; `-`: standard input),
    /// Parquet, or binary data; may be repeated
    #[arg(long, value_name = "FILE", num_args = 1.., help_heading = "Data")]
    pub data: Vec<DataFile>,
    /// Validation files; may be repeated
    #[arg(long, value_name = "FILE", num_args = 1.., help_heading = "Data")]
    pub valid: Vec<DataFile>,
    /// Format of these files; told from the first one where it says so
    #[arg(long, value_name = "FORMAT", help_heading = "Data")]
    pub data_format: Option<Format>,
    /// Where everything is written that has no folder of its own
    #[arg(long, value_name = "DIR", help_heading = "Data")]
    pub output_dir: Option<PathBuf>,
    /// What a malformed line does: end the run, or be skipped and counted
    #[arg(
        long,
        value_name = "error|skip",
        value_parser = choice::on_bad_row(),
        help_heading = "Data"
    )]
    pub on_bad_row: Option<BadRowPolicy>,
    /// Keep data between epochs; device (CUDA): evaluations, too
    #[arg(long, value_name = "off|host|device|auto", help_heading = "Data")]
    pub cache_data: Option<CacheData>,

    /// Hold this share of the training rows out and validate on them
    #[arg(long, value_name = "X", conflicts_with = "valid", help_heading = "Data")]
    pub holdout: Option<f64>,

    /// Samples of one batch, over all ranks
    #[arg(
        long,
        value_name = "N",
        value_parser = whole::<usize>("train.batch_size"),
        help_heading = "Training"
    )]
    pub batch_size: Option<usize>,
    /// Batches whose gradients are summed before one step
    #[arg(
        long = "grad-accumulation",
        alias = "accumulate",
        value_name = "N",
        value_parser = whole::<usize>("train.accumulate"),
        help_heading = "Training"
    )]
    pub accumulate: Option<usize>,
    /// Passes over the data
    #[arg(long, value_name = "X", conflicts_with = "steps", help_heading = "Training")]
    pub epochs: Option<f64>,
    /// Steps, instead of --epochs
    #[arg(
        long,
        value_name = "N",
        value_parser = whole::<u64>("train.steps"),
        help_heading = "Training"
    )]
    pub steps: Option<u64>,
    /// Learning rate after the warm-up
    #[arg(long, value_name = "X", help_heading = "Training")]
    pub learning_rate: Option<f64>,
    /// sgd, adagrad, adam (lazy for tables), rowwise_adagrad or ftrl (tables; adagrad for the dense
    /// network), lamb (dense network; lazy Adam for tables)
    #[arg(long, value_name = "NAME", help_heading = "Training")]
    pub optimizer: Option<String>,
    /// Arithmetic of the dense layers
    #[arg(long, value_name = "f32|tf32|bf16|f16", help_heading = "Training")]
    pub precision: Option<Precision>,
    /// Decides the initial weights
    #[arg(
        long,
        value_name = "N",
        value_parser = whole::<u64>("train.seed"),
        help_heading = "Training"
    )]
    pub seed: Option<u64>,
    /// Train N models, with seeds from --seed on, of which eval and predict take the mean
    #[arg(
        long,
        value_name = "N",
        value_parser = whole::<usize>("train.seeds"),
        help_heading = "Training"
    )]
    pub seeds: Option<usize>,

    /// Stop at the first evaluation that reaches this AUC
    #[arg(long, value_name = "X", help_heading = "Evaluation")]
    pub target_auc: Option<f64>,
    /// Evaluate every N steps, or every FRACTION of an epoch (written with a point); 0: at the end
    /// alone
    #[arg(
        long,
        value_name = "N|FRACTION",
        value_parser = parse_eval_every,
        help_heading = "Evaluation"
    )]
    pub eval_every: Option<EvalEvery>,
    /// Stop after N evaluations without a better one
    #[arg(
        long,
        value_name = "N",
        value_parser = whole::<u64>("eval.patience"),
        help_heading = "Evaluation"
    )]
    pub patience: Option<u64>,
    /// Samples of one evaluation batch
    #[arg(
        long,
        value_name = "N",
        value_parser = whole::<usize>("eval.batch_size"),
        help_heading = "Evaluation"
    )]
    pub eval_batch_size: Option<usize>,
    /// Ranks that only evaluate, while the others train on: further threads of the process that
    /// leads, and a model more each; with --save-every this needs checkpoint.keep_best=false
    #[arg(
        long,
        value_name = "N",
        value_parser = whole::<usize>("run.eval_ranks"),
        help_heading = "Evaluation"
    )]
    pub eval_ranks: Option<usize>,
    /// Of the processes of `headlong launch` or another launcher, the last N only evaluate, on
    /// machines of their own where they are; lost, they end no training (docs/multi-node.md)
    #[arg(
        long,
        value_name = "N",
        value_parser = whole::<usize>("run.eval_processes"),
        help_heading = "Evaluation",
        conflicts_with = "eval_ranks"
    )]
    pub eval_processes: Option<usize>,

    /// Folder of the checkpoints
    #[arg(long, value_name = "DIR", help_heading = "Checkpoints")]
    pub checkpoint_dir: Option<PathBuf>,
    /// Steps between checkpoints
    #[arg(
        long,
        value_name = "N",
        value_parser = whole::<u64>("checkpoint.save_every"),
        help_heading = "Checkpoints"
    )]
    pub save_every: Option<u64>,
    /// Newest checkpoints that are kept
    #[arg(
        long,
        value_name = "N",
        value_parser = whole::<usize>("checkpoint.keep"),
        help_heading = "Checkpoints"
    )]
    pub keep: Option<usize>,
    /// Folder of snapshots, in memory (such as /dev/shm/NAME): checkpoints that a resumed run may
    /// continue from, while the machine runs
    #[arg(long, value_name = "DIR", help_heading = "Checkpoints")]
    pub snapshot_dir: Option<PathBuf>,
    /// Steps between snapshots, below `headlong launch --elastic` or with --snapshot-dir
    #[arg(
        long,
        value_name = "N",
        value_parser = whole::<u64>("checkpoint.snapshot_every"),
        help_heading = "Checkpoints"
    )]
    pub snapshot_every: Option<u64>,
    /// Go on from the newest checkpoint; from the beginning where there is none
    #[arg(long, conflicts_with = "init_from", help_heading = "Checkpoints")]
    pub resume: bool,
    /// Go on although the training files are not those that the run was trained on
    #[arg(long, requires = "resume", help_heading = "Checkpoints")]
    pub data_changed: bool,
    /// Start with the weights of this checkpoint, and nothing else of it
    #[arg(long, value_name = "DIR", help_heading = "Checkpoints")]
    pub init_from: Option<PathBuf>,

    /// Where the arithmetic happens; auto takes a GPU whose self-test agrees with the processor
    #[arg(long, value_name = "auto|cpu|cuda", help_heading = "Machine")]
    pub device: Option<DeviceChoice>,
    /// Folder of compiled kernels that `headlong kernels build` has written; without it they are
    /// compiled when first used
    #[arg(long, value_name = "DIR", help_heading = "Machine")]
    pub kernels: Option<PathBuf>,
    /// Threads of this process; by default one per core, which the ranks of a machine share where
    /// none is bound to a part of it; changes no result
    #[arg(
        long,
        value_name = "N",
        value_parser = whole::<usize>("run.threads"),
        help_heading = "Machine"
    )]
    pub threads: Option<usize>,
    /// Data-parallel ranks
    #[arg(
        long,
        value_name = "N",
        value_parser = whole::<usize>("run.ranks"),
        help_heading = "Machine"
    )]
    pub ranks: Option<usize>,
    /// Rows replicated on every rank
    #[arg(long, value_name = "off|auto|rows=N", help_heading = "Machine")]
    pub hybrid: Option<HybridMode>,
    /// How the stages of an iteration are laid on lanes; changes no result
    #[arg(long, value_name = "auto|serial|overlapped|captured", help_heading = "Machine")]
    pub schedule: Option<ScheduleChoice>,
    /// How bytes travel between ranks
    #[arg(long, value_name = "auto|local|shm|tcp|nccl|verbs|ucx", help_heading = "Machine")]
    pub transport: Option<TransportChoice>,

    /// Processes on several machines may do without a secret: anyone who can reach rank 0 can join
    #[arg(long, help_heading = "Machine")]
    pub insecure: bool,

    /// Write one JSON object a line; `-`: to standard output, which then holds nothing else
    #[arg(
        long,
        value_name = "FILE|-",
        value_parser = OsStringValueParser::new().map(LogTarget::from),
        help_heading = "Output"
    )]
    pub log_json: Option<LogTarget>,
    /// Write a log of MLPerf's form (:::MLLOG lines)
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub mllog: Option<PathBuf>,
    /// Write every stage of every step as a trace that Perfetto opens; FILE.svg: a picture of the
    /// last step; processes but the first put their rank into the name, as in FILE.rank1.svg
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub trace: Option<PathBuf>,
    /// Write loss, rates and metrics as event files that TensorBoard reads
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub tensorboard: Option<PathBuf>,
    /// Print the stages with their microseconds at the end
    #[arg(long, help_heading = "Output")]
    pub time: bool,
    /// Stop after the plan
    #[arg(long, help_heading = "Output")]
    pub dry_run: bool,
}

/// What a run does besides its configuration: nothing here changes a weight, except what it starts
/// from.
#[derive(Debug, Clone)]
pub struct TrainOptions {
    /// The flags, of which some set no key.
    pub flags: TrainArguments,
    /// What the configuration started from: `preset tiny`, or the file's name.
    pub origin: String,
    /// The command line, as the log gives it.
    pub command: String,
    /// The kinds of tables that the configuration may name.
    pub registry: Registry,
    /// Whether the log's file holds models of the same run that were trained before.
    pub appends_to_log: bool,
    /// The configuration as TOML, where `--auto` has chosen it, with the reasons.
    pub chosen: Option<String>,
    /// What a program has to be told of that choice; a person was told when it was made.
    pub warnings: Vec<String>,
    /// The program that has called for the run, where it is not the command line.
    pub caller: Option<Caller>,
}

/// A program that has a run by a call, hears its events and may stop it.
#[derive(Clone)]
pub struct Caller {
    /// Asked, it ends the run after a step, as a signal would.
    pub stop: StopRequest,
    /// Gets every line of the JSON log, at once.
    pub listen: Listen,
    /// Whether a bar is shown where standard error is a terminal.
    pub shows_bar: bool,
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Caller").field("stop", &self.stop).finish_non_exhaustive()
    }
}

fn parse_eval_every(text: &str) -> Result<EvalEvery, String> {
    if let Ok(steps) = text.parse() {
        return Ok(EvalEvery::Steps(steps));
    }
    match text.parse::<f64>() {
        Ok(fraction) if fraction.is_finite() && fraction > 0.0 => {
            Ok(EvalEvery::EpochFraction(fraction))
        }
        _ => Err("expected a number of steps, or a fraction of an epoch such as 0.05".to_owned()),
    }
}

impl TrainArguments {
    /// The effective configuration, checked, and what the run does besides; `registry` knows the
    /// kinds of tables. Where a launcher has started several processes, each is a rank of it.
    ///
    /// # Errors
    /// Everything that is wrong with the usage or the configuration (exit code 2), named by flag or
    /// key.
    pub fn resolve<'a>(&'a self, registry: &'a Registry) -> Result<(Config, TrainOptions)> {
        self.resolve_on(registry, &|config| match launch_of_several() {
            Some(launch) => as_launched(&config, &launch),
            None => Ok(config),
        })
    }

    /// The same where `place` decides which device the configuration is for, before it is judged.
    ///
    /// # Errors
    /// As [`TrainArguments::resolve`], and those of `place`.
    pub fn resolve_on(
        &self,
        registry: &Registry,
        place: &dyn Fn(Config) -> Result<Config>,
    ) -> Result<(Config, TrainOptions)> {
        let (mut config, origin, chosen) = self.begin()?;
        let set = keys_of(&self.set);
        self.settings().iter().try_for_each(|setting| setting.refuse_both(&set))?;
        // What `--set` may say of an optimiser depends on which one it is.
        self.optimizer.iter().try_for_each(|name| config.optimizer.set_both(name))?;
        config.set_all(&self.set)?;
        chosen.iter().for_each(|chosen| chosen.choices.ignore_others(&mut config));
        if !self.data.is_empty() || set.contains(&"data.train") || chosen.is_some() {
            // Real data takes the place of the made-up; the rest of the preset stays.
            config.synthetic.enabled = false;
        }
        self.settings().into_iter().try_for_each(|setting| setting.apply(&mut config))?;
        let set_by_hand = |key| set.contains(&key);
        let of_holdout = ["data.holdout", "data.holdout_fold", "data.holdout_test"];
        let holds_out = self.holdout.is_some() || of_holdout.into_iter().any(set_by_hand);
        if !self.valid.is_empty() && !holds_out {
            config.clear_holdout();
        }
        config.resolve_holdout();
        let evaluates = !config.data.valid.is_empty() && !config.eval.every.is_never();
        if chosen.is_some()
            && !evaluates
            && self.patience.is_none()
            && !set_by_hand("eval.patience")
        {
            config.eval.patience = None;
        }
        config.optimizer.resolve()?;
        let mut config = place(config)?;
        self.refuse_contradictions(&config)?;
        config.validate_with(registry)?;
        let options = TrainOptions {
            // A job that was started again when a rank was lost continues where it can.
            flags: Self { resume: self.resume || elastic::restarts() > 0, ..self.clone() },
            origin,
            command: command_line::quoted(&command_line::arguments()),
            registry: registry.clone(),
            appends_to_log: false,
            warnings: match &chosen {
                Some(chosen) if self.is_called => chosen.choices.warnings.clone(),
                _ => Vec::new(),
            },
            chosen: chosen.map(|chosen| text::to_toml(&config, &chosen)),
            caller: None,
        };
        Ok((config, options))
    }

    /// The layer under `--set`: the file, the preset, the preset that fits what is named, or what
    /// is chosen from a look at the data, with that.
    fn begin(&self) -> Result<(Config, String, Option<OfFiles>)> {
        match (&self.config, &self.preset) {
            _ if self.auto => {
                let chosen = self.choose(Config::default())?;
                Ok((chosen.choices.apply()?, "what --auto has chosen".to_owned(), Some(chosen)))
            }
            (Some(file), _) => {
                let (config, text) = Config::from_file_with_text(file)?;
                let origin = file.display().to_string();
                if launched().is_none_or(|(rank, _)| rank == 0) {
                    let notes = former_keys(&text);
                    notes.iter().for_each(|gone| say(format!("note: {origin}: {gone}; ignored")));
                }
                if !asks_for_auto(&text) {
                    return Ok((config, origin, None));
                }
                let chosen = self.choose(config)?;
                let mut config = chosen.choices.apply()?;
                config.overlay(&text)?;
                Ok((config, format!("{origin}, and what it lets be chosen"), Some(chosen)))
            }
            (None, Some(name)) => Ok((preset::preset(name)?, format!("preset {name}"), None)),
            (None, None) => {
                let named = !self.data.is_empty() || keys_of(&self.set).contains(&"data.train");
                let name = if named { preset::DEFAULT_FOR_DATA } else { preset::DEFAULT };
                Ok((preset::preset(name)?, format!("preset {name} (the default)"), None))
            }
        }
    }

    /// Whether the configuration is chosen, by `--auto` or because its file asks for that.
    fn is_chosen(&self) -> bool {
        // Note: what comes through a pipe is read once.
        let file = self.config.as_ref().filter(|file| file.is_file());
        self.auto || file.is_some_and(|file| read_text(file).is_ok_and(|text| asks_for_auto(&text)))
    }

    /// What is chosen from a look at the data, of which a file has `said` something.
    fn choose(&self, said: Config) -> Result<OfFiles> {
        let said = self.said_of_data(said)?;
        let columns = &said.data.columns;
        let asked = Asked {
            label: self.label.as_deref().or(columns.label.as_deref()),
            weight: self.weight.as_deref().or(columns.weight.as_deref()),
            ignored: &columns.ignored,
            text: OfText {
                separator: columns.separator.map(|separator| separator as u8),
                skips_bad_rows: said.data.on_bad_row == BadRowPolicy::Skip,
            },
            has_valid: !said.data.valid.is_empty(),
            keeps_models: said.checkpoint.dir.is_some() && launched().is_none(),
            usable_bytes: Machine::detect().usable_bytes(),
        };
        let format = match said.data.format {
            FormatChoice::Auto => None,
            FormatChoice::Of(format) => Some(format),
        };
        let chosen = choose_for(&said.data.train, format, &asked)?;
        if !self.is_called && launched().is_none_or(|(rank, _)| rank == 0) {
            let warnings = &chosen.choices.warnings;
            warnings.iter().for_each(|warning| say(format_args!("warning: {warning}")));
        }
        Ok(chosen)
    }

    /// What was said of the data, before it is looked at: by a file, `--set` and flags.
    fn said_of_data(&self, mut said: Config) -> Result<Config> {
        let is_before = |key: &str| key.starts_with("data.") || key == "checkpoint.dir";
        let set = self.set.iter().filter(|argument| {
            let (key, _) = argument.split_once('=').unwrap_or_default();
            keys::resolve(key.trim(), "--set").is_ok_and(is_before)
        });
        said.set_all(&set.collect::<Vec<_>>())?;
        let flags = self.settings().into_iter();
        let flags = flags.filter(|setting| setting.keys.iter().all(|key| is_before(key)));
        flags.into_iter().try_for_each(|setting| setting.apply(&mut said))?;
        Ok(said)
    }

    /// Pairs that only the effective configuration shows to exclude each other.
    fn refuse_contradictions(&self, config: &Config) -> Result<()> {
        let has_snapshots = config.snapshot_dir().is_some();
        let has_checkpoints = config.checkpoint.dir.is_some();
        for (flag, given, has_folder, folder) in [
            ("--resume", self.resume, has_checkpoints || has_snapshots, "--checkpoint-dir DIR"),
            ("--save-every", self.save_every.is_some(), has_checkpoints, "--checkpoint-dir DIR"),
            ("--keep", self.keep.is_some(), has_checkpoints, "--checkpoint-dir DIR"),
            (
                "--snapshot-every",
                self.snapshot_every.is_some(),
                has_snapshots,
                "--snapshot-dir DIR, or start the ranks by `headlong launch --elastic`",
            ),
        ] {
            if given && !has_folder {
                let of = if flag == "--snapshot-every" { "snapshots" } else { "checkpoints" };
                let message = format!("{flag} needs a folder of {of}: name it with {folder}");
                return Err(Error::Usage(message));
            }
        }
        if has_checkpoints && config.snapshot_dir() == config.checkpoint.dir {
            let message = "--snapshot-dir and --checkpoint-dir name the same folder: snapshots \
                           need one of their own, in memory";
            return Err(Error::Usage(message.to_owned()));
        }
        if !self.valid.is_empty() && config.data.train.is_empty() {
            let message = "--valid needs training files, too: name them with --data FILE";
            return Err(Error::Usage(message.to_owned()));
        }
        Ok(())
    }
}

/// The keys that arguments of `--set` name; what names none is refused later.
fn keys_of(set: &[String]) -> Vec<&'static str> {
    let written = set.iter().filter_map(|argument| argument.split_once('='));
    written.filter_map(|(key, _)| keys::resolve(key.trim(), "--set").ok()).collect()
}

/// The files of `headlong train`, those that its configuration names included.
pub fn of_training(arguments: &TrainArguments, config: &Config) -> CommandFiles {
    let data = &config.data;
    let log = arguments.log_json.iter().filter_map(|target| match target {
        LogTarget::Stdout => None,
        LogTarget::File(path) => Some(path),
    });
    let files = CommandFiles::default()
        .reads("--config", &arguments.config)
        .reads("--data", &data.train)
        .reads("--valid", &data.valid)
        .reads("data.dictionary", data.dictionary.as_deref().map(dictionary::file_at))
        .reads("comm.tuning", &config.comm.tuning)
        .reads("hybrid.latency_table", &config.hybrid.latency_table)
        .writes("run.algorithms", &config.run.algorithms)
        .writes("--log-json", log)
        .writes("--mllog", &arguments.mllog)
        .writes("--trace", &arguments.trace)
        .reads_checkpoint("--init-from", arguments.init_from.as_ref())
        .reads_checkpoint(
            "--checkpoint-dir",
            config.checkpoint.dir.as_ref().filter(|_| arguments.resume),
        );
    let makes_data = data.train.is_empty() && config.synthetic.enabled;
    let makes_dictionary = data.ids == Ids::Dictionary && data.dictionary.is_none();
    // Ranks share what they have counted of the rows, where no checkpoint brings it.
    let counts = config.run.ranks > 1 && !arguments.resume;
    let is_chosen = arguments.is_chosen();
    let makes_output = makes_data || makes_dictionary || counts || is_chosen;
    let chosen = is_chosen.then(|| config.run.output_dir.join(text::FILE_NAME));
    // Rank 0 makes the folder, and writes alone where others cannot write there.
    let leads = launched().is_none_or(|(rank, _)| rank == 0);
    files
        .makes("--checkpoint-dir", config.checkpoint.dir.as_ref().filter(|_| leads))
        .makes("--snapshot-dir", config.checkpoint.snapshot_dir.as_ref().filter(|_| leads))
        .makes("--tensorboard", &arguments.tensorboard)
        .makes("--output-dir", makes_output.then_some(&config.run.output_dir))
        .writes(
            "--output-dir",
            makes_data.then(|| prepare::synthetic_files(config)).into_iter().flatten(),
        )
        .writes("--output-dir", chosen)
        .writes("--output-dir", makes_dictionary.then(|| dictionary::built_file(config)))
}
