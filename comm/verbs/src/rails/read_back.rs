//! Reading back: what a NIC has written into a device's memory is there for the device's programs
//! once a read of that memory through the same NIC came after it. Until then an arrival is held,
//! and the device does not hear of it.

use crate::nic::{Access, Action, Memory, Nic, NicResult, Prepared, QueuePair, Region, Request};

/// A connection of a rank to itself, which reads its slots.
///
/// Note: fields end in this order: the connection, what the NIC may use, the memory itself.
pub(super) struct ReadBack {
    pair: Box<dyn QueuePair>,
    chain: Prepared,
    _region: Box<dyn Region>,
    _answer: Box<u64>,
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
        let mut answer = Box::new(0_u64);
        let memory = Memory::Host { start: (&raw mut *answer).cast(), length: size_of::<u64>() };
        let access = Access { local_write: true, ..Access::default() };
        // SAFETY: the answer is dropped after the region, and that after the connection; nothing
        // looks at it.
        let region = unsafe { nic.register(memory, access) }?;
        let request = Request {
            id: 0,
            action: Action::Read(slots.remote(0)),
            segments: vec![region.segment(0, 8)],
            inline: false,
            signalled: true,
        };
        // SAFETY: nothing of the chain is inline.
        let chain = unsafe { pair.prepare(&[request]) }?;
        Ok(Self {
            pair,
            chain,
            _region: region,
            _answer: answer,
            held: Vec::new(),
            covers: 0,
            is_reading: false,
        })
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
