//! Connections: what was posted, how far it is, and how it ends.

use super::super::nic::{
    Action, Completion, CompletionKind, Endpoint, QueuePairSettings, Receive, Request,
};
use super::memory::Place;
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
    pub(super) fn kind(&self) -> CompletionKind {
        match self.action {
            Action::Write(..) | Action::WriteImmediate(..) => CompletionKind::Write,
            Action::Read(..) => CompletionKind::Read,
            Action::FetchAdd(..) => CompletionKind::Atomic,
            Action::Send => CompletionKind::Send,
        }
    }

    /// Whether its segments are where an answer goes, not what is sent.
    pub(super) fn is_answered(&self) -> bool {
        matches!(self.action, Action::Read(..) | Action::FetchAdd(..))
    }
}
