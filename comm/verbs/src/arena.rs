//! Memory that a NIC may use, registered once for the life of a job.

use super::nic::{Access, Memory, Nic, NicResult, Region};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = 4096;

/// Registered memory of this process, zeros at first.
///
/// Its accessors take places, not borrows: NICs write at the same time as the processor. Who may
/// touch which byte when is the slot protocol's business (`link.rs`).
pub(super) struct Arena {
    /// Note: first, so that the NIC forgets the memory before it is given back.
    region: Box<dyn Region>,
    memory: Pages,
}

struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the pages are plain memory, owned by this value alone.
unsafe impl Send for Pages {}
// SAFETY: as above; accesses are ordered by the protocol.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated in `Arena::new` with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

impl Arena {
    /// `bytes` of memory, registered at `nic`.
    pub(super) fn new(nic: &dyn Nic, bytes: usize, access: Access) -> NicResult<Self> {
        let size = bytes.max(1).next_multiple_of(PAGE);
        let layout = Layout::from_size_align(size, PAGE).expect("an arena fits the address space");
        // SAFETY: the layout has a size.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        let memory = Pages { start, layout };
        let host = Memory::Host { start: start.as_ptr(), length: layout.size() };
        // SAFETY: the region is dropped before the pages, and the owner of the arena drops its
        // connections before it (`Hub`). The protocol says who touches which bytes when.
        let region = unsafe { nic.register(host, access) }?;
        Ok(Self { region, memory })
    }

    pub(super) fn region(&self) -> &dyn Region {
        &*self.region
    }

    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(
            offset <= self.memory.layout.size() && length <= self.memory.layout.size() - offset
        );
        // SAFETY: inside the allocation, as just checked.
        unsafe { self.memory.start.as_ptr().add(offset) }
    }

    /// Copies `bytes` to `offset`.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: in bounds; nothing sends from here, and no peer writes here, while the protocol
        // lets this side write.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset, bytes.len()), bytes.len())
        };
    }

    /// Copies what lies at `offset`.
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) {
        // SAFETY: in bounds; a completion has said that the peer has finished writing here.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.at(offset, into.len()),
                into.as_mut_ptr(),
                into.len(),
            )
        };
    }

    /// What lies at `offset`.
    ///
    /// # Safety
    /// No peer writes there while the view lives.
    pub(super) unsafe fn view(&self, offset: usize, length: usize) -> &[u8] {
        // SAFETY: in bounds; the caller keeps peers away.
        unsafe { std::slice::from_raw_parts(self.at(offset, length), length) }
    }

    /// The counter at `offset`, to which peers add.
    pub(super) fn counter(&self, offset: usize) -> u64 {
        assert!(offset.is_multiple_of(8), "counters are aligned");
        // SAFETY: eight aligned bytes in bounds, which everybody touches by atomics alone.
        let word = unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) };
        word.load(Ordering::Acquire)
    }
}
