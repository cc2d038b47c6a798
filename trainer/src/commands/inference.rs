//! `headlong eval` and `headlong predict`: a checkpoint applied to files. The checkpoint brings
//! everything but the rows: configuration, dictionary or admitted ids, dense transform.

use crate::Registry;
use crate::commands::checkpoint::Which;
use crate::commands::export::torch;
use crate::commands::slices::{self, Slices, Unseen};
use crate::commands::{checkpoint as checkpoint_command, choice, remarks};
use crate::report::output::{self, JsonOutput, say};
use crate::run::session::{Take, config_of, load, predict_mean, restore_ids};
use clap::Args;
use std::path::{Path, PathBuf};
use std::slice;

use crate::commands::predictions::PredictionFile;
use crate::config::{
    BadRowPolicy, CacheData, Config, DType, DeviceChoice, Ids, Instructions, OptimizerConfig,
    Precision, ScheduleChoice,
};
use crate::data::{self, EvaluationData};
use crate::error::{Error, Result};
use crate::iteration::ranks::RankGroup;
use crate::metrics::{EvalMetrics, Scores, probability};
use crate::plan::{Facts, Plan, advice};
use crate::report::{self, Eval, count, lines};
use crate::run::dictionary::RunDictionary;
use crate::state::checkpoint::{Checkpoint, Select};
use crate::system::machine::Machine;
use headlong_reader::formats::Format;
use headlong_reader::io::DataFile;
use headlong_reader::{IdMapper, Reader};
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::time::Instant;

mod inputs;

pub use inputs::{Inputs, ModelInputs};

/// How a checkpoint is applied to files.
#[derive(Debug, Args)]
struct How {
    /// Of a folder of several checkpoints, the one that was evaluated best, or the last
    #[arg(long, value_enum, default_value_t)]
    which: Which,
    /// Their format; told from the first file, else the one that was trained on
    #[arg(long, value_name = "FORMAT")]
    data_format: Option<Format>,
    /// Samples of one batch; the checkpoint's configuration by default
    #[arg(long, value_name = "N")]
    batch_size: Option<usize>,
    /// Where the arithmetic happens; auto is the processor. On a device it is that of training: the
    /// numbers are those of the run's own evaluations
    #[arg(long, value_name = "auto|cpu|cuda", default_value = "cpu")]
    device: DeviceChoice,
    /// Threads; one per core by default
    #[arg(long, value_name = "N", value_parser = crate::config::ranges::threads)]
    threads: Option<usize>,
    /// What a malformed line does
    #[arg(long, value_name = "error|skip", value_parser = choice::on_bad_row())]
    on_bad_row: Option<BadRowPolicy>,
    /// Whether batches are made smaller until they fit: where no one can be asked
    #[arg(skip)]
    batch_fits: bool,
}

impl How {
    fn on(device: DeviceChoice, threads: Option<usize>) -> Self {
        let which = Which::Best;
        let (data_format, batch_size, on_bad_row) = (None, None, None);
        Self { which, data_format, batch_size, device, threads, on_bad_row, batch_fits: false }
    }

    /// As programs apply models to rows of theirs.
    fn of_program() -> Self {
        Self { batch_fits: true, ..Self::on(DeviceChoice::Cpu, None) }
    }
}

/// Arguments of `headlong predict`.
#[derive(Debug, Args)]
pub struct PredictArguments {
    /// Checkpoint folder
    #[arg(long, value_name = "DIR")]
    pub checkpoint: PathBuf,
    /// Files, labelled or not; may be repeated
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub data: Vec<DataFile>,
    /// Where the probabilities go; the extension decides between CSV and Parquet; `-`: CSV to
    /// standard output
    #[arg(long, value_name = "FILE.csv|.parquet|-")]
    pub output: PathBuf,
    /// Columns of the data that are written next to the predictions; those that training was told
    /// to carry by default
    #[arg(long, value_name = "COLUMN", num_args = 1..)]
    pub carry: Vec<String>,
    /// How it is applied
    #[command(flatten)]
    how: How,
}

/// Arguments of `headlong eval`.
#[derive(Debug, Args)]
pub struct EvalArguments {
    /// Checkpoint folder
    #[arg(long, value_name = "DIR")]
    pub checkpoint: PathBuf,
    /// Labelled files; may be repeated
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub data: Vec<DataFile>,
    /// Columns for whose values the metrics are shown, too
    #[arg(long, value_name = "COLUMN", num_args = 1..)]
    pub by: Vec<String>,
    /// Column of groups, such as users, within which an AUC is taken, too; that of training by
    /// default
    #[arg(long, value_name = "COLUMN")]
    pub group: Option<String>,
    /// How it is applied
    #[command(flatten)]
    how: How,
    /// Where the JSON goes
    #[command(flatten)]
    pub json: JsonOutput,
}

/// Evaluates a checkpoint on labelled files and prints the metrics.
pub fn eval(arguments: &EvalArguments, registry: &Registry) -> Result<()> {
    let applied = Applied::named(&arguments.checkpoint, &arguments.data, &arguments.how, registry)?;
    let Evaluated { text, document, warnings } = evaluated(applied, arguments)?;
    warnings.iter().for_each(|warning| warn(warning));
    output::answer(&arguments.json, &text, &document)
}

/// The metrics of labelled files.
struct Evaluated {
    text: String,
    document: Value,
    warnings: Vec<String>,
}

fn evaluated(mut applied: Applied, arguments: &EvalArguments) -> Result<Evaluated> {
    for file in &arguments.data {
        if !data::is_labelled(&applied.config, file)? {
            let message = format!("{} has no labels; `headlong predict` takes such files", file);
            return Err(Error::config("--data", message));
        }
    }
    let mut slices = applied.slices(arguments)?;
    let mut scores = Scores::default();
    let (eval, unseen) = applied.evaluate(&arguments.data, &mut scores, slices.as_mut())?;
    let mut warnings = applied.warnings;
    warnings.extend(eval.metrics.warning().map(str::to_owned));
    warnings.extend(remarks::worse_than_none(&eval.metrics));
    let mut document = serde_json::to_value(eval).unwrap_or_default();
    document["samples"] = json!(eval.metrics.eval_samples);
    let first = &applied.checkpoints[0];
    document["checkpoint"] = json!(first.path().to_string_lossy());
    document["step"] = json!(first.manifest().state.step);
    document["models"] = json!(applied.checkpoints.len());
    document["tenths"] = slices::tenths_to_json(&slices::tenths(&mut scores));
    if !unseen.is_empty() {
        document["unseen_ids"] = unseen.into_iter().collect();
    }
    let mut text = format!("{}\n", report::eval_text(&eval));
    if let Some((more, fields)) = slices.map(Slices::finish) {
        text += &more;
        fields.into_iter().for_each(|(name, value)| document[name] = value);
    }
    Ok(Evaluated { text, document, warnings })
}

/// Writes the click probability of every row.
pub fn predict(arguments: &PredictArguments, registry: &Registry) -> Result<()> {
    let output = PredictionFile::create(&arguments.output)?;
    let mut applied =
        Applied::named(&arguments.checkpoint, &arguments.data, &arguments.how, registry)?;
    data::ignore_labels(&mut applied.config);
    let carry = match &arguments.carry[..] {
        [] => data::present(&applied.config, &arguments.data, &applied.config.data.columns.carry)?,
        asked => asked.to_vec(),
    };
    let started = Instant::now();
    let written = write_predictions(&arguments.data, &carry, &mut applied, output);
    applied.warnings.iter().for_each(|warning| warn(warning));
    match written {
        Ok(rows) => {
            let seconds = started.elapsed().as_secs_f64();
            let output = arguments.output.display();
            say(format_args!("{} rows to {output} in {}", count(rows), report::duration(seconds)));
            Ok(())
        }
        // A reader that has gone (`| head`) has what it wanted.
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(error),
    }
}

/// Writes a line for each row of `files`, and says how many there were.
fn write_predictions(
    files: &[DataFile],
    carry: &[String],
    applied: &mut Applied,
    output: PredictionFile,
) -> Result<u64> {
    let mut writer = output.begin(carry)?;
    let mut row = Vec::new();
    for file in files {
        let labelled = data::has_labels_to_skip(&applied.config, file)?;
        let file = slice::from_ref(file);
        let mut carried = match carry {
            [] => None,
            names => Some(data::carried(&applied.config, file, names)?),
        };
        applied.run(file, labelled, &mut |logits, _| {
            logits.iter().try_for_each(|&logit| {
                if let Some(carried) = &mut carried {
                    slices::next_row(carried, &mut row)?;
                }
                writer.push(logit, &row)
            })
        })?;
    }
    writer.finish()
}

fn warn(message: &str) {
    lines::to_stderr(&lines::warning(message, lines::width(std::io::stderr())));
}

/// What was found, and what there is to say of it.
pub type WithWarnings<T> = (T, Vec<String>);

/// The models in a folder of checkpoints that are trained to their end.
#[derive(Debug, Clone)]
pub struct Models {
    /// The folder.
    pub folder: PathBuf,
    /// Which checkpoint of each.
    pub which: Which,
}

impl Models {
    fn open(&self) -> Result<Vec<Checkpoint>> {
        checkpoint_command::open_finished("dir", &self.folder, self.which)
    }
}

/// The metrics of labelled `data` by the mean of `models`, as `eval --json` has them.
///
/// # Errors
/// As those of `headlong eval`.
pub fn metrics_of(
    models: &Models,
    data: Vec<DataFile>,
    registry: &Registry,
) -> Result<WithWarnings<Value>> {
    let how = How::of_program();
    let applied = Applied::open(models.open()?, &data, &how, registry)?;
    let checkpoint = models.folder.clone();
    let (by, group, json) = (Vec::new(), None, JsonOutput::default());
    let arguments = EvalArguments { checkpoint, data, by, group, how, json };
    evaluated(applied, &arguments).map(|found| (found.document, found.warnings))
}

/// How many models there are that [`probabilities_of`] takes the mean of.
///
/// # Errors
/// A folder that has none.
pub fn models_in(models: &Models) -> Result<usize> {
    models.open().map(|found| found.len())
}

/// Writes the models that [`probabilities_of`] takes the mean of for `headlong.torch`.
///
/// # Errors
/// As those of `headlong checkpoint export`.
pub fn export_torch(models: &Models, output: &Path) -> Result<()> {
    torch::export(&models.open()?, output).map(drop)
}

/// The click probability of every row of `data`, labelled or not, by the mean of `models`.
///
/// # Errors
/// As those of `headlong predict`.
pub fn probabilities_of(
    models: &Models,
    data: &[DataFile],
    registry: &Registry,
) -> Result<WithWarnings<Vec<f32>>> {
    let mut applied = Applied::open(models.open()?, data, &How::of_program(), registry)?;
    applied.config.data.columns.label = None;
    let mut probabilities = Vec::new();
    for file in data {
        let (file, labelled) = (slice::from_ref(file), data::is_labelled(&applied.config, file)?);
        applied.run(file, labelled, &mut |logits, _| {
            probabilities.extend(logits.iter().map(|&logit| probability(logit)));
            Ok(())
        })?;
    }
    Ok((probabilities, applied.warnings))
}

/// Evaluates models on the validation data of the run that has trained them.
pub(super) fn evaluate_validation(
    config: &Config,
    checkpoints: Vec<Checkpoint>,
    registry: &Registry,
) -> Result<Eval> {
    let (device, threads) = (config.run.device, config.run.threads);
    let files = &config.data.valid;
    let mut applied =
        Applied::to_validate(checkpoints, config, files, (device, threads), registry)?;
    applied.evaluate(files, &mut Scores::default(), None).map(|(eval, _)| eval)
}

/// The configuration that a model was trained by, to read `files` for it.
fn config_for(mut config: Config, files: &[DataFile], how: &How) -> Result<Config> {
    config.eval.batch_size = how.batch_size.unwrap_or(config.eval.batch_size);
    config.data.on_bad_row = how.on_bad_row.unwrap_or(config.data.on_bad_row);
    config.data.format = data::format_to_predict(&config, files, how.data_format);
    // Files to predict may have columns that the model has no use for, such as an id of the row.
    config.data.ignores_others = true;
    config.clear_holdout();
    // One rank applies what any number of ranks has trained. Nothing is trained: no gradients
    // of large batches, no optimiser states.
    (config.train.batch_size, config.train.accumulate) = (config.eval.batch_size, 1);
    // Bags that owners have pooled are sums of as many parts as there were blocks.
    let pools = (0..config.data.num_sparse).any(|column| config.may_pool_at_owner(column));
    config.train.sum_blocks = pools.then(|| config.sum_blocks());
    config.run.ranks = 1;
    // Those of the processor at hand, with the same results.
    config.run.instructions = Instructions::Auto;
    let of_each: Vec<&[DataFile]> = files.iter().map(slice::from_ref).collect();
    config.multi_hot.is_idle = !data::is_drawn(&config, &of_each)?;
    Ok(config)
}

/// Makes batches no larger than there are rows, and smaller until all `models` take no more than
/// half of the memory.
fn fit_batch(
    config: &mut Config,
    rows: &[u64],
    files: &[DataFile],
    models: usize,
    registry: &Registry,
) -> Result<()> {
    let least = config.sum_blocks();
    let frames = files.iter().map(|file| Some(file.frame()?.num_rows() as usize));
    let num_rows = frames.sum::<Option<usize>>();
    let mut samples = config.eval.batch_size;
    samples = num_rows.map_or(samples, |rows| samples.min(rows.next_multiple_of(least))).max(least);
    let machine = Machine::detect_with(config.run.device)?;
    let facts = Facts::new(rows, &machine, registry);
    loop {
        (config.train.batch_size, config.eval.batch_size) = (samples, samples);
        let bytes = Plan::new(config, &facts).bytes_per_rank * models;
        if samples <= least || bytes.fits(machine.usable_bytes() / 2) {
            return Ok(());
        }
        samples = (samples / 2).next_multiple_of(least);
    }
}

/// How ids become rows: by `dictionary`, where there is one.
fn id_mapper(
    config: &Config,
    rows: &[u64],
    dictionary: Option<&RunDictionary>,
) -> Result<IdMapper> {
    let ids = match dictionary {
        Some(dictionary) => dictionary.mapper(config, rows)?,
        None => data::id_mapper(config, rows)?,
    };
    Ok(ids.with_multi_hot(config.multi_hot_bags(rows)?))
}

/// Checkpoints in memory, ready to be applied to rows: one, or those of an ensemble.
pub(super) struct Applied {
    config: Config,
    checkpoints: Vec<Checkpoint>,
    groups: Vec<RankGroup>,
    ids: IdMapper,
    threads: usize,
    /// What there is to say once all is done.
    warnings: Vec<String>,
}

impl Applied {
    /// What `--checkpoint` names, for rows of `files`.
    fn named(folder: &Path, files: &[DataFile], how: &How, registry: &Registry) -> Result<Self> {
        let checkpoints = checkpoint_command::open_all("--checkpoint", folder, how.which)?;
        Self::open(checkpoints, files, how, registry)
    }

    /// For the validation data of the run of `config`: rows of `files`, of which it may have held
    /// a part out.
    pub(super) fn to_validate(
        checkpoints: Vec<Checkpoint>,
        config: &Config,
        files: &[DataFile],
        (device, threads): (DeviceChoice, Option<usize>),
        registry: &Registry,
    ) -> Result<Self> {
        let mut applied = Self::open(checkpoints, files, &How::on(device, threads), registry)?;
        let (now, then) = (&mut applied.config.data, &config.data);
        now.holdout = then.holdout;
        (now.holdout_fold, now.holdout_test) = (then.holdout_fold, then.holdout_test);
        Ok(applied)
    }

    /// The configuration by which it is applied.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// A reader of labelled `files`, of which only the front is read.
    pub(super) fn front(&self, files: &[DataFile]) -> Result<Box<dyn Reader>> {
        EvaluationData::open_front(&self.config, files, self.threads)?.reader(&self.ids)
    }

    /// Hands logits and labels of all that `reader` gives to `take`.
    pub(super) fn predict(&self, reader: &mut dyn Reader, take: &mut Take<'_>) -> Result<()> {
        predict_mean(&self.groups, reader, take).map(drop)
    }

    /// For rows of `files`.
    fn open(
        checkpoints: Vec<Checkpoint>,
        files: &[DataFile],
        how: &How,
        registry: &Registry,
    ) -> Result<Self> {
        let checkpoint = &checkpoints[0];
        let mut config = config_for(config_of(checkpoint)?, files, how)?;
        apply_on(&mut config, how.device);
        config.validate_with(registry)?;
        config.optimizer.sparse = OptimizerConfig::named("sgd");
        config.optimizer.dense = OptimizerConfig::named("sgd");
        let threads = how.threads.unwrap_or_else(crate::system::machine::cores);
        config.run.threads = Some(threads);
        let rows: Vec<u64> =
            checkpoint.manifest().state.model.tables.iter().map(|table| table.rows).collect();
        let dictionary = match config.data.ids {
            Ids::Dictionary => Some(RunDictionary::of_checkpoint(checkpoint, &config)?),
            _ => None,
        };
        let mut ids = id_mapper(&config, &rows, dictionary.as_ref())?;
        restore_ids(checkpoint, &mut ids)?;
        let checksum = dictionary.as_ref().map(RunDictionary::checksum);
        let fingerprint = data::fingerprint(&config, checksum);
        let mut groups = Vec::new();
        if how.batch_fits {
            fit_batch(&mut config, &rows, files, checkpoints.len(), registry)?;
        }
        for checkpoint in &checkpoints {
            let machine = Machine::detect_with(config.run.device)?;
            let facts = Facts::new(&rows, &machine, registry);
            // What a table of raw ids does not hold has initial values of the model's own seed.
            config.train.seed = config_of(checkpoint)?.train.seed;
            Plan::new(&config, &facts).check_with(&config, &facts, advice::APPLYING)?;
            let mut group = RankGroup::of_one_rank(&config, &rows, threads, registry)?;
            load(&mut group, checkpoint, &fingerprint, Select::WeightsOnly)?;
            groups.push(group);
        }
        Ok(Self { config, checkpoints, groups, ids, threads, warnings: Vec::new() })
    }

    /// Adds to `scores` and `slices`. As [`run`](Self::run) says: ids without a row of their own.
    fn evaluate(
        &mut self,
        files: &[DataFile],
        scores: &mut Scores,
        mut slices: Option<&mut Slices>,
    ) -> Result<(Eval, Vec<(String, f64)>)> {
        let started = Instant::now();
        let unseen = self.run(files, true, &mut |logits, labels| {
            scores.extend(logits, labels);
            slices.as_mut().map_or(Ok(()), |slices| slices.push(logits, labels))
        })?;
        let metrics = EvalMetrics::of(&scores.tally());
        let eval_s = started.elapsed().as_secs_f64();
        Ok((Eval { metrics, eval_s, known_at_step: None }, unseen))
    }

    /// What `arguments` ask to be taken over parts of the data, where they do.
    fn slices(&self, arguments: &EvalArguments) -> Result<Option<Slices>> {
        let (config, files) = (&self.config, &arguments.data);
        let group = match &arguments.group {
            Some(group) => Some(group.clone()),
            None => data::present(config, files, config.data.columns.group.as_slice())?.pop(),
        };
        let columns: Vec<String> = arguments.by.iter().chain(&group).cloned().collect();
        if columns.is_empty() {
            return Ok(None);
        }
        let carried = data::carried(config, files, &columns)?;
        Ok(Some(Slices::new(carried, arguments.by.clone(), group)))
    }

    /// Hands logits and labels to `take`; which columns have ids without a row of their own.
    fn run(
        &mut self,
        files: &[DataFile],
        labelled: bool,
        take: &mut Take<'_>,
    ) -> Result<Vec<(String, f64)>> {
        let rows = EvaluationData::open_once(&self.config, files, labelled, self.threads)?;
        let mut reader = Unseen::in_all_of(rows.reader(&self.ids)?);
        let skipped = predict_mean(&self.groups, &mut reader, take);
        let skipped = skipped.map_err(|error| error.naming_columns(&self.config.table_names()))?;
        if let Some((message, _)) = remarks::skipped("data", &skipped) {
            self.warnings.push(message);
        }
        let unseen = reader.shares(&self.config);
        self.warnings.extend(remarks::unseen_ids(&unseen));
        Ok(unseen)
    }
}

/// Has the model applied on `device`, in the precision it was trained in, so that it gives the
/// numbers of the run's own evaluations. A processor applies what any device has trained; what only
/// devices have (TF32, rows of f16) it computes in f32.
fn apply_on(config: &mut Config, device: DeviceChoice) {
    config.run.device = match device {
        DeviceChoice::Auto => DeviceChoice::Cpu,
        device => device,
    };
    // The files are read once.
    config.data.cache = CacheData::Off;
    if config.run.device == DeviceChoice::Cpu {
        config.run.schedule = ScheduleChoice::Auto;
        if config.train.precision == Precision::Tf32 {
            config.train.precision = Precision::F32;
        }
        // Wider holds all that was stored.
        let widen = |dtype: &mut DType| {
            if *dtype == DType::F16 {
                *dtype = DType::F32;
            }
        };
        widen(&mut config.tables.dtype);
        config.table.iter_mut().filter_map(|entry| entry.dtype.as_mut()).for_each(widen);
    }
}
