//! A link: the two slots through which one rank's messages reach one other rank.
//!
//! ```text
//!            sender                       receiver
//!   EMPTY ───────────────► PUBLISHED ───────────────► READING ──► EMPTY
//!     ▲                        │
//!     └── withdrawn (errors) ──┘           EAGER ───────────────► EMPTY
//! ```
//!
//! A published message lies in the sender's own memory, so the sender may not return before its
//! slot is empty again. Taking it and taking it back are one compare-and-swap each on the same
//! word: exactly one of them wins, and a sender that loses waits until its reader has finished. An
//! eager message has been copied into the slot: its sender has nothing to wait for and nothing to
//! take back.
//!
//! Two slots are enough that a sender of eager messages never waits in exchanges where both sides
//! send: who starts message s + 2 has received s + 1, whose sender has received s.

use super::sync::{AtomicU32, Ordering, Plain, yield_now};
use crate::topology::Rank;
use crate::transport::StepId;
use headlong_device::copy::copy_raw;
use std::cell::UnsafeCell;

/// The sender may write the slot.
pub const EMPTY: u32 = 0;
/// A message lies in the sender's memory.
pub const PUBLISHED: u32 = 1;
/// The receiver reads the sender's memory.
pub const READING: u32 = 2;
/// A message lies in the slot.
pub const EAGER: u32 = 3;

#[derive(Debug, Clone, Copy)]
pub struct Header {
    pointer: *const u8,
    length: usize,
    pub id: StepId,
}

// SAFETY: an address is only a number; who reads there shows that he may.
unsafe impl Send for Header {}

impl Header {
    pub fn length(&self) -> usize {
        self.length
    }
}

/// One slot: a cache line of its own, and its neighbour, which the processor fetches with it.
#[repr(C, align(128))]
pub struct Slot {
    state: AtomicU32,
    header: Plain<Header>,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

pub struct Links {
    num_ranks: usize,
    eager_bytes: usize,
    slots: Box<[Slot]>,
    eager: Box<[UnsafeCell<Line>]>,
}

const EAGER_TOTAL: usize = 8 << 20;

// SAFETY: a slot's header, its eager room and the memory its header points to are written by the
// sender alone while the state is EMPTY, and read by the receiver alone after it has seen PUBLISHED
// or EAGER with acquire ordering and, for PUBLISHED, won the slot; `LocalTransport` lets one thread
// at a time act for a rank.
unsafe impl Sync for Links {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Links {}

impl Links {
    pub fn new(num_ranks: usize, eager_bytes: usize) -> Self {
        let num_slots = 2 * num_ranks * num_ranks;
        let eager_bytes = eager_bytes.min(EAGER_TOTAL / num_slots) / 64 * 64;
        let nothing = StepId { sequence: 0, step: 0, fingerprint: 0, operation: "" };
        let header = Header { pointer: std::ptr::null(), length: 0, id: nothing };
        let slot = || Slot { state: AtomicU32::new(EMPTY), header: Plain::new(header) };
        let line = || UnsafeCell::new(Line([0; 64]));
        Self {
            num_ranks,
            eager_bytes,
            slots: (0..num_slots).map(|_| slot()).collect(),
            eager: (0..num_slots * eager_bytes / 64).map(|_| line()).collect(),
        }
    }

    pub fn slot(&self, from: Rank, to: Rank, count: u32) -> SlotRef<'_> {
        let index = 2 * (from.0 * self.num_ranks + to.0) + (count & 1) as usize;
        let lines = self.eager_bytes / 64;
        SlotRef { slot: &self.slots[index], eager: &self.eager[index * lines..(index + 1) * lines] }
    }
}

#[derive(Clone, Copy)]
pub struct SlotRef<'a> {
    slot: &'a Slot,
    eager: &'a [UnsafeCell<Line>],
}

impl<'a> SlotRef<'a> {
    pub fn is_empty(&self) -> bool {
        self.slot.state.load(Ordering::Acquire) == EMPTY
    }

    /// Whether the message lies in the sender's memory and has not been read to its end.
    pub fn is_lent(&self) -> bool {
        matches!(self.slot.state.load(Ordering::Acquire), PUBLISHED | READING)
    }

    /// Puts a message into an empty slot. True: it is eager, the bytes have been copied.
    ///
    /// # Safety
    /// The caller is the slot's sender, the slot [is empty](SlotRef::is_empty), and where the
    /// answer is false `bytes` must stay readable and unwritten until the slot is empty again.
    pub unsafe fn publish(&self, id: &StepId, bytes: &[u8]) -> bool {
        let is_eager = bytes.len() <= self.eager.len() * 64;
        let mut pointer = bytes.as_ptr();
        if is_eager {
            let room = UnsafeCell::raw_get(self.eager.as_ptr()).cast::<u8>();
            // SAFETY: the room is as long as was just asked and, while the slot is empty, the
            // sender's alone.
            unsafe { copy_raw(pointer, room, bytes.len()) };
            pointer = room;
        }
        // SAFETY: while the slot is empty its header is the sender's alone.
        unsafe { self.slot.header.set(Header { pointer, length: bytes.len(), id: *id }) };
        self.slot.state.store(if is_eager { EAGER } else { PUBLISHED }, Ordering::Release);
        is_eager
    }

    /// Takes a message back that no rank has begun to read, or waits until its reader has finished:
    /// afterwards the message's memory is the sender's again.
    pub fn withdraw(&self) {
        let swap =
            self.slot.state.compare_exchange(PUBLISHED, EMPTY, Ordering::AcqRel, Ordering::Acquire);
        if swap == Err(READING) {
            while self.slot.state.load(Ordering::Acquire) == READING {
                yield_now();
            }
        }
    }

    /// Takes the message, if there is one, for reading until [`SlotRef::release`].
    ///
    /// # Safety
    /// The caller is the slot's receiver and has not taken this message already.
    pub unsafe fn take(&self) -> Option<Header> {
        match self.slot.state.load(Ordering::Acquire) {
            EAGER => {}
            PUBLISHED => {
                let order = (Ordering::AcqRel, Ordering::Relaxed);
                self.slot.state.compare_exchange(PUBLISHED, READING, order.0, order.1).ok()?;
            }
            _ => return None,
        }
        // SAFETY: the message was published with release ordering and is now this reader's.
        Some(unsafe { self.slot.header.get() })
    }

    /// The bytes of a taken message.
    ///
    /// # Safety
    /// `header` came from [`SlotRef::take`] of this slot, which has not been released.
    pub unsafe fn bytes(&self, header: &Header) -> &'a [u8] {
        // SAFETY: the sender keeps the message's memory readable and unwritten until the slot is
        // empty.
        unsafe { std::slice::from_raw_parts(header.pointer, header.length) }
    }

    pub fn release(&self) {
        self.slot.state.store(EMPTY, Ordering::Release);
    }
}
