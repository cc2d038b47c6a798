//! Memory for heads, with the messages that are short enough to travel with them.

use headlong_comm::transport::head::HEAD_BYTES;
use std::cell::UnsafeCell;

/// Longest message that travels with its head, bytes: UCX sends both in one piece, and copies
/// them on its way. Longer ones are sent from where they lie, and received where they belong.
pub(crate) const SHORT_BYTES: usize = SLOT_BYTES - HEAD_BYTES;
const SLOT_BYTES: usize = 8192;

/// A line of the cache: heads begin on one, so that what follows is aligned for every element.
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "read and written by address")] UnsafeCell<[u8; 64]>);

/// Slots of a head and [`SHORT_BYTES`] bytes each. UCX writes and reads them inside of its calls.
pub(crate) struct Slots(Box<[Line]>);

// SAFETY: plain bytes; who may touch which slot when, its owner keeps.
unsafe impl Send for Slots {}

impl Slots {
    pub(crate) fn new(count: usize) -> Self {
        let lines = count * SLOT_BYTES / size_of::<Line>();
        Self((0..lines).map(|_| Line(UnsafeCell::new([0; 64]))).collect())
    }

    /// The first byte of a slot, which has [`HEAD_BYTES`] and [`SHORT_BYTES`] of them.
    pub(crate) fn place(&self, slot: usize) -> *mut u8 {
        let line = slot * SLOT_BYTES / size_of::<Line>();
        self.0[line..].as_ptr().cast_mut().cast()
    }

    /// Writes a head and what travels with it.
    ///
    /// # Safety
    /// Nothing else uses the slot.
    pub(crate) unsafe fn write(&mut self, slot: usize, head: &[u8; HEAD_BYTES], short: &[u8]) {
        assert!(short.len() <= SHORT_BYTES, "longer messages travel by themselves");
        // SAFETY: the slot is long enough, and no one else's, by the contract.
        let room =
            unsafe { std::slice::from_raw_parts_mut(self.place(slot), HEAD_BYTES + short.len()) };
        room[..HEAD_BYTES].copy_from_slice(head);
        room[HEAD_BYTES..].copy_from_slice(short);
    }

    /// The first `length` bytes of a slot.
    ///
    /// # Safety
    /// UCX does not write the slot while what is shown lives.
    pub(crate) unsafe fn show(&self, slot: usize, length: usize) -> &[u8] {
        assert!(length <= SLOT_BYTES, "a slot has {SLOT_BYTES} bytes, not {length}");
        // SAFETY: so long is a slot, and no one writes, by the contract.
        unsafe { std::slice::from_raw_parts(self.place(slot), length) }
    }
}
