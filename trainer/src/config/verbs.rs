//! The settings of exchanges over InfiniBand verbs. None of them changes a result.

use headlong_verbs::{Signal, VerbsSettings};
use serde::{Deserialize, Serialize};

/// How NICs are used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VerbsConfig {
    /// Devices by local index of the rank, again from the first where there are more ranks; empty:
    /// the nearest one.
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
        // Those of the crate that uses them.
        let settings = VerbsSettings::default();
        Self {
            devices: settings.devices,
            gid_index: settings.gid_index,
            partition_key: settings.partition_key,
            service_level: settings.service_level,
            traffic_class: settings.traffic_class,
            timeout: settings.timeout,
            retries: settings.retries,
            slots: settings.slots,
            slot_bytes: settings.slot_bytes,
            signal: match settings.signal {
                Signal::Immediate => SignalChoice::Immediate,
                Signal::Atomic => SignalChoice::Atomic,
            },
        }
    }
}

/// How a receiver learns that a slot has been filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignalChoice {
    /// By a completion: every NIC can do it.
    Immediate,
    /// By a counter that the sender's NIC adds to: only where NICs have atomics.
    Atomic,
}

/// How NICs are used, in the words of the crate that uses them.
pub(crate) fn verbs_settings(config: &VerbsConfig) -> VerbsSettings {
    VerbsSettings {
        devices: config.devices.clone(),
        gid_index: config.gid_index,
        partition_key: config.partition_key,
        service_level: config.service_level,
        traffic_class: config.traffic_class,
        timeout: config.timeout,
        retries: config.retries,
        slots: config.slots,
        slot_bytes: config.slot_bytes,
        signal: match config.signal {
            SignalChoice::Immediate => Signal::Immediate,
            SignalChoice::Atomic => Signal::Atomic,
        },
        ..VerbsSettings::default()
    }
}
