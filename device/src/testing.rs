//! Tools for tests: an allocator that counts, and numbers that add up exactly in any order.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Bytes that this thread has allocated and not freed.
    static HELD: Cell<i64> = const { Cell::new(0) };
}

/// The system allocator, counting. A test binary installs it with `#[global_allocator]` and
/// compares [`allocations`] before and after the part that must not allocate, or [`bytes_held`]
/// before and after something is built.
#[derive(Debug, Default, Clone, Copy)]
pub struct CountingAllocator;

// SAFETY: every call is passed to the system allocator unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        hold(layout.size() as i64);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        hold(layout.size() as i64);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        hold(-(layout.size() as i64));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        hold(new_size as i64 - layout.size() as i64);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// Note: a thread that ends has no counter any more; what it frees then is not counted.
fn hold(bytes: i64) {
    let _ = HELD.try_with(|held| held.set(held.get() + bytes));
}

/// Bytes that the calling thread has allocated since it began, without what it has freed. `None`
/// where the program has not installed [`CountingAllocator`].
pub fn bytes_held() -> Option<i64> {
    let held = || HELD.with(Cell::get);
    let before = held();
    let probe = std::hint::black_box(Box::new([0_u8; 64]));
    let counts = held() > before;
    drop(probe);
    counts.then(held)
}

/// Allocations counted so far in this process.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// `len` small integers as floats, from -8 to 8: their sums and products are exact in any order, so
/// that results can be compared bit for bit (numerics, second kind of equality).
pub fn small_integers(seed: u64, len: usize) -> Vec<f32> {
    let rng = crate::rng::CounterRng::new(seed, 0x7e57);
    (0..len as u64).map(|i| (rng.uniform(i) * 17.0).floor() - 8.0).collect()
}

/// `len` uniform numbers in [-1, 1).
pub fn uniform(seed: u64, len: usize) -> Vec<f32> {
    let mut values = vec![0.0; len];
    crate::rng::CounterRng::new(seed, 0x0f10).fill_uniform(0, -1.0, 1.0, &mut values);
    values
}
