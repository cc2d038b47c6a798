//! What a NIC says: completions and events.

/// A work request that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Completion {
    pub id: u64,
    /// How it ended. If not in success, only `id`, `queue_pair` and `vendor` mean anything.
    pub status: Status,
    pub kind: CompletionKind,
    /// Bytes that came, for receives.
    pub bytes: u32,
    pub queue_pair: u32,
    /// The vendor's own number for an error.
    pub vendor: u32,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionKind {
    /// A write of this side, with an immediate or without.
    Write,
    /// A read of this side.
    Read,
    /// An atomic of this side.
    Atomic,
    /// A send of this side.
    Send,
    /// A peer's send has come.
    Received,
    /// A peer's write has come, and this number with it.
    Immediate(u32),
    /// Unknown, because the request failed.
    Unknown,
}

/// How a work request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "their words are below")]
pub enum Status {
    Success,
    Flushed,
    LocalLength,
    LocalProtection,
    RemoteAccess,
    RemoteRequest,
    RemoteOperation,
    RetriesExceeded,
    ReceiverNotReady,
    Other(u32),
}

/// What a device says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Event {
    PortDown(u8),
    PortUp(u8),
    DeviceFatal,
    /// A queue pair, by its number, has failed.
    QueuePairFatal(u32),
    CompletionsLost,
    ReceivesLost,
    Other(String),
}

impl Event {
    /// Whether messages can no longer be trusted to arrive, whatever comes. A port that is down may
    /// come back.
    pub fn is_fatal(&self) -> bool {
        match self {
            Event::DeviceFatal
            | Event::QueuePairFatal(_)
            | Event::CompletionsLost
            | Event::ReceivesLost => true,
            Event::PortDown(_) | Event::PortUp(_) | Event::Other(_) => false,
        }
    }
}

impl std::fmt::Display for Event {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Event::PortDown(port) => write!(out, "port {port} is down"),
            Event::PortUp(port) => write!(out, "port {port} is up"),
            Event::DeviceFatal => write!(out, "the device has failed"),
            Event::QueuePairFatal(number) => write!(out, "queue pair {number:#x} has failed"),
            Event::CompletionsLost => write!(out, "a completion queue has overflowed"),
            Event::ReceivesLost => write!(out, "a shared receive queue has failed"),
            Event::Other(what) => write!(out, "{what}"),
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Status::Success => "success",
            Status::Flushed => "flushed: the connection had already failed",
            Status::LocalLength => "a length that does not fit",
            Status::LocalProtection => "a local key that does not cover the memory",
            Status::RemoteAccess => "the peer's memory is not registered for this",
            Status::RemoteRequest => "the peer refused the request",
            Status::RemoteOperation => "the peer failed at the request",
            Status::RetriesExceeded => "no answer from the peer after all retries",
            Status::ReceiverNotReady => "the peer had no receive posted after all retries",
            Status::Other(number) => return write!(out, "completion status {number}"),
        })
    }
}
