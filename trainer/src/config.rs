//! The configuration: every setting that can change a result, with its default, its unit in its
//! name.
//!
//! A configuration is built in layers, each over the one before: the defaults of this file, then a
//! preset or a TOML file, then `--set key=value`, then the flags the user typed. Unknown keys are
//! refused with the nearest known one; values that cannot work are refused before anything is
//! allocated. The environment is never read.
//!
//! ```
//! use headlong::config::Config;
//!
//! let config = Config::from_toml("[train]\nbatch_size = 512\n", "example").unwrap();
//! assert_eq!(config.train.batch_size, 512);
//! assert_eq!(config.model.dim, 16);
//! ```

#[macro_use]
mod settings;

mod column_entries;
mod comm;
mod data;
mod evaluation;
pub(crate) mod keys;
mod kinds;
pub(crate) mod learning_rate;
pub(crate) mod load;
mod mlperf;
mod model;
mod multi_hot;
mod optimizers;
pub(crate) mod paths;
mod pooling;
#[doc(hidden)]
pub mod preset;
pub(crate) mod ranges;
pub(crate) mod render;
mod sharded;
mod table_entries;
pub(crate) mod validate;

pub use crate::system::machine::{DeviceChoice, Instructions};
pub use column_entries::{BinsName, ColumnEntry};
pub(crate) use comm::seconds;
pub use comm::{
    AllToAll, CommConfig, Compress, DeduplicateChoice, Feature, HybridConfig, IdsChoice,
    NcclConfig, PoolAtChoice, Signal, VerbsSettings,
};
pub use data::{
    BadRowPolicy, CacheData, ColumnsConfig, DataConfig, DenseTransform, FormatChoice, Ids,
    OrderChoice,
};
pub use evaluation::{EvalConfig, EvalEvery};
pub use headlong_device::DType;
pub use headlong_embedding::hybrid::split::HybridMode;
use headlong_planner::count::Count;
pub(crate) use load::{asks_for_auto, former_keys};
pub use mlperf::MlperfConfig;
pub use model::{Interaction, Loss, ModelConfig};
pub use multi_hot::{MultiHotConfig, MultiHotSizes};
pub(crate) use multi_hot::{
    check_memory as check_multi_hot_memory, memory_bytes as multi_hot_memory_bytes,
};
pub use optimizers::{
    DENSE_NAMES, OptimizerConfig, OptimizerSettings, OptimizersConfig, SPARSE_NAMES,
};
pub(crate) use render::find;
pub use sharded::Sharded;
pub use table_entries::{Grain, Keys, PlacementName, Pooling, TableEntry};

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The whole effective configuration of a run. `headlong config show` prints it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, remote = "Self")]
pub struct Config {
    /// The dense network and the width of the embedding vectors.
    pub model: ModelConfig,
    /// The embedding tables: one per categorical column.
    pub tables: TablesConfig,
    /// The files, what their columns mean, and how ids become row indices.
    pub data: DataConfig,
    /// Several ids a sample, made of one.
    pub multi_hot: MultiHotConfig,
    /// The data set that is written when no file is named.
    pub synthetic: SyntheticConfig,
    /// Batch, duration, learning rate, seed.
    pub train: TrainConfig,
    /// The two optimisers.
    pub optimizer: OptimizersConfig,
    /// When and how the model is evaluated.
    pub eval: EvalConfig,
    /// When and where the state is saved.
    pub checkpoint: CheckpointConfig,
    /// Who a log of MLPerf's form is from. Changes no result.
    pub mlperf: MlperfConfig,
    /// How the run uses the machine. Nothing here changes a result, except `ranks` where
    /// `train.sum_blocks` is unset.
    pub run: RunConfig,
    /// How ranks exchange what the tables need. Changes no result, except for `compress`.
    pub comm: CommConfig,
    /// Which rows are replicated. Changes no result.
    pub hybrid: HybridConfig,
    /// What single tables have otherwise: one `[[table]]` for each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub table: Vec<TableEntry>,
    /// What single dense columns have otherwise, and which have a table of bins: one `[[column]]`
    /// for each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub column: Vec<ColumnEntry>,
}

impl Config {
    /// A configuration with a name: `tiny`, `criteo-sample`, `criteo-kaggle` and others, as
    /// `--preset` takes them.
    ///
    /// # Errors
    /// An unknown name; the known ones are listed.
    pub fn preset(name: &str) -> crate::Result<Self> {
        preset::preset(name)
    }

    /// Width of the top network's input: `dim + n(n−1)/2` for the dot interaction over n vectors,
    /// the sum of all widths for `cat` and `cross`.
    pub fn top_input_width(&self) -> usize {
        let bottom = self.model.bottom.last().copied().unwrap_or(0);
        let vectors = self.data.num_sparse + 1;
        match self.model.interaction {
            Interaction::Dot => bottom + vectors * (vectors - 1) / 2,
            Interaction::Cat | Interaction::Cross => bottom + self.data.num_sparse * self.model.dim,
        }
    }

    pub(crate) fn samples_per_step(&self) -> Count {
        Count::from(self.train.batch_size) * self.train.accumulate
    }
}

settings! {
    /// The embedding tables.
    pub struct TablesConfig ["tables"] {
        /// Rows of each table: a list, one number for all, a published list by name, or
        /// "dictionary".
        pub rows: TableRows,
        /// No table gets more rows than this.
        ///
        /// Ids beyond fold into it.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub max_rows: Option<u64>,
        /// How the vectors of one bag become one vector: "sum" or "mean".
        pub pooling: Pooling,
        /// What rows are stored in: "f32", "bf16" (rounded stochastically at updates) or, on a CUDA
        /// device, "f16".
        ///
        /// bf16 is rounded stochastically at each update, so that small steps are not lost; f16 to
        /// nearest. Sums, gradients and optimiser states are f32 in any case.
        pub dtype: DType,
        /// Most ids of one bag, on average over a batch.
        ///
        /// Memory is planned for `batch × this`. Criteo's bags hold one id.
        pub max_ids_per_sample: usize = 1,
    }
}

/// Rows of each table: given one by one, by name, or found by the dictionary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TableRows {
    /// One count per categorical column, in column order.
    List(Vec<u64>),
    /// The same number for every column.
    Each(u64),
    /// A published list ([`crate::config::preset::cardinalities`]) or `"dictionary"`: as many as
    /// the dictionary holds.
    Named(String),
}

/// The word that makes [`TableRows::Named`] follow the dictionary.
pub const ROWS_FROM_DICTIONARY: &str = "dictionary";

impl Default for TableRows {
    fn default() -> Self {
        Self::Each(100_000)
    }
}

settings! {
    /// The synthetic data set: Criteo's format, a ground-truth model, the same rows for the same
    /// seed.
    pub struct SyntheticConfig ["synthetic"] {
        /// Whether synthetic data is written and used where no training file is named.
        ///
        /// Without it, naming no file is an error, so that a forgotten flag never trains on made-up
        /// data.
        pub enabled: bool,
        /// Rows of the synthetic training file.
        pub train_rows: u64 = 400_000,
        /// Rows of the synthetic validation file.
        pub valid_rows: u64 = 50_000,
        /// Decides every synthetic row.
        ///
        /// Independent of `train.seed`.
        pub seed: u64 = 1,
        /// The Kaggle data's numbers of distinct ids times this; small columns keep theirs.
        ///
        /// Above 0 and up to 1.
        pub scale: f64 = 0.001,
        /// Whether the synthetic files are compressed.
        pub gzip: bool,
    }
}

settings! {
    /// Batch, duration, learning rate, seed.
    pub struct TrainConfig ["train"] {
        /// Samples of one batch, over all ranks.
        pub batch_size: usize = 2048,
        /// Batches whose gradients are summed before one step.
        ///
        /// Their sum is one mean: one step reads `batch_size * accumulate` samples.
        pub accumulate: usize = 1,
        /// Passes over the training files; a fraction stops inside one.
        pub epochs: f64 = 1.0,
        /// Steps, instead of epochs.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub steps: Option<u64>,
        /// Learning rate after the warm-up.
        pub learning_rate: f64 = 0.02,
        /// Learning rate of the tables, where it differs.
        ///
        /// The warm-up and the decay scale both alike.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub sparse_learning_rate: Option<f64>,
        /// Steps of linear warm-up; 0: none.
        pub warmup_steps: u64,
        /// First step of the decay.
        ///
        /// Used where `decay_steps` is not 0.
        pub decay_start_step: u64,
        /// Steps of the decay; 0: none.
        pub decay_steps: u64,
        /// Power of the polynomial decay.
        pub decay_power: f64 = 2.0,
        /// The decay does not go below this.
        pub final_learning_rate: f64 = 1e-7,
        /// Between warm-up and decay, the warm-up's last value instead of learning_rate, as HugeCTR
        /// has it.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        pub hugectr_compat: bool,
        /// Largest L2 norm of all dense gradients together.
        ///
        /// Larger ones are scaled down to it.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub clip_norm: Option<f64>,
        /// Decides the initial weights.
        pub seed: u64 = 1,
        /// Models that are trained one after another, with seeds from `seed` on; `eval` and
        /// `predict` take the mean of their probabilities.
        ///
        /// Where `data.order` is random, the order differs, too. Each has a folder of its own in
        /// `checkpoint.dir`: `seed-1` and so on.
        pub seeds: usize = 1,
        /// Blocks into which a batch is cut for sums (docs/numerics.md); unset: one per rank.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub sum_blocks: Option<usize>,
        /// Arithmetic of the dense layers: "f32", "tf32", "bf16" or "f16".
        ///
        /// The last two also decide what ranks exchange: `comm.compress`.
        pub precision: Precision = Precision::F32,
        /// `bf16` on processors: the order in which products are added up, "pairs", "tiles" or
        /// "auto" (docs/numerics.md).
        ///
        /// It decides the last bits of a model, on every processor the same ones. AMX adds up
        /// "tiles", AVX-512 BF16 "pairs"; other orders take as long as f32 or longer. "auto": that
        /// of the checkpoint that is resumed from, else "tiles" where the processor has AMX.
        #[serde(skip_serializing_if = "Bf16Sums::is_auto")]
        pub bf16_sums: Bf16Sums = Bf16Sums::Auto,
        /// `f16`: first factor of the loss, a power of two from 1 to 2^24; it adapts
        /// (docs/numerics.md).
        pub loss_scale: f64 = 65536.0,
        /// `f16`: steps without an overflow after which that factor is doubled.
        pub loss_scale_interval: u32 = 2000,
        /// Steps between two lines of progress.
        pub log_every: u64 = 100,
    }
}

/// Arithmetic of the dense layers, as it is asked for: what a device makes of it, such as rounding
/// on a processor, is [`Compute`](headlong_mlp::linear::Compute).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// IEEE single precision.
    #[value(alias = "fp32")]
    F32,
    /// Single precision with products of 19-bit operands (accelerators).
    Tf32,
    /// bfloat16 products, f32 sums.
    Bf16,
    /// Half precision products, f32 sums.
    F16,
}

/// The order in which products of bf16 are added up on a processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Bf16Sums {
    /// That of the checkpoint, or the fastest on this processor.
    Auto,
    /// Two at a time, as AVX-512 BF16 does.
    Pairs,
    /// 32 at a time, as AMX does.
    Tiles,
}

impl Bf16Sums {
    fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

settings! {
    /// When and where the state is saved.
    pub struct CheckpointConfig ["checkpoint"] {
        /// Folder of the checkpoints; unset: none are written.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "paths::optional")]
        pub dir: Option<PathBuf>,
        /// Steps between checkpoints; 0: at the end alone.
        ///
        /// One is always written at the end.
        pub save_every: u64,
        /// Newest checkpoints that are kept.
        pub keep: usize = 2,
        /// With save_every or eval.patience: whether the best evaluation is saved and kept, too.
        pub keep_best: bool = true,
        /// Folder of the snapshots, in memory (a tmpfs such as /dev/shm); unset: none are taken,
        /// except below `headlong launch --elastic`, which has a folder of its own.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "paths::optional")]
        pub snapshot_dir: Option<PathBuf>,
        /// Steps between snapshots.
        pub snapshot_every: u64 = 100,
    }
}

settings! {
    /// How the run uses the machine.
    pub struct RunConfig ["run"] {
        /// Where the arithmetic happens: "auto", "cpu" or "cuda".
        ///
        /// "auto": CUDA devices, where each rank has one, they hold the model, and a few captured
        /// steps on them agree with the processor; else the processor.
        pub device: DeviceChoice = DeviceChoice::Auto,
        /// Folder of compiled CUDA kernels; unset: they are compiled when first used, and kept.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "paths::optional")]
        pub kernels: Option<PathBuf>,
        /// File of measured algorithms for matrix products on a CUDA device; unset: on a GPU
        /// `algorithms.txt` in the user's cache folder.
        ///
        /// Those that are not in the file are searched when a product is first needed, and kept: of
        /// the library's proposals the fastest whose first and ninth run come to the same bits.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "paths::optional")]
        pub algorithms: Option<PathBuf>,
        /// Threads of this process over all its ranks; unset: one per core, which the ranks of a
        /// machine share where none is bound to a part of it; changes no result.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub threads: Option<usize>,
        /// Whether each thread that helps a rank stays on a processor of its own, where there are
        /// enough; the rank's own thread and readers run anywhere; changes no result.
        ///
        /// For machines on which the system moves threads from one cache or memory node to another;
        /// on two idle cores it gains nothing.
        pub bind: bool,
        /// The processor's instructions that arithmetic may use: "auto", "portable", "avx2",
        /// "avx512", "avx512_bf16" or "amx"; changes no result.
        pub instructions: Instructions = Instructions::Auto,
        /// Data-parallel ranks.
        pub ranks: usize = 1,
        /// Ranks that evaluate alone, while the others train; unset: those that train evaluate.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub eval_ranks: Option<usize>,
        /// Of the processes that a launcher has started, so many, the last ones, evaluate alone;
        /// unset: all train.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub eval_processes: Option<usize>,
        /// Rows replicated on every rank: "off", "auto" or "rows=N".
        pub hybrid: HybridMode = HybridMode::Auto,
        /// How the stages of an iteration are laid on lanes: "auto", "serial", "overlapped" or
        /// "captured"; changes no result.
        ///
        /// "auto": "captured" on a CUDA device; "serial" on a processor, whose cores all stages
        /// share.
        pub schedule: ScheduleChoice = ScheduleChoice::Auto,
        /// How bytes travel between ranks: "auto", "local", "shm", "tcp", "nccl", "verbs" or
        /// "ucx".
        pub transport: TransportChoice = TransportChoice::Auto,
        /// Folder for everything that is written and has no folder of its own.
        #[serde(serialize_with = "paths::one")]
        pub output_dir: PathBuf = PathBuf::from("headlong-out"),
    }
}

/// Ranks that evaluate alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvalRanksAre {
    /// Threads of the process that leads.
    Threads(usize),
    /// Processes.
    Processes(usize),
}

impl EvalRanksAre {
    /// How many.
    pub fn count(self) -> usize {
        match self {
            Self::Threads(count) | Self::Processes(count) => count,
        }
    }

    /// The flag that asks for them.
    pub fn flag(self) -> &'static str {
        match self {
            Self::Threads(_) => "--eval-ranks",
            Self::Processes(_) => "--eval-processes",
        }
    }

    /// The setting, with its value: `run.eval_ranks = 2`.
    pub fn setting(self) -> String {
        match self {
            Self::Threads(count) => format!("run.eval_ranks = {count}"),
            Self::Processes(count) => format!("run.eval_processes = {count}"),
        }
    }
}

impl RunConfig {
    /// The ranks that evaluate alone, where there are some.
    pub fn evaluating(&self) -> Option<EvalRanksAre> {
        let processes = self.eval_processes.map(EvalRanksAre::Processes);
        processes.or(self.eval_ranks.map(EvalRanksAre::Threads))
    }

    /// How stages are laid on lanes, with "auto" decided: the choice itself otherwise.
    pub fn schedule_used(&self) -> ScheduleChoice {
        match (self.schedule, self.device) {
            (ScheduleChoice::Auto, DeviceChoice::Cuda) => ScheduleChoice::Captured,
            (ScheduleChoice::Auto, _) => ScheduleChoice::Serial,
            (chosen, _) => chosen,
        }
    }
}

/// How the stages of an iteration are laid on lanes. Results do not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleChoice {
    /// Captured on a CUDA device, serial on a processor.
    Auto,
    /// All stages on one lane, in program order.
    Serial,
    /// Lanes run at the same time: on a CPU, exchanges under all that computes.
    Overlapped,
    /// The overlapped iteration, captured once and replayed.
    Captured,
}

/// How bytes travel between ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum TransportChoice {
    /// The best that all ranks can use.
    Auto,
    /// Threads of one process.
    Local,
    /// Shared memory between processes.
    Shm,
    /// TCP.
    Tcp,
    /// NCCL.
    Nccl,
    /// InfiniBand verbs.
    Verbs,
    /// UCX, which chooses its own way between processes; the memory of the host only.
    Ucx,
}

impl TransportChoice {
    /// Of what carries the payload, once that is known; before, of threads.
    pub fn name(self) -> &'static str {
        match self {
            TransportChoice::Auto | TransportChoice::Local => "local",
            TransportChoice::Shm => "shm",
            TransportChoice::Tcp => "tcp",
            TransportChoice::Nccl => "nccl",
            TransportChoice::Verbs => "verbs",
            TransportChoice::Ucx => "ucx",
        }
    }

    /// Whether ranks over it are processes, by its name alone.
    pub fn joins_processes(self) -> bool {
        use TransportChoice::{Auto, Local, Nccl, Shm, Tcp, Ucx, Verbs};
        match self {
            Shm | Tcp | Verbs | Ucx => true,
            Auto | Local | Nccl => false,
        }
    }
}
