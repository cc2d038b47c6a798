//! The hot path: all messages of a step at once, over sockets that never block, in the calling
//! thread.
//!
//! Everything that can be sent is sent and everything that has come is taken, header and payload in
//! one call each; only when nothing moves does the thread look again for a few microseconds and
//! then sleep in `poll`. No other thread touches the bytes, so a small message costs one system
//! call on each side.

use super::health::{Health, Wait};
use super::mesh::Mesh;
use super::wire::Wire;
use crate::error::{CommError, Result};
use crate::system::{Instant, PollFd, PollFlags, poll, yield_now};
use crate::topology::Rank;
use crate::transport::head::{HEAD_BYTES, Head, MAGIC};
use crate::transport::{Incoming, Outgoing, StepId};
use std::time::Duration;

/// A failure of the job cuts connections, which ends a sleep; at the latest it is seen after this.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);
/// A rank looks again for at most this long before it sleeps: waking up costs about as much.
const SPIN: (Duration, Duration) = (Duration::from_micros(1), Duration::from_micros(60));
/// The longest wait for which looking again would have been better, the time to wake up included:
/// else two ranks that have begun to sleep wait for each other to wake up, and never stop.
const SHORT_WAIT: Duration = Duration::from_micros(120);
/// Connections that are tried again without asking the system first which of them stir.
const TRIED: usize = 4;
/// Descriptors that fit on the stack, two of a peer; for more, memory is taken as they are asked.
const FEW: usize = 64;

#[derive(Debug, Clone, Copy)]
struct Progress {
    peer: Rank,
    head: [u8; HEAD_BYTES],
    done: usize,
    total: usize,
    /// Something may move: the system has not said otherwise since.
    stirs: bool,
}

impl Progress {
    fn is_done(&self) -> bool {
        self.done == self.total
    }
}

pub struct ProgressLoop {
    /// By rank; none to itself, none whose connection is a path's or is not there yet.
    wires: Vec<Option<Box<Wire>>>,
    /// Peers of an exchange to whom there is no connection yet.
    missing: Vec<Rank>,
    sealed: bool,
    sends: Vec<Progress>,
    receives: Vec<Progress>,
    spin: Duration,
}

#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub epoch: u32,
    pub deadline: Duration,
}

/// How long to look again after a wait that lasted so long: short ones double it, longer ones halve
/// it. A rank that looks again lets others run in between, so those that share a processor do too.
fn spin_after(spin: Duration, waited: Duration) -> Duration {
    let next = if waited < SHORT_WAIT { spin * 2 } else { spin / 2 };
    next.clamp(SPIN.0, SPIN.1)
}

fn wire(wires: &mut [Option<Box<Wire>>], peer: Rank) -> &mut Wire {
    wires[peer.0].as_mut().expect("an exchange begins with connections to all its peers")
}

impl ProgressLoop {
    /// Room for exchanges with all of `num_ranks`.
    pub fn new(num_ranks: usize) -> Self {
        let (sends, receives) = (Vec::with_capacity(num_ranks), Vec::with_capacity(num_ranks));
        let wires = (0..num_ranks).map(|_| None).collect();
        Self { wires, missing: Vec::new(), sealed: false, sends, receives, spin: SPIN.1 }
    }

    /// The wire to `peer`, where there is one yet.
    pub fn take_wire(&mut self, peer: Rank) -> Option<Box<Wire>> {
        self.wires[peer.0].take()
    }

    /// From the next exchange on; all ranks say it between the same two.
    pub fn set_sealed(&mut self, sealed: bool) {
        self.sealed = sealed;
        self.wires.iter_mut().flatten().for_each(|wire| wire.set_sealed(sealed));
    }

    /// Makes the connections that the exchange at hand needs and that are not there.
    fn connect(&mut self, mesh: &Mesh) -> Result<()> {
        let Self { wires, missing, sealed, sends, receives, .. } = self;
        let peers = sends.iter().chain(receives.iter()).map(|message| message.peer);
        missing.clear();
        missing.extend(peers.filter(|peer| wires[peer.0].is_none()));
        if missing.is_empty() {
            return Ok(());
        }
        missing.sort_unstable();
        missing.dedup();
        mesh.connect(missing, |peer, mut wire| {
            wire.set_sealed(*sealed);
            wires[peer.0] = Some(wire);
        })
    }

    pub fn exchange(
        &mut self,
        mesh: &Mesh,
        pace: &Pace,
        id: &StepId,
        outgoing: &[Outgoing],
        incoming: &mut [Incoming],
    ) -> Result<()> {
        let health = &*mesh.health;
        self.prepare(pace, id, outgoing, incoming);
        health.note_step(id);
        self.connect(mesh)?;
        let mut wait = None;
        let mut idle_since: Option<Instant> = None;
        loop {
            let moved = self.advance(health, id, pace.epoch, outgoing, incoming)?;
            if self.is_done() {
                break;
            }
            health.check()?;
            if moved {
                if let Some(since) = idle_since.take() {
                    self.spin = spin_after(self.spin, since.elapsed());
                }
                // Bytes that move, however slowly, are no reason to give a peer up.
                wait = None;
                continue;
            }
            let now = Instant::now();
            let wait = *wait.get_or_insert_with(|| Wait::begin(health));
            if now.duration_since(*idle_since.get_or_insert(now)) < self.spin {
                yield_now();
                self.look(health);
                continue;
            }
            let waited = wait.time(health);
            if waited >= pace.deadline {
                let late = health.late(self.first_missing(), id.operation, id.sequence, waited);
                return Err(health.suspect(late));
            }
            health.note_waiting(Some(self.first_missing()));
            self.sleep(health, (pace.deadline - waited).min(LONGEST_SLEEP));
        }
        health.note_waiting(None);
        Ok(())
    }

    fn prepare(&mut self, pace: &Pace, id: &StepId, outgoing: &[Outgoing], incoming: &[Incoming]) {
        self.sends.clear();
        self.receives.clear();
        let start = |peer, length: usize| Progress {
            peer,
            head: Head::new(pace.epoch, id, length).to_bytes(MAGIC),
            done: 0,
            total: HEAD_BYTES + length,
            stirs: true,
        };
        self.sends.extend(outgoing.iter().map(|message| start(message.to, message.bytes.len())));
        self.receives
            .extend(incoming.iter().map(|message| start(message.from, message.bytes.len())));
    }

    fn is_done(&self) -> bool {
        self.sends.iter().chain(&self.receives).all(Progress::is_done)
    }

    /// Who is waited for: a rank that has not sent, before one that does not take.
    fn first_missing(&self) -> Rank {
        let missing = self.receives.iter().chain(&self.sends).find(|message| !message.is_done());
        missing.expect("waiting means that something is missing").peer
    }

    /// Moves what can be moved without waiting; whether anything did.
    fn advance(
        &mut self,
        health: &Health,
        id: &StepId,
        epoch: u32,
        outgoing: &[Outgoing],
        incoming: &mut [Incoming],
    ) -> Result<bool> {
        let mut moved = 0;
        let wires = &mut self.wires;
        for (progress, message) in self.sends.iter_mut().zip(outgoing) {
            if !progress.is_done() && progress.stirs {
                let Progress { peer, head, done, stirs, .. } = progress;
                let sent = wire(wires, *peer).send(health.data(*peer), head, message.bytes, *done);
                let sent = sent.map_err(|reason| health.suspect(health.lost(*peer, reason)))?;
                (*done, *stirs, moved) = (*done + sent, sent > 0, moved + sent);
            }
        }
        for (progress, message) in self.receives.iter_mut().zip(incoming) {
            if progress.is_done() || !progress.stirs {
                continue;
            }
            let Progress { peer, head, done, stirs, .. } = progress;
            let (had_head, length) = (*done >= HEAD_BYTES, message.bytes.len());
            let received =
                wire(wires, *peer).receive(health.data(*peer), head, message.bytes, *done);
            let received = received.map_err(|reason| health.suspect(health.lost(*peer, reason)))?;
            (*done, *stirs, moved) = (*done + received, received > 0, moved + received);
            let expected = Head::new(epoch, id, length);
            if !had_head && *done >= HEAD_BYTES && *head != expected.to_bytes(MAGIC) {
                return Err(health.suspect(CommError::Mismatch {
                    culprit: *peer,
                    seen_by: health.rank(),
                    expected: format!("{id}, {length} bytes, epoch {epoch}"),
                    found: Head::found(head).map_or_else(|none| none, |found| found.to_string()),
                }));
            }
        }
        Ok(moved > 0)
    }

    /// What is still to come or to leave, and what to wait for.
    fn pending(&mut self) -> impl Iterator<Item = (&mut Progress, PollFlags)> {
        let receives = self.receives.iter_mut().map(|message| (message, PollFlags::IN));
        let sends = self.sends.iter_mut().map(|message| (message, PollFlags::OUT));
        receives.chain(sends).filter(|(message, _)| !message.is_done())
    }

    /// Finds out what stirs, without waiting; few connections are all tried.
    fn look(&mut self, health: &Health) {
        if self.pending().nth(TRIED).is_some() {
            return self.sleep(health, Duration::ZERO);
        }
        self.pending().for_each(|(message, _)| message.stirs = true);
    }

    /// Waits until something stirs, at most `longest`.
    fn sleep(&mut self, health: &Health, longest: Duration) {
        let filler = PollFd::new(health.data(self.first_missing()), PollFlags::empty());
        let pending = self.pending().count();
        let (mut few, mut many): ([PollFd; FEW], Vec<PollFd>);
        let room = if pending <= FEW {
            few = std::array::from_fn(|_| filler.clone());
            &mut few[..pending]
        } else {
            many = vec![filler; pending];
            &mut many
        };
        for (place, (message, flags)) in room.iter_mut().zip(self.pending()) {
            *place = PollFd::new(health.data(message.peer), flags);
        }
        let is_told = poll(room, longest);
        for (place, (message, _)) in room.iter().zip(self.pending()) {
            message.stirs = !is_told || !place.revents().is_empty();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks that have begun to sleep take some 50 us from message to message, nearly all of them
    /// to wake up.
    #[test]
    fn ranks_that_sleep_too_soon_look_again_for_longer() {
        let after = |spin, waits: &[Duration]| waits.iter().copied().fold(spin, spin_after);
        assert_eq!(after(SPIN.1, &[Duration::from_millis(2); 6]), SPIN.0);
        assert_eq!(after(SPIN.0, &[Duration::from_micros(50); 6]), SPIN.1);
    }
}
