//! Connections: what was posted, how far it is, and how it ends.

use super::super::nic::{
    Action, Completion, CompletionKind, Endpoint, GidKind, QueuePairSettings, Receive, Request,
    Segment, Status,
};
use super::Fault;
use super::memory::Place;
use super::state::State;
use std::collections::VecDeque;

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Reset,
    Init,
    Receive,
    Send,
    Error,
    Gone,
}

/// A queue pair.
pub(super) struct Pair {
    pub(super) nic: usize,
    pub(super) number: u32,
    pub(super) phase: Phase,
    pub(super) settings: Option<QueuePairSettings>,
    pub(super) peer: Option<Endpoint>,
    pub(super) first_packet: Option<u32>,
    pub(super) sends: usize,
    pub(super) receives: usize,
    pub(super) shared: Option<usize>,
    pub(super) max_sends: u32,
    pub(super) max_receives: u32,
    pub(super) own_receives: VecDeque<Receive>,
    /// Posted and not complete, in order.
    pub(super) flights: VecDeque<Flight>,
    /// Places of the send queue that are taken: free again when a later completion was taken.
    pub(super) taken: u32,
    /// Of those, complete without having said so.
    pub(super) silent: u32,
    /// Bytes of the peer's writes that are on their way to memory.
    pub(super) landings: Vec<Landing>,
    pub(super) num_landed: u64,
    /// Completions of the peer's work here, in order.
    pub(super) arrivals: VecDeque<Arrival>,
}

impl Pair {
    /// A pair that is not connected, without queues.
    pub(super) fn new(nic: usize, number: u32) -> Self {
        Self {
            nic,
            number,
            phase: Phase::Reset,
            settings: None,
            peer: None,
            first_packet: None,
            sends: 0,
            receives: 0,
            shared: None,
            max_sends: 0,
            max_receives: 0,
            own_receives: VecDeque::new(),
            flights: VecDeque::new(),
            taken: 0,
            silent: 0,
            landings: Vec::new(),
            num_landed: 0,
            arrivals: VecDeque::new(),
        }
    }
}

/// One posted work request.
pub(super) struct Flight {
    pub(super) request: Request,
    /// What leaves; taken at posting if inline, else when it is sent.
    pub(super) bytes: Vec<u8>,
    pub(super) is_sent: bool,
    pub(super) due: u64,
    /// Without an answer since.
    pub(super) silent_since: Option<u64>,
    pub(super) receiver_tries: u32,
}

/// A piece of a write that will be in memory.
pub(super) struct Landing {
    pub(super) number: u64,
    pub(super) due: u64,
    pub(super) place: Place,
    pub(super) offset: usize,
    pub(super) bytes: Vec<u8>,
    pub(super) is_device: bool,
}

/// A completion that waits for the bytes that came before it.
pub(super) struct Arrival {
    pub(super) after: u64,
    pub(super) due: u64,
    pub(super) completion: Completion,
}

impl Request {
    fn kind(&self) -> CompletionKind {
        match self.action {
            Action::Write { .. } | Action::WriteImmediate { .. } => CompletionKind::Write,
            Action::Read { .. } => CompletionKind::Read,
            Action::FetchAdd { .. } | Action::CompareSwap { .. } => CompletionKind::Atomic,
            Action::Send => CompletionKind::Send,
        }
    }

    /// Whether its segments are where an answer goes, not what is sent.
    pub(super) fn is_answered(&self) -> bool {
        matches!(
            self.action,
            Action::Read { .. } | Action::FetchAdd { .. } | Action::CompareSwap { .. }
        )
    }
}

impl State {
    /// The global and local identifier of a pair's own port.
    pub(super) fn address(
        &self,
        nic: usize,
        settings: &QueuePairSettings,
    ) -> Option<([u8; 16], u16)> {
        let port = self.nics[nic].device.ports.iter().find(|port| port.number == settings.port)?;
        let gid = match settings.gid_index {
            Some(index) => port.gids.iter().find(|gid| gid.index == index)?.bytes,
            None => port.gids.first().map_or([0; 16], |gid| gid.bytes),
        };
        Some((gid, port.lid))
    }

    /// How packets of a pair look.
    pub(super) fn kind(&self, nic: usize, settings: &QueuePairSettings) -> Option<GidKind> {
        let port = self.nics[nic].device.ports.iter().find(|port| port.number == settings.port)?;
        Some(port.gids.iter().find(|gid| Some(gid.index) == settings.gid_index)?.kind)
    }

    /// The partition of a pair.
    pub(super) fn partition(&self, nic: usize, settings: &QueuePairSettings) -> Option<u16> {
        let port = self.nics[nic].device.ports.iter().find(|port| port.number == settings.port)?;
        port.partition_keys.get(usize::from(settings.partition_index)).copied()
    }

    /// What the segments of a request hold.
    pub(super) fn gather(&self, nic: usize, segments: &[Segment]) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        for segment in segments {
            let place = self.regions.local(nic, segment, false)?;
            self.regions.read(place, &mut bytes);
        }
        Ok(bytes)
    }

    /// Fills the segments of a request with an answer.
    pub(super) fn scatter(
        &self,
        nic: usize,
        segments: &[Segment],
        mut bytes: &[u8],
    ) -> Result<(), String> {
        for segment in segments {
            let place = self.regions.local(nic, segment, true)?;
            let (mine, rest) = bytes.split_at(bytes.len().min(segment.length as usize));
            self.regions.write(place, 0, mine);
            bytes = rest;
        }
        Ok(())
    }

    /// Ends a pair: what was sent is done, the next gets `status`, everything else is flushed.
    pub(super) fn fail_pair(&mut self, pair: usize, mut status: Option<Status>) {
        if matches!(self.pairs[pair].phase, Phase::Error | Phase::Gone) {
            return;
        }
        self.pairs[pair].phase = Phase::Error;
        while let Some(flight) = self.pairs[pair].flights.pop_front() {
            let status = match flight.is_sent {
                true => Status::Success,
                false => status.take().unwrap_or(Status::Flushed),
            };
            self.finish(pair, &flight, status);
        }
        for receive in std::mem::take(&mut self.pairs[pair].own_receives) {
            let completion = self.failed(pair, receive.id, Status::Flushed);
            self.complete(self.pairs[pair].receives, completion, None);
        }
    }

    fn failed(&self, pair: usize, id: u64, status: Status) -> Completion {
        let queue_pair = self.pairs[pair].number;
        Completion { id, status, kind: CompletionKind::Unknown, bytes: 0, queue_pair, vendor: 0x88 }
    }

    /// The completion of a request that has succeeded.
    pub(super) fn done(&self, pair: usize, request: &Request) -> Completion {
        let queue_pair = self.pairs[pair].number;
        let (id, kind) = (request.id, request.kind());
        Completion { id, status: Status::Success, kind, bytes: 0, queue_pair, vendor: 0 }
    }

    /// A request is over; its completion, if it gives one.
    pub(super) fn finish(&mut self, pair: usize, flight: &Flight, status: Status) {
        self.pairs[pair].silent += 1;
        let id = flight.request.id;
        let completion = match status {
            Status::Success if !flight.request.signalled => {
                if self.fault == Some(Fault::ReuseBeforeCompletion) {
                    let pair = &mut self.pairs[pair];
                    pair.taken -= std::mem::take(&mut pair.silent);
                }
                return;
            }
            Status::Success => self.done(pair, &flight.request),
            _ => self.failed(pair, id, status),
        };
        let retires = std::mem::take(&mut self.pairs[pair].silent);
        self.complete(self.pairs[pair].sends, completion, Some((pair, retires)));
    }

    /// The first request that was sent is over: its memory must be as it was.
    pub(super) fn finish_first(&mut self, pair: usize) {
        let flight = self.pairs[pair].flights.pop_front().expect("a request was sent");
        if !flight.request.inline && !flight.request.is_answered() {
            let nic = self.pairs[pair].nic;
            if self.gather(nic, &flight.request.segments).is_ok_and(|bytes| bytes != flight.bytes) {
                self.violation(nic, "the memory of a send was written before its completion");
            }
        }
        self.finish(pair, &flight, Status::Success);
    }
}
