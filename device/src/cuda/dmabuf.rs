//! Memory of a device that other devices on its bus read and write: NICs (GPUDirect), which know it
//! by a dmabuf.

use super::device::attribute;
use super::{CudaDevice, DeviceMemory, DevicePtr, driver};
use crate::error::{DeviceError, Result};
use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd};

/// The driver describes whole pages of the host, which are no longer than this anywhere.
const PAGE: usize = 64 << 10;

/// Zeroed memory of a device, with a descriptor by which other drivers know it. Released when
/// dropped: nothing may use it by then.
///
/// Note: the descriptor ends before the memory.
#[derive(Debug)]
pub struct DmabufMemory {
    descriptor: OwnedFd,
    start: DevicePtr,
    bytes: usize,
    memory: DeviceMemory,
}

impl DmabufMemory {
    /// Takes at least `bytes` bytes. `what` names who asks, for the error.
    ///
    /// # Errors
    /// Where the driver describes no memory for others, which NVIDIA's takes its open kernel
    /// modules and Linux 5.12 for; where the device has too little memory.
    pub fn new(device: &CudaDevice, what: &str, bytes: usize) -> Result<Self> {
        let supported = Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED;
        if attribute(device.handle(), supported)? == 0 {
            return Err(DeviceError::Misuse {
                what: format!("a dmabuf of {device}"),
                reason: "its driver makes none: that takes NVIDIA's open kernel modules and Linux \
                         5.12"
                    .to_owned(),
            });
        }
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        let memory = DeviceMemory::new(device, what, bytes + PAGE)?;
        let start = memory.ptr().0.next_multiple_of(PAGE as u64);
        let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        let mut descriptor = -1_i32;
        device.bind()?;
        // SAFETY: the device's context is current, and the range lies in the allocation; the driver
        // writes an `int`.
        let code = unsafe {
            sys::cuMemGetHandleForAddressRange((&raw mut descriptor).cast(), start, bytes, kind, 0)
        };
        driver::check(code, || format!("describing {bytes} bytes of {device} as a dmabuf"))?;
        // SAFETY: opened just now, for this caller to close.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(Self { descriptor, start: DevicePtr(start), bytes, memory })
    }

    /// Its first byte, at a page's start.
    pub fn ptr(&self) -> DevicePtr {
        self.start
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its first eight bytes, as the device has them now.
    pub fn read_word(&self) -> Result<u64> {
        let mut word = [0; 8];
        self.memory.read((self.start.0 - self.memory.ptr().0) as usize, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// The descriptor, whose memory begins with the first byte.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
