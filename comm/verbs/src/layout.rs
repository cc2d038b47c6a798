//! Where slots and flags lie, on this side and on the peer's.

use super::arena::Arena;
use super::header::HEADER_BYTES;
use super::nic::Remote;
use super::settings::VerbsSettings;

/// Bytes of the flags for one peer: arrivals, slots given back, room for the answers of atomics,
/// each on lines of its own.
pub(super) const FLAG_BYTES: usize = 384;
pub(super) const GIVEN_BACK: usize = 128;
/// Where answers of atomics go; they are not read.
pub(super) const ANSWER: usize = 256;

impl VerbsSettings {
    /// Bytes of memory that a rank locks for messages to and from so many peers.
    pub fn locked_bytes(&self, peers: usize) -> usize {
        peers * (Layout::new(self, 0).bytes() + FLAG_BYTES)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) slots: usize,
    pub(super) capacity: usize,
    /// First slot to send from; those to receive in follow.
    base: usize,
    pub(super) flags: usize,
}

impl Layout {
    /// The layout of peer number `index`.
    pub(super) fn new(settings: &VerbsSettings, index: usize) -> Self {
        let (slots, capacity) =
            (settings.slots, settings.slot_bytes.next_multiple_of(HEADER_BYTES));
        let bytes = 2 * slots * (HEADER_BYTES + capacity);
        Self { slots, capacity, base: index * bytes, flags: index * FLAG_BYTES }
    }

    pub(super) fn bytes(&self) -> usize {
        2 * self.slots * self.stride()
    }

    fn stride(&self) -> usize {
        HEADER_BYTES + self.capacity
    }

    pub(super) fn slot(&self, number: u64) -> usize {
        (number % self.slots as u64) as usize
    }

    pub(super) fn send(&self, number: u64) -> usize {
        self.base + self.slot(number) * self.stride()
    }

    pub(super) fn receive(&self, number: u64) -> usize {
        self.base + (self.slots + self.slot(number)) * self.stride()
    }

    /// Where a strip comes at the peer, whose first slot to receive in is `first`.
    pub(super) fn remote(&self, first: Remote, number: u64) -> Remote {
        Remote {
            address: first.address + (self.slot(number) * self.stride()) as u64,
            key: first.key,
        }
    }

    /// Sends on the way at the same time, at most: three for a strip, one for a count.
    pub(super) fn max_sends(&self) -> usize {
        4 * self.slots
    }

    /// Receives that the peer's signals need at the same time, at most.
    pub(super) fn max_receives(&self) -> usize {
        2 * self.slots
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Far {
    pub(super) slots: Remote,
    pub(super) flags: Remote,
}

#[derive(Clone, Copy)]
pub(super) struct Near<'a> {
    pub(super) slots: &'a Arena,
    pub(super) flags: &'a Arena,
}
