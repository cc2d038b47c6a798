//! `headlong checkpoint inspect`, `verify` and `export`.

use crate::commands::export::{export, onnx, torch};
use crate::error::{Error, Result};
use crate::metrics::EvalMetrics;
use crate::report::output::{self, JsonOutput, say};
use crate::report::{bytes, columns, count};
use crate::run::session::{CONFIG_BLOB, DICTIONARY_BLOB, IDS_BLOB, config_of};
use crate::run::statistics::STATISTICS_BLOB;
use crate::state::checkpoint::manifest::optimizer_text;
use crate::state::checkpoint::{
    self, Checkpoint, CheckpointError, Content, DataFingerprint, ModelFingerprint, TableLayout,
    members,
};
use clap::Subcommand;
use headlong_device::files::is_stdout;
use headlong_reader::Position;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// `headlong checkpoint …`
#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// Model, step, tables, files and sizes
    Inspect {
        /// Checkpoint folder
        dir: PathBuf,
        /// Where the JSON goes
        #[command(flatten)]
        json: JsonOutput,
    },
    /// Check every checksum and shape
    Verify {
        /// Checkpoint folder
        dir: PathBuf,
        /// Where the JSON goes
        #[command(flatten)]
        json: JsonOutput,
    },
    /// Write one file that other programs read: ONNX, with all that predicts from columns; torch,
    /// what headlong.torch.load makes a module of; or safetensors, the weights by the names of the
    /// original DLRM (of model M of an ensemble with models.M. in front)
    Export {
        /// Checkpoint folder, or that of an ensemble
        dir: PathBuf,
        /// Format of the file; told from the output's name (.onnx or .safetensors), and safetensors
        /// where neither is given
        #[arg(long, value_enum)]
        format: Option<ExportFormat>,
        /// Of a folder of several, the one that was evaluated best, or the last
        #[arg(long, value_enum, default_value_t)]
        which: Which,
        /// The file; next to the checkpoint by default, where no later checkpoint removes it:
        /// STEP.safetensors, STEP.torch.safetensors or STEP.onnx
        #[arg(long, value_name = "FILE.onnx|.safetensors")]
        output: Option<PathBuf>,
    },
}

/// What a checkpoint is exported to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ExportFormat {
    /// A graph from columns to probabilities.
    Onnx,
    /// Weights alone.
    Safetensors,
    /// Weights, and all that `headlong.torch.load` makes of columns.
    Torch,
}

impl ExportFormat {
    fn extension(self) -> &'static str {
        match self {
            Self::Onnx => "onnx",
            Self::Safetensors => "safetensors",
            Self::Torch => "torch.safetensors",
        }
    }

    /// What is asked for, or else what the output's name says.
    ///
    /// # Errors
    /// A name that says nothing.
    pub fn of(asked: Option<Self>, output: Option<&Path>) -> Result<Self> {
        let (None, Some(output)) = (asked, output) else {
            return Ok(asked.unwrap_or(Self::Safetensors));
        };
        match output.extension().and_then(OsStr::to_str) {
            Some("onnx") => Ok(Self::Onnx),
            Some("safetensors") => Ok(Self::Safetensors),
            // Said where it is refused.
            _ if is_standard_output(output) => Ok(Self::Safetensors),
            _ => Err(Error::Usage(format!(
                "--output {}: expected a name that ends in .onnx or .safetensors, or --format \
                 onnx, safetensors or torch",
                output.display()
            ))),
        }
    }
}

fn is_standard_output(path: &Path) -> bool {
    path == Path::new("-") || is_stdout(path)
}

/// Runs `headlong checkpoint …`. A directory of checkpoints stands for the newest one in it, but
/// for `export`.
pub fn run(command: &CheckpointCommand) -> Result<()> {
    match command {
        CheckpointCommand::Inspect { dir, json } => inspect(dir, json),
        CheckpointCommand::Verify { dir, json } => verify(dir, json),
        CheckpointCommand::Export { dir, which, format, output } => {
            let format = ExportFormat::of(*format, output.as_deref())?;
            export_to(dir, *which, format, output.as_deref())
        }
    }
}

/// Opens the checkpoint that the user names by `flag`.
pub fn open(flag: &str, directory: &Path) -> Result<Checkpoint> {
    if let Some(member) = members(directory).first() {
        let (directory, member) = (directory.display(), member.display());
        let message =
            format!("{directory} holds several models: name one of them, such as {member}");
        return Err(Error::config(flag, message));
    }
    checkpoint::open(directory).map_err(|error| match error {
        // Nothing was wrong with a checkpoint: the wrong directory was named.
        CheckpointError::NotACheckpoint { .. } => Error::config(flag, error.to_string()),
        error => Error::failed("the checkpoint cannot be used")(error),
    })
}

/// Which checkpoint of a folder is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Which {
    /// That of the best evaluation, by `eval.metric`; the newest where none was evaluated.
    #[default]
    Best,
    /// That of the last step.
    Newest,
}

/// Opens the checkpoint that the user names by `flag`: of a folder of several, that one of which
/// `which` says so. A note says where the best is not the newest.
pub fn open_one_of(flag: &str, directory: &Path, which: Which) -> Result<Checkpoint> {
    let newest = open(flag, directory)?;
    if which == Which::Newest {
        return Ok(newest);
    }
    let last = newest.manifest().state.step;
    let best = best_of(newest, directory)?;
    let step = best.manifest().state.step;
    if step != last {
        say(format_args!(
            "checkpoint of step {}, the best evaluation; --which newest: step {}",
            count(step),
            count(last)
        ));
    }
    Ok(best)
}

/// The best evaluated checkpoint of a directory, where one was evaluated and the directory is not
/// itself the `newest`.
fn best_of(newest: Checkpoint, directory: &Path) -> Result<Checkpoint> {
    if newest.path() == directory {
        return Ok(newest);
    }
    let metric = config_of(&newest)?.eval.metric;
    let found = checkpoint::best(directory, metric);
    let help = "the best checkpoint cannot be found; --which newest takes the last";
    Ok(found.map_err(Error::failed(help))?.unwrap_or(newest))
}

/// A checkpoint of each model of `directory`, without a word; of an ensemble that was
/// stopped, those of models that were trained to their end, or else of the first.
///
/// # Errors
/// As [`open_one_of`].
pub(crate) fn open_finished(flag: &str, directory: &Path, which: Which) -> Result<Vec<Checkpoint>> {
    let members = members(directory);
    let is_finished = |member: &&PathBuf| {
        let newest = checkpoint::open(member);
        newest.is_ok_and(|newest| newest.manifest().state.finished.is_some())
    };
    let mut finished: Vec<&Path> =
        members.iter().filter(is_finished).map(PathBuf::as_path).collect();
    if finished.is_empty() {
        finished.push(members.first().map_or(directory, PathBuf::as_path));
    }
    let chosen = |folder| match which {
        Which::Best => best_of(open(flag, folder)?, folder),
        Which::Newest => open(flag, folder),
    };
    finished.into_iter().map(chosen).collect()
}

/// The checkpoints of all models of an ensemble, or that of a single model.
///
/// # Errors
/// As [`open_one_of`]; an ensemble that lacks a model.
pub fn open_all(flag: &str, directory: &Path, which: Which) -> Result<Vec<Checkpoint>> {
    let members = members(directory);
    if members.is_empty() {
        return Ok(vec![open_one_of(flag, directory, which)?]);
    }
    let open = |member: &PathBuf| open_one_of(flag, member, which);
    let checkpoints = members.iter().map(open).collect::<Result<Vec<_>>>()?;
    // Of models that were added later, the last one knows.
    let seeds = checkpoints.iter().map(|member| Ok(config_of(member)?.train.seeds));
    let expected = seeds.collect::<Result<Vec<_>>>()?.into_iter().max().unwrap_or(0);
    let found = members.len();
    if expected != found {
        let (directory, rest) =
            (directory.display(), "train --resume trains those that are missing");
        let message = format!("{directory}: expected {expected} models, found {found}; {rest}");
        return Err(Error::config(flag, message));
    }
    Ok(checkpoints)
}

fn inspect(directory: &Path, json: &JsonOutput) -> Result<()> {
    let checkpoint = open("DIR", directory)?;
    output::answer(json, &inspect_text(&checkpoint), &inspect_json(&checkpoint))
}

/// What `checkpoint inspect` prints.
pub fn inspect_text(checkpoint: &Checkpoint) -> String {
    let manifest = checkpoint.manifest();
    let state = &manifest.state;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<12} {value}");
    };
    line("checkpoint", checkpoint.path().display().to_string());
    line("size", format!("{} in {} files", bytes(checkpoint.bytes()), manifest.files.len() + 1));
    line(
        "written by",
        format!("headlong {}, format version {}", manifest.program, manifest.version),
    );
    let finished = match state.finished.as_deref() {
        None => "the run can go on",
        Some("target_auc") => "the run is finished: it has reached its target AUC",
        Some("patience") => "the run is finished: evaluations had ceased to be better",
        Some(_) => "the run is finished",
    };
    line("step", format!("{} ({} samples); {finished}", count(state.step), count(state.samples)));
    line("evaluation", state.metrics.as_ref().map_or_else(|| "none".to_owned(), metrics_text));
    line("model", model_text(&state.model));
    let optimizers =
        [&state.optimizers.dense, &state.optimizers.sparse].map(|name| optimizer_text(name));
    line("optimisers", format!("dense {}; tables {}", optimizers[0], optimizers[1]));
    line("data", data_text(&state.data));
    line("position", position_text(&state.reader));
    line("seed", state.random.seed.to_string());
    line("digest", manifest.weights_digest.clone());
    text.push('\n');
    text.push_str(&tables_text(&manifest.layout.tables));
    text.push('\n');
    text.push_str(&dense_text(checkpoint));
    text.push('\n');
    text.push_str(&files_text(checkpoint));
    text
}

fn metrics_text(metrics: &EvalMetrics) -> String {
    let number = |value: Option<f64>| {
        value.map_or_else(|| "undefined".to_owned(), |value| format!("{value:.6}"))
    };
    format!(
        "AUC {}, log loss {}, normalised entropy {}, calibration {}, accuracy {:.4} (base rate \
         {:.4}) on {} samples",
        number(metrics.auc),
        number(metrics.logloss),
        number(metrics.ne),
        number(metrics.calibration),
        metrics.accuracy,
        metrics.base_rate,
        count(metrics.eval_samples)
    )
}

fn model_text(model: &ModelFingerprint) -> String {
    let widths = |widths: &[u64]| widths.iter().map(u64::to_string).collect::<Vec<_>>().join("-");
    format!(
        "{}: {} dense features, bottom {}, interaction {}, top {}, {} tables",
        model.family,
        model.num_dense,
        widths(&model.bottom),
        model.interaction,
        widths(&model.top),
        model.tables.len()
    )
}

fn data_text(data: &DataFingerprint) -> String {
    let mut facts = vec![data.dense_transform.clone(), format!("ids by {}", data.id_policy)];
    facts.extend(Some(&data.hash).filter(|hash| !hash.is_empty()).cloned());
    facts.extend(data.dictionary.as_ref().map(|checksum| format!("dictionary {checksum}")));
    facts.extend(data.columns.iter().map(|column| format!("column ({column})")));
    facts.join(", ")
}

/// Where the reader continues; the line is that of a file of text, which other formats do not have.
fn position_text(stored: &Value) -> String {
    let Ok(position) = serde_json::from_value::<Position>(stored.clone()) else {
        return stored.to_string();
    };
    let Position { epoch, sample, file, line, skipped, .. } = position;
    let mut text = format!("epoch {}, after {} samples of it", count(epoch + 1), count(sample));
    if line > 0 {
        text += &format!(": file {}, line {}", count(file + 1), count(line + 1));
    }
    if skipped > 0 {
        text += &format!("; {} bad lines skipped so far", count(skipped));
    }
    text
}

fn tables_text(tables: &[TableLayout]) -> String {
    let mut rows = vec![["table", "rows", "dim", "size", "optimiser states"].map(str::to_owned)];
    for table in tables {
        let width: u64 = table.dim + table.states.iter().map(|state| state.width).sum::<u64>();
        let states =
            table.states.iter().map(|state| format!("{} [rows, {}]", state.name, state.width));
        let states = states.collect::<Vec<_>>().join(", ");
        rows.push([
            table.name.clone(),
            count(table.rows),
            table.dim.to_string(),
            bytes(table.rows * width * 4),
            if states.is_empty() { "none".to_owned() } else { states },
        ]);
    }
    columns(&rows)
}

fn dense_text(checkpoint: &Checkpoint) -> String {
    let mut rows = vec![["parameter", "shape", "optimiser states"].map(str::to_owned)];
    for parameter in &checkpoint.manifest().layout.dense {
        let states =
            parameter.states.iter().map(|state| state.name.as_str()).collect::<Vec<_>>().join(", ");
        let states = if states.is_empty() { "none".to_owned() } else { states };
        rows.push([parameter.name.clone(), format!("{:?}", parameter.shape), states]);
    }
    columns(&rows)
}

fn files_text(checkpoint: &Checkpoint) -> String {
    let mut rows = vec![["file", "size", "XXH3-128", "holds"].map(str::to_owned)];
    for entry in &checkpoint.manifest().files {
        let holds = match &entry.content {
            Content::Dense => "dense parameters".to_owned(),
            Content::Rows { ranges } => match ranges.as_slice() {
                [range] => {
                    format!(
                        "{} rows {}..{}",
                        range.table,
                        range.first_row,
                        range.first_row + range.rows
                    )
                }
                ranges => format!("rows of {} tables", ranges.len()),
            },
            Content::Blob => match entry.file.as_str() {
                CONFIG_BLOB => "the configuration",
                DICTIONARY_BLOB => "the dictionary",
                IDS_BLOB => "the admitted ids",
                STATISTICS_BLOB => "how often rows are asked for",
                _ => "state of the program",
            }
            .to_owned(),
        };
        rows.push([entry.file.clone(), bytes(entry.bytes), entry.xxh3_128.clone(), holds]);
    }
    columns(&rows)
}

/// What `checkpoint inspect --json` prints: the manifest, the path, and the size.
pub fn inspect_json(checkpoint: &Checkpoint) -> Value {
    // A manifest was read from JSON and becomes JSON again.
    let manifest = serde_json::to_value(checkpoint.manifest()).unwrap_or(Value::Null);
    json!({
        "path": checkpoint.path().to_string_lossy(),
        "bytes": checkpoint.bytes(),
        "manifest": manifest,
    })
}

fn verify(directory: &Path, json: &JsonOutput) -> Result<()> {
    let checkpoint = open("DIR", directory)?;
    checkpoint.verify().map_err(Error::failed("the checkpoint is damaged"))?;
    let manifest = checkpoint.manifest();
    let files = manifest.files.len() + 1;
    let text = format!(
        "{}: {files} files, {}, every checksum is right; weights digest {}",
        checkpoint.path().display(),
        bytes(checkpoint.bytes()),
        manifest.weights_digest
    );
    let document = json!({
        "path": checkpoint.path().to_string_lossy(),
        "ok": true,
        "files": files,
        "bytes": checkpoint.bytes(),
        "weights_digest": manifest.weights_digest,
    });
    output::answer(json, &text, &document)
}

/// `DIR.safetensors`, `DIR.torch.safetensors` or `DIR.onnx` next to the checkpoint, where no file
/// is named: inside of it the file would go when the checkpoint does.
pub(crate) fn export_target(
    checkpoint: &Path,
    format: ExportFormat,
    named: Option<&Path>,
) -> PathBuf {
    // `.` and `..` are no names.
    let checkpoint = fs::canonicalize(checkpoint).unwrap_or_else(|_| checkpoint.to_owned());
    let mut name = checkpoint.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(format.extension());
    named.map_or_else(|| checkpoint.with_file_name(name), Path::to_owned)
}

fn export_to(
    directory: &Path,
    which: Which,
    format: ExportFormat,
    target: Option<&Path>,
) -> Result<()> {
    if let Some(path) = target.filter(|path| is_standard_output(path)) {
        let reason = "exported files are not written front to back, so standard output cannot \
                      take them: name a file";
        return Err(Error::Usage(format!("--output {}: {reason}", path.display())));
    }
    let models = open_all("DIR", directory, which)?;
    let (of, several) = match &models[..] {
        [model] => (model.path(), String::new()),
        all => (directory, format!("{} models, ", all.len())),
    };
    let target = export_target(of, format, target);
    let (size, what) = match format {
        ExportFormat::Onnx => (onnx::export(&models, &target)?, "from columns to probabilities"),
        ExportFormat::Safetensors => {
            (export(&models, &target)?, "parameters named as in the original DLRM")
        }
        ExportFormat::Torch => (torch::export(&models, &target)?, "for headlong.torch.load"),
    };
    output::print(&format!("{}: {several}{}, {what}", target.display(), bytes(size)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use headlong_device::optimizer::Optimizer;

    #[test]
    fn optimisers_are_named_as_in_the_configuration() {
        let adagrad = Optimizer::Adagrad { epsilon: 1e-10, initial_accumulator: 0.0 };
        let rows = Optimizer::RowWiseAdagrad { epsilon: 1e-8, initial_accumulator: 0.5 };
        let names = [Optimizer::Sgd, adagrad, rows].map(|one| optimizer_text(&format!("{one:?}")));
        assert_eq!(
            names,
            [
                "sgd",
                "adagrad (epsilon 1e-10, initial_accumulator 0.0)",
                "rowwise_adagrad (epsilon 1e-8, initial_accumulator 0.5)"
            ]
        );
    }

    #[test]
    fn positions_are_sentences() {
        let at = |line, skipped| {
            json!({
                "epoch": 1, "sample": 19200, "file": 2, "line": line, "byte": 7, "skipped": skipped
            })
        };
        assert_eq!(position_text(&at(0, 0)), "epoch 2, after 19,200 samples of it");
        assert_eq!(
            position_text(&at(1234, 3)),
            "epoch 2, after 19,200 samples of it: file 3, line 1,235; 3 bad lines skipped so far"
        );
        assert_eq!(position_text(&json!({"odd": 1})), "{\"odd\":1}");
    }

    #[test]
    fn data_has_no_empty_facts() {
        let mut data = DataFingerprint {
            dense_transform: "ln(x+1)".into(),
            id_policy: "dictionary".into(),
            hash: String::new(),
            dictionary: Some("eaab".into()),
            columns: Vec::new(),
        };
        assert_eq!(data_text(&data), "ln(x+1), ids by dictionary, dictionary eaab");
        (data.id_policy, data.hash, data.dictionary) =
            ("hash".into(), "murmur3-fmix64".into(), None);
        assert_eq!(data_text(&data), "ln(x+1), ids by hash, murmur3-fmix64");
    }
}
