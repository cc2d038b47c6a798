//! `headlong kernels`: the CUDA kernels that models need, compiled ahead of time on any machine
//! that has NVRTC.

use crate::commands::train_arguments::TrainArguments;
use crate::config::{Config, Interaction};
use crate::error::{Error, Result};
use crate::iteration::model::device_vector_type;
use crate::report::output::JsonOutput;
use crate::{Registry, config::preset, report::output};
use clap::Args;
use headlong_device::Result as DeviceResult;
use headlong_device::cuda::{self, Build, Compiled, KernelReport, blas, pieces};
use headlong_mlp::interaction::dot;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Whose kernels: every preset's where nothing is named.
#[derive(Debug, Clone, Default, Args)]
pub struct ModelArguments {
    /// TOML configuration of a model
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A preset; may be repeated. Without --config and --preset: all presets
    #[arg(long, value_name = "NAME")]
    pub preset: Vec<String>,
    /// Override one key of each configuration; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Besides, the tables' kernels for every dim, element type and optimizer that programs can ask
    /// for
    #[arg(long)]
    pub every_instance: bool,
}

/// Arguments of `headlong kernels build`.
#[derive(Debug, Clone, Args)]
pub struct BuildArguments {
    /// Architectures, separated by commas
    #[arg(long, value_name = "sm_90a,…", value_delimiter = ',', default_value = "sm_90a")]
    pub arch: Vec<String>,
    /// Folder for the compiled kernels, for `headlong train --kernels`
    #[arg(short = 'o', long, value_name = "DIR", required_unless_present = "check")]
    pub output: Option<PathBuf>,
    /// Fail where the compiler warns or a kernel spills registers
    #[arg(long)]
    pub check: bool,
    /// Take what the folder already holds of the same text and constants, instead of compiling it
    /// again: for a folder that the same compiler has filled
    #[arg(long, requires = "output")]
    pub reuse: bool,
    /// Whose kernels
    #[command(flatten)]
    pub models: ModelArguments,
    /// Where the JSON goes
    #[command(flatten)]
    pub json: JsonOutput,
}

/// Arguments of `headlong kernels list`.
#[derive(Debug, Clone, Args)]
pub struct ListArguments {
    /// Whose kernels
    #[command(flatten)]
    pub models: ModelArguments,
    /// Where the JSON goes
    #[command(flatten)]
    pub json: JsonOutput,
}

/// One kernel of one instance for one architecture.
#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
struct Row {
    kernel: String,
    constants: String,
    arch: String,
    registers: u32,
    spill_bytes: u32,
    shared_bytes: u32,
    /// The file below the folder of `--output`.
    file: PathBuf,
}

/// Lists the instances that the models need; compiles nothing.
pub fn list(arguments: &ListArguments, registry: &Registry) -> Result<()> {
    let builds = builds(&arguments.models, registry)?;
    let lines: Vec<(String, String)> =
        builds.iter().map(|build| (build.source.name.to_owned(), constants(build))).collect();
    let width = lines.iter().map(|(source, _)| source.len()).max().unwrap_or(0);
    let text: String =
        lines.iter().map(|(source, constants)| format!("{source:width$}  {constants}\n")).collect();
    let document = lines
        .iter()
        .map(|(source, constants)| serde_json::json!({ "source": source, "constants": constants }));
    let document = serde_json::Value::Array(document.collect());
    output::answer(&arguments.json, &text, &document)
}

/// Compiles all instances that the models need, writes them, and prints what each kernel uses.
pub fn build(arguments: &BuildArguments, registry: &Registry) -> Result<()> {
    let builds = builds(&arguments.models, registry)?;
    let (mut rows, mut complaints) = (Vec::new(), Vec::new());
    let jobs: Vec<(&Build, &str)> = builds
        .iter()
        .flat_map(|build| arguments.arch.iter().map(move |arch| (build, arch.as_str())))
        .collect();
    let failed = || Error::failed("a kernel cannot be compiled");
    for (&(build, arch), compiled) in jobs.iter().zip(compile(&jobs, arguments)) {
        let compiled = compiled.map_err(failed())?;
        let file = cuda::path_in_bundle(build.source, &build.defines, arch).map_err(failed())?;
        complaints.extend(complain(build, arch, &compiled));
        rows.extend(compiled.kernels.iter().map(|report| row(build, arch, report, &file)));
    }
    let instances = builds.len() * arguments.arch.len();
    let document =
        serde_json::json!({ "instances": instances, "kernels": rows, "complaints": complaints });
    output::answer(&arguments.json, &to_text(&rows, instances, &complaints), &document)?;
    if arguments.check && !complaints.is_empty() {
        let context =
            format!("{} of {instances} compiled sources have warnings or spills", complaints.len());
        return Err(Error::Failed { context, source: "see above".into() });
    }
    Ok(())
}

/// Compiles each instance for its architecture, as many at a time as there are cores, into a folder
/// if one is given. Answers in the order of `jobs`; after a failure no more are begun, and those
/// are left out at the end.
fn compile(jobs: &[(&Build, &str)], arguments: &BuildArguments) -> Vec<DeviceResult<Compiled>> {
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let answers: Vec<OnceLock<DeviceResult<Compiled>>> =
        jobs.iter().map(|_| OnceLock::new()).collect();
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((build, arch)) = jobs.get(index) else { return };
            let compiled = compile_one(build, arch, arguments);
            failed.fetch_or(compiled.is_err(), Ordering::Relaxed);
            answers[index].set(compiled).expect("each index is taken once");
        }
    };
    std::thread::scope(|scope| {
        (1..crate::system::machine::cores().min(jobs.len())).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    answers.into_iter().map_while(OnceLock::into_inner).collect()
}

fn compile_one(build: &Build, arch: &str, arguments: &BuildArguments) -> DeviceResult<Compiled> {
    let (source, defines) = (build.source, build.defines.as_slice());
    let Some(folder) = &arguments.output else { return cuda::compile(source, defines, arch) };
    if arguments.reuse
        && let Some(compiled) = cuda::read_from(folder, source, defines, arch)?
    {
        return Ok(compiled);
    }
    cuda::build_into(folder, source, defines, arch)
}

/// All instances that the crates list for the models, each once.
fn builds(models: &ModelArguments, registry: &Registry) -> Result<Vec<Build>> {
    let mut all: Vec<Build> =
        configurations(models, registry)?.iter().flat_map(builds_of).collect();
    if models.every_instance {
        all.extend(headlong_embedding::cuda::all_kernels());
    }
    let mut builds: Vec<Build> = Vec::new();
    for build in all {
        let known = |b: &Build| std::ptr::eq(b.source, build.source) && b.defines == build.defines;
        if !builds.iter().any(known) {
            builds.push(build);
        }
    }
    builds.sort_by_key(|build| build.source.name);
    Ok(builds)
}

fn configurations(models: &ModelArguments, registry: &Registry) -> Result<Vec<Config>> {
    let resolve = |config: Option<PathBuf>, preset: Option<&str>| {
        let arguments = TrainArguments {
            config,
            preset: preset.map(str::to_owned),
            set: models.set.clone(),
            ..TrainArguments::default()
        };
        arguments.resolve(registry).map(|(config, _)| config)
    };
    let mut configurations = Vec::new();
    if models.config.is_some() {
        configurations.push(resolve(models.config.clone(), None)?);
    }
    let all = preset::PRESETS.iter().map(|preset| preset.name);
    let named: Vec<&str> = match (models.preset.is_empty(), models.config.is_none()) {
        (true, true) => all.collect(),
        _ => models.preset.iter().map(String::as_str).collect(),
    };
    for name in named {
        configurations.push(resolve(None, Some(name))?);
    }
    Ok(configurations)
}

/// The instances that a model of this configuration needs.
fn builds_of(config: &Config) -> Vec<Build> {
    let dense = config.optimizer.dense.optimizer();
    let dot = matches!(config.model.interaction, Interaction::Dot);
    let shapes = headlong_mlp::cuda::Shapes {
        cross: config.model.interaction == Interaction::Cross,
        dot: dot.then_some((config.data.num_sparse, config.model.dim)),
        optimizer: &dense,
    };
    let mut builds = headlong_mlp::cuda::kernels(&shapes);
    // All tables of a device are stored alike; the same kernels serve one rank and several.
    let sparse = config.optimizer.sparse.optimizer();
    let (dims, rows) = ([config.model.dim], config.table_spec(0, 1).dtype);
    let vectors = device_vector_type(config);
    let vectors = [vectors, dot::vector_gradient_type(vectors)];
    // Where there are several ranks, there are several blocks of sums.
    let slots = config.slot_dtype(config.run.ranks.max(2));
    builds.extend(headlong_embedding::cuda::kernels(&dims, rows, vectors, &sparse, Some(slots)));
    // Devices of one node add up in each other's memory, as many as there may be.
    let ranks = 2..=headlong_comm::device::peer::MOST_RANKS;
    builds.extend(ranks.flat_map(headlong_comm::device::peer::kernels));
    builds.extend(headlong_comm::device::hierarchical::kernels());
    builds.extend(headlong_verbs::kernels());
    builds.extend(headlong_comm::device::narrow::kernels());
    builds.extend(pieces::kernels());
    builds.extend(blas::kernels());
    builds
}

fn constants(build: &Build) -> String {
    let words = build.defines.iter().map(|define| format!("{}={}", define.name, define.value));
    words.collect::<Vec<_>>().join(" ")
}

fn row(build: &Build, arch: &str, report: &KernelReport, file: &Path) -> Row {
    Row {
        kernel: format!("{}:{}", build.source.name, report.name),
        constants: constants(build),
        arch: arch.to_owned(),
        registers: report.registers,
        spill_bytes: report.spill_bytes,
        shared_bytes: report.shared_bytes,
        file: file.to_owned(),
    }
}

/// What is wrong with a compiled source, in one line; nothing where nothing is.
fn complain(build: &Build, arch: &str, compiled: &Compiled) -> Option<String> {
    let mut reasons: Vec<String> =
        compiled.warnings().iter().map(|line| (*line).to_owned()).collect();
    let spilling = compiled.kernels.iter().filter(|report| report.spill_bytes > 0);
    reasons.extend(
        spilling.map(|report| format!("{} spills {} bytes", report.name, report.spill_bytes)),
    );
    let name = format!("{} {} for {arch}", build.source.name, constants(build));
    (!reasons.is_empty()).then(|| format!("{name}: {}", reasons.join("; ")))
}

fn to_text(rows: &[Row], instances: usize, complaints: &[String]) -> String {
    let width = rows.iter().map(|row| row.kernel.len()).max().unwrap_or(0).max("kernel".len());
    let mut text =
        format!("{:width$}  {:7}  registers  spills  shared  constants\n", "kernel", "arch");
    for row in rows {
        text += &format!(
            "{:width$}  {:7}  {:9}  {:6}  {:6}  {}\n",
            row.kernel, row.arch, row.registers, row.spill_bytes, row.shared_bytes, row.constants
        );
    }
    text +=
        &format!("{instances} compiled sources, {} with warnings or spills\n", complaints.len());
    text + &complaints.iter().map(|line| format!("{line}\n")).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_needs_kernels_and_each_instance_stands_once() {
        let all = builds(&ModelArguments::default(), &Registry::default()).unwrap();
        let mut names: Vec<(&str, String)> =
            all.iter().map(|build| (build.source.name, constants(build))).collect();
        assert!(!names.is_empty());
        let before = names.len();
        names.dedup();
        assert_eq!(names.len(), before);
        let crates: Vec<&str> =
            names.iter().filter_map(|(source, _)| source.split('/').next()).collect();
        assert!(
            ["mlp", "embedding", "comm"].iter().all(|crate_name| crates.contains(crate_name)),
            "{crates:?}"
        );
        let tiny = ModelArguments { preset: vec!["tiny".to_owned()], ..ModelArguments::default() };
        assert!(builds(&tiny, &Registry::default()).unwrap().len() <= before);
        let every = ModelArguments { every_instance: true, ..ModelArguments::default() };
        assert!(builds(&every, &Registry::default()).unwrap().len() > before);
    }

    #[test]
    fn spills_and_warnings_are_complaints() {
        let build = &builds(&ModelArguments::default(), &Registry::default()).unwrap()[0];
        let report = |spill_bytes| KernelReport {
            name: "k".to_owned(),
            registers: 32,
            spill_bytes,
            shared_bytes: 0,
        };
        let compiled = |log: &str, spill| Compiled {
            cubin: vec![],
            log: log.to_owned(),
            kernels: vec![report(spill)],
        };
        assert_eq!(
            complain(build, "sm_90a", &compiled("ptxas info    : Used 32 registers", 0)),
            None
        );
        assert!(complain(build, "sm_90a", &compiled("", 8)).unwrap().contains("k spills 8 bytes"));
        assert!(complain(build, "sm_90a", &compiled("a.cu(3): warning #177-D: x", 0)).is_some());
        let text = to_text(&[row(build, "sm_90a", &report(0), Path::new("x"))], 1, &[]);
        assert!(text.starts_with("kernel") && text.contains("sm_90a"), "{text}");
    }
}
