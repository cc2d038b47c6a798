//! Ranks as threads of one process.
//!
//! A message is copied once, from the sender's memory straight into the receiver's, by the
//! receiver; messages of up to a kilobyte are left in a slot instead, so that their sender need not
//! wait (`link.rs`). Nothing is allocated and no lock is contended on the way. A rank that waits
//! asks again for a moment, then offers its core to others, then sleeps until the peer wakes it
//! (`world.rs`): more ranks than cores do not collapse.
//!
//! **Failure.** The first error is the world's, wakes everybody and is what every call answers from
//! then on. A rank always returns only when no other reads its memory any more.

mod link;
#[cfg(test)]
mod model;
mod sync;
mod world;

use super::{Expected, Incoming, Outgoing, StepId, Transport};
use crate::error::{CommError, Result};
use crate::topology::{Rank, Topology};
use crate::views::Views;
use headlong_device::copy::copy;
use link::{Header, SlotRef};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use world::World;

/// Messages of at most this many bytes are copied into the slot.
const EAGER_BYTES: usize = 1024;

/// One rank's end of a world of threads.
pub struct LocalTransport {
    rank: Rank,
    world: Arc<World>,
    end: Mutex<End>,
    closed: AtomicBool,
}

struct End {
    sent: Vec<u32>,
    received: Vec<u32>,
    /// Places in `incoming` that are still to come.
    pending: Vec<usize>,
    taken: Vec<Option<Header>>,
}

impl LocalTransport {
    /// All ends of a new world, in the order of ranks.
    pub fn world(topology: &Topology, deadline: Duration) -> Vec<LocalTransport> {
        let world = Arc::new(World::new(topology, deadline, EAGER_BYTES));
        let end = |rank: Rank| LocalTransport {
            rank,
            world: world.clone(),
            end: Mutex::new(End::new(topology.num_ranks())),
            closed: AtomicBool::new(false),
        };
        topology.ranks().map(end).collect()
    }

    fn enter(&self, id: &StepId) -> Result<MutexGuard<'_, End>> {
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        self.world.check()?;
        self.world.enter(self.rank, id);
        Ok(end)
    }

    fn publish<'a>(
        &'a self,
        sent: &'a mut [u32],
        id: &StepId,
        outgoing: &'a [Outgoing],
    ) -> Result<Publications<'a>> {
        let mut publications =
            Publications { transport: self, sent, outgoing, published: 0, read: 0, waits: false };
        for (index, message) in outgoing.iter().enumerate() {
            assert_ne!(message.to, self.rank, "a rank sends nothing to itself");
            let slot = publications.slot(index);
            if !slot.is_empty() {
                self.wake_receivers(&outgoing[..index]);
                self.world.wait(self.rank, id, || Ok((!slot.is_empty()).then_some(message.to)))?;
            }
            // SAFETY: this is the sender, the slot is empty, and `publications` waits for or takes
            // back every message that lies in the caller's memory before the borrow of `outgoing`
            // ends.
            publications.waits |= !unsafe { slot.publish(id, message.bytes) };
            publications.published += 1;
        }
        self.wake_receivers(outgoing);
        Ok(publications)
    }

    fn wake_receivers(&self, outgoing: &[Outgoing]) {
        self.world.order();
        outgoing.iter().for_each(|message| self.world.wake(message.to));
    }

    fn compare(&self, id: &StepId, length: usize, from: Rank, header: &Header) -> Result<()> {
        let same = (header.id.sequence, header.id.step, header.id.fingerprint)
            == (id.sequence, id.step, id.fingerprint);
        if same && header.length() == length {
            return Ok(());
        }
        Err(self.world.fail(CommError::Mismatch {
            culprit: from,
            seen_by: self.rank,
            expected: format!("{id}, {length} bytes"),
            found: format!("{}, {} bytes", header.id, header.length()),
        }))
    }

    fn release(&self, slot: SlotRef<'_>, from: Rank) {
        slot.release();
        self.world.order();
        self.world.wake(from);
    }

    fn read_all(
        &self,
        id: &StepId,
        mut taken: Taken<'_>,
        read: &mut dyn FnMut(&[&[u8]]),
    ) -> Result<()> {
        self.world.wait(self.rank, id, || taken.poll(id))?;
        let mut views = Views::default();
        for (message, header) in taken.expected.iter().zip(taken.headers.iter()) {
            let header = header.as_ref().expect("everything has been taken");
            // SAFETY: the message was taken from this slot, and is released when `taken` is
            // dropped, after `views`.
            views.push(unsafe { taken.slot(message.from).bytes(header) });
        }
        read(views.as_slice());
        drop(views);
        Ok(())
    }
}

impl End {
    fn new(num_ranks: usize) -> Self {
        Self {
            sent: vec![0; num_ranks],
            received: vec![0; num_ranks],
            pending: Vec::with_capacity(num_ranks),
            taken: Vec::with_capacity(num_ranks),
        }
    }
}

impl Transport for LocalTransport {
    fn name(&self) -> &'static str {
        "local"
    }

    fn rank(&self) -> Rank {
        self.rank
    }

    fn topology(&self) -> &Topology {
        &self.world.topology
    }

    fn exchange(
        &self,
        id: &StepId,
        outgoing: &[Outgoing],
        incoming: &mut [Incoming],
    ) -> Result<()> {
        let mut end = self.enter(id)?;
        let End { sent, received, pending, .. } = &mut *end;
        let publications = self.publish(sent, id, outgoing)?;
        pending.clear();
        pending.extend(0..incoming.len());
        self.world.wait(self.rank, id, || {
            let mut index = 0;
            while index < pending.len() {
                let Incoming { from, bytes } = &mut incoming[pending[index]];
                let slot = self.world.links.slot(*from, self.rank, received[from.0]);
                // SAFETY: this is the receiver, and a message that was taken is released below
                // before the next look.
                let Some(header) = (unsafe { slot.take() }) else {
                    index += 1;
                    continue;
                };
                let same = self.compare(id, bytes.len(), *from, &header);
                if same.is_ok() {
                    // SAFETY: taken above, released below.
                    copy(unsafe { slot.bytes(&header) }, bytes);
                }
                self.release(slot, *from);
                received[from.0] = received[from.0].wrapping_add(1);
                same?;
                pending.swap_remove(index);
            }
            Ok(pending.first().map(|&index| incoming[index].from))
        })?;
        publications.finish(id)
    }

    fn exchange_reading(
        &self,
        id: &StepId,
        outgoing: &[Outgoing],
        expected: &[Expected],
        read: &mut dyn FnMut(&[&[u8]]),
    ) -> Result<()> {
        let mut end = self.enter(id)?;
        let End { sent, received, taken, .. } = &mut *end;
        let publications = self.publish(sent, id, outgoing)?;
        taken.clear();
        taken.resize(expected.len(), None);
        self.read_all(id, Taken { transport: self, received, headers: taken, expected }, read)?;
        publications.finish(id)
    }

    fn in_place_bytes(&self) -> Option<usize> {
        Some(usize::MAX)
    }

    fn abort(&self, error: CommError) {
        self.world.fail(error);
    }

    fn check(&self) -> Result<()> {
        self.world.check()
    }

    fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Relaxed);
        // First, because a peer that still wanted something may end the job as soon as it sees this
        // goodbye: that is its failure, not this rank's.
        let outcome = self.world.check();
        self.world.close(self.rank);
        outcome
    }
}

impl Drop for LocalTransport {
    fn drop(&mut self) {
        if !self.closed.load(Ordering::Relaxed) {
            let reason = match std::thread::panicking() {
                true => "its thread has panicked",
                false => "its thread has ended without closing the communicator",
            };
            let (culprit, seen_by) = (self.rank, self.rank);
            self.world.fail(CommError::PeerLost { culprit, seen_by, reason: reason.to_owned() });
        }
    }
}

/// Messages that lie in the caller's memory until their receivers have read them. Dropped early, it
/// takes them back.
struct Publications<'a> {
    transport: &'a LocalTransport,
    sent: &'a mut [u32],
    outgoing: &'a [Outgoing<'a>],
    published: usize,
    /// This many of them have been read for certain.
    read: usize,
    /// Some message is not eager.
    waits: bool,
}

impl<'a> Publications<'a> {
    fn slot(&self, index: usize) -> SlotRef<'a> {
        let to = self.outgoing[index].to;
        self.transport.world.links.slot(self.transport.rank, to, self.sent[to.0])
    }

    fn finish(mut self, id: &StepId) -> Result<()> {
        if !self.waits {
            self.read = self.published;
            return Ok(());
        }
        self.transport.world.wait(self.transport.rank, id, || {
            while self.read < self.published {
                if self.slot(self.read).is_lent() {
                    return Ok(Some(self.outgoing[self.read].to));
                }
                self.read += 1;
            }
            Ok(None)
        })
    }
}

impl Drop for Publications<'_> {
    fn drop(&mut self) {
        for index in self.read..self.published {
            self.slot(index).withdraw();
        }
        for message in &self.outgoing[..self.published] {
            let sent = &mut self.sent[message.to.0];
            *sent = sent.wrapping_add(1);
        }
    }
}

/// Messages that are being read where they lie. Dropped, it gives them back.
struct Taken<'a> {
    transport: &'a LocalTransport,
    received: &'a mut [u32],
    headers: &'a mut [Option<Header>],
    expected: &'a [Expected],
}

impl<'a> Taken<'a> {
    fn slot(&self, from: Rank) -> SlotRef<'a> {
        self.transport.world.links.slot(from, self.transport.rank, self.received[from.0])
    }

    /// Takes what has come; who is still pending.
    fn poll(&mut self, id: &StepId) -> Result<Option<Rank>> {
        let mut pending = None;
        for (index, &Expected { from, length }) in self.expected.iter().enumerate() {
            if self.headers[index].is_some() {
                continue;
            }
            // SAFETY: this is the receiver, and what it has taken it does not take again.
            match unsafe { self.slot(from).take() } {
                Some(header) => {
                    self.headers[index] = Some(header);
                    self.transport.compare(id, length, from, &header)?;
                }
                None => pending = Some(from),
            }
        }
        Ok(pending)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        for (message, header) in self.expected.iter().zip(self.headers.iter()) {
            if header.is_some() {
                self.transport.release(self.slot(message.from), message.from);
                let received = &mut self.received[message.from.0];
                *received = received.wrapping_add(1);
            }
        }
    }
}
