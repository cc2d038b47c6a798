//! How this transport is set up. All ranks have the same settings, except for `near` and `devices`.

use headlong_comm::Feature;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// How a receiver learns that a slot has been filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Signal {
    /// By the completion of a write with an immediate: every NIC can do it.
    #[default]
    Immediate,
    /// By a counter that the sender's NIC adds to, after the bytes, on the same connection: no rank
    /// waits for a completion queue. Only where NICs have atomics.
    Atomic,
}

/// Settings of the verbs transport: those of a configuration file, and what a rank knows of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VerbsSettings {
    /// Devices by local index of the rank, again from the first where there are more ranks; empty:
    /// the nearest one.
    pub devices: Vec<String>,
    /// Where this rank's memory is: the directory of its device below `/sys/devices`. None: the
    /// memory node counts.
    #[serde(skip)]
    pub near: Option<PathBuf>,
    /// This rank's memory node, where it is known.
    #[serde(skip)]
    pub numa_node: Option<u32>,
    /// Place of the global identifier in the port's table; none: the best one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid_index: Option<u32>,
    /// Partition key; its highest bit does not count.
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
    /// Payload bytes of a slot. Longer messages take several turns.
    pub slot_bytes: usize,
    /// How a receiver learns that a slot has been filled.
    pub signal: Signal,
    /// Whether NICs read and write the memory of GPUs, between devices. Where it is off, and with
    /// [`Feature::Auto`] where driver or NIC cannot, memory of the host lies between them.
    pub gpudirect: Feature,
    /// Longest wait for the first message of each peer.
    #[serde(skip)]
    pub patience: Duration,
}

impl Default for VerbsSettings {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            near: None,
            numa_node: None,
            gid_index: None,
            partition_key: 0xffff,
            service_level: 0,
            traffic_class: 0,
            timeout: 16,
            retries: 7,
            slots: 3,
            slot_bytes: 256 << 10,
            signal: Signal::Immediate,
            gpudirect: Feature::Auto,
            patience: Duration::from_secs(10),
        }
    }
}

impl VerbsSettings {
    /// What is wrong with them: the key, and why.
    ///
    /// # Errors
    /// The first setting that cannot work.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let between =
            |key, value: usize, first: usize, last: usize| match (first..=last).contains(&value) {
                true => Ok(()),
                false => Err((key, format!("{value} is not between {first} and {last}"))),
            };
        between("comm.verbs.service_level", self.service_level.into(), 0, 15)?;
        between("comm.verbs.timeout", self.timeout.into(), 1, 31)?;
        between("comm.verbs.retries", self.retries.into(), 0, 7)?;
        between("comm.verbs.slots", self.slots, 2, 64)?;
        between("comm.verbs.slot_bytes", self.slot_bytes, 64, 1 << 30)
    }

    /// How long a NIC tries before it gives a peer up: four times the timeout at most, for each
    /// try (InfiniBand specification, 9.7.6.1.3, lets a NIC wait so long).
    pub fn gives_up_after(&self) -> Duration {
        let once = Duration::from_nanos(4096) * (1 << self.timeout.min(31));
        once * (u32::from(self.retries) + 1)
    }
}
