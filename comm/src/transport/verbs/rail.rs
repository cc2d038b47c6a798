//! Strips between memories that somebody else fills and reads: devices, whose proxy threads post what a captured step has
//! written.
//!
//! Everything is decided when the rail is made: which memory is registered ([`Area`]), which pieces of it go where ([`Strip`]), in
//! which slots. A step says which strip of which slot leaves, and how long its pieces are ([`Rail::post`]), and hears what has
//! come ([`Rail::poll`]).
//!
//! **Slots without credits.** A rail carries exchanges in which every rank sends to each of its peers and waits for each of them,
//! every time, if only for no bytes. A rank that begins exchange `s` has seen the peer's signal of `s - 1`, which the peer sent
//! after it was done with `s - 2`: with two slots, the place of `s` is free. The third keeps a sender from waiting for the
//! completion of `s - 2` ([`Rail::is_free`]).
//!
//! **Memory of a device.** That a strip has come, a completion says to the processor; the device may still see old bytes. Where it
//! may ([`RailPlan::read_back`]), a read of that memory through the same card comes first, which pushes all writes before it, and only
//! then is the arrival told.

mod connect;

use super::hub::Tickets;
use super::mistake::Mistake;
use super::nic::{
    Completion, CompletionKind, CompletionQueue, Memory, Nic, NicError, Patch, Prepared, QueuePair, Region,
    Status,
};
use crate::topology::Rank;
use crate::transport::paths::PathError;
use std::sync::Arc;
use std::time::Duration;

/// Bits of an immediate that count exchanges; the others are the strip's tag.
const SEQUENCE_BITS: u32 = 24;
/// A completion of the read that pushes writes to a device.
const READ_BACK_ID: u64 = u64::MAX;
/// Completions taken at once.
const AT_ONCE: usize = 64;
/// Looks between two questions to the device whether it is well.
const LOOKS_PER_EVENT: u32 = 256;

/// Memory that strips leave from and come to.
#[derive(Debug)]
pub struct Area<'a> {
    /// Where it is.
    pub memory: Memory<'a>,
    /// It holds words that peers' cards add to, and nothing else; its last eight bytes take the answers of this rank's own
    /// additions.
    pub is_flags: bool,
}

/// A strip: pieces of this rank's memory, one after the other in a peer's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strip {
    /// Who gets it.
    pub peer: Rank,
    /// Says at the peer which strip has come; strips to one peer have different ones.
    pub tag: u8,
    /// The area that its pieces lie in, and in slot 0 the offset and largest length of each.
    pub from: usize,
    /// Pieces, in order.
    pub pieces: Vec<Piece>,
    /// Bytes from a slot to the next, here.
    pub stride: usize,
    /// The peer's area, and in slot 0 the offset of the first byte.
    pub to: (usize, usize),
    /// Bytes from a slot to the next, there.
    pub to_stride: usize,
    /// A word at the peer, of an area of flags, to which the card adds one when the strip is there: then the peer's
    /// [`Rail::poll`] does not tell of it. None: it does.
    pub flag: Option<(usize, usize)>,
}

/// A piece of a strip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Its first byte in slot 0 of the area.
    pub offset: usize,
    /// Bytes, at most.
    pub capacity: usize,
}

/// Everything about a rail.
#[derive(Debug)]
pub struct RailPlan<'a> {
    /// All areas; all ranks have as many.
    pub areas: Vec<Area<'a>>,
    /// What this rank sends.
    pub strips: Vec<Strip>,
    /// Slots that exchanges use in turn.
    pub slots: usize,
    /// Strips that peers send to this rank in one round of all exchanges.
    pub num_incoming: usize,
    /// Whether a device sees what has come only after a read through the card: the area that is read.
    pub read_back: Option<usize>,
}

/// A strip of a peer that has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Who sent it.
    pub peer: Rank,
    /// Which one.
    pub tag: u8,
    /// The exchange, as its sender counted: the lowest 24 bits.
    pub sequence: u32,
}

/// What is posted for one strip.
struct Lane {
    peer: usize,
    tag: u8,
    /// By slot: bytes and signal.
    chains: Vec<Prepared>,
    /// By slot: the signal alone.
    bare: Vec<Prepared>,
    capacities: Vec<u32>,
    /// By slot: posted, and not complete.
    busy: Vec<bool>,
    by_number: bool,
}

/// The connection to one peer.
struct Way {
    rank: Rank,
    name: String,
    pair: Box<dyn QueuePair>,
}

/// A rank's rails to all its peers. One thread drives it.
///
/// Note: the order of the fields is that in which they end: connections, queues, memory, card.
pub struct Rail {
    ways: Vec<Way>,
    read_back: Option<ReadBack>,
    lanes: Vec<Lane>,
    queue: Arc<dyn CompletionQueue>,
    tickets: Tickets,
    areas: Vec<Box<dyn Region>>,
    nic: Arc<dyn Nic>,
    port: u8,
    mistake: Option<Mistake>,
    completions: Vec<Completion>,
    /// Come, but not told: the device may not see them yet.
    held: Vec<Arrival>,
    looks: u32,
    patches: Vec<Patch>,
    failed: Option<PathError>,
}

/// The connection of this rank to itself, through which memory of the device is read back.
struct ReadBack {
    pair: Box<dyn QueuePair>,
    chain: Prepared,
    /// Arrivals that the read on its way covers.
    covers: usize,
    is_reading: bool,
    /// Note: last, so that the connection ends before its memory.
    _room: super::arena::Arena,
}

impl Rail {
    /// Whether a strip's slot may be filled again: what was sent from it has left for good.
    pub fn is_free(&self, strip: usize, slot: usize) -> bool {
        !self.lanes[strip].busy[slot]
    }

    /// Sends a strip: `lengths` bytes of its pieces, for exchange number `sequence`. The pieces are written, and stay as they are
    /// until the slot [`is free`](Rail::is_free) again.
    ///
    /// # Errors
    /// What the rail has failed with; a length over its piece's capacity.
    ///
    /// # Panics
    /// When the slot is not free, or there is not one length for each piece.
    pub fn post(
        &mut self,
        strip: usize,
        slot: usize,
        sequence: u64,
        lengths: &[u32],
    ) -> Result<(), PathError> {
        self.check()?;
        let lane = &mut self.lanes[strip];
        assert!(!lane.busy[slot], "strip {strip}: slot {slot} is filled again before it has left");
        assert_eq!(lengths.len(), lane.capacities.len(), "a length for each piece of strip {strip}");
        if let Some((_, &capacity)) =
            lengths.iter().zip(&lane.capacities).find(|(length, most)| length > most)
        {
            return Err(PathError::TooLong { capacity: capacity.into() });
        }
        let number = u32::from(lane.tag) << SEQUENCE_BITS | sequence as u32 & ((1 << SEQUENCE_BITS) - 1);
        let is_empty = lengths.iter().all(|&length| length == 0);
        self.patches.clear();
        if !is_empty {
            let lengths = lengths.iter().enumerate();
            self.patches.extend(lengths.map(|(segment, &length)| Patch::Length {
                request: 0,
                segment,
                length,
            }));
        }
        if lane.by_number {
            let request = usize::from(!is_empty);
            self.patches.push(Patch::Immediate { request, immediate: number });
        }
        let chain = if is_empty { lane.bare[slot] } else { lane.chains[slot] };
        lane.busy[slot] = true;
        let way = &mut self.ways[lane.peer];
        let posted = way.pair.post(chain, &self.patches);
        let text = |error: NicError| format!("{}: {error}", way.name);
        posted.map_err(text).map_err(|text| self.fail(PathError::Failed(text)))
    }

    /// Looks at everything that cards and peers have done; appends what has come to `arrived`. Whether anything had happened.
    ///
    /// # Errors
    /// What the rail has failed with.
    pub fn poll(&mut self, arrived: &mut Vec<Arrival>) -> Result<bool, PathError> {
        self.check()?;
        self.completions.clear();
        let polled = self.queue.poll(&mut self.completions, AT_ONCE);
        let taken = self.sound(polled)?;
        for index in 0..taken {
            let completion = self.completions[index];
            self.complete(&completion, arrived)?;
        }
        self.read_back()?;
        self.looks += 1;
        if self.looks >= LOOKS_PER_EVENT {
            self.looks = 0;
            self.look_at_events()?;
        }
        Ok(taken > 0)
    }

    /// Waits until [`Rail::poll`] may find something, at most `longest`; it may return early.
    ///
    /// # Errors
    /// What the rail has failed with.
    pub fn wait(&mut self, longest: Duration) -> Result<(), PathError> {
        let waited = self.queue.wait(longest);
        self.sound(waited)
    }

    /// What the rail has failed with.
    ///
    /// # Errors
    /// That.
    pub fn check(&self) -> Result<(), PathError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Ends all work: nothing is sent or told any more.
    pub fn give_up(&mut self) {
        self.fail(PathError::Failed("the job has ended".into()));
    }

    fn fail(&mut self, error: PathError) -> PathError {
        if self.failed.is_none() {
            // Note: nothing is left to do where even this fails.
            self.ways.iter_mut().for_each(|way| drop(way.pair.fail()));
        }
        self.failed.get_or_insert(error).clone()
    }

    fn sound<T>(&mut self, result: Result<T, NicError>) -> Result<T, PathError> {
        result.map_err(|error| self.fail(PathError::Failed(format!("{}: {error}", self.nic.name()))))
    }

    fn complete(&mut self, completion: &Completion, arrived: &mut Vec<Arrival>) -> Result<(), PathError> {
        if completion.status != Status::Success {
            let error = self.explain(completion);
            return Err(self.fail(error));
        }
        if completion.id == READ_BACK_ID {
            let read_back = self.read_back.as_mut().expect("only it reads");
            read_back.is_reading = false;
            arrived.extend(self.held.drain(..read_back.covers));
            return Ok(());
        }
        if let CompletionKind::Immediate(number) = completion.kind {
            let used = self.tickets.used();
            self.sound(used)?;
            let way = self.ways.iter().find(|way| way.pair.number() == completion.queue_pair);
            let peer = way.expect("a completion belongs to a connection").rank;
            let (tag, sequence) = ((number >> SEQUENCE_BITS) as u8, number & ((1 << SEQUENCE_BITS) - 1));
            let held = self.read_back.is_some() && self.mistake != Some(Mistake::SkipTheFlush);
            if held { &mut self.held } else { arrived }.push(Arrival { peer, tag, sequence });
            return Ok(());
        }
        let (strip, slot) = ((completion.id >> 8) as usize, (completion.id & 0xff) as usize);
        self.lanes[strip].busy[slot] = false;
        Ok(())
    }

    /// Begins a read for arrivals that none covers yet.
    fn read_back(&mut self) -> Result<(), PathError> {
        let Some(read_back) = &mut self.read_back else { return Ok(()) };
        if read_back.is_reading || self.held.is_empty() {
            return Ok(());
        }
        (read_back.is_reading, read_back.covers) = (true, self.held.len());
        let posted = read_back.pair.post(read_back.chain, &[]);
        self.sound(posted)
    }

    fn look_at_events(&mut self) -> Result<(), PathError> {
        let event = self.nic.event();
        match self.sound(event)? {
            Some(event) if event.is_fatal(self.port) => {
                Err(self.fail(PathError::Failed(format!("{}: {event}", self.nic.name()))))
            }
            _ => Ok(()),
        }
    }

    fn explain(&self, completion: &Completion) -> PathError {
        let way = self.ways.iter().find(|way| way.pair.number() == completion.queue_pair);
        let name = way.map_or("reading back from the device", |way| &way.name);
        let text = format!("{name}: {} (vendor code {:#x})", completion.status, completion.vendor);
        match completion.status {
            Status::RetriesExceeded | Status::Flushed | Status::RemoteOperation => PathError::Lost(text),
            _ => PathError::Failed(text),
        }
    }
}

impl std::fmt::Debug for Rail {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "Rail({} peers, {} strips, {} areas)",
            self.ways.len(),
            self.lanes.len(),
            self.areas.len()
        )
    }
}
