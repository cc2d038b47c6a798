//! The settings of exchanges over InfiniBand verbs. None of them changes a result.

use serde::{Deserialize, Serialize};

/// How network cards are used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VerbsConfig {
    /// Devices by local index of the rank, again from the first where there are more ranks; empty: the nearest one.
    pub devices: Vec<String>,
    /// Place of the global identifier in the port's table. Unset: the best one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid_index: Option<u32>,
    /// Partition key.
    pub partition_key: u16,
    /// Service level, 0 to 15.
    pub service_level: u8,
    /// Traffic class: on RoCE four times the DSCP, plus ECN bits.
    pub traffic_class: u8,
    /// An answer is missing after 4.096 µs times two to this power.
    pub timeout: u8,
    /// So often a packet is sent again, 0 to 7.
    pub retries: u8,
    /// Slots of a direction.
    pub slots: usize,
    /// Payload bytes of a slot.
    pub slot_bytes: usize,
    /// How a receiver learns that a slot has been filled.
    pub signal: SignalChoice,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            gid_index: None,
            partition_key: 0xffff,
            service_level: 0,
            traffic_class: 0,
            timeout: 16,
            retries: 7,
            slots: 3,
            slot_bytes: 256 << 10,
            signal: SignalChoice::Immediate,
        }
    }
}

/// How a receiver learns that a slot has been filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignalChoice {
    /// By a completion: every card can do it.
    Immediate,
    /// By a counter that the sender's card adds to: only where cards have atomics.
    Atomic,
}
