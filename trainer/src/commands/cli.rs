//! The command line: every command and flag, as text and as types. What a flag means for the
//! configuration stands in [`train_arguments`]; [`main_with`] calls the commands.

mod completions;
mod dispatch;
pub mod files;
mod settings;
pub mod train_arguments;

use crate::report::output::JsonOutput;
pub use dispatch::main_with;
pub use train_arguments::{TrainArguments, TrainOptions};

use crate::commands::bench::collectives::arguments::CollectiveArguments;
use crate::commands::bench::embedding::EmbeddingArguments;
use crate::commands::bench::exchange::ExchangeArguments;
use crate::commands::bench::forecast::ForecastArguments;
use crate::commands::bench::p2p::P2pArguments;
use crate::commands::bench::reader::ReaderArguments;
use crate::commands::bench::tune::TuneArguments;
use crate::commands::convert::{ConvertArguments, MultiHotArguments};
use crate::commands::described::DescribedArguments;
use crate::commands::kernels as kernels_command;
use crate::commands::verify::VerifyArguments;
use crate::config::OnBadRow;
use crate::config::ranges::MOST_THREADS;
use clap::{Args, Parser, Subcommand, ValueEnum};
use headlong_reader::formats::Format;
use headlong_reader::io::DataFile;
use std::path::PathBuf;

/// Trains deep-learning recommendation models (DLRM) on click logs.
#[derive(Debug, Parser)]
#[command(name = "headlong", version, about, propagate_version = true, max_term_width = 110)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed while running, 2 wrong usage, config or plan, 3 \
                  communication failed, 4 slower than the baseline given, 77 skipped because a \
                  device is absent, 124 out of time, 129, 130 or 143 stopped by SIGHUP, SIGINT or \
                  SIGTERM: after saving, unless a second signal ended the run at once."
)]
pub struct Cli {
    /// What to do; without it the help is printed.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// A number of threads on the command line.
pub(crate) fn threads(text: &str) -> Result<usize, String> {
    let threads = text.parse().ok().filter(|threads| (1..=MOST_THREADS).contains(threads));
    threads.ok_or_else(|| format!("expected 1 to {MOST_THREADS} threads"))
}

/// Flags of `train` that say nothing of a configuration: other commands take them, so that a
/// command line of `train` can be tried, and do not list them.
fn hide_what_runs_alone_have(argument: clap::Arg) -> clap::Arg {
    let of_runs =
        ["resume", "data_changed", "init_from", "log_json", "mllog", "trace", "time", "dry_run"];
    let is_hidden = of_runs.iter().any(|name| argument.get_id() == name);
    if is_hidden { argument.hide(true) } else { argument }
}

/// A command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a model; without any option, on synthetic data
    Train(TrainArguments),
    /// Evaluate a checkpoint on labelled data
    Eval(EvalArguments),
    /// Write the click probability of every row
    Predict(PredictArguments),
    /// Show what a training run would need, and whether it fits, without taking any memory
    #[command(mut_args(hide_what_runs_alone_have))]
    Plan(PlanArguments),
    /// Convert data files between formats, look at them, check them, build dictionaries
    #[command(subcommand)]
    Data(DataCommand),
    /// Look at a checkpoint, check it, export it
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Start N processes of a headlong command, one rank each, and wait for all of them
    Launch(LaunchArguments),
    /// Measure this machine
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Compile the CUDA kernels that models need ahead of time, or list them; no GPU is needed
    #[command(subcommand)]
    Kernels(KernelsCommand),
    /// Show or check the effective configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Say what this machine has, what is missing, and what to do about it
    Doctor(DoctorArguments),
    /// Print the command lines of MLPerf's models, for one GPU, eight, and fourteen machines
    Recipe(RecipeArguments),
    /// Print a completion script
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Arguments of `headlong recipe`.
#[derive(Debug, Args)]
pub struct RecipeArguments {
    /// This model alone
    #[arg(long, value_name = "dlrm|dcnv2")]
    pub model: Option<RecipeModel>,
    /// This machine alone: 1 or 8 GPUs, or 14 machines of 8
    #[arg(long, value_name = "1|8|14x8")]
    pub machine: Option<RecipeMachine>,
}

/// A model of MLPerf's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum RecipeModel {
    /// One-hot DLRM.
    Dlrm,
    /// Multi-hot DLRM-DCNv2.
    Dcnv2,
}

/// What a recipe runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum RecipeMachine {
    /// One GPU.
    #[value(name = "1")]
    OneGpu,
    /// A machine of eight.
    #[value(name = "8")]
    EightGpus,
    /// Fourteen machines of eight.
    #[value(name = "14x8")]
    FourteenNodes,
}

/// Arguments of `headlong launch`.
#[derive(Debug, Args)]
pub struct LaunchArguments {
    /// How many ranks
    #[arg(short = 'n', long = "ranks", value_name = "N")]
    pub ranks: usize,
    /// Give each rank its own part of the processors (auto), or let all run anywhere (off)
    #[arg(long, value_enum, default_value_t = Bind::Auto)]
    pub bind: Bind,
    /// When a rank has failed, the others may take this long to end by themselves
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub grace_s: f64,
    /// The command and its options, as after `headlong`
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub command: Vec<std::ffi::OsString>,
}

/// Whether `headlong launch` binds ranks to processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Bind {
    /// An even split of the processors, where there are enough.
    Auto,
    /// Anywhere.
    Off,
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
    /// Their format; told from the first file, else the one that was trained on
    #[arg(long, value_name = "FORMAT")]
    pub data_format: Option<Format>,
    /// Samples of one batch; the checkpoint's configuration by default
    #[arg(long, value_name = "N")]
    pub batch_size: Option<usize>,
    /// Where the arithmetic happens. On a device it is that of training: the numbers are those of
    /// the run's own evaluations
    #[arg(long, value_name = "auto|cpu|cuda", default_value = "cpu")]
    pub device: crate::config::DeviceChoice,
    /// Threads; one per core by default
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// What a malformed line does
    #[arg(long, value_name = "error|skip")]
    pub on_bad_row: Option<OnBadRow>,
    /// Where the JSON goes
    #[command(flatten)]
    pub json: JsonOutput,
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
    /// Their format; told from the first file, else the one that was trained on
    #[arg(long, value_name = "FORMAT")]
    pub data_format: Option<Format>,
    /// Where the probabilities go; the extension decides between CSV and Parquet; `-`: CSV to
    /// standard output
    #[arg(long, value_name = "FILE.csv|.parquet|-")]
    pub output: PathBuf,
    /// Samples of one batch; the checkpoint's configuration by default
    #[arg(long, value_name = "N")]
    pub batch_size: Option<usize>,
    /// Where the arithmetic happens. On a device it is that of training: the numbers are those of
    /// the run's own evaluations
    #[arg(long, value_name = "auto|cpu|cuda", default_value = "cpu")]
    pub device: crate::config::DeviceChoice,
    /// Threads; one per core by default
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// What a malformed line does
    #[arg(long, value_name = "error|skip")]
    pub on_bad_row: Option<OnBadRow>,
}

/// Arguments of `headlong plan`: those of `train`, and where the JSON goes.
#[derive(Debug, Args)]
pub struct PlanArguments {
    /// As for `train`
    #[command(flatten)]
    pub train: TrainArguments,
    /// Rows of the training files, where known: adds the last batch and the nearest batch size that
    /// divides them
    #[arg(long, value_name = "N")]
    pub data_rows: Option<u64>,
    /// Show the stages of a step: their lanes, what they read and write, and what each waits for
    #[arg(long, conflicts_with_all = ["cluster", "check_published"])]
    pub stages: bool,
    /// For a cluster that is not here
    #[command(flatten)]
    pub on_cluster: ClusterArguments,
    /// Where the JSON goes
    #[command(flatten)]
    pub json: JsonOutput,
}

/// What `headlong plan` is asked about a cluster.
#[derive(Debug, Default, Args)]
pub struct ClusterArguments {
    /// Plan for laptop, h200x1, dgx-a100, dgx-h100, dgx-h200, gb200-nvl72 or a described cluster;
    /// `show` prints the descriptions
    #[arg(long, value_name = "NAME|FILE.toml|show", help_heading = "Cluster")]
    pub cluster: Option<PathBuf>,
    /// Nodes of it
    #[arg(long, value_name = "N", requires = "cluster", help_heading = "Cluster")]
    pub nodes: Option<usize>,
    /// Devices of a node
    #[arg(long, value_name = "N", requires = "cluster", help_heading = "Cluster")]
    pub devices_per_node: Option<usize>,
    /// How often rows are asked for: Criteo's Terabyte logs, or the row of rank k in proportion to
    /// k^-ALPHA
    #[arg(long, value_name = "terabyte|ALPHA", requires = "cluster", help_heading = "Cluster")]
    pub frequencies: Option<String>,
    /// Batch sizes to choose from; by default that of the configuration, and those whose
    /// convergence is published
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        requires = "cluster",
        help_heading = "Cluster"
    )]
    pub batch_sizes: Vec<usize>,
    /// Draw step time and samples per second against devices, and where the tables lie
    #[arg(long, value_name = "FILE.svg", requires = "cluster", help_heading = "Cluster")]
    pub plot: Option<PathBuf>,
    /// Compare predictions with what was published
    #[arg(long, help_heading = "Cluster")]
    pub check_published: bool,
}

/// `headlong data …`
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Build a dictionary with a frequency threshold: one streaming pass, resumable per file
    Make(DataMakeArguments),
    /// Convert between formats: Criteo text, CSV, Parquet, MLPerf and HugeCTR records, npy, split
    /// binary, our own
    Convert(ConvertArguments),
    /// Rows, click rate, and per column the missing share, cardinality and range
    Inspect(DataFilesArguments),
    /// Check every line or sample of any format, and MD5 sums; malformed lines are named with their
    /// numbers
    Verify(VerifyArguments),
    /// Make multi-hot data of one-hot data in any format, as the generator of MLPerf v3 does
    MultiHot(MultiHotArguments),
}

/// Arguments of `headlong data make`.
#[derive(Debug, Args)]
pub struct DataMakeArguments {
    /// Criteo text files, plain, gzip or zstd; may be repeated
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub data: Vec<DataFile>,
    /// Folder for the dictionary; a stopped run goes on there
    #[arg(long, value_name = "DIR")]
    pub output: PathBuf,
    /// Ids seen at least N times get rows of their own
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub min_count: u64,
    /// Most rows of a table, the shared one included; the most frequent ids win
    #[arg(long, value_name = "N")]
    pub max_rows: Option<u64>,
    /// Most memory for counting, in MiB, and again for the finished dictionary
    #[arg(long, value_name = "MIB", default_value_t = 2048)]
    pub memory_mib: u64,
    /// The same in GiB
    #[arg(long, value_name = "GIB", conflicts_with = "memory_mib")]
    pub memory_gib: Option<u64>,
    /// Threads; one per core by default
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// What a malformed line does
    #[arg(long, value_name = "error|skip", default_value = "error")]
    pub on_bad_row: OnBadRow,
    /// Where the JSON goes
    #[command(flatten)]
    pub json: JsonOutput,
}

/// Arguments of `headlong data inspect`.
#[derive(Debug, Args)]
pub struct DataFilesArguments {
    /// Files of one format; for `npy` one file of each shard, for `split` its folders
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<DataFile>,
    /// What the data does not say itself
    #[command(flatten)]
    pub what: DescribedArguments,
    /// Where the JSON goes
    #[command(flatten)]
    pub json: JsonOutput,
}

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
    /// Write one safetensors file with the original DLRM's parameter names
    Export {
        /// Checkpoint folder
        dir: PathBuf,
        /// The file; beside the checkpoint by default, where no later checkpoint removes it:
        /// STEP.safetensors
        #[arg(long, value_name = "FILE.safetensors")]
        output: Option<PathBuf>,
    },
}

/// `headlong bench …`
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Samples per second of whole training steps on made-up batches
    Iteration(IterationArguments),
    /// Describe this machine for `plan --cluster`, or set predictions beside measured steps
    Forecast(ForecastArguments),
    /// Read and decode files, beside the disk's own rate
    Reader(ReaderArguments),
    /// Lookup and update of embedding tables
    Embedding(EmbeddingArguments),
    /// The ordered sum to all: latency and bandwidth
    #[command(name = "all_reduce")]
    AllReduce(CollectiveArguments),
    /// The ordered sum, one part to each: latency and bandwidth
    #[command(name = "reduce_scatter")]
    ReduceScatter(CollectiveArguments),
    /// Everybody's data to all: latency and bandwidth
    #[command(name = "all_gather")]
    AllGather(CollectiveArguments),
    /// Rank 0's data to all: latency and bandwidth
    Broadcast(CollectiveArguments),
    /// An equal part from each to each: latency and bandwidth
    Alltoall(CollectiveArguments),
    /// A part of another size from each to each: latency and bandwidth
    Alltoallv(CollectiveArguments),
    /// To the next rank, from the previous one: latency and bandwidth
    Sendrecv(CollectiveArguments),
    /// Wait until all have come: latency and bandwidth
    Barrier(CollectiveArguments),
    /// One verb of RDMA back and forth between two cards, as perftest measures it
    P2p(P2pArguments),
    /// The messages of a planned run's step: bytes, time, each table's share
    Exchange(Box<ExchangeArguments>),
    /// Measure the collectives and write the table of costs that the hybrid split reads
    Tune(TuneArguments),
}

/// Arguments of `headlong bench iteration`.
#[derive(Debug, Args)]
pub struct IterationArguments {
    /// C1: Terabyte DLRM, C2: Kaggle DLRM, C3: DLRM-DCNv2 with several ids a sample, Adagrad
    #[arg(long, value_name = "C1|C2|C3", ignore_case = true)]
    pub shape: Shape,
    /// Samples of one batch
    #[arg(long, value_name = "N", default_value_t = 2048)]
    pub batch_size: usize,
    /// Arithmetic of the dense layers
    #[arg(long, value_name = "f32|bf16", default_value = "f32")]
    pub dtype: crate::config::Precision,
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,
    /// Seconds to measure
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub seconds: f64,
    /// Device
    #[arg(long, value_name = "auto|cpu|cuda", default_value = "auto")]
    pub device: crate::config::DeviceChoice,
    /// Lanes
    #[arg(long, value_name = "serial|overlapped|captured", default_value = "serial")]
    pub schedule: crate::config::ScheduleChoice,
    /// Ranks
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub ranks: usize,
    /// Rows of a table at most; `fit`: what this machine holds. The shape's own by default
    #[arg(long, value_name = "N|fit")]
    pub row_cap: Option<RowCap>,
    /// Sparse optimizer; the shape's own by default
    #[arg(long, value_name = "NAME")]
    pub optimizer: Option<String>,
    /// Instructions that arithmetic may use; no result depends on them
    #[arg(long, value_name = "auto|portable|avx2|avx512|avx512_bf16", default_value = "auto")]
    pub instructions: crate::config::Instructions,
    /// Print one JSON line
    #[arg(long)]
    pub json: bool,
}

/// A shape of `bench iteration`, as in `benches/peers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// MLPerf v1: dim 128, bottom 512-256-128, top 1024-1024-512-256-1, SGD.
    #[value(name = "C1")]
    C1,
    /// Kaggle: dim 16, bottom 512-256-64-16, top 512-256-1, SGD.
    #[value(name = "C2")]
    C2,
    /// MLPerf v3: DCNv2, multi-hot.
    #[value(name = "C3")]
    C3,
}

/// Rows of a table at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowCap {
    /// This many.
    Rows(u64),
    /// As many as this machine holds.
    Fit,
}

impl std::str::FromStr for RowCap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("fit", _) => Ok(Self::Fit),
            (_, Ok(rows)) if rows > 0 => Ok(Self::Rows(rows)),
            _ => Err("expected a number of rows above 0, or `fit`".to_owned()),
        }
    }
}

/// `headlong kernels …`
#[derive(Debug, Subcommand)]
pub enum KernelsCommand {
    /// Compile for one or more architectures; print registers, spills and shared memory of each
    /// kernel
    Build(kernels_command::BuildArguments),
    /// Name the sources and their constants
    List(kernels_command::ListArguments),
}

/// `headlong config …`
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print the effective configuration as TOML that can be read back
    #[command(mut_args(hide_what_runs_alone_have))]
    Show(TrainArguments),
    /// Check a configuration without running it
    #[command(mut_args(hide_what_runs_alone_have))]
    Check(TrainArguments),
}

/// Arguments of `headlong doctor`.
#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// As one of several ranks: as for `train`
    #[arg(long)]
    pub insecure: bool,
    /// Where the JSON goes
    #[command(flatten)]
    pub json: JsonOutput,
}
