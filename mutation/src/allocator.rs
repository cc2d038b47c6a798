//! An allocator that knows the peak, for programs that hold a bound.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Where an allocation fails, whatever the bound: a mutant must not take the machine's memory.
pub const CEILING_BYTES: usize = 2 << 30;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system allocator with a ceiling, which counts the bytes that the program holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeakAllocator;

/// Counts `size` bytes; false where they are too many.
fn take(size: usize) -> bool {
    let held = HELD.fetch_add(size, Relaxed).saturating_add(size);
    PEAK.fetch_max(held, Relaxed);
    if held > CEILING_BYTES {
        HELD.fetch_sub(size, Relaxed);
    }
    held <= CEILING_BYTES
}

// SAFETY: what is not refused is passed to the system allocator unchanged.
unsafe impl GlobalAlloc for PeakAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return null_mut();
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return null_mut();
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if !take(new_size) {
            return null_mut();
        }
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// Begins to watch the peak; says the bytes held now.
pub fn watch() -> usize {
    let held = HELD.load(Relaxed);
    PEAK.store(held, Relaxed);
    held
}

/// The most bytes held since [`watch`].
pub fn peak() -> usize {
    PEAK.load(Relaxed)
}
