//! How a communicator does its work. All ranks of a job have the same options.

use crate::tuning::Tuning;
pub use nccl_rs::Feature;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Which way parts take in an all-to-all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AllToAll {
    /// Hierarchical where there are several nodes and one of them has several ranks; between
    /// devices as [`goes_by_node`](crate::device::goes_by_node) says.
    #[default]
    Auto,
    /// Straight to their destination.
    Flat,
    /// Inside the node to the peer that carries for the destination, which crosses the network once
    /// for its node.
    Hierarchical,
}

/// How large all-reduces are done. The result has the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AllReduce {
    /// Each rank adds up one segment and sends the sum to all.
    Flat,
    /// Inside the node, once across the network, inside the node, where nodes are of one size, a
    /// power of two, and their ranks are numbered node by node: a node of eight ranks sends an
    /// eighth of the bytes of [`AllReduce::Flat`]. All other nodes: flat.
    #[default]
    Auto,
}

/// What travels instead of f32 in
/// [`Communicator::all_to_all_v`](crate::Communicator::all_to_all_v).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compress {
    /// f32 itself.
    #[default]
    None,
    /// bf16, rounded to nearest, ties to even: half the bytes. What a rank sends to itself is
    /// rounded too, so that the result does not depend on who holds a row.
    Bf16,
    /// f16, likewise, of three more bits: numbers above 65504 become infinite. What needs the range
    /// of f32 travels as bf16:
    /// [`Communicator::all_to_all_v_in_full_range`](crate::Communicator::all_to_all_v_in_full_range).
    F16,
}

/// What carries bytes between the devices of several ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BetweenDevices {
    /// Each other's memory, where ranks are on one node and their devices allow it; else NCCL. Sums
    /// have the bits of [`Communicator::all_reduce`](crate::Communicator::all_reduce), save those
    /// in f32 over NCCL alone, which keep NCCL's order.
    #[default]
    Auto,
    /// NCCL.
    Nccl,
}

/// What NCCL may use in the communicators of a job, where their version can be told so for one
/// communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NcclOptions {
    /// Sums inside the network's switches (CollNet, SHARP).
    pub collnet: Feature,
    /// Sums inside the node's NVSwitch (NVLS): in an order that may change from call to call.
    pub nvls: Feature,
}

/// How a communicator does its work.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct CommOptions {
    pub all_to_all: AllToAll,
    pub all_reduce: AllReduce,
    /// What travels instead of f32 in an all-to-all of vectors.
    pub compress: Compress,
    /// All-reduces of at most this many bytes take one step, in which everybody sends everything to
    /// everybody; none: as measured for the transport and the number of ranks. Between devices of
    /// three nodes or more, up to this many bytes nodes send their sums to each other in one step;
    /// none: where two steps spare less than their wait costs. The result has the same bits.
    pub one_step_bytes: Option<usize>,
    /// Which algorithm is the fastest for how many bytes, as measured; the same on all ranks. Where
    /// it says nothing about this job, and where `one_step_bytes` is given, the other options
    /// decide. The result has the same bits.
    pub tuning: Option<Arc<Tuning>>,
    /// Larger all-reduces are done this many bytes at a time: a bound for the memory that
    /// transports need which cannot show messages in place.
    pub chunk_bytes: usize,
    pub between_devices: BetweenDevices,
    pub nccl: NcclOptions,
    /// A rank that has not come after this time ends the job (transports that this crate makes
    /// itself).
    pub deadline: Duration,
}

impl Default for CommOptions {
    fn default() -> Self {
        Self {
            all_to_all: AllToAll::Auto,
            all_reduce: AllReduce::Auto,
            compress: Compress::None,
            one_step_bytes: None,
            tuning: None,
            chunk_bytes: 4 << 20,
            between_devices: BetweenDevices::Auto,
            nccl: NcclOptions::default(),
            deadline: Duration::from_secs(120),
        }
    }
}

impl CommOptions {
    /// Up to this many bytes an all-reduce over `transport` takes one step: everybody reads
    /// everything, but waits only once.
    pub fn one_step_bytes_of(&self, transport: &str, num_ranks: usize) -> usize {
        let measured = match (transport, num_ranks) {
            (_, 0..=2) => 64 << 10,
            ("local", _) => 16 << 10,
            (_, ranks) => (128 << 10) / ranks,
        };
        self.one_step_bytes.unwrap_or(measured)
    }

    /// Whether in jobs of many ranks each exchanges with those of its node and of its rail alone,
    /// where nodes allow it. Where another way was asked for, or the fastest was measured, it may
    /// need all.
    pub(crate) fn keeps_to_rails(&self) -> bool {
        self.all_to_all != AllToAll::Flat
            && self.all_reduce == AllReduce::Auto
            && self.one_step_bytes.is_none()
            && self.tuning.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_way_may_need_all_ranks() {
        let options = CommOptions::default;
        assert!(options().keeps_to_rails());
        let tuning = Some(Arc::new(Tuning::new("")));
        let others = [
            CommOptions { all_to_all: AllToAll::Flat, ..options() },
            CommOptions { all_reduce: AllReduce::Flat, ..options() },
            CommOptions { one_step_bytes: Some(1 << 10), ..options() },
            CommOptions { tuning, ..options() },
        ];
        for other in others {
            assert!(!other.keeps_to_rails(), "{other:?}");
        }
    }
}
