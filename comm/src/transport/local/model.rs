//! A sender and a receiver of one link under loom: `link.rs` again.

use crate::topology::Rank;
use crate::transport::StepId;
use headlong_models::{Model, Models, Spare};
use std::sync::Arc;
use sync::{Ordering, Plain, yield_now};

#[allow(clippy::duplicate_mod, reason = "the same file over another `sync`")]
#[path = "link.rs"]
mod link;

mod sync {
    pub use headlong_models::sync::{AtomicU32, Ordering, Plain, yield_now};
}

use link::{Links, SlotRef};

/// Longer than what a slot of the models holds itself, and as long.
const LENT: &[u8] = &[7; 65];
const EAGER: &[u8] = &[7; 64];

/// The link of rank 0 to rank 1, and what stands for the sender's memory of each slot: loom looks
/// who uses it.
struct Pair {
    links: Links,
    memory: [Plain<u32>; 2],
}

impl Pair {
    fn new() -> Arc<Self> {
        Arc::new(Self { links: Links::new(2, 64), memory: [0, 0].map(Plain::new) })
    }

    fn slot(&self, number: u32) -> SlotRef<'_> {
        self.links.slot(Rank(0), Rank(1), number)
    }

    fn memory(&self, number: u32) -> &Plain<u32> {
        &self.memory[(number & 1) as usize]
    }

    /// Lends or leaves a message; lent ones have been read when this returns, as at the end of an
    /// exchange.
    fn send(&self, number: u32, bytes: &'static [u8]) {
        let slot = self.slot(number);
        while !slot.is_empty() {
            yield_now();
        }
        // SAFETY: loom looks; the bytes are constant, and the slot is this rank's and empty.
        let is_eager = unsafe {
            self.memory(number).set(number);
            slot.publish(&id(number), bytes)
        };
        assert_eq!(is_eager, bytes.len() <= 64);
        while slot.is_lent() {
            yield_now();
        }
        if !is_eager {
            // SAFETY: loom looks; the message has been read, so its memory is this rank's.
            unsafe { self.memory(number).set(u32::MAX) };
        }
    }

    /// Lends a message and takes it back.
    fn lend_and_withdraw(&self) {
        let slot = self.slot(0);
        // SAFETY: as in `send`; after `withdraw` the memory is this rank's again.
        unsafe {
            self.memory(0).set(0);
            slot.publish(&id(0), LENT);
            slot.withdraw();
            self.memory(0).set(u32::MAX);
        }
    }

    fn receive(&self, number: u32) {
        while !self.look(number) {
            yield_now();
        }
    }

    /// Takes and reads the message, if it is there.
    fn look(&self, number: u32) -> bool {
        let slot = self.slot(number);
        // SAFETY: this rank receives, and takes each message once; loom looks at the memory.
        unsafe {
            let Some(header) = slot.take() else { return false };
            assert_eq!((header.id, self.memory(number).get()), (id(number), number));
            let bytes = slot.bytes(&header);
            assert!(bytes.len() == header.length() && bytes.iter().all(|byte| *byte == 7));
        }
        slot.release();
        true
    }
}

fn id(number: u32) -> StepId {
    StepId { sequence: number.into(), step: 0, fingerprint: 0, operation: "model" }
}

fn two(first: fn(&Pair), second: fn(&Pair)) {
    let pair = Pair::new();
    let there = Arc::clone(&pair);
    let other = headlong_models::sync::thread::spawn(move || second(&there));
    first(&pair);
    other.join().expect("the other rank ends");
}

/// A message that is read before it is there, while its memory is used again, or twice is found.
#[test]
fn messages_are_lent_and_left() {
    const WITHDRAWN: &str = "compare_exchange(PUBLISHED, EMPTY,";
    const TAKEN: &str = "compare_exchange(PUBLISHED, READING,";
    let model = |name, preemptions, run| Model { name, preemptions: Some(preemptions), run };
    let spare = |line, to, reason| Spare { file: "link.rs", line, to, reason };
    Models {
        test: "transport::local::model::messages_are_lent_and_left",
        models: &[
            model("lent messages, more than there are slots", 2, || {
                two(
                    |pair| (0..3).for_each(|number| pair.send(number, LENT)),
                    |pair| (0..3).for_each(|number| pair.receive(number)),
                )
            }),
            model("messages that are left in their slots", 2, || {
                two(
                    |pair| (0..3).for_each(|number| pair.send(number, EAGER)),
                    |pair| (0..3).for_each(|number| pair.receive(number)),
                )
            }),
            model("a message that is taken back", 3, || {
                two(|pair| (0..2).for_each(|_| pair.lend_and_withdraw()), |pair| _ = pair.look(0))
            }),
        ],
        spare: &[
            spare(WITHDRAWN, Ordering::Acquire, "what is taken back no rank has looked at"),
            spare(WITHDRAWN, Ordering::Release, "as above"),
            spare(TAKEN, Ordering::Acquire, "a sender that finds it taken waits for its release"),
        ],
    }
    .check();
}
