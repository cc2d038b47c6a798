//! Reading back: what a NIC has written into a device's memory is there for the device's programs
//! once a read of that memory through the same NIC came after it. Until then an arrival is held,
//! and the device does not hear of it.

use crate::nic::{
    Access, Action, Completion, CompletionQueue, Memory, Nic, NicResult, Prepared, QueuePair,
    Region, Remote, Request, Status,
};
use headlong_comm::readable::text;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What the trial writes.
const PATTERN: u64 = 0x9e37_79b9_7f4a_7c15;
/// A NIC that tells nothing of a trial for so long never will.
const TRIAL: Duration = Duration::from_secs(10);

/// A connection of a rank to itself, which reads its slots.
///
/// Note: fields end in this order: the connection, what the NIC may use, the memory itself.
pub(super) struct ReadBack {
    pair: Box<dyn QueuePair>,
    chain: Prepared,
    region: Box<dyn Region>,
    answer: Box<AtomicU64>,
    slots: Remote,
    /// Place of the peer and exchange of what has come and was not told.
    held: Vec<(usize, u64)>,
    /// How many of them the read on its way covers.
    covers: usize,
    is_reading: bool,
}

impl ReadBack {
    pub(super) fn new(
        nic: &dyn Nic,
        mut pair: Box<dyn QueuePair>,
        slots: &dyn Region,
    ) -> NicResult<Self> {
        let answer = Box::new(AtomicU64::new(0));
        let memory = Memory::Host { start: answer.as_ptr().cast(), length: size_of::<u64>() };
        let access = Access { local_write: true, ..Access::default() };
        // SAFETY: the answer is dropped after the region, and that after the connection; only the
        // trial looks at it, when nothing is on its way.
        let region = unsafe { nic.register(memory, access) }?;
        let slots = slots.remote(0);
        // SAFETY: nothing of the chain is inline.
        let chain = unsafe { pair.prepare(&[request(Action::Read(slots), &*region)]) }?;
        Ok(Self {
            pair,
            chain,
            region,
            answer,
            slots,
            held: Vec::new(),
            covers: 0,
            is_reading: false,
        })
    }

    /// Whether the NIC really reaches the device's memory: a pattern is written there and read back
    /// through it, and must then be what the device `has`. Before the slots are used.
    pub(super) fn try_out(
        &mut self,
        queue: &dyn CompletionQueue,
        has: impl FnOnce() -> Result<u64, String>,
    ) -> Result<(), String> {
        let write = request(Action::Write(self.slots), &*self.region);
        // SAFETY: nothing of the chain is inline.
        let write = unsafe { self.pair.prepare(&[write]) }.map_err(text)?;
        self.answer.store(PATTERN, Ordering::SeqCst);
        self.post_and_wait(queue, write, "writing")?;
        self.answer.store(0, Ordering::SeqCst);
        self.post_and_wait(queue, self.chain, "reading")?;
        let read = self.answer.load(Ordering::SeqCst);
        let found = has()?;
        match [read, found] == [PATTERN; 2] {
            true => Ok(()),
            false => Err(format!(
                "a trial wrote {PATTERN:#x} into the device's memory through the NIC, read \
                 {read:#x} back, and the device has {found:#x}: an IOMMU, or access control of \
                 the PCIe bridges, may be in the way"
            )),
        }
    }

    fn post_and_wait(
        &mut self,
        queue: &dyn CompletionQueue,
        chain: Prepared,
        what: &str,
    ) -> Result<(), String> {
        self.pair.post(chain, &[]).map_err(text)?;
        let (begun, mut found) = (Instant::now(), Vec::<Completion>::with_capacity(1));
        while queue.poll(&mut found, 1).map_err(text)? == 0 {
            if begun.elapsed() > TRIAL {
                return Err(format!("{what} the device's memory in a trial: no answer of the NIC"));
            }
            std::thread::yield_now();
        }
        match found[0].status {
            Status::Success => Ok(()),
            status => Err(format!("{what} the device's memory in a trial: {status}")),
        }
    }

    pub(super) fn is_of(&self, queue_pair: u32) -> bool {
        self.pair.number() == queue_pair
    }

    /// Keeps an arrival until a read that begins from now on has come.
    pub(super) fn hold(&mut self, peer: usize, sequence: u64) {
        self.held.push((peer, sequence));
    }

    /// Begins a read, if something is held and no read is on its way.
    pub(super) fn begin(&mut self) -> NicResult<()> {
        if self.is_reading || self.held.is_empty() {
            return Ok(());
        }
        (self.is_reading, self.covers) = (true, self.held.len());
        self.pair.post(self.chain, &[])
    }

    /// The read has come: what it covers may be told.
    pub(super) fn end(&mut self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.is_reading = false;
        self.held.drain(..self.covers)
    }
}

/// Of the answer's eight bytes.
fn request(action: Action, region: &dyn Region) -> Request {
    let segments = vec![region.segment(0, size_of::<u64>())];
    Request { id: 0, action, segments, inline: false, signalled: true }
}
