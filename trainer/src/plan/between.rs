//! What carries bytes between the devices of several ranks.

use crate::config::{Config, DeviceChoice, TransportChoice};
use headlong_comm::Topology;
use headlong_comm::device::goes_by_node;

/// What is asked for, else what joins these devices: the choice that collectives between devices
/// make when ranks come together, as far as it is known before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Between {
    /// Each other's memory. Devices of one machine that cannot use it fall back to NCCL.
    Memory,
    /// NCCL joins all ranks.
    Nccl,
    /// Memory inside nodes, NCCL between them.
    MemoryAndNccl,
    /// Memory inside nodes, the NICs of verbs between them.
    MemoryAndVerbs,
}

impl Between {
    /// The one of ranks whose exchange goes `by_node`; `spans_machines`: not all of them are on
    /// one.
    pub fn of(transport: TransportChoice, spans_machines: bool, by_node: bool) -> Self {
        match (transport, spans_machines, by_node) {
            (TransportChoice::Verbs, _, true) => Self::MemoryAndVerbs,
            (TransportChoice::Nccl, ..) | (_, true, false) => Self::Nccl,
            (_, true, true) => Self::MemoryAndNccl,
            (_, false, _) => Self::Memory,
        }
    }

    /// The one of `config`'s ranks on `topology`, whose nodes are taken for machines.
    pub fn of_ranks(config: &Config, topology: &Topology) -> Self {
        let by_node = goes_by_node(topology, config.comm.exchange);
        Self::of(config.run.transport, topology.num_nodes() > 1, by_node)
    }
}

/// What carries rows between ranks, by the name it has in measurements.
pub fn carrier(config: &Config, topology: &Topology) -> &'static str {
    if config.run.device != DeviceChoice::Cuda {
        return config.run.transport.name();
    }
    match Between::of_ranks(config, topology) {
        Between::Nccl => "nccl",
        _ => "peer",
    }
}
