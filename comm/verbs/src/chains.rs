//! The work requests of a link, built once: a step changes lengths and numbers only.

use super::flow::at_once;
use super::header::HEADER_BYTES;
use super::layout::{ANSWER, Far, GIVEN_BACK, Layout, Near};
use super::nic::{Action, NicResult, Patch, Prepared, QueuePair, Remote, Request};
use super::settings::Signal;

/// An immediate with this bit counts slots given back, one without counts strips.
pub(super) const CREDIT: u32 = 1 << 31;
pub(super) const STRIP_ID: u64 = 1;
pub(super) const CREDIT_ID: u64 = 2;

/// The connection to a peer, with everything that is ever posted to it.
pub(super) struct Chains {
    pair: Box<dyn QueuePair>,
    slots: Vec<SlotChains>,
    credit: Prepared,
    signal: Signal,
}

#[derive(Debug, Clone, Copy)]
struct SlotChains {
    full: Prepared,
    bare: Prepared,
}

pub(super) struct Blueprint<'a> {
    pub(super) layout: Layout,
    pub(super) near: Near<'a>,
    pub(super) far: Far,
    pub(super) signal: Signal,
}

impl Chains {
    pub(super) fn new(mut pair: Box<dyn QueuePair>, blueprint: &Blueprint<'_>) -> NicResult<Self> {
        let mut slots = Vec::new();
        for slot in 0..blueprint.layout.slots as u64 {
            let mut chain = blueprint.signal(slot);
            let bare = prepare(&mut *pair, &chain)?;
            chain.insert(0, blueprint.payload(slot));
            slots.push(SlotChains { full: prepare(&mut *pair, &chain)?, bare });
        }
        let credit = prepare(&mut *pair, &[blueprint.credit()])?;
        Ok(Self { pair, slots, credit, signal: blueprint.signal })
    }

    /// Whether completions of queue pair `number` belong here.
    pub(super) fn has(&self, number: u32) -> bool {
        self.pair.number() == number
    }

    /// Posts the strip in `slot`: `length` bytes and the signal, with the number where signals have
    /// one.
    pub(super) fn post_strip(&mut self, slot: usize, length: u32, number: u32) -> NicResult<()> {
        let immediate = number & !CREDIT;
        let by_number = self.signal == Signal::Immediate;
        let SlotChains { full, bare } = self.slots[slot];
        if length == 0 {
            let number = [Patch::Immediate { request: 0, immediate }];
            return self.pair.post(bare, if by_number { &number } else { &[] });
        }
        let both = [
            Patch::Length { request: 0, segment: 0, length },
            Patch::Immediate { request: 1, immediate },
        ];
        self.pair.post(full, if by_number { &both } else { &both[..1] })
    }

    /// Posts a count of its own; by immediates it is `count`, by atomics always as many as
    /// [`Blueprint::credit`] says.
    pub(super) fn post_credit(&mut self, count: u32) -> NicResult<()> {
        let number = [Patch::Immediate { request: 0, immediate: CREDIT | count }];
        self.pair.post(self.credit, if self.signal == Signal::Immediate { &number } else { &[] })
    }

    pub(super) fn fail(&mut self) {
        // Note: nothing is left to do where even this fails.
        let _ = self.pair.fail();
    }
}

fn prepare(pair: &mut dyn QueuePair, chain: &[Request]) -> NicResult<Prepared> {
    // SAFETY: headers that are sent inline lie in the arena of slots, which outlives all links, and
    // are written by the thread that posts them, before it does (`Hub`).
    unsafe { pair.prepare(chain) }
}

impl Blueprint<'_> {
    fn payload(&self, slot: u64) -> Request {
        let segment = self.near.slots.region().segment(self.layout.send(slot) + HEADER_BYTES, 0);
        let remote = self.layout.remote(self.far.slots, slot);
        let at = Remote { address: remote.address + HEADER_BYTES as u64, ..remote };
        Request {
            id: STRIP_ID,
            action: Action::Write(at),
            segments: vec![segment],
            inline: false,
            signalled: false,
        }
    }

    /// The header and what says that it is there. Only the last request gives a completion.
    fn signal(&self, slot: u64) -> Vec<Request> {
        let segment = self.near.slots.region().segment(self.layout.send(slot), HEADER_BYTES);
        let at = self.layout.remote(self.far.slots, slot);
        let header = |action, signalled| {
            let segments = vec![segment];
            Request { id: STRIP_ID, action, segments, inline: true, signalled }
        };
        match self.signal {
            Signal::Immediate => vec![header(Action::WriteImmediate(at, 0), true)],
            Signal::Atomic => {
                vec![header(Action::Write(at), false), self.add(STRIP_ID, self.far.flags, 1)]
            }
        }
    }

    fn add(&self, id: u64, at: Remote, add: u64) -> Request {
        let segment = self.near.flags.region().segment(self.layout.flags + ANSWER, 8);
        let action = Action::FetchAdd(at, add);
        Request { id, action, segments: vec![segment], inline: false, signalled: true }
    }

    fn credit(&self) -> Request {
        match self.signal {
            Signal::Atomic => {
                let flags = self.far.flags;
                let at = Remote { address: flags.address + GIVEN_BACK as u64, ..flags };
                self.add(CREDIT_ID, at, at_once(self.layout.slots as u64))
            }
            Signal::Immediate => Request {
                id: CREDIT_ID,
                action: Action::WriteImmediate(self.far.slots, CREDIT),
                segments: Vec::new(),
                inline: false,
                signalled: true,
            },
        }
    }
}
