//! The page through which a device and its rank's proxy speak: page-locked memory that both see.

use super::NUM_SLOTS;
use headlong_comm::readable::text;
use headlong_device::cuda::{CudaDevice, DevicePtr, Pinned};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A line of its own for every word, as rail.cu has it.
const LINE: usize = 128;
const SENT_AT: usize = LINE;
const ARRIVED_AT: usize = 2 * LINE;

/// Entries of the ring of triggers. Two at most are full: no rank begins an exchange before all
/// have come to the one before.
pub(super) const MOST_TRIGGERS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trigger {
    pub(super) operation: usize,
    pub(super) slot: usize,
}

trait Words: Send + Sync {
    fn start(&self) -> *mut u8;
    fn bytes(&self) -> usize;
    fn device_visible(&self) -> DevicePtr;
}

impl Words for Pinned {
    fn start(&self) -> *mut u8 {
        self.as_ptr()
    }

    fn bytes(&self) -> usize {
        Pinned::bytes(self)
    }

    fn device_visible(&self) -> DevicePtr {
        Pinned::device_visible(self)
    }
}

/// The words. The device writes triggers, the proxy all others; both may set the poison.
pub(super) struct Page {
    memory: Box<dyn Words>,
    num_peers: usize,
}

impl Page {
    pub(super) fn new(device: &CudaDevice, num_peers: usize) -> Result<Self, String> {
        let memory = Pinned::new(device, Self::bytes(num_peers)).map_err(text)?;
        Ok(Self { memory: Box::new(memory), num_peers })
    }

    fn bytes(num_peers: usize) -> usize {
        let lengths = 4 * NUM_SLOTS * num_peers;
        (ARRIVED_AT + num_peers * LINE + 16 * MOST_TRIGGERS + lengths).next_multiple_of(8)
    }

    pub(super) fn at(&self) -> DevicePtr {
        self.memory.device_visible()
    }

    pub(super) fn triggers_at(&self) -> usize {
        ARRIVED_AT + self.num_peers * LINE
    }

    pub(super) fn lengths_at(&self) -> usize {
        self.triggers_at() + 16 * MOST_TRIGGERS
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(
            at.is_multiple_of(8) && at + 8 <= self.memory.bytes(),
            "a word at {at} of the page"
        );
        // SAFETY: the word is in the allocation, which lives as long as `self`, aligned, and
        // accessed by atomics alone.
        unsafe { AtomicU64::from_ptr(self.memory.start().add(at).cast()) }
    }

    fn half_word(&self, at: usize) -> &AtomicU32 {
        assert!(
            at.is_multiple_of(4) && at + 4 <= self.memory.bytes(),
            "a half word at {at} of the page"
        );
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.memory.start().add(at).cast()) }
    }

    fn poison(&self) -> &AtomicU32 {
        self.half_word(0)
    }

    /// Ends all waits of the device, now and later.
    pub(super) fn set_poison(&self) {
        self.poison().store(1, Ordering::Release);
    }

    /// Tells that the strips of all exchanges up to `sequence` have been delivered.
    pub(super) fn set_sent(&self, sequence: u64) {
        self.word(SENT_AT).store(sequence, Ordering::Release);
    }

    /// The last exchange of which something has come from a peer.
    pub(super) fn arrived(&self, peer: usize) -> u64 {
        self.word(ARRIVED_AT + peer * LINE).load(Ordering::Acquire)
    }

    /// Tells that a peer's strips of all exchanges up to `sequence` are in memory.
    pub(super) fn set_arrived(&self, peer: usize, sequence: u64) {
        self.word(ARRIVED_AT + peer * LINE).store(sequence, Ordering::Release);
    }

    /// The trigger of exchange `sequence`, once it has been pulled.
    pub(super) fn trigger(&self, sequence: u64) -> Option<Trigger> {
        let at = self.triggers_at() + 16 * (sequence % MOST_TRIGGERS as u64) as usize;
        if self.word(at + 8).load(Ordering::Acquire) != sequence {
            return None;
        }
        let words = self.word(at).load(Ordering::Relaxed);
        Some(Trigger { operation: words as u32 as usize, slot: (words >> 32) as usize })
    }

    /// How many bytes of strip `strip` in a slot are sent, its header among them. Once the slot's
    /// trigger was seen.
    pub(super) fn length(&self, slot: usize, strip: usize) -> u32 {
        self.half_word(self.length_at(slot, strip)).load(Ordering::Relaxed)
    }

    fn length_at(&self, slot: usize, strip: usize) -> usize {
        self.lengths_at() + 4 * (slot * self.num_peers + strip)
    }
}

#[cfg(test)]
mod plain {
    use super::*;

    /// Memory of the process alone, for tests that take the device's part.
    impl Words for Box<[AtomicU64]> {
        fn start(&self) -> *mut u8 {
            self.as_ptr().cast_mut().cast()
        }

        fn bytes(&self) -> usize {
            8 * self.len()
        }

        fn device_visible(&self) -> DevicePtr {
            DevicePtr::NULL
        }
    }

    impl Page {
        pub(in super::super) fn plain(num_peers: usize) -> Self {
            let words: Box<[AtomicU64]> =
                (0..Self::bytes(num_peers) / 8).map(|_| AtomicU64::new(0)).collect();
            Self { memory: Box::new(words), num_peers }
        }

        /// As `pull_trigger` of rail.cu, for strips of these lengths.
        pub(in super::super) fn pull(&self, sequence: u64, trigger: Trigger, lengths: &[u32]) {
            for (strip, &length) in lengths.iter().enumerate() {
                let at = self.length_at(trigger.slot, strip);
                self.half_word(at).store(length, Ordering::Relaxed);
            }
            let at = self.triggers_at() + 16 * (sequence % MOST_TRIGGERS as u64) as usize;
            let words = trigger.operation as u64 | (trigger.slot as u64) << 32;
            self.word(at).store(words, Ordering::Relaxed);
            self.word(at + 8).store(sequence, Ordering::Release);
        }

        /// The last exchange of which everything was delivered.
        pub(in super::super) fn sent(&self) -> u64 {
            self.word(SENT_AT).load(Ordering::Acquire)
        }
    }
}
