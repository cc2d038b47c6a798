//! What is posted: plain data.

/// A chain of work requests that a queue pair keeps, by its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prepared(pub usize);

/// One work request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Comes back in its completion.
    pub id: u64,
    /// What it does.
    pub action: Action,
    /// Memory of this side, in order: what is sent, or where an answer goes. Together of any
    /// length, 0 included.
    pub segments: Vec<Segment>,
    /// The bytes are taken when it is posted, so that the memory may be written again at once and
    /// needs no key.
    pub inline: bool,
    /// Success gives a completion too; failure always does.
    pub signalled: bool,
}

/// What a work request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Writes at the peer.
    Write(Remote),
    /// Writes at the peer, which then takes a receive and learns the number. For no bytes the place
    /// has no meaning.
    WriteImmediate(Remote, u32),
    /// Reads from the peer.
    Read(Remote),
    /// Adds the number to eight bytes at the peer, on a multiple of 8; what was there before comes
    /// back.
    FetchAdd(Remote, u64),
    /// Fills the peer's next receive.
    Send,
}

/// A place in a peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Its address there.
    pub address: u64,
    /// The region's key for peers.
    pub key: u32,
}

/// A piece of this side's memory, of `length` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Segment {
    pub address: u64,
    pub length: u32,
    pub key: u32,
}

/// A change of a prepared chain: of the `request`-th of its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Patch {
    /// The bytes of a segment, by its place in the request.
    Length { request: usize, segment: usize, length: u32 },
    /// The number of an [`Action::WriteImmediate`].
    Immediate { request: usize, immediate: u32 },
}

/// Room for a peer's send, or the credit for a peer's immediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receive {
    /// Comes back in its completion.
    pub id: u64,
    /// Where the bytes go; none: it takes immediates only.
    pub segment: Option<Segment>,
}
