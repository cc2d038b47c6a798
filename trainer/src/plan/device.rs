//! What of a rank's memory lies on a CUDA device.

use super::{Count, MemoryUse};
use crate::system::machine::DeviceFacts;
use serde::Serialize;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DevicePlan {
    pub name: String,
    /// Bytes that the rank will take there: tables, dense network, activations, work space.
    pub needed_bytes: Count,
    /// Bytes that are free.
    pub free_bytes: u64,
    pub count: usize,
}

impl DevicePlan {
    pub(super) fn new(device: &DeviceFacts, memory: &MemoryUse, ranks: usize) -> Self {
        let DeviceFacts { name, free_bytes, count } = device.clone();
        Self { name, needed_bytes: memory.on_a_device(ranks), free_bytes, count }
    }
}
