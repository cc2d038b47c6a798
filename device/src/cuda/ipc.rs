//! Device memory of other processes of the machine.

use super::{CudaDevice, DevicePtr, driver};
use crate::error::Result;
use cudarc::driver::sys;

/// Bytes of [`SharedPlace::handle`].
pub const HANDLE_BYTES: usize = 64;

/// An address as another process of the machine can find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedPlace {
    /// Names the allocation: the driver's `CUipcMemHandle`.
    pub handle: [u8; HANDLE_BYTES],
    /// Bytes from the allocation's start.
    pub offset: u64,
}

impl CudaDevice {
    /// How another process finds `address`, inside a [`super::DeviceMemory`] of this device. Also
    /// while a stream is being captured.
    ///
    /// # Errors
    /// What the driver says: not every device and system can share memory.
    pub fn share(&self, address: DevicePtr) -> Result<SharedPlace> {
        self.bind()?;
        let _relaxed = Relaxed::new();
        let (mut start, mut bytes) = (0, 0);
        let what = || format!("sharing memory of {self} with other processes");
        // SAFETY: the device's context is current.
        let code = unsafe { sys::cuMemGetAddressRange_v2(&mut start, &mut bytes, address.0) };
        driver::check(code, what)?;
        let mut handle = sys::CUipcMemHandle_st { reserved: [0; HANDLE_BYTES] };
        // SAFETY: as above; `start` begins an allocation.
        driver::check(unsafe { sys::cuIpcGetMemHandle(&mut handle, start) }, what)?;
        let handle = handle.reserved.map(|byte| byte as u8);
        Ok(SharedPlace { handle, offset: address.0 - start })
    }

    /// Maps the memory that another process has shared under `handle`, for this device's kernels,
    /// copies and streams, until the answer is dropped. Also while a stream is being captured.
    ///
    /// # Errors
    /// What the driver says: the memory is this process's own, its process has ended, or this
    /// device cannot reach the one it lies on.
    pub fn map_shared(&self, handle: [u8; HANDLE_BYTES]) -> Result<ForeignMemory> {
        self.bind()?;
        let _relaxed = Relaxed::new();
        let mut start = 0;
        let reserved = handle.map(|byte| byte as std::ffi::c_char);
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        // SAFETY: the device's context is current; a handle that is none is refused.
        let code = unsafe {
            sys::cuIpcOpenMemHandle_v2(&mut start, sys::CUipcMemHandle_st { reserved }, flags)
        };
        driver::check(code, || format!("mapping another process's memory on {self}"))?;
        Ok(ForeignMemory { device: self.clone(), start: DevicePtr(start) })
    }
}

/// Memory of another process, mapped here. Its owner keeps it until this is dropped.
#[derive(Debug)]
pub struct ForeignMemory {
    device: CudaDevice,
    start: DevicePtr,
}

impl ForeignMemory {
    /// Where the allocation begins in this process.
    pub fn ptr(&self) -> DevicePtr {
        self.start
    }
}

impl Drop for ForeignMemory {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: mapped by `map_shared`, and unmapped only here.
            unsafe { sys::cuIpcCloseMemHandle(self.start.0) };
        }
    }
}

/// Lets this thread make calls that a capture forbids because they may wait: these do not wait for
/// a stream.
struct Relaxed(sys::CUstreamCaptureMode);

impl Relaxed {
    fn new() -> Self {
        Self(exchange(sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        exchange(self.0);
    }
}

fn exchange(mut mode: sys::CUstreamCaptureMode) -> sys::CUstreamCaptureMode {
    // SAFETY: writes the thread's former mode, which is a value of the enum.
    unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    mode
}
