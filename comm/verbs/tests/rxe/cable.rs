//! Two ends of a connection in one process, each on a device of its own.

use headlong_verbs::nic::{
    Access, Action, Completion, CompletionQueue, Endpoint, Gid, GidKind, Memory, Nic, NicError,
    Patch, Port, PortState, Prepared, QueuePair, QueuePairOptions, QueuePairSettings, Receive,
    ReceiveQueue, Region, Remote, Request, Segment, Status,
};
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of each end's memory.
pub const LENGTH: usize = 1 << 16;
/// Bytes that a send may carry inline.
pub const INLINE: u32 = 64;
/// No answer takes longer, on however slow a machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Everything that peers may do.
const EVERYTHING: Access = Access {
    local_write: true,
    remote_write: true,
    remote_read: true,
    remote_atomic: true,
    relaxed_ordering: false,
};

/// Memory that NICs write.
struct Shared(Box<[UnsafeCell<u64>]>);

/// One end: a NIC, its memory, its queues.
pub struct End {
    // Dropped in this order: what uses the memory before the memory.
    pub pair: Box<dyn QueuePair>,
    pub completions: Arc<dyn CompletionQueue>,
    region: Box<dyn Region>,
    memory: Shared,
    pub nic: Arc<dyn Nic>,
    port: Port,
    gid: Gid,
}

impl End {
    /// An end on `nic`'s first port, with receives of its own or from a shared queue.
    pub fn new(
        nic: Arc<dyn Nic>,
        shared: Option<&Arc<dyn ReceiveQueue>>,
    ) -> Result<Self, NicError> {
        let memory = Shared((0..LENGTH / 8).map(|_| UnsafeCell::new(0)).collect());
        let start = memory.0.as_ptr().cast_mut().cast();
        // SAFETY: the memory lives as long as the region, which stands before it. It is read only
        // after completions.
        let region = unsafe { nic.register(Memory::Host { start, length: LENGTH }, EVERYTHING) }?;
        let completions = nic.completion_queue(64)?;
        let pair = nic.queue_pair(&QueuePairOptions {
            sends: &completions,
            receives: &completions,
            shared,
            max_sends: 16,
            max_receives: 16,
            max_segments: 4,
            max_inline: INLINE,
        })?;
        let port = nic.port(1)?;
        let missing = |what: &str| NicError::Unavailable(format!("{}: {what}", nic.name()));
        if port.state != PortState::Active {
            return Err(missing("its port is not active"));
        }
        let is_good = |gid: &&Gid| gid.kind == GidKind::RoceV2 && gid.address().is_ipv4();
        let gid = port
            .gids
            .iter()
            .find(is_good)
            .cloned()
            .ok_or_else(|| missing("no RoCE v2 address over IPv4"))?;
        Ok(Self { pair, completions, region, memory, nic, port, gid })
    }

    /// Where a peer finds this end.
    pub fn endpoint(&self) -> Endpoint {
        let queue_pair = self.pair.number();
        Endpoint {
            lid: self.port.lid,
            gid: self.gid.bytes,
            queue_pair,
            first_packet: queue_pair & 0xff_ffff,
        }
    }

    fn settings(&self, timeout: u8, receiver_retries: u8) -> QueuePairSettings {
        QueuePairSettings {
            port: 1,
            partition_index: 0,
            gid_index: Some(self.gid.index),
            mtu: 1024,
            service_level: 0,
            traffic_class: 0,
            hop_limit: 64,
            timeout,
            retries: if timeout < 18 { 1 } else { 7 },
            receiver_retries,
            receiver_timer: 12,
            reads: 1,
            access: EVERYTHING,
        }
    }

    /// Connects to one peer.
    pub fn connect_to(
        &mut self,
        peer: &Endpoint,
        timeout: u8,
        receiver_retries: u8,
    ) -> Result<(), NicError> {
        let (settings, first_packet) =
            (self.settings(timeout, receiver_retries), self.endpoint().first_packet);
        self.pair.init(&settings)?;
        self.pair.ready_to_receive(&settings, peer)?;
        self.pair.ready_to_send(&settings, first_packet)
    }

    /// Where a peer finds byte `at` of this end's memory.
    pub fn remote(&self, at: usize) -> Remote {
        Remote { address: self.region.address() + at as u64, key: self.region.remote_key() }
    }

    /// A piece of this end's memory.
    pub fn segment(&self, at: usize, length: usize) -> Segment {
        Segment {
            address: self.region.address() + at as u64,
            length: length as u32,
            key: self.region.local_key(),
        }
    }

    /// Writes all of the memory; nothing is on the way.
    pub fn fill(&self, byte: impl Fn(usize) -> u8) {
        for (at, word) in self.memory.0.iter().enumerate() {
            let bytes = std::array::from_fn(|of| byte(at * 8 + of));
            // SAFETY: one thread, and no NIC writes now.
            unsafe { word.get().write_volatile(u64::from_ne_bytes(bytes)) };
        }
    }

    /// Reads all of the memory, after a completion.
    pub fn bytes(&self) -> Vec<u8> {
        // SAFETY: one thread, and no NIC writes now.
        self.memory
            .0
            .iter()
            .flat_map(|word| unsafe { word.get().read_volatile() }.to_ne_bytes())
            .collect()
    }

    /// Posts one signalled request.
    pub fn post(
        &mut self,
        action: Action,
        segments: Vec<Segment>,
        inline: bool,
    ) -> Result<(), NicError> {
        let chain =
            self.prepare(&[Request { id: 5, action, segments, inline, signalled: true }])?;
        self.pair.post(chain, &[])
    }

    /// Keeps a chain of requests about this end's memory.
    pub fn prepare(&mut self, chain: &[Request]) -> Result<Prepared, NicError> {
        // SAFETY: inline bytes are of this end's memory, which lives as long as its queue pair;
        // posting reads them on this thread.
        unsafe { self.pair.prepare(chain) }
    }

    /// Posts a chain again, changed.
    pub fn post_again(&mut self, chain: Prepared, patches: &[Patch]) -> Result<(), NicError> {
        self.pair.post(chain, patches)
    }

    /// Posts a receive without memory.
    pub fn expect(&mut self, id: u64) -> Result<(), NicError> {
        self.pair.post_receives(&[Receive { id, segment: None }])
    }

    /// The next completion.
    pub fn completion(&self) -> Result<Completion, String> {
        let begin = Instant::now();
        let mut found = Vec::new();
        while begin.elapsed() < PATIENCE {
            let count = self.completions.poll(&mut found, 1).map_err(|error| error.to_string())?;
            if count == 1 {
                return Ok(found[0]);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Err(format!("{}: no completion within {PATIENCE:?}", self.nic.name()))
    }

    /// The next completion, which must be a success.
    pub fn success(&self) -> Result<Completion, String> {
        let completion = self.completion()?;
        match completion.status {
            Status::Success => Ok(completion),
            status => {
                Err(format!("{}: a completion says: {status} ({completion:?})", self.nic.name()))
            }
        }
    }
}

/// Connects two ends. `timeout` is the exponent of the time for an answer: an emulated machine
/// needs 18 and more.
pub fn connect(
    a: &mut End,
    b: &mut End,
    timeout: u8,
    receiver_retries: u8,
) -> Result<(), NicError> {
    let (of_a, of_b) = (a.endpoint(), b.endpoint());
    a.connect_to(&of_b, timeout, receiver_retries)?;
    b.connect_to(&of_a, timeout, receiver_retries)
}
