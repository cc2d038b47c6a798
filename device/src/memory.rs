//! Host memory: anonymous mappings, zeroed, on huge pages where the system has them.

use crate::cuda::DeviceMemory;
use crate::error::{DeviceError, Result};
use crate::stream::Stream;
use std::ptr::NonNull;

/// What an arena lies in.
#[derive(Debug)]
pub(crate) enum Memory {
    Host(HostMemory),
    Device(DeviceMemory),
}

impl Memory {
    /// Zeroed memory of the stream's device.
    pub(crate) fn zeroed_on(stream: &Stream, owner: &str, bytes: usize) -> Result<Self> {
        match stream.as_cuda() {
            None => HostMemory::zeroed(owner, bytes).map(Memory::Host),
            Some(stream) => DeviceMemory::new(stream.device(), owner, bytes).map(Memory::Device),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Memory::Host(memory) => memory.bytes(),
            Memory::Device(memory) => memory.bytes(),
        }
    }

    /// First byte, for the host; `what` names who asks.
    pub(crate) fn host_start(&self, what: &str) -> NonNull<u8> {
        match self {
            Memory::Host(memory) => memory.start(),
            Memory::Device(memory) => panic!(
                "slot `{what}` lies on {}, the host cannot open it: give its device_ptr() to a \
                 kernel, or copy it as a whole by to_vec() and copy_from()",
                memory.device()
            ),
        }
    }
}

/// Above this size a mapping asks for transparent huge pages (2 MiB each).
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// One zeroed mapping of host memory, 4 KiB aligned at least, released when dropped.
///
/// Large mappings are aligned to 2 MiB and advised `MADV_HUGEPAGE`: gathers of 512-byte rows gain
/// about a factor of two from it. Pages are taken by first touch, so that a NUMA machine places
/// them near the thread that initialises.
#[derive(Debug)]
pub struct HostMemory {
    base: NonNull<u8>,
    mapped_bytes: usize,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory owned by this value; it is read and written only through
// `Mat` guards.
unsafe impl Send for HostMemory {}
// SAFETY: as above; `HostMemory` itself gives out only a pointer.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Maps `bytes` zeroed bytes. `owner` names who asks, for the error.
    pub fn zeroed(owner: &str, bytes: usize) -> Result<Self> {
        let huge = bytes >= HUGE_PAGE_BYTES;
        let refused = |source: std::io::Error| DeviceError::OutOfMemory {
            arena: owner.to_owned(),
            bytes,
            source: source.into(),
        };
        let whole_pages = bytes.max(1).checked_next_multiple_of(4096);
        let Some(mapped_bytes) =
            whole_pages.and_then(|pages| pages.checked_add(if huge { HUGE_PAGE_BYTES } else { 0 }))
        else {
            return Err(refused(std::io::Error::from_raw_os_error(libc::ENOMEM)));
        };
        // SAFETY: an anonymous private mapping at an address of the system's choice touches no
        // existing memory.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(refused(std::io::Error::last_os_error()));
        }
        let base = NonNull::new(base.cast::<u8>())
            .ok_or_else(|| refused(std::io::Error::last_os_error()))?;
        let skip = if huge { base.as_ptr().align_offset(HUGE_PAGE_BYTES) } else { 0 };
        // SAFETY: `skip` is below 2 MiB, and the mapping is 2 MiB longer than `bytes` whenever
        // `skip` may be non-zero.
        let start = unsafe { base.add(skip) };
        if huge {
            // SAFETY: the range lies inside the mapping; the advice changes speed only, so its
            // result does not matter.
            unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        Ok(Self { base, mapped_bytes, start, bytes })
    }

    /// First byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `zeroed`; no view outlives it, because slots hold an
        // `Arc` of it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
    }
}
