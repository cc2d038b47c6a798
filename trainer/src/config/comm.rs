//! The settings of exchanges between ranks and of the hybrid split. None of them changes a result
//! at the same number of ranks, but `comm.compress`.

use crate::error::{Error, Result};
pub use headlong_comm::{AllToAll, Compress};
pub use headlong_verbs::VerbsSettings;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// How ranks exchange what the tables need.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CommConfig {
    /// Ranks of one node, where ranks are threads of one process; 0: all on one node. Processes
    /// know their nodes.
    pub ranks_per_node: usize,
    /// How vectors travel between nodes.
    pub exchange: AllToAll,
    /// How an owner learns which rows are wanted.
    pub ids: IdsChoice,
    /// Where equal rows of a batch become one request.
    pub deduplicate: DeduplicateChoice,
    /// What vectors and their gradients are rounded to on the way.
    pub compress: Compress,
    /// On devices, where what travels are slots of a fixed size: how many even shares of a rank's
    /// ids its slot for one owner has room for, at least 1. A batch that asks one owner for more
    /// ends the run.
    pub slot_factor: f64,
    /// Seconds after which a rank that does not come to an exchange ends the run.
    pub deadline_s: f64,
    /// Whether a job that other machines can reach may do without a secret.
    pub insecure: bool,
    /// Which way is the fastest for how many bytes, as measured (`headlong bench tune`); changes no
    /// result. Unset: documented defaults of the transport.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "super::paths::optional")]
    pub tuning: Option<PathBuf>,
    /// What NCCL may use.
    pub nccl: NcclConfig,
    /// How NICs are used.
    pub verbs: VerbsSettings,
}

impl Default for CommConfig {
    fn default() -> Self {
        Self {
            ranks_per_node: 0,
            exchange: AllToAll::Auto,
            ids: IdsChoice::Auto,
            deduplicate: DeduplicateChoice::Auto,
            compress: Compress::None,
            slot_factor: super::table_entries::DEFAULT_SLOT_FACTOR,
            deadline_s: 120.0,
            insecure: false,
            nccl: NcclConfig::default(),
            tuning: None,
            verbs: VerbsSettings::default(),
        }
    }
}

impl CommConfig {
    /// How long a rank may take to come to an exchange.
    pub fn deadline(&self) -> Duration {
        Duration::try_from_secs_f64(self.deadline_s).unwrap_or(Duration::MAX)
    }
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

/// What NCCL may use in the communicators of a run (`docs/network.md`).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NcclConfig {
    /// Sums inside the network's switches (CollNet, SHARP).
    pub collnet: FeatureChoice,
    /// Sums inside the node's NVSwitch (NVLS).
    pub nvls: FeatureChoice,
}

/// Whether NCCL may use a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeatureChoice {
    /// Never.
    Off,
    /// As NCCL and its environment decide.
    #[default]
    Auto,
    /// The run ends where NCCL does not take the demand.
    Require,
}

/// How the hybrid split is found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HybridConfig {
    /// Batches that are read before the first step to learn how frequent each row is.
    pub statistics_batches: u64,
    /// Measured latencies of exchanges (`headlong bench tune`). Unset: documented defaults of the
    /// transport.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "super::paths::optional")]
    pub latency_table: Option<PathBuf>,
    /// Bytes of one rank that replicated rows may take, their optimiser state and gradients
    /// included; 0: a quarter of memory.
    pub max_replicated_bytes: u64,
    /// At an evaluation, the split is made again where the replicated rows cover this much less of
    /// the lookups than when it was made (0.05: five points of a hundred); 0: never.
    pub repartition_drift: f64,
}

impl Default for HybridConfig {
    fn default() -> Self {
        Self {
            statistics_batches: 50,
            latency_table: None,
            max_replicated_bytes: 0,
            repartition_drift: 0.0,
        }
    }
}

/// How an owner learns which rows are wanted.
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

/// Where equal rows of a batch become one request.
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
