//! Devices and streams: where work runs and in which order.

use crate::error::{DeviceError, Result};
use crate::pool::Pool;
use std::sync::Arc;

/// A device that ops can run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Device {
    /// The processor of this machine.
    Cpu,
    /// A CUDA device, by ordinal.
    Cuda(u32),
}

impl Device {
    /// Parses `auto`, `cpu` or `cuda`, and says plainly when the device is not there.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "auto" | "cpu" => Ok(Device::Cpu),
            other => Err(DeviceError::Unavailable {
                device: other.to_owned(),
                reason: "this build trains on the CPU only; use --device cpu or auto".to_owned(),
            }),
        }
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// An ordered queue of work on one device: one lane of the schedule.
///
/// On the CPU the queue is run by the thread that walks the lane: an op given to the stream runs at once, its tiles
/// handed out to the stream's pool. Ops take `&Stream` first, as they do for devices that run later.
#[derive(Debug, Clone)]
pub struct Stream {
    device: Device,
    pool: Arc<Pool>,
}

impl Stream {
    /// A CPU stream with a pool of its own of `threads` threads, the caller's included.
    pub fn cpu(threads: usize) -> Self {
        Self::on_pool(Arc::new(Pool::new(threads)))
    }

    /// A CPU stream that shares a pool with others.
    pub fn on_pool(pool: Arc<Pool>) -> Self {
        Self { device: Device::Cpu, pool }
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The pool that runs tiles of CPU ops.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
}
