//! The hot path: all messages of a step at once, over paths that never block, in the calling
//! thread.

use super::waiting::{Awaited, Next, Waiting};
use super::{Doorbells, Head, Path, PathError, Progress};
use crate::error::{CommError, Result};
use crate::scratch::Scratch;
use crate::topology::Rank;
use crate::transport::tcp::health::{Health, Wait};
use crate::transport::{Expected, Incoming, Outgoing, StepId};
use crate::views::Views;
use std::time::Duration;

pub struct Frame<'a> {
    pub health: &'a Health,
    pub doorbells: &'a Doorbells,
    pub epoch: u32,
    pub deadline: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Flight {
    peer: Rank,
    head: Head,
    at: usize,
    done: bool,
    /// Where a message lies that its path cannot show: the offset in the scratch.
    staged: Option<usize>,
}

#[derive(Default)]
struct Look {
    moved: bool,
    /// Who is waited for: a rank that has not sent, before one that does not take. None:
    /// everything is done.
    missing: Option<Rank>,
    /// What rings for it.
    awaited: Awaited,
}

struct Broken {
    peer: Rank,
    expected: Head,
    error: PathError,
}

pub struct ProgressLoop {
    /// By rank; none to itself.
    paths: Vec<Option<Box<dyn Path>>>,
    sends: Vec<Flight>,
    receives: Vec<Flight>,
    scratch: Scratch,
    waiting: Waiting,
}

impl ProgressLoop {
    /// Over these paths, by rank, on a machine that `num_local` ranks share.
    pub fn new(paths: Vec<Option<Box<dyn Path>>>, num_local: usize) -> Self {
        let (sends, receives) = (Vec::with_capacity(paths.len()), Vec::with_capacity(paths.len()));
        Self {
            paths,
            sends,
            receives,
            scratch: Scratch::default(),
            waiting: Waiting::new(num_local),
        }
    }

    pub fn exchange(
        &mut self,
        frame: &Frame,
        id: &StepId,
        outgoing: &[Outgoing],
        incoming: &mut [Incoming],
    ) -> Result<()> {
        self.take_off(
            frame,
            id,
            outgoing,
            incoming.iter().map(|message| (message.from, message.bytes.len())),
        )?;
        let Self { paths, sends, receives, waiting, .. } = self;
        drive(frame, waiting, id, || {
            let mut look = Look::default();
            for (flight, message) in receives.iter_mut().zip(incoming.iter_mut()) {
                look.advance(paths, flight, |path, flight| {
                    path.receive(&flight.head, message.bytes, &mut flight.at)
                })?;
            }
            send_all(&mut look, paths, sends, outgoing)?;
            Ok(look)
        })
        .inspect_err(|_| withdraw(paths))
    }

    /// As [`ProgressLoop::exchange`], but shows what comes where it lies; what a path cannot show
    /// is received first.
    pub fn exchange_reading(
        &mut self,
        frame: &Frame,
        id: &StepId,
        outgoing: &[Outgoing],
        expected: &[Expected],
        read: &mut dyn FnMut(&[&[u8]]),
    ) -> Result<()> {
        self.take_off(
            frame,
            id,
            outgoing,
            expected.iter().map(|message| (message.from, message.length)),
        )?;
        let room = self.stage(expected.is_sorted_by(|one, other| one.from < other.from));
        let Self { paths, sends, receives, scratch, waiting } = self;
        let room = scratch.bytes(room);
        drive(frame, waiting, id, || {
            let mut look = Look::default();
            for flight in receives.iter_mut() {
                look.advance(paths, flight, |path, flight| match flight.staged {
                    Some(start) => {
                        let bytes = &mut room[start..start + flight.head.length as usize];
                        path.receive(&flight.head, bytes, &mut flight.at)
                    }
                    None => Ok(path.peek(&flight.head)?.map_or(Progress::Idle, |_| Progress::Done)),
                })?;
            }
            send_all(&mut look, paths, sends, outgoing)?;
            Ok(look)
        })
        .inspect_err(|_| withdraw(paths))?;
        show(paths, receives, room, read).map_err(|broken| explain(frame, id, broken))
    }

    pub fn flush(&mut self, frame: &Frame, id: &StepId) -> Result<()> {
        let Self { paths, waiting, .. } = self;
        drive(frame, waiting, id, || {
            let mut look = Look::default();
            // That a message has left rings over verbs alone.
            look.awaited.add(None);
            for (rank, path) in paths.iter_mut().enumerate() {
                let Some(path) = path else { continue };
                let flushed = path.flush();
                let head = Head::new(frame.epoch, id, 0);
                match flushed.map_err(|error| Broken { peer: Rank(rank), expected: head, error })? {
                    Progress::Done => {}
                    progress => {
                        look.moved |= progress == Progress::Moved;
                        look.missing = Some(Rank(rank));
                    }
                }
            }
            Ok(look)
        })
    }

    pub fn set_sealed(&mut self, sealed: bool) {
        self.paths.iter_mut().flatten().for_each(|path| path.set_sealed(sealed));
    }

    pub fn is_watched(&self) -> bool {
        self.paths.iter().flatten().any(|path| path.is_watched())
    }

    pub fn watch(&mut self) -> Result<(), String> {
        self.paths.iter_mut().flatten().try_for_each(|path| path.watch())
    }

    fn take_off(
        &mut self,
        frame: &Frame,
        id: &StepId,
        outgoing: &[Outgoing],
        incoming: impl Iterator<Item = (Rank, usize)>,
    ) -> Result<()> {
        let flight = |(peer, length): (Rank, usize)| Flight {
            peer,
            head: Head::new(frame.epoch, id, length),
            at: 0,
            done: false,
            staged: None,
        };
        self.sends.clear();
        self.sends
            .extend(outgoing.iter().map(|message| (message.to, message.bytes.len())).map(flight));
        self.receives.clear();
        self.receives.extend(incoming.map(flight));
        self.connect(frame.health.rank())
    }

    /// Connects to all peers of the exchange: first to those that this rank dials, which need not
    /// have come to it.
    fn connect(&mut self, me: Rank) -> Result<()> {
        let Self { paths, sends, receives, .. } = self;
        for dials in [true, false] {
            let flights = sends.iter().chain(receives.iter());
            for flight in flights.filter(|flight| (flight.peer < me) == dials) {
                path_to(paths, flight.peer).connect()?;
            }
        }
        Ok(())
    }

    /// Chooses which messages are received before they are read, and how much room they need. Views
    /// are put together in the order of ranks: where messages are expected in another, all are
    /// received.
    fn stage(&mut self, in_order: bool) -> usize {
        let mut room = 0;
        for flight in &mut self.receives {
            let path = self.paths[flight.peer.0].as_ref();
            let shows = path.map_or(0, |path| path.shows());
            if !in_order || flight.head.length > shows || shows == 0 {
                flight.staged = Some(room);
                // Every part begins on a word, aligned for every element.
                room += (flight.head.length as usize).next_multiple_of(8);
            }
        }
        room
    }
}

impl Look {
    fn advance(
        &mut self,
        paths: &mut [Option<Box<dyn Path>>],
        flight: &mut Flight,
        go: impl FnOnce(&mut dyn Path, &mut Flight) -> Result<Progress, PathError>,
    ) -> Result<(), Broken> {
        if flight.done {
            return Ok(());
        }
        let path = path_to(paths, flight.peer);
        let went = go(path, flight);
        match went.map_err(|error| Broken { peer: flight.peer, expected: flight.head, error })? {
            Progress::Done => {
                flight.done = true;
                self.moved = true;
                return Ok(());
            }
            Progress::Moved => self.moved = true,
            Progress::Idle => {}
        }
        self.missing.get_or_insert(flight.peer);
        self.awaited.add(path.rings());
        Ok(())
    }
}

fn path_to(paths: &mut [Option<Box<dyn Path>>], peer: Rank) -> &mut dyn Path {
    let path = paths[peer.0].as_deref_mut();
    path.expect("a rank has a path to every peer, and sends itself nothing")
}

fn send_all(
    look: &mut Look,
    paths: &mut [Option<Box<dyn Path>>],
    sends: &mut [Flight],
    outgoing: &[Outgoing],
) -> Result<(), Broken> {
    for (flight, message) in sends.iter_mut().zip(outgoing) {
        look.advance(paths, flight, |path, flight| {
            path.send(&flight.head, message.bytes, &mut flight.at)
        })?;
    }
    Ok(())
}

/// No path may use the bytes of an exchange that has ended without it.
fn withdraw(paths: &mut [Option<Box<dyn Path>>]) {
    paths.iter_mut().flatten().for_each(|path| path.withdraw());
}

fn show(
    paths: &mut [Option<Box<dyn Path>>],
    receives: &[Flight],
    room: &[u8],
    read: &mut dyn FnMut(&[&[u8]]),
) -> Result<(), Broken> {
    let mut views = Views::default();
    let mut rest = paths.iter_mut().enumerate();
    for flight in receives {
        let view = match flight.staged {
            Some(start) => &room[start..start + flight.head.length as usize],
            None => {
                let path =
                    rest.find_map(|(rank, path)| path.as_mut().filter(|_| rank == flight.peer.0));
                let shown = path.expect("peers are expected in rising order").peek(&flight.head);
                let shown = shown.map_err(|error| Broken {
                    peer: flight.peer,
                    expected: flight.head,
                    error,
                })?;
                shown.expect("what has been shown once lies there until it is released")
            }
        };
        views.push(view);
    }
    read(views.as_slice());
    drop(views);
    for flight in receives.iter().filter(|flight| flight.staged.is_none()) {
        if let Some(path) = &mut paths[flight.peer.0] {
            path.release();
        }
    }
    Ok(())
}

/// Looks at all paths until everything is done, and waits where nothing moves.
fn drive(
    frame: &Frame,
    waiting: &mut Waiting,
    id: &StepId,
    mut look: impl FnMut() -> Result<Look, Broken>,
) -> Result<()> {
    let Frame { health, doorbells, deadline, .. } = *frame;
    health.note_step(id);
    let (mut wait, mut has_waited) = (None, false);
    loop {
        let Look { moved, missing, awaited } =
            look().map_err(|broken| explain(frame, id, broken))?;
        let Some(missing) = missing else { break };
        health.check()?;
        if moved {
            waiting.moved(doorbells);
            // Bytes that move, however slowly, are no reason to give a peer up.
            wait = None;
            continue;
        }
        if waiting.idle(doorbells, awaited) == Next::Look {
            continue;
        }
        has_waited = true;
        let waited = wait.get_or_insert_with(|| Wait::begin(health)).time(health);
        if waited >= deadline {
            let late = health.late(missing, id.operation, id.sequence, waited);
            return Err(health.suspect(late));
        }
        health.note_waiting(Some(missing));
        waiting.sleep(doorbells, awaited, deadline - waited);
    }
    waiting.moved(doorbells);
    if has_waited {
        health.note_waiting(None);
    }
    Ok(())
}

fn explain(frame: &Frame, id: &StepId, broken: Broken) -> CommError {
    let Broken { peer, expected, error } = broken;
    let health = frame.health;
    let seen_by = health.rank();
    health.suspect(match error {
        PathError::Mismatch(found) => CommError::Mismatch {
            culprit: peer,
            seen_by,
            expected: format!("{id}, {} bytes, epoch {}", expected.length, expected.epoch),
            found: found.to_string(),
        },
        PathError::Lost(reason) => health.lost(peer, reason),
        PathError::Failed(reason) => {
            CommError::Aborted { culprit: seen_by, reason: format!("{id}, with {peer}: {reason}") }
        }
    })
}
