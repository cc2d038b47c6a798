//! A CUDA stream: work in order, errors kept until somebody asks.

use super::kernel::{Dim, Kernel, Launch};
use super::{CudaDevice, Define, DeviceMemory, DevicePtr, Event, Graph, Pinned, Source, driver};
use crate::error::{DeviceError, Result};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A non-blocking stream of a device. Cheap to clone; clones are the same stream.
///
/// Enqueuing never blocks and returns nothing: the first failure is kept, everything after it is
/// skipped, and [`CudaStream::check`] returns it until the stream is dropped.
#[derive(Debug, Clone)]
pub struct CudaStream(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    device: CudaDevice,
    raw: sys::CUstream,
    failed: AtomicBool,
    error: Mutex<Option<DeviceError>>,
    /// The kernel launched last, for messages: failures of a device show when somebody waits.
    last_kernel: AtomicPtr<()>,
    /// For matrix products of this stream, made with the first plan.
    workspace: OnceLock<DeviceMemory>,
}

// SAFETY: a handle of the driver, which locks inside.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// Makes a stream that does not wait for the default stream; with a priority among the device's, or
/// the usual one.
pub(crate) fn create_raw(device: &CudaDevice, high: Option<bool>) -> Result<sys::CUstream> {
    device.bind()?;
    let what = || format!("making a stream on {device}");
    let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
    let mut raw = std::ptr::null_mut();
    let Some(high) = high else {
        // SAFETY: the device's context is current.
        driver::check(unsafe { sys::cuStreamCreate(&mut raw, flags) }, what)?;
        return Ok(raw);
    };
    let (mut least, mut greatest) = (0, 0);
    // SAFETY: as above. Lower numbers go first.
    driver::check(unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) }, what)?;
    let priority = if high { greatest } else { least };
    // SAFETY: as above.
    driver::check(unsafe { sys::cuStreamCreateWithPriority(&mut raw, flags, priority) }, what)?;
    Ok(raw)
}

impl CudaStream {
    /// A new stream of usual priority.
    pub fn new(device: &CudaDevice) -> Result<Self> {
        Self::with_raw(device, create_raw(device, None)?)
    }

    /// A new stream whose kernels start before (`high`) or after those of other streams.
    pub fn with_priority(device: &CudaDevice, high: bool) -> Result<Self> {
        Self::with_raw(device, create_raw(device, Some(high))?)
    }

    fn with_raw(device: &CudaDevice, raw: sys::CUstream) -> Result<Self> {
        Ok(Self(Arc::new(Inner {
            device: device.clone(),
            raw,
            failed: AtomicBool::new(false),
            error: Mutex::new(None),
            last_kernel: AtomicPtr::new(std::ptr::null_mut()),
            workspace: OnceLock::new(),
        })))
    }

    /// The device.
    pub fn device(&self) -> &CudaDevice {
        &self.0.device
    }

    /// The driver's handle, for libraries that take one.
    pub fn raw(&self) -> *mut c_void {
        self.0.raw.cast()
    }

    pub(crate) fn stream(&self) -> sys::CUstream {
        self.0.raw
    }

    pub(crate) fn workspace(&self) -> &OnceLock<DeviceMemory> {
        &self.0.workspace
    }

    /// Keeps a failure, if it is the stream's first.
    pub fn fail(&self, error: DeviceError) {
        let mut kept = self.0.error.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get_or_insert(error);
        self.0.failed.store(true, Ordering::Release);
    }

    /// The stream's first failure, if there was one. No call of the driver, no
    /// waiting.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.0.failed.load(Ordering::Acquire) { self.kept() } else { Ok(()) }
    }

    #[cold]
    fn kept(&self) -> Result<()> {
        let kept = self.0.error.lock().unwrap_or_else(PoisonError::into_inner);
        kept.as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Runs one call of the driver with the device's context current, unless the stream has failed
    /// before.
    #[inline]
    pub(crate) fn attempt(&self, call: impl FnOnce(sys::CUstream) -> Result<()>) {
        if self.0.failed.load(Ordering::Acquire) {
            return;
        }
        if let Err(error) = self.0.device.bind().and_then(|()| call(self.0.raw)) {
            self.fail(error);
        }
    }

    /// Waits until everything enqueued is done; the stream's first failure, or what the device
    /// reports.
    pub fn synchronize(&self) -> Result<()> {
        self.attempt(|raw| {
            // SAFETY: the stream is alive.
            let code = unsafe { sys::cuStreamSynchronize(raw) };
            driver::check(code, || self.waiting())
        });
        self.check()
    }

    #[cold]
    fn waiting(&self) -> String {
        // SAFETY: null, or stored by `launch` from a kernel of the device's table.
        let last = unsafe { Kernel::name_of(self.0.last_kernel.load(Ordering::Relaxed)) };
        let last =
            last.map_or(String::new(), |name| format!(", after {name} or a kernel before it"));
        format!("waiting for a stream of {}{last}", self.device())
    }

    /// A kernel of a source: from the device's table, or compiled and loaded now. `None` after a
    /// failure, which is kept.
    ///
    /// Note: loading is not allowed while a stream is captured; run the same calls once before.
    pub fn kernel(
        &self,
        source: &'static Source,
        defines: &[Define],
        entry: &'static str,
    ) -> Option<Kernel> {
        if self.0.failed.load(Ordering::Acquire) {
            return None;
        }
        let kernel = self.0.device.modules().kernel(self, source, defines, entry);
        kernel.map_err(|error| self.fail(error)).ok()
    }

    /// Enqueues a kernel with one argument: a `#[repr(C)]` struct, copied here. A grid of no blocks
    /// is no work.
    pub fn launch<A: Copy>(
        &self,
        kernel: &Kernel,
        grid: impl Into<Dim>,
        block: impl Into<Dim>,
        shared_bytes: u32,
        args: &A,
    ) {
        let shape = Launch { grid: grid.into(), block: block.into(), shared_bytes };
        self.0.last_kernel.store(kernel.kept().cast_mut(), Ordering::Relaxed);
        self.attempt(|raw| kernel.launch(raw, shape, std::ptr::from_ref(args).cast()));
    }

    /// Finds a kernel and enqueues it: what most ops do.
    pub fn run<A: Copy>(
        &self,
        source: &'static Source,
        defines: &[Define],
        entry: &'static str,
        shape: Launch,
        args: &A,
    ) {
        if let Some(kernel) = self.kernel(source, defines, entry) {
            self.launch(&kernel, shape.grid, shape.block, shape.shared_bytes, args);
        }
    }

    /// As [`Self::run`], with no more blocks than the device has room for at a time, and at least
    /// one: for kernels whose blocks go over the rest of the work with a stride. `shape` is for all
    /// of it, along x, without dynamic shared memory.
    pub fn run_resident<A: Copy>(
        &self,
        source: &'static Source,
        defines: &[Define],
        entry: &'static str,
        shape: Launch,
        args: &A,
    ) {
        let Some(kernel) = self.kernel(source, defines, entry) else { return };
        let found = self.0.device.bind().and_then(|()| kernel.resident_blocks(shape.block.x));
        match found {
            Ok(each) => {
                let most = each * self.device().multiprocessors();
                self.launch(&kernel, shape.grid.x.clamp(1, most), shape.block, 0, args);
            }
            Err(error) => self.fail(error),
        }
    }

    /// Enqueues a copy from bytes of pinned host memory to the device; see [`Pinned`] for the rule
    /// of use.
    pub fn copy_to_device(&self, to: DevicePtr, from: &Pinned, range: Range<usize>) {
        assert!(range.end <= from.bytes(), "bytes {range:?} of {}", from.bytes());
        if range.is_empty() {
            return;
        }
        self.attempt(|raw| {
            // SAFETY: the range was checked to lie in the pinned memory, which outlives the copy by
            // the rule of use.
            let start = unsafe { from.as_ptr().add(range.start) };
            // SAFETY: as above; the caller owns the memory at `to`.
            let code = unsafe { sys::cuMemcpyHtoDAsync_v2(to.0, start.cast(), range.len(), raw) };
            driver::check(code, || format!("copying {} bytes to the device", range.len()))
        });
    }

    /// Enqueues a copy from the device to bytes of pinned host memory; see [`Pinned`] for the rule
    /// of use.
    pub fn copy_to_host(&self, to: &Pinned, range: Range<usize>, from: DevicePtr) {
        assert!(range.end <= to.bytes(), "bytes {range:?} of {}", to.bytes());
        if range.is_empty() {
            return;
        }
        self.attempt(|raw| {
            // SAFETY: the range was checked to lie in the pinned memory, which outlives the copy by
            // the rule of use.
            let start = unsafe { to.as_ptr().add(range.start) };
            // SAFETY: as above; the caller owns the memory at `from`.
            let code = unsafe { sys::cuMemcpyDtoHAsync_v2(start.cast(), from.0, range.len(), raw) };
            driver::check(code, || format!("copying {} bytes to the host", range.len()))
        });
    }

    /// Enqueues a copy within the device, or between it and a peer whose access is enabled.
    pub fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.attempt(|raw| {
            // Addresses say which device they are of: all memory is in one address space.
            // SAFETY: the caller owns both ranges; the driver refuses addresses it does not know.
            let code = unsafe { sys::cuMemcpyAsync(to.0, from.0, bytes, raw) };
            driver::check(code, || format!("copying {bytes} bytes on the device"))
        });
    }

    /// Enqueues writing the same byte over a range.
    pub fn fill_bytes(&self, to: DevicePtr, byte: u8, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.attempt(|raw| {
            // SAFETY: the caller owns the range; the driver refuses addresses it does not know.
            let code = unsafe { sys::cuMemsetD8Async(to.0, byte, bytes, raw) };
            driver::check(code, || format!("filling {bytes} bytes on the device"))
        });
    }

    /// Marks this point of the stream.
    pub fn record(&self, event: &Event) {
        self.attempt(|raw| {
            // SAFETY: both are alive, of one device.
            let code = unsafe { sys::cuEventRecord(event.raw(), raw) };
            driver::check(code, || "recording an event".to_owned())
        });
    }

    /// As [`Self::record`], on a stream that is being captured: each launch of the graph moves the
    /// event, so that a launch can be timed and waited for by what is not in the graph.
    pub fn record_in_graph(&self, event: &Event) {
        self.attempt(|raw| {
            let flags = sys::CUevent_record_flags_enum::CU_EVENT_RECORD_EXTERNAL as u32;
            // SAFETY: both are alive, of one device.
            let code = unsafe { sys::cuEventRecordWithFlags(event.raw(), raw, flags) };
            driver::check(code, || "recording an event in a graph".to_owned())
        });
    }

    /// What is enqueued from here on waits for the event; the host does not.
    pub fn wait(&self, event: &Event) {
        self.attempt(|raw| {
            // SAFETY: both are alive; they may be of different devices.
            let code = unsafe { sys::cuStreamWaitEvent(raw, event.raw(), 0) };
            driver::check(code, || "waiting for an event of another stream".to_owned())
        });
    }

    /// As [`Self::wait`], on a stream that is being captured, for an event that was recorded
    /// outside of the graph or by another one ([`Self::record_in_graph`]): each launch waits for
    /// what the event marked last when the host launched.
    pub fn wait_in_graph(&self, event: &Event) {
        self.attempt(|raw| {
            let flags = sys::CUevent_wait_flags_enum::CU_EVENT_WAIT_EXTERNAL as u32;
            // SAFETY: both are alive, of one device.
            let code = unsafe { sys::cuStreamWaitEvent(raw, event.raw(), flags) };
            driver::check(code, || "waiting in a graph for an event of another".to_owned())
        });
    }

    /// Whether the stream records a graph at the moment instead of running.
    pub fn is_capturing(&self) -> Result<bool> {
        self.device().bind()?;
        let mut status = sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is alive.
        driver::check(unsafe { sys::cuStreamIsCapturing(self.0.raw, &mut status) }, || {
            "capture".to_owned()
        })?;
        Ok(status != sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Records what `body` enqueues on this stream, and on streams that wait for it and that it
    /// waits for again, as a graph; nothing of it runs. The capture ends in any case, also when
    /// `body` fails or panics.
    pub fn capture(&self, body: impl FnOnce() -> Result<()>) -> Result<Graph> {
        self.check()?;
        self.device().bind()?;
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        let code = unsafe { sys::cuStreamBeginCapture_v2(self.0.raw, mode) };
        driver::check(code, || format!("beginning a capture on {}", self.device()))?;
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // The body may have worked on other devices.
        self.device().bind()?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is alive and was set capturing above.
        let code = unsafe { sys::cuStreamEndCapture(self.0.raw, &mut graph) };
        let captured = driver::check(code, || format!("ending a capture on {}", self.device()));
        let outcome = match result {
            Ok(outcome) => outcome.and_then(|()| self.check()).and(captured),
            Err(panic) => {
                destroy(graph);
                std::panic::resume_unwind(panic);
            }
        };
        if let Err(error) = outcome {
            destroy(graph);
            return Err(error);
        }
        Graph::instantiate(self, graph)
    }
}

fn destroy(graph: sys::CUgraph) {
    if !graph.is_null() {
        // SAFETY: a graph that a capture returned, with no other owner.
        unsafe { sys::cuGraphDestroy(graph) };
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: made for this value; the driver keeps it until its work is done.
            unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}
