//! What of a rank's memory lies on a CUDA device.

use super::{Count, MemoryUse};
use crate::system::machine::DeviceFacts;
use serde::Serialize;

/// Bytes of work space of matrix products, of both streams that compute them.
const WORKSPACE_BYTES: u64 = 2 * (32 << 20);

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DevicePlan {
    /// What it calls itself.
    pub name: String,
    /// Bytes that the rank will take there: tables, dense network, activations, work space.
    pub needed_bytes: Count,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Devices of the machine.
    pub count: usize,
}

impl DevicePlan {
    pub(super) fn new(device: &DeviceFacts, memory: &MemoryUse) -> Self {
        let DeviceFacts { name, free_bytes, count } = device.clone();
        Self { name, needed_bytes: memory.on_a_device(), free_bytes, count }
    }
}

impl MemoryUse {
    /// What of it lies on a device, with the work space of matrix products.
    pub(super) fn on_a_device(&self) -> Count {
        self.table_weight_bytes
            + self.table_state_bytes
            + self.dense_bytes
            + self.exchange_bytes
            + self.activation_bytes
            + WORKSPACE_BYTES
    }

    /// What of it the host holds where the model lies on a device: batches pass through page-locked
    /// memory.
    pub(super) fn next_to_a_device(&self) -> Count {
        self.reader_bytes + self.id_map_bytes + self.other_bytes
    }
}
