//! Memory of a device, and host memory it can copy from and to while the host continues.

use super::{CudaDevice, driver};
use crate::dtype::Element;
use crate::error::{DeviceError, Result};
use cudarc::driver::sys;

/// An address in a device's memory. Kernels take it as a plain pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// No memory.
    pub const NULL: DevicePtr = DevicePtr(0);

    /// The address `bytes` further on.
    #[must_use]
    pub const fn offset(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }

    /// Whether it is no memory.
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }
}

/// One allocation on a device, zeroed, released when dropped.
///
/// Note: releasing waits for the device. Allocations are made before the first step and dropped
/// after the last.
#[derive(Debug)]
pub struct DeviceMemory {
    device: CudaDevice,
    start: DevicePtr,
    bytes: usize,
}

impl DeviceMemory {
    /// Takes `bytes` zeroed bytes, 256-byte aligned. `what` names who asks, for the error.
    pub fn new(device: &CudaDevice, what: &str, bytes: usize) -> Result<Self> {
        device.bind()?;
        let mut start = 0;
        // SAFETY: the device's context is current.
        let code = unsafe { sys::cuMemAlloc_v2(&mut start, bytes.max(1)) };
        if code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let (free, total) = device.memory();
            let (what, device) = (what.to_owned(), device.to_string());
            return Err(DeviceError::OutOfDeviceMemory { what, device, bytes, free, total });
        }
        driver::check(code, || format!("allocating {bytes} bytes for `{what}`"))?;
        let memory = Self { device: device.clone(), start: DevicePtr(start), bytes };
        memory.zero(what)?;
        Ok(memory)
    }

    fn zero(&self, what: &str) -> Result<()> {
        let stream = self.device.service()?;
        // SAFETY: the range is the allocation; nothing else knows its address yet.
        let code = unsafe { sys::cuMemsetD8Async(self.start.0, 0, self.bytes.max(1), stream) };
        driver::check(code, || format!("zeroing `{what}`"))?;
        // SAFETY: the device's own stream.
        driver::check(unsafe { sys::cuStreamSynchronize(stream) }, || format!("zeroing `{what}`"))
    }

    /// Its first byte.
    pub fn ptr(&self) -> DevicePtr {
        self.start
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The device it lies on.
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// Waits for the device, then copies bytes from `offset` on to the host. For the host's part
    /// only: start, checkpoints, tests.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        assert!(offset + to.len() <= self.bytes, "bytes {offset}+{} of {}", to.len(), self.bytes);
        self.device.synchronize()?;
        self.read_now(offset, to)
    }

    /// Copies bytes from `offset` on to the host at once, while streams go on. For words by which
    /// others let the host know.
    pub fn read_unordered(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        assert!(offset + to.len() <= self.bytes, "bytes {offset}+{} of {}", to.len(), self.bytes);
        self.device.bind()?;
        self.read_now(offset, to)
    }

    fn read_now(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        self.device.finish(to.len(), |stream, bytes| {
            // SAFETY: `to` is exclusively borrowed until the copy is done, in `finish`; the range
            // was checked.
            unsafe {
                sys::cuMemcpyDtoHAsync_v2(
                    to.as_mut_ptr().cast(),
                    self.start.offset(offset).0,
                    bytes,
                    stream,
                )
            }
        })
    }

    /// Waits for the device, then copies bytes from the host to `offset`. For the host's part only:
    /// start, checkpoints, tests.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.device.synchronize()?;
        self.write_unordered(offset, from)
    }

    /// Copies bytes from the host to `offset` at once, while other streams go on, even where one of
    /// them waits for these very bytes. For words by which the host lets a device go on.
    pub fn write_unordered(&self, offset: usize, from: &[u8]) -> Result<()> {
        assert!(
            offset + from.len() <= self.bytes,
            "bytes {offset}+{} of {}",
            from.len(),
            self.bytes
        );
        self.device.bind()?;
        self.device.finish(from.len(), |stream, bytes| {
            // SAFETY: `from` is borrowed until the copy is done, in `finish`; the range was
            // checked.
            unsafe {
                sys::cuMemcpyHtoDAsync_v2(
                    self.start.offset(offset).0,
                    from.as_ptr().cast(),
                    bytes,
                    stream,
                )
            }
        })
    }
}

impl CudaDevice {
    /// Copies a word from the host at once to memory that this device can use, that of other
    /// processes as well, while streams go on.
    pub fn write_word(&self, to: DevicePtr, word: u32) -> Result<()> {
        self.bind()?;
        self.finish(size_of::<u32>(), |stream, bytes| {
            // SAFETY: the word lives until the copy is done, in `finish`; the driver refuses
            // addresses that it does not know.
            unsafe {
                sys::cuMemcpyHtoDAsync_v2(to.0, std::ptr::from_ref(&word).cast(), bytes, stream)
            }
        })
    }

    fn finish(
        &self,
        bytes: usize,
        copy: impl FnOnce(sys::CUstream, usize) -> sys::CUresult,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let stream = self.service()?;
        let what = || format!("copying {bytes} bytes between the host and {self}");
        driver::check(copy(stream, bytes), what)?;
        // SAFETY: the device's own stream.
        driver::check(unsafe { sys::cuStreamSynchronize(stream) }, what)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated in `new`, and freed only here. An error would be an earlier
            // kernel's.
            unsafe { sys::cuMemFree_v2(self.start.0) };
        }
    }
}

/// Page-locked host memory: copies between it and a device run while the host continues.
///
/// The rule of use: while a copy from or to it may be running, the host neither writes it nor (for
/// a copy to it) reads it. The caller keeps the order with an [`super::Event`] recorded after the
/// copy.
#[derive(Debug)]
pub struct Pinned {
    device: CudaDevice,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory owned by this value; the rule of use above orders access.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Takes `bytes` zeroed bytes of host memory, page-locked for all devices, cached as usual (not
    /// write-combined).
    pub fn new(device: &CudaDevice, bytes: usize) -> Result<Self> {
        device.bind()?;
        let mut start = std::ptr::null_mut();
        // SAFETY: the device's context is current.
        let code =
            unsafe { sys::cuMemHostAlloc(&mut start, bytes.max(1), sys::CU_MEMHOSTALLOC_PORTABLE) };
        driver::check(code, || format!("page-locking {bytes} bytes of host memory"))?;
        let start = start.cast::<u8>();
        // SAFETY: freshly allocated, `bytes` long.
        unsafe { start.write_bytes(0, bytes.max(1)) };
        Ok(Self { device: device.clone(), start, bytes })
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its first byte. Writes through it keep the rule of use.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// The address under which kernels of the device may read and write it: the same as the host's.
    pub fn device_visible(&self) -> DevicePtr {
        DevicePtr(self.start as u64)
    }

    /// The `index`-th 32-bit word, which a kernel may be writing: what it wrote before is seen by
    /// any thread that has seen the word.
    pub fn load_acquire(&self, index: usize) -> u32 {
        assert!(4 * index + 4 <= self.bytes, "word {index} of {} bytes", self.bytes);
        // SAFETY: the word is in the allocation and aligned; it is only ever read here and written
        // by stores of its size.
        let word =
            unsafe { std::sync::atomic::AtomicU32::from_ptr(self.start.cast::<u32>().add(index)) };
        word.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Its contents; ends that fill no whole element are left out.
    pub fn as_slice<T: Element>(&self) -> &[T] {
        // SAFETY: the memory lives as long as `self`, is aligned to pages, and every bit pattern is
        // a value of an `Element`.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.bytes / size_of::<T>()) }
    }

    /// Its contents, writable.
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        // SAFETY: as above, and exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.bytes / size_of::<T>()) }
    }

    /// Copies elements into it from byte `offset` on, through a shared handle.
    pub fn put<T: Element>(&self, offset: usize, from: &[T]) {
        let bytes = size_of_val(from);
        assert!(offset + bytes <= self.bytes, "bytes {offset}+{bytes} of {}", self.bytes);
        // SAFETY: the range was checked; `from` is a borrowed slice, so it is not this memory being
        // written.
        unsafe {
            std::ptr::copy_nonoverlapping(
                from.as_ptr().cast::<u8>(),
                self.start.add(offset),
                bytes,
            );
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated in `new`, and freed only here; the driver waits for copies that use
            // it.
            unsafe { sys::cuMemFreeHost(self.start.cast()) };
        }
    }
}
