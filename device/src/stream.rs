//! Devices and streams: where work runs and in which order.

use crate::cuda::{CudaDevice, CudaStream};
use crate::error::Result;
use crate::pool::Pool;
use std::sync::Arc;

/// A device that ops can run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// The processor of this machine.
    Cpu,
    /// A CUDA device, by ordinal.
    Cuda(u32),
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
/// On the CPU the queue is run by the thread that walks the lane: an op given to the stream runs at
/// once, its tiles handed out to the stream's pool. On a CUDA device an op enqueues kernels and
/// returns; its failures are kept and [`Stream::check`] returns the first of them.
#[derive(Debug, Clone)]
pub struct Stream {
    pool: Arc<Pool>,
    cuda: Option<CudaStream>,
    side_stream: Option<Arc<Stream>>,
}

impl Stream {
    /// A CPU stream with a pool of its own of `threads` threads, the caller's included.
    pub fn cpu(threads: usize) -> Self {
        Self::on_pool(Arc::new(Pool::new(threads)))
    }

    /// A CPU stream that shares a pool with others.
    pub fn on_pool(pool: Arc<Pool>) -> Self {
        Self { pool, cuda: None, side_stream: None }
    }

    /// A new stream on a CUDA device; the pool serves host parts, such as initial values.
    pub fn cuda(device: &CudaDevice, pool: Arc<Pool>) -> Result<Self> {
        Ok(Self { pool, cuda: Some(CudaStream::new(device)?), side_stream: None })
    }

    /// The same, with kernels that start before (`high`) or after those of other streams.
    pub fn cuda_with_priority(device: &CudaDevice, pool: Arc<Pool>, high: bool) -> Result<Self> {
        Ok(Self { pool, cuda: Some(CudaStream::with_priority(device, high)?), side_stream: None })
    }

    /// This stream with a side stream, for work that may run concurrently with its own: weight
    /// gradients.
    #[must_use]
    pub fn with_side_stream(self, side_stream: Stream) -> Self {
        Self { side_stream: Some(Arc::new(side_stream)), ..self }
    }

    /// The stream at its side, if it has one. A CPU stream has none: there everything runs at once.
    pub fn side_stream(&self) -> Option<Stream> {
        self.side_stream.as_deref().cloned()
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.cuda.as_ref().map_or(Device::Cpu, |stream| Device::Cuda(stream.device().ordinal()))
    }

    /// The pool that runs tiles of CPU ops, and the host parts of others.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The CUDA stream, if it is one.
    pub fn as_cuda(&self) -> Option<&CudaStream> {
        self.cuda.as_ref()
    }

    /// The CUDA stream, for the CUDA body of an op.
    ///
    /// # Panics
    /// On a CPU stream: ops choose their body by [`Stream::device`].
    pub fn cuda_body(&self) -> &CudaStream {
        self.cuda.as_ref().unwrap_or_else(|| panic!("a CUDA body was called on a CPU stream"))
    }

    /// The first failure of what was enqueued here, if any. Waits for nothing; a CPU stream has
    /// none.
    pub fn check(&self) -> Result<()> {
        self.cuda.as_ref().map_or(Ok(()), CudaStream::check)
    }

    /// Waits until everything enqueued is done. On a CPU stream it is.
    pub fn synchronize(&self) -> Result<()> {
        self.cuda.as_ref().map_or(Ok(()), CudaStream::synchronize)
    }
}
