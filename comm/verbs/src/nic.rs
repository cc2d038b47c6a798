//! What a NIC with RDMA can do, in as few words as the transport needs.
//!
//! A [`Provider`] lists [`Device`]s and opens one as a [`Nic`]. A NIC registers memory
//! ([`Region`]), and makes completion queues ([`CompletionQueue`]), shared receive queues
//! ([`ReceiveQueue`]) and reliable connections ([`QueuePair`]). Work requests are plain data: they
//! name memory by address and key, and the NIC checks both, so that posting is safe; what is
//! unsafe is to let a NIC see memory at all ([`Nic::register`]).
//!
//! Nothing here blocks.

mod completion;
mod device;
mod work;

pub use completion::{Completion, CompletionKind, Event, Status};
pub use device::{Device, Gid, GidKind, LinkLayer, Port, PortState};
pub use work::{Action, Patch, Prepared, Receive, Remote, Request, Segment};

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// What goes wrong with a NIC.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum NicError {
    /// There are no NICs to be had: no library, no kernel support.
    #[error("no RDMA: {0}")]
    Unavailable(String),
    /// A call was refused.
    #[error("{what}: {reason}")]
    Refused { what: String, reason: String, errno: Option<i32> },
    /// More was posted than the queue holds: completions must be taken first.
    #[error("{0} is full")]
    Full(String),
}

/// A result of a NIC.
pub type NicResult<T> = Result<T, NicError>;

/// NICs of one kind.
pub trait Provider: Send + Sync {
    /// Where the NICs come from, for errors: `libibverbs`, `fake`.
    fn name(&self) -> &str;

    /// All devices, in the order in which they were found.
    ///
    /// # Errors
    /// [`NicError::Unavailable`] with what is missing.
    fn devices(&self) -> NicResult<Vec<Device>>;

    /// Opens a device by its name.
    ///
    /// # Errors
    /// When there is none of that name, or it cannot be opened.
    fn open(&self, device: &str) -> NicResult<Arc<dyn Nic>>;
}

/// What a NIC allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Limits {
    /// Work requests in one queue, pieces of memory in one of them.
    pub work_requests: u32,
    pub segments: u32,
    /// Completions in one completion queue.
    pub completions: u32,
    /// Receives in one shared receive queue; 0: there is none to be had.
    pub shared_receives: u32,
    /// Reads and atomics of one queue pair on the way at the same time.
    pub reads: u32,
    /// Whether [`Action::FetchAdd`] works.
    pub atomics: bool,
}

/// Memory to be registered; lengths are in bytes.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Memory<'a> {
    Host {
        start: *mut u8,
        length: usize,
    },
    /// Of a device whose driver has given a descriptor for it.
    Dmabuf {
        fd: BorrowedFd<'a>,
        /// Where in the descriptor's memory it begins, in bytes.
        offset: u64,
        length: usize,
        /// The address under which work requests name its first byte: the device's own.
        address: u64,
    },
}

/// What may be done to registered memory, besides reading it for a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// The NIC may write what it has received or read.
    pub local_write: bool,
    /// Peers may write.
    pub remote_write: bool,
    /// Peers may read.
    pub remote_read: bool,
    /// Peers may add and swap.
    pub remote_atomic: bool,
    /// Writes may overtake each other on the bus. Never for memory that holds a flag.
    pub relaxed_ordering: bool,
}

/// Registered memory. Dropped, the NIC forgets it.
pub trait Region: Send + Sync {
    /// The address of its first byte, as work requests name it.
    fn address(&self) -> u64;
    /// Its key for this NIC.
    fn local_key(&self) -> u32;
    /// Its key for peers.
    fn remote_key(&self) -> u32;

    /// What lies at `offset`, for this NIC.
    fn segment(&self, offset: usize, length: usize) -> Segment {
        let address = self.address() + offset as u64;
        Segment { address, length: length as u32, key: self.local_key() }
    }

    /// What lies at `offset`, for peers.
    fn remote(&self, offset: usize) -> Remote {
        Remote { address: self.address() + offset as u64, key: self.remote_key() }
    }
}

/// An open device.
pub trait Nic: Send + Sync {
    /// Its name.
    fn name(&self) -> &str;

    /// What it allows.
    fn limits(&self) -> Limits;

    /// A port as it is now.
    ///
    /// # Errors
    /// When there is no such port, or the device is gone.
    fn port(&self, number: u8) -> NicResult<Port>;

    /// Lets the NIC, and as far as `access` says its peers, use memory.
    ///
    /// # Errors
    /// When the system refuses: locked-memory limit, a kernel without dmabuf.
    ///
    /// # Safety
    /// The memory stays mapped until the region is dropped and every queue pair of this NIC is
    /// destroyed or in error. While it is registered, the program reads and writes it only where no
    /// NIC does: what a peer writes, after the completion or the atomic flag that says that it has
    /// been written; what is sent, before it is posted and after its completion.
    unsafe fn register(&self, memory: Memory<'_>, access: Access) -> NicResult<Box<dyn Region>>;

    /// A queue of at most `depth` completions.
    fn completion_queue(&self, depth: u32) -> NicResult<Arc<dyn CompletionQueue>>;

    /// A queue of at most `depth` receives that several queue pairs share.
    fn receive_queue(&self, depth: u32) -> NicResult<Arc<dyn ReceiveQueue>>;

    /// A reliable connection, not connected yet.
    ///
    /// # Errors
    /// When the NIC refuses, or the queues are another NIC's.
    fn queue_pair(&self, options: &QueuePairOptions<'_>) -> NicResult<Box<dyn QueuePair>>;

    /// The next asynchronous event, if there is one. Never waits.
    fn event(&self) -> NicResult<Option<Event>>;
}

/// What a queue pair is made of.
pub struct QueuePairOptions<'a> {
    /// Where its sends complete.
    pub sends: &'a Arc<dyn CompletionQueue>,
    /// Where its receives complete.
    pub receives: &'a Arc<dyn CompletionQueue>,
    /// Where its receives come from; none: it has its own.
    pub shared: Option<&'a Arc<dyn ReceiveQueue>>,
    /// Sends on the way at the same time, at most.
    pub max_sends: u32,
    /// Receives posted at the same time, at most; without meaning where they are shared.
    pub max_receives: u32,
    /// Pieces of memory in one send, at most.
    pub max_segments: u32,
    /// Bytes of an inline send, at most.
    pub max_inline: u32,
}

/// How a queue pair is connected. Both sides have the same, except for `gid_index`, `port` and
/// `partition_index`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePairSettings {
    /// Port of the device.
    pub port: u8,
    /// Place of the partition key in the port's table.
    pub partition_index: u16,
    /// Place of this side's global identifier; none: packets have none (InfiniBand inside one
    /// subnet).
    pub gid_index: Option<u32>,
    /// Bytes of a packet, at most: the smaller of both ports' MTUs.
    pub mtu: u32,
    /// Service level, 0 to 15.
    pub service_level: u8,
    /// Traffic class of packets with a global identifier.
    pub traffic_class: u8,
    /// Hops that packets with a global identifier may take.
    pub hop_limit: u8,
    /// An answer is missing after 4.096 µs times two to this power, 1 to 31; 0: never.
    pub timeout: u8,
    /// So often a packet without an answer is sent again, 0 to 7.
    pub retries: u8,
    /// So often a send waits for a receive that is not there, 0 to 6; 7: for ever.
    pub receiver_retries: u8,
    /// How long such a wait is, by InfiniBand's table: 12 is 0.64 ms.
    pub receiver_timer: u8,
    /// Reads and atomics on the way at the same time, on each side.
    pub reads: u8,
    /// What peers may do to memory through this queue pair.
    pub access: Access,
}

/// Where a queue pair is to be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Endpoint {
    pub lid: u16,
    pub gid: [u8; 16],
    pub queue_pair: u32,
    /// Number of the first packet that it sends, 24 bits.
    pub first_packet: u32,
}

/// A reliable connection to one peer. One thread uses it.
pub trait QueuePair: Send {
    /// Its number on its device.
    fn number(&self) -> u32;

    /// Reset to initialised: receives may be posted.
    fn init(&mut self, settings: &QueuePairSettings) -> NicResult<()>;

    /// Initialised to ready to receive from `peer`.
    ///
    /// # Errors
    /// When the NIC refuses: an address that cannot be reached, a GID that is gone.
    fn ready_to_receive(&mut self, settings: &QueuePairSettings, peer: &Endpoint) -> NicResult<()>;

    /// Ready to receive to ready to send; `first_packet` is this side's.
    fn ready_to_send(&mut self, settings: &QueuePairSettings, first_packet: u32) -> NicResult<()>;

    /// Keeps a chain of work requests, which are posted together and in order.
    ///
    /// # Safety
    /// The memory of inline requests is mapped whenever the chain is posted, and not written
    /// meanwhile: the processor takes the bytes, and no key guards them.
    ///
    /// # Errors
    /// When a request has more segments or inline bytes than the queue pair allows.
    unsafe fn prepare(&mut self, chain: &[Request]) -> NicResult<Prepared>;

    /// Posts a prepared chain. `patches` change it, this time and for all later times. Nothing is
    /// allocated.
    ///
    /// # Errors
    /// [`NicError::Full`]; when the queue pair is not ready to send. Nothing of the chain has been
    /// posted then.
    fn post(&mut self, chain: Prepared, patches: &[Patch]) -> NicResult<()>;

    /// Posts receives to this queue pair's own queue.
    ///
    /// # Errors
    /// [`NicError::Full`]; when its receives are shared.
    fn post_receives(&mut self, receives: &[Receive]) -> NicResult<()>;

    /// Ends all work: what is on the way completes with [`Status::Flushed`].
    fn fail(&mut self) -> NicResult<()>;
}

/// Receives that several queue pairs share.
pub trait ReceiveQueue: Any + Send + Sync {
    /// Posts receives.
    fn post(&self, receives: &[Receive]) -> NicResult<()>;
}

/// Where work requests complete.
pub trait CompletionQueue: Any + Send + Sync {
    /// Appends at most `most` completions to `into`; how many. Takes no new memory if `into` has
    /// room.
    fn poll(&self, into: &mut Vec<Completion>, most: usize) -> NicResult<usize>;

    /// A descriptor that a thread can sleep at: readable from the first completion on that comes
    /// after [`CompletionQueue::arm`]. None: the NIC has none.
    fn events(&self) -> Option<BorrowedFd<'_>>;

    /// Makes [`CompletionQueue::events`] wait for the next completion, and forget those before.
    /// What has come until then shows there no more: look again before you sleep.
    fn arm(&self) -> NicResult<()>;
}
