//! The command line: every command and flag, as text and as types. What a flag means for the
//! configuration is in [`super::train_arguments`]; [`main_with`] calls the commands.

mod completions;
mod dispatch;
mod man;
mod outputs;
mod reference;

pub use dispatch::{main_called, main_with};

use crate::commands::bench::collectives::arguments::CollectiveArguments;
use crate::commands::bench::embedding::EmbeddingArguments;
use crate::commands::bench::exchange::ExchangeArguments;
use crate::commands::bench::forecast::ForecastArguments;
use crate::commands::bench::iteration::IterationArguments;
use crate::commands::bench::machine::MachineArguments;
use crate::commands::bench::p2p::P2pArguments;
use crate::commands::bench::reader::ReaderArguments;
use crate::commands::bench::tune::TuneArguments;
use crate::commands::checkpoint::CheckpointCommand;
use crate::commands::convert::{ConvertArguments, MultiHotArguments};
use crate::commands::data::{DataFilesArguments, DataMakeArguments};
use crate::commands::doctor::DoctorArguments;
use crate::commands::inference::{EvalArguments, PredictArguments};
use crate::commands::kernels;
use crate::commands::launch::LaunchArguments;
use crate::commands::plan::PlanArguments;
use crate::commands::report::ReportArguments;
use crate::commands::train_arguments::TrainArguments;
use crate::commands::tune::TuneArguments as SearchArguments;
use crate::commands::verify::VerifyArguments;
use clap::{Parser, Subcommand};
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

/// Flags of `train` that say nothing of a configuration: other commands take them, so that a
/// command line of `train` can be tried, and do not list them.
fn hide_what_runs_alone_have(argument: clap::Arg) -> clap::Arg {
    let of_runs = [
        "resume",
        "data_changed",
        "init_from",
        "log_json",
        "mllog",
        "trace",
        "tensorboard",
        "time",
        "dry_run",
    ];
    let is_hidden = of_runs.iter().any(|name| argument.get_id() == name);
    if is_hidden { argument.hide(true) } else { argument }
}

/// A command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a model; without any option, on synthetic data
    Train(TrainArguments),
    /// Try settings within a number of minutes, and write the best as a configuration
    Tune(SearchArguments),
    /// Evaluate a checkpoint on labelled data
    Eval(EvalArguments),
    /// Write the click probability of every row
    Predict(PredictArguments),
    /// Write a page about a run: curves, calibration, lift, importance of columns, time, memory
    Report(ReportArguments),
    /// Show what a training run would need, and whether it fits, before any memory is taken for it
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
    Recipe,
    /// Print a completion script
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write those of all commands into a folder
    Man {
        /// Folder for headlong.1, headlong-train.1 and so on; it is made where it is not there
        dir: Option<PathBuf>,
    },
    /// Print a page of the documentation that is made of what the program says of itself
    #[command(hide = true)]
    Reference {
        /// The page
        page: reference::Page,
    },
}

/// `headlong data …`
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Build a dictionary with a frequency threshold: one streaming pass, resumable per file
    #[command(name = "build-dictionary", alias = "make")]
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

/// `headlong bench …`
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Samples per second of whole training steps on made-up batches
    Iteration(IterationArguments),
    /// Describe this machine for `plan --cluster`, or compare predictions with measured steps
    Forecast(ForecastArguments),
    /// What this machine can do at most, and what bounds the training of each shape
    Machine(MachineArguments),
    /// Read and decode files, compared with the disk's own rate
    Reader(ReaderArguments),
    /// Lookup and update of embedding tables
    Embedding(EmbeddingArguments),
    /// The deterministic all-reduce: latency and bandwidth
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
    /// One verb of RDMA back and forth between two NICs, as perftest measures it
    P2p(P2pArguments),
    /// The messages of a planned run's step: bytes, time, each table's share
    Exchange(Box<ExchangeArguments>),
    /// Measure the collectives and write the table of costs that the hybrid split reads
    Tune(TuneArguments),
}

/// `headlong kernels …`
#[derive(Debug, Subcommand)]
pub enum KernelsCommand {
    /// Compile for one or more architectures; print registers, spills and shared memory of each
    /// kernel
    Build(kernels::BuildArguments),
    /// Name the sources and their constants
    List(kernels::ListArguments),
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
