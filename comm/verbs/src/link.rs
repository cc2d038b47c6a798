//! The slot protocol, between this rank and one peer.
//!
//! Each direction has a fixed number of slots at its receiver. The sender writes bytes into the
//! next slot, then a header with a signal; it knows where everything goes before the first message,
//! so that a strip costs half a round trip and no side asks for permission. The receiver gives
//! slots back by a count, in the headers of what it sends itself, or, when only one slot would be
//! left at the sender otherwise, in a message of its own (`flow.rs`).

use super::chains::{Blueprint, CREDIT, CREDIT_ID, Chains};
use super::flow::Flow;
use super::header::{HEADER_BYTES, StripHeader};
use super::layout::{Far, GIVEN_BACK, Layout, Near};
use super::nic::{Completion, CompletionKind, NicError, NicResult, QueuePair, Status};
use super::settings::{Signal, VerbsSettings};
use headlong_comm::topology::Rank;
use headlong_comm::transport::paths::{Head, PathError};
use std::time::Duration;

pub(super) struct Link {
    rank: Rank,
    /// The peer's port and this side's, for errors.
    way: String,
    pub(super) layout: Layout,
    failed: Option<PathError>,
    chains: Chains,
    signal: Signal,
    gives_up_after: Duration,
    pub(super) flow: Flow,
}

impl Link {
    pub(super) fn new(
        (rank, way): (Rank, String),
        pair: Box<dyn QueuePair>,
        settings: &VerbsSettings,
        layout: Layout,
        (near, far): (Near<'_>, Far),
    ) -> NicResult<Self> {
        let signal = settings.signal;
        let chains = Chains::new(pair, &Blueprint { layout, near, far, signal })?;
        Ok(Self {
            rank,
            way,
            layout,
            failed: None,
            chains,
            signal,
            gives_up_after: settings.gives_up_after(),
            flow: Flow::new(layout.slots, signal),
        })
    }

    pub(super) fn has(&self, number: u32) -> bool {
        self.chains.has(number)
    }

    /// Whether what comes is a completion; atomics make none.
    pub(super) fn completes(&self) -> bool {
        self.signal == Signal::Immediate
    }

    pub(super) fn check(&self) -> Result<(), PathError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Ends the link; the first error stays, and comes back.
    pub(super) fn fail(&mut self, error: PathError) -> PathError {
        if self.failed.is_none() {
            self.chains.fail();
        }
        self.failed.get_or_insert(error).clone()
    }

    /// Whether the next slot may be filled: its receiver has given it back, and the NIC no longer
    /// reads this side's copy.
    fn has_room(&self) -> bool {
        self.flow.is_back() && self.flow.is_complete()
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.flow.is_quiet()
    }

    /// Sends one strip of a message if there is room: whether it did.
    pub(super) fn fill(
        &mut self,
        near: Near<'_>,
        head: &Head,
        offset: usize,
        bytes: &[u8],
    ) -> Result<bool, PathError> {
        if !self.has_room() {
            return Ok(false);
        }
        let (head, number, given_back) = (*head, self.flow.sent, self.flow.taken as u32);
        let header = StripHeader {
            head,
            number,
            offset: offset as u64,
            bytes: bytes.len() as u32,
            given_back,
        };
        let at = self.layout.send(number);
        near.slots.write(at, &header.to_bytes());
        near.slots.write(at + HEADER_BYTES, bytes);
        let slot = self.layout.slot(number);
        match self.chains.post_strip(slot, bytes.len() as u32, (number + 1) as u32) {
            Ok(()) => self.flow.note_sent(),
            Err(NicError::Full(_)) => return Ok(false),
            Err(error) => {
                return Err(self.fail(PathError::Failed(format!("{}: {error}", self.way))));
            }
        }
        Ok(true)
    }

    /// The next strip that has come, with the place of its bytes.
    pub(super) fn next_strip(
        &mut self,
        near: Near<'_>,
    ) -> Result<Option<(StripHeader, usize)>, PathError> {
        if self.flow.arrived == self.flow.taken {
            return Ok(None);
        }
        let fits = |header: &StripHeader| {
            header.number == self.flow.taken && header.bytes as usize <= self.layout.capacity
        };
        let Some(header) = self.header(near, self.flow.taken).filter(fits) else {
            let what =
                format!("{}: slot of strip {} holds something else", self.way, self.flow.taken);
            return Err(self.fail(PathError::Failed(what)));
        };
        Ok(Some((header, self.layout.receive(self.flow.taken) + HEADER_BYTES)))
    }

    pub(super) fn header(&self, near: Near<'_>, number: u64) -> Option<StripHeader> {
        let mut bytes = [0; HEADER_BYTES];
        near.slots.read(self.layout.receive(number), &mut bytes);
        StripHeader::from_bytes(&bytes)
    }

    /// The bytes of the next strip were taken: its slot is the sender's again.
    pub(super) fn give_back(&mut self) -> Result<(), PathError> {
        self.flow.taken += 1;
        self.announce()
    }

    fn announce(&mut self) -> Result<(), PathError> {
        if !self.flow.is_count_due() || self.failed.is_some() {
            return Ok(());
        }
        match self.chains.post_credit(self.flow.taken as u32 & !CREDIT) {
            Ok(()) => {
                self.flow.note_count();
                Ok(())
            }
            Err(error) => Err(self.fail(PathError::Failed(format!("{}: {error}", self.way)))),
        }
    }

    pub(super) fn complete(&mut self, near: Near<'_>, completion: &Completion) {
        if completion.status != Status::Success {
            let error = self.explain(completion);
            self.fail(error);
            return;
        }
        match completion.kind {
            CompletionKind::Immediate(number) if number & CREDIT != 0 => {
                self.flow.note_given_back(number, CREDIT - 1);
            }
            CompletionKind::Immediate(number) => self.note_arrival(near, number),
            _ if completion.id == CREDIT_ID => {
                self.flow.counts -= 1;
                let _ = self.announce();
            }
            _ => self.flow.complete += 1,
        }
    }

    /// A strip has come: immediates are counted, and each says which it is.
    fn note_arrival(&mut self, near: Near<'_>, number: u32) {
        let expected = (self.flow.arrived + 1) as u32 & !CREDIT;
        if number != expected {
            let what = format!("{}: signal {number} came where {expected} was due", self.way);
            self.fail(PathError::Failed(what));
            return;
        }
        self.flow.arrived += 1;
        if let Some(header) = self.header(near, self.flow.arrived - 1) {
            self.flow.note_given_back(header.given_back, u32::MAX);
        }
    }

    /// What the flags of this link say, where signals are atomics.
    pub(super) fn look_at_flags(&mut self, near: Near<'_>) {
        if self.signal == Signal::Atomic {
            let arrived = near.flags.counter(self.layout.flags);
            let given_back = near.flags.counter(self.layout.flags + GIVEN_BACK);
            if let Err(what) = self.flow.note_flags(arrived, given_back) {
                self.fail(PathError::Failed(format!("{}: {what}", self.way)));
            }
        }
    }

    fn explain(&self, completion: &Completion) -> PathError {
        let Completion { status, vendor, .. } = *completion;
        let (way, tries) = (&self.way, self.gives_up_after.as_secs_f64());
        let text = format!("{way}: {status} (vendor code {vendor:#x})");
        match status {
            Status::RetriesExceeded => PathError::Lost(format!(
                "{text}; the NIC tries for {tries:.1} s: look at cable, switch and the machine of \
                 {}; comm.verbs.timeout sets how long",
                self.rank
            )),
            Status::Flushed | Status::RemoteOperation => {
                PathError::Lost(format!("{text}; has {} ended?", self.rank))
            }
            _ => PathError::Failed(text),
        }
    }
}
