//! The hot path: all messages of a step at once, over sockets that never block, in the calling
//! thread.
//!
//! Everything that can be sent is sent and everything that has come is taken, header and payload in
//! one call each; only when nothing moves does the thread look again for a few microseconds and
//! then sleep in `poll`. No other thread touches the bytes, so a small message costs one system
//! call on each side.

use super::frame::{HEADER_BYTES, Header};
use super::health::{Health, Wait};
use crate::error::{CommError, Result};
use crate::topology::Rank;
use crate::transport::{Incoming, Outgoing, StepId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Waits are announced to the others by the control thread; longer sleeps would only delay nothing.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);
/// A rank looks again for at most this long before it sleeps: waking up costs about as much. Each
/// time in vain halves it, down to the shortest; each time with success doubles it. Where ranks
/// share a processor, looking again soon ends.
const SPIN: (Duration, Duration) = (Duration::from_micros(1), Duration::from_micros(60));
/// Descriptors that fit on the stack; a job of more ranks takes memory when it has to sleep.
const FEW: usize = 64;

/// How far one message has come, its header included.
#[derive(Debug, Clone, Copy)]
struct Progress {
    peer: Rank,
    header: [u8; HEADER_BYTES],
    done: usize,
    total: usize,
}

impl Progress {
    fn is_done(&self) -> bool {
        self.done == self.total
    }
}

/// Scratch of the exchanges of one rank, kept from step to step.
#[derive(Debug)]
pub struct ProgressLoop {
    sends: Vec<Progress>,
    receives: Vec<Progress>,
    spin: Duration,
}

/// What stays the same from step to step.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Number of this coming-together.
    pub epoch: u32,
    /// Longest wait for one step.
    pub deadline: Duration,
}

/// A connection that no longer carries: whose, and what the system says.
struct Broken {
    peer: Rank,
    reason: String,
}

impl ProgressLoop {
    /// Room for exchanges with all of `num_ranks`.
    pub fn new(num_ranks: usize) -> Self {
        let (sends, receives) = (Vec::with_capacity(num_ranks), Vec::with_capacity(num_ranks));
        Self { sends, receives, spin: SPIN.1 }
    }

    /// Sends all of `outgoing` and fills all of `incoming`.
    pub fn exchange(
        &mut self,
        health: &Health,
        pace: &Pace,
        id: &StepId,
        outgoing: &[Outgoing],
        incoming: &mut [Incoming],
    ) -> Result<()> {
        self.prepare(pace, id, outgoing, incoming);
        health.note_operation(id.sequence);
        let mut wait = None;
        let mut idle_since: Option<Instant> = None;
        loop {
            let moved = self.advance(health, id, pace.epoch, outgoing, incoming)?;
            if self.is_done() {
                break;
            }
            health.check()?;
            if moved {
                if idle_since.take().is_some() {
                    self.spin = (self.spin * 2).min(SPIN.1);
                }
                // Bytes that move, however slowly, are no reason to give a peer up.
                wait = None;
                continue;
            }
            let now = Instant::now();
            let wait = *wait.get_or_insert_with(|| Wait::begin(health));
            if now.duration_since(*idle_since.get_or_insert(now)) < self.spin {
                std::thread::yield_now();
                continue;
            }
            let waited = wait.time(health);
            if waited >= pace.deadline {
                let late = health.late(self.first_missing(), id.operation, id.sequence, waited);
                return Err(health.suspect(late));
            }
            health.note_waiting(Some(self.first_missing()));
            self.spin = (self.spin / 2).max(SPIN.0);
            idle_since = None;
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
            header: Header::new(pace.epoch, id, length).to_bytes(),
            done: 0,
            total: HEADER_BYTES + length,
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
        let mut moved = false;
        for (progress, message) in self.sends.iter_mut().zip(outgoing) {
            if !progress.is_done() {
                moved |= send(health.data(progress.peer), progress, message.bytes)
                    .map_err(|broken| suspect(health, broken))?;
            }
        }
        for (progress, message) in self.receives.iter_mut().zip(incoming) {
            if progress.is_done() {
                continue;
            }
            let length = message.bytes.len();
            let had_header = progress.done >= HEADER_BYTES;
            let received = receive(health.data(progress.peer), progress, message.bytes);
            moved |= received.map_err(|broken| suspect(health, broken))?;
            if !had_header && progress.done >= HEADER_BYTES {
                check_header(health, progress, id, Header::new(epoch, id, length))?;
            }
        }
        Ok(moved)
    }

    fn sleep(&self, health: &Health, longest: Duration) {
        let time = Timespec {
            tv_sec: longest.as_secs() as i64,
            tv_nsec: i64::from(longest.subsec_nanos()),
        };
        let receives = self.receives.iter().map(|message| (message, PollFlags::IN));
        let sends = self.sends.iter().map(|message| (message, PollFlags::OUT));
        let mut waiting = receives.chain(sends).filter(|(message, _)| !message.is_done());
        let mut next = || {
            let (message, flags) = waiting.next()?;
            Some(PollFd::new(health.data(message.peer), flags))
        };
        let missing =
            self.receives.iter().chain(&self.sends).filter(|message| !message.is_done()).count();
        // An interrupted wait only means looking earlier.
        if missing <= FEW {
            let filler = health.data(self.first_missing());
            let mut room: [PollFd; FEW] =
                std::array::from_fn(|_| PollFd::new(filler, PollFlags::empty()));
            room.iter_mut()
                .zip(std::iter::from_fn(&mut next))
                .for_each(|(place, wanted)| *place = wanted);
            let _ = poll(&mut room[..missing], Some(&time));
        } else {
            let mut room: Vec<PollFd> = std::iter::from_fn(&mut next).collect();
            let _ = poll(&mut room, Some(&time));
        }
    }
}

fn suspect(health: &Health, broken: Broken) -> CommError {
    health.suspect(health.lost(broken.peer, broken.reason))
}

fn check_header(
    health: &Health,
    progress: &mut Progress,
    id: &StepId,
    expected: Header,
) -> Result<()> {
    let wanted = expected.to_bytes();
    if progress.header == wanted {
        return Ok(());
    }
    let error = CommError::Mismatch {
        culprit: progress.peer,
        seen_by: health.rank(),
        expected: format!("{id}, {} bytes, epoch {}", expected.length, expected.epoch),
        found: Header::describe(&progress.header),
    };
    Err(health.suspect(error))
}

fn send(stream: &TcpStream, progress: &mut Progress, bytes: &[u8]) -> Result<bool, Broken> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = if progress.done < HEADER_BYTES {
        let parts = [IoSlice::new(&progress.header[progress.done..]), IoSlice::new(bytes)];
        sendmsg(stream, &parts, &mut SendAncillaryBuffer::default(), flags)
    } else {
        rustix::net::send(stream, &bytes[progress.done - HEADER_BYTES..], flags)
    };
    match sent {
        Ok(sent) => {
            progress.done += sent;
            Ok(sent > 0)
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(error) => Err(broken(progress.peer, error)),
    }
}

/// Takes what has come, and never a byte of the next message.
fn receive(stream: &TcpStream, progress: &mut Progress, bytes: &mut [u8]) -> Result<bool, Broken> {
    let received = if progress.done < HEADER_BYTES {
        let mut parts =
            [IoSliceMut::new(&mut progress.header[progress.done..]), IoSliceMut::new(bytes)];
        recvmsg(stream, &mut parts, &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT)
            .map(|message| message.bytes)
    } else {
        rustix::net::recv(stream, &mut bytes[progress.done - HEADER_BYTES..], RecvFlags::DONTWAIT)
            .map(|(_, received)| received)
    };
    match received {
        Ok(0) => Err(Broken { peer: progress.peer, reason: "its data connection closed".into() }),
        Ok(received) => {
            progress.done += received;
            Ok(true)
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(error) => Err(broken(progress.peer, error)),
    }
}

fn broken(peer: Rank, error: Errno) -> Broken {
    Broken { peer, reason: format!("its data connection broke: {error}") }
}
