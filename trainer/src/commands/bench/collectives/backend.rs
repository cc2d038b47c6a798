//! What can be measured: one entry for each backend.

use clap::ValueEnum;
use headlong_comm::BetweenDevices;
use headlong_comm::transport::choose::Wanted;
use serde::{Deserialize, Serialize};

/// What carries bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[value(rename_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// Threads of one process.
    Local,
    /// Processes of one machine, through shared memory.
    Shm,
    /// Processes over TCP.
    Tcp,
    /// Processes over InfiniBand or RoCE.
    Verbs,
    /// Processes over UCX, by whatever it finds.
    Ucx,
    /// CUDA devices, over NCCL.
    Nccl,
    /// CUDA devices of one process, by their own memory.
    Peer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankIs {
    Thread,
    /// A process, which reaches the others by this.
    Process(Wanted),
    /// A thread of this process with a CUDA device of its own.
    Device(BetweenDevices),
}

impl Backend {
    pub fn name(self) -> &'static str {
        match self {
            Backend::Local => "local",
            Backend::Shm => "shm",
            Backend::Tcp => "tcp",
            Backend::Verbs => "verbs",
            Backend::Ucx => "ucx",
            Backend::Nccl => "nccl",
            Backend::Peer => "peer",
        }
    }

    /// Whether it joins CUDA devices.
    pub fn on_devices(self) -> bool {
        matches!(self.rank_is(), RankIs::Device(_))
    }

    pub fn rank_is(self) -> RankIs {
        match self {
            Backend::Local => RankIs::Thread,
            Backend::Shm => RankIs::Process(Wanted::Shm),
            Backend::Tcp => RankIs::Process(Wanted::Tcp),
            Backend::Verbs => RankIs::Process(Wanted::Verbs),
            Backend::Ucx => RankIs::Process(Wanted::Ucx),
            Backend::Nccl => RankIs::Device(BetweenDevices::Nccl),
            Backend::Peer => RankIs::Device(BetweenDevices::Auto),
        }
    }
}
