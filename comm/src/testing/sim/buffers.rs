//! The memory of a rank that waits inside `exchange`, as the network sees it.
//!
//! Who keeps the promises: `End::exchange` makes these from the caller's borrows and returns only
//! when the world holds none of them any more (`State::finish`); where a thread panics inside the
//! world, the world's lock is poisoned and none of them is touched again.

use std::ops::Range;

/// Bytes of a waiting sender.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source {
    start: *const u8,
    len: usize,
}

// SAFETY: a `Source` is only a place; reading it is unsafe and its callers answer for that.
unsafe impl Send for Source {}

impl Source {
    /// The place of `bytes`.
    pub fn new(bytes: &[u8]) -> Self {
        Self { start: bytes.as_ptr(), len: bytes.len() }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies a part into the same part of `wire`.
    ///
    /// # Safety
    /// The borrow this was made from still lasts.
    pub unsafe fn read(&self, part: Range<usize>, wire: &mut [u8]) {
        assert!(part.end <= self.len, "a chunk lies inside its message");
        // SAFETY: the part lies inside a slice whose borrow lasts, which the caller promises.
        let bytes = unsafe { std::slice::from_raw_parts(self.start.add(part.start), part.len()) };
        wire[part].copy_from_slice(bytes);
    }
}

/// Room of a waiting receiver.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    start: *mut u8,
    len: usize,
}

// SAFETY: a `Target` is only a place; writing it is unsafe and its callers answer for that.
unsafe impl Send for Target {}

impl Target {
    /// The place of `bytes`.
    pub fn new(bytes: &mut [u8]) -> Self {
        Self { start: bytes.as_mut_ptr(), len: bytes.len() }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Fills everything with one byte.
    ///
    /// # Safety
    /// The borrow this was made from still lasts, and nothing else writes at the same time.
    pub unsafe fn fill(&self, byte: u8) {
        // SAFETY: the place is a slice whose exclusive borrow lasts, which the caller promises.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.start, self.len) };
        bytes.fill(byte);
    }

    /// Copies a part of `wire` to the same part of the receiver's memory.
    ///
    /// # Safety
    /// The borrow this was made from still lasts, and nothing else writes at the same time.
    pub unsafe fn write(&self, part: Range<usize>, wire: &[u8]) {
        assert!(part.end <= self.len, "a chunk lies inside its message");
        // SAFETY: the part lies inside a slice whose exclusive borrow lasts, which the caller
        // promises.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(self.start.add(part.start), part.len()) };
        bytes.copy_from_slice(&wire[part]);
    }
}
