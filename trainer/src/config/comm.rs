//! The settings of exchanges between ranks and of the hybrid split. None of them changes a result
//! at the same number of ranks, but `comm.compress` and `comm.pool_at`.

use super::{Config, DeviceChoice, Precision};
use crate::error::{Error, Result};
use headlong_comm::rendezvous::Deadlines;
pub use headlong_comm::{AllToAll, Compress, Feature};
use headlong_device::DType;
pub use headlong_verbs::{Signal, VerbsSettings};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

settings! {
    /// How ranks exchange what the tables need.
    pub struct CommConfig ["comm"] {
        /// Ranks of one node; 0: threads of a process are all on one, processes on that of their
        /// machine. A plan takes nodes for machines.
        pub ranks_per_node: usize,
        /// How vectors travel between nodes: "auto", "flat" or "hierarchical"; changes no result.
        pub exchange: AllToAll = AllToAll::Auto,
        /// How an owner learns which rows are wanted: "auto", "exchange" or "known" (every rank
        /// holds the ids of the whole batch); changes no result.
        pub ids: IdsChoice = IdsChoice::Auto,
        /// Where equal rows of a batch become one request: "auto", "off", "rank" or "node"; changes
        /// no result on processors.
        pub deduplicate: DeduplicateChoice = DeduplicateChoice::Auto,
        /// Where bags of several ids become vectors: "rank", "owner" (of the rows: one vector for
        /// each bag and owner travels) or "auto" ("owner" where that sends a quarter less).
        ///
        /// A sum of rows then has the shape that `train.sum_blocks` says, in predictions, too.
        pub pool_at: PoolAtChoice = PoolAtChoice::Rank,
        /// What vectors and their gradients are rounded to on the way: "none", "bf16" or "f16"
        /// (gradients to bf16); unset: what `train.precision` is, where that is one of these and
        /// `train.sum_blocks` above 1, else "none".
        ///
        /// Where it is what `train.precision` is, the all-reduce adds up in bf16, too.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub compress: Option<Compress>,
        /// Seconds after which a rank that does not come to an exchange ends the run.
        pub deadline_s: f64 = 120.0,
        /// Seconds for all processes of a job to come together: as long as a queue may start them
        /// one after the other.
        pub rendezvous_s: f64 = 300.0,
        /// Seconds without a sign of life after which a rank counts as lost; it gives one every
        /// fifth of them.
        pub silence_s: f64 = 5.0,
        /// Whether a job that other machines can reach may do without a secret; changes no result.
        pub insecure: bool,
        /// Whether what ranks exchange over TCP is encrypted, too; changes no result.
        ///
        /// Control messages and keys always are. What travels by InfiniBand, RoCE or NCCL is not.
        pub encrypt_data: bool,
        /// Measured fastest ways of exchanges (`headlong bench tune`); unset: defaults of the
        /// transport; changes no result on processors.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "super::paths::optional")]
        pub tuning: Option<PathBuf>,
        /// What NCCL may use.
        pub nccl: NcclConfig,
        /// How NICs are used.
        pub verbs: VerbsSettings,
    }
}

impl Config {
    /// What vectors travel as: `comm.compress`, or what the precision says; their gradients:
    /// [`headlong_embedding::hybrid::gradients_of`].
    pub fn compress(&self) -> Compress {
        self.compress_of(self.sum_blocks())
    }

    /// The same where sums have so many blocks.
    pub(crate) fn compress_of(&self, sum_blocks: usize) -> Compress {
        let narrow = compress_in(self.train.precision).filter(|_| sum_blocks > 1);
        self.comm.compress.or(narrow).unwrap_or_default()
    }

    /// What vectors are on their way between so many devices.
    pub(crate) fn slot_dtype(&self, num_ranks: usize) -> DType {
        dtype(self.compress_of(self.train.sum_blocks.unwrap_or(num_ranks)))
    }

    /// Whether all that ranks add up is of 16 bits, so that one rank rounds what several would
    /// send: sums are bf16 then.
    pub fn is_narrow(&self) -> bool {
        self.is_narrow_of(self.sum_blocks())
    }

    fn is_narrow_of(&self, sum_blocks: usize) -> bool {
        compress_in(self.train.precision) == Some(self.compress_of(sum_blocks))
    }

    /// What rows are rounded to then, before they are added.
    pub(crate) fn narrow_rows(&self) -> Option<DType> {
        self.is_narrow().then(|| dtype(self.compress()))
    }

    /// Whether gradients that the all-reduce adds up travel as bf16, between devices or processors.
    /// Where NCCL's switches must add up, they stay f32.
    pub(crate) fn sums_are_narrow(&self, on_device: bool) -> bool {
        self.sum_bytes_of(self.sum_blocks(), on_device) == 2
    }

    /// Bytes of one element of the all-reduce on its way.
    pub(crate) fn sum_bytes(&self) -> usize {
        self.sum_bytes_of(self.sum_blocks(), self.run.device == DeviceChoice::Cuda)
    }

    /// The same where sums have so many blocks.
    pub(crate) fn sum_bytes_of(&self, sum_blocks: usize, on_device: bool) -> usize {
        let NcclConfig { collnet, nvls } = self.comm.nccl;
        let by_switches = on_device && [collnet, nvls].contains(&Feature::Require);
        if self.is_narrow_of(sum_blocks) && !by_switches { 2 } else { 4 }
    }
}

/// What vectors travel as at the least in a precision: what products round them to.
fn compress_in(precision: Precision) -> Option<Compress> {
    match precision {
        Precision::Bf16 => Some(Compress::Bf16),
        Precision::F16 => Some(Compress::F16),
        Precision::F32 | Precision::Tf32 => None,
    }
}

fn dtype(compress: Compress) -> DType {
    match compress {
        Compress::Bf16 => DType::Bf16,
        Compress::F16 => DType::F16,
        Compress::None => DType::F32,
    }
}

impl CommConfig {
    /// How long a rank may take to come to an exchange.
    pub fn deadline(&self) -> Duration {
        duration(self.deadline_s)
    }

    /// How long anything between processes may take.
    pub(crate) fn deadlines(&self) -> Deadlines {
        let silence = duration(self.silence_s);
        Deadlines {
            rendezvous: duration(self.rendezvous_s),
            operation: self.deadline(),
            heartbeat: silence / 5,
            silence,
            ..Deadlines::default()
        }
    }
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// The longest time that a setting may give, in seconds: some thirty years.
pub(super) const MOST_SECONDS: f64 = 1e9;

/// A time that a user gives in seconds.
///
/// # Errors
/// Nothing that a clock could measure, by the name of `key`.
pub fn seconds(key: &str, seconds: f64) -> Result<Duration> {
    let wrong = || {
        Error::config(
            key,
            format!("expected seconds above 0, at most {MOST_SECONDS}, found {seconds:?}"),
        )
    };
    let is_measurable = seconds > 0.0 && seconds <= MOST_SECONDS;
    let duration = Duration::try_from_secs_f64(seconds).ok().filter(|_| is_measurable);
    duration.filter(|duration| !duration.is_zero()).ok_or_else(wrong)
}

settings! {
    /// What NCCL may use in the communicators of a run (`docs/network.md`).
    #[derive(Copy)]
    pub struct NcclConfig ["comm.nccl"] {
        /// Sums in the network's switches (SHARP), by NCCL: "off", "auto" or "require".
        pub collnet: Feature,
        /// Sums in the node's NVSwitch, by NCCL: "off", "auto" or "require".
        pub nvls: Feature,
    }
}

settings! {
    /// How the hybrid split is found.
    pub struct HybridConfig ["hybrid"] {
        /// Batches read before the first step to learn how frequent each row is.
        pub statistics_batches: u64 = 50,
        /// Measured latencies (`headlong bench tune`); unset: defaults of the transport.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "super::paths::optional")]
        pub latency_table: Option<PathBuf>,
        /// Bytes of a rank for replicated rows; 0: a quarter of its memory.
        ///
        /// Their optimiser state and gradients count, too.
        pub max_replicated_bytes: u64,
        /// Lost share of covered lookups at which the split is remade; 0: never.
        ///
        /// Compared at each evaluation; 0.05: five points of a hundred less than when the split was
        /// made.
        pub repartition_drift: f64,
    }
}

/// How an owner learns which rows are wanted, or that the plan decides between the ways of
/// [`IdSource`](headlong_embedding::hybrid::traffic::IdSource).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdsChoice {
    /// By cost.
    Auto,
    /// Every rank asks for the rows of its slice.
    Exchange,
    /// Every rank holds the ids of the whole batch and finds out for itself.
    Known,
}

/// Where the bags of a table become vectors, or that the plan decides for each table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolAtChoice {
    /// By the bytes that travel.
    Auto,
    /// On the rank whose samples they are.
    Rank,
    /// At the owners of their rows.
    Owner,
}

/// Where equal rows of a batch become one request, or that the plan decides between the places of
/// [`Merge`](headlong_embedding::hybrid::traffic::Merge).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeduplicateChoice {
    /// On the rank, or in the node where that sends less.
    Auto,
    /// Nowhere: one vector a lookup. For comparison.
    Off,
    /// On each rank.
    Rank,
    /// On each node.
    Node,
}
