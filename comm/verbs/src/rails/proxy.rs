//! The proxy: a thread that a rank's device drives. It waits for triggers, posts the chains of work
//! requests that were built for them, and tells the device what has come and what has been
//! delivered. It calls no CUDA function, and nothing of the system's before it has looked in vain
//! for a while ([`Patience`]).

use super::page::{MOST_TRIGGERS, Page};
use super::read_back::ReadBack;
use crate::nic::{
    Action, Completion, CompletionKind, CompletionQueue, Nic, NicError, Patch, Prepared, QueuePair,
    Receive, Remote, Request, Segment, Status,
};
use crate::watch::Watch;
use headlong_comm::readable::text;
use headlong_comm::topology::Rank;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A strip of more bytes is a plain write, then an empty one with an immediate, which announces it:
/// networks that route adaptively keep the packets of a message with an immediate in order, and
/// those of a plain write go whichever way is free.
pub(super) const MOST_BYTES_IN_ORDER: u32 = 8192;

/// From the first system call on, the NIC is asked for events once in so many looks.
const LOOKS_PER_EVENT: u32 = 256;

/// Requests that a strip takes at most.
pub(super) const REQUESTS_PER_STRIP: usize = 2;

/// How many looks in vain there are, one after another, before the proxy makes its first system
/// call, which offers its core to others, and before it sleeps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    before_yielding: u32,
    before_sleeping: u32,
}

impl Patience {
    /// Where the rank has a core for its proxy.
    pub(super) const OWN_CORE: Self = Self { before_yielding: 1 << 20, before_sleeping: 1 << 20 };
    /// Where others wait for the core.
    pub(super) const SHARED_CORE: Self = Self { before_yielding: 64, before_sleeping: 4096 };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leg {
    pub(super) peer: usize,
    /// Where the strip lies in a slot, here and there.
    pub(super) offset: usize,
    pub(super) there: usize,
    pub(super) bytes: usize,
}

pub(super) struct Shared {
    pub(super) page: Page,
    /// The operations that have been enqueued so far: a trigger names one by its place.
    operations: Mutex<Vec<Vec<Leg>>>,
    failure: Mutex<Option<String>>,
    stop: AtomicBool,
    /// Set when no exchange will follow: the proxy says goodbye, and ends when it has heard all
    /// peers'.
    closing: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(page: Page) -> Self {
        Self {
            page,
            operations: Mutex::default(),
            failure: Mutex::default(),
            stop: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        }
    }

    pub(super) fn operation(&self, legs: impl Iterator<Item = Leg> + Clone) -> u32 {
        let mut operations = lock(&self.operations);
        let known = operations.iter().position(|known| known.iter().copied().eq(legs.clone()));
        let number = known.unwrap_or_else(|| {
            operations.push(legs.collect());
            operations.len() - 1
        });
        number as u32
    }

    pub(super) fn failure(&self) -> Option<String> {
        lock(&self.failure).clone()
    }

    pub(super) fn fail(&self, reason: String) {
        lock(&self.failure).get_or_insert(reason);
        self.page.set_poison();
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }
}

pub(super) struct Peer {
    pub(super) rank: Rank,
    pub(super) pair: Box<dyn QueuePair>,
    pub(super) slots: Remote,
    /// The exchanges whose strips for it were posted and are not delivered yet, oldest first: a
    /// connection completes in order.
    pub(super) on_the_way: VecDeque<u64>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Slots {
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) slot_bytes: usize,
    pub(super) num_slots: usize,
}

/// What the proxy looks at.
///
/// Note: fields end in this order; connections before their queue.
pub(super) struct ProxyNic {
    /// Where the slots are a device's memory; none: of the host, for which a completion is enough.
    pub(super) read_back: Option<ReadBack>,
    pub(super) queue: Arc<dyn CompletionQueue>,
    pub(super) nic: Arc<dyn Nic>,
    pub(super) watch: Watch,
}

/// How a strip leaves from one of the slots.
struct Departure {
    leg: Leg,
    /// One message with an immediate.
    in_order: Prepared,
    /// The same as two, where it can be long.
    split: Option<Prepared>,
}

struct Flight {
    sequence: u64,
    left: usize,
}

/// The thread's own.
///
/// Note: fields end in this order; queue pairs before their queue.
pub(super) struct Proxy {
    pub(super) shared: Arc<Shared>,
    pub(super) peers: Vec<Peer>,
    pub(super) slots: Slots,
    pub(super) nic: ProxyNic,
    /// Per operation and slot, one for each leg.
    departures: Vec<Vec<Vec<Departure>>>,
    farewells: Vec<Prepared>,
    next: u64,
    flights: VecDeque<Flight>,
    /// Per peer, the last exchange of which something has come; the device may not have been told.
    come: Vec<u64>,
    completions: Vec<Completion>,
    said_goodbye: bool,
}

impl Proxy {
    pub(super) fn new(shared: Arc<Shared>, peers: Vec<Peer>, slots: Slots, nic: ProxyNic) -> Self {
        Self {
            come: vec![0; peers.len()],
            shared,
            peers,
            slots,
            nic,
            departures: Vec::new(),
            farewells: Vec::new(),
            next: 1,
            flights: VecDeque::with_capacity(MOST_TRIGGERS),
            completions: Vec::with_capacity(64),
            said_goodbye: false,
        }
    }

    pub(super) fn run(mut self, patience: Patience) {
        let mut idle = 0_u32;
        while !self.shared.stop.load(Ordering::Acquire) {
            let is_idle = idle >= patience.before_yielding;
            // Nothing else tells of a device that has failed.
            let is_well = match is_idle && idle.is_multiple_of(LOOKS_PER_EVENT) {
                true => self.nic.watch.look(&*self.nic.nic),
                false => Ok(()),
            };
            match is_well.and_then(|()| self.look()) {
                Ok(true) => idle = 0,
                Ok(false) if self.has_parted() => return,
                Ok(false) => idle = idle.saturating_add(1),
                Err(reason) => {
                    // After a goodbye from everybody, what is still on its way is of no interest
                    // any more.
                    if !self.has_heard_all() {
                        self.shared.fail(reason);
                    }
                    break;
                }
            }
            if !is_idle {
                std::hint::spin_loop();
            } else if idle < patience.before_sleeping {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        for peer in &mut self.peers {
            // What a NIC says to that changes nothing any more.
            let _ = peer.pair.fail();
        }
    }

    /// One look at everything; whether something was there.
    pub(super) fn look(&mut self) -> Result<bool, String> {
        // Read before the triggers: those that were pulled before the end are seen below. Were it
        // read after them, one that is pulled in between would come after the goodbye, and peers
        // would wait for another number.
        let is_closing = self.shared.closing.load(Ordering::Acquire);
        let posted = self.answer_trigger()?;
        let completed = self.take_completions()?;
        if let Some(read_back) = &mut self.nic.read_back {
            read_back.begin().map_err(text)?;
        }
        if is_closing && !posted {
            self.say_goodbye()?;
        }
        Ok(posted || completed)
    }

    /// Builds the chains of operations that the host has enqueued for the first time. Once a
    /// trigger names one, the host has told of it.
    fn learn_operations(&mut self) -> Result<(), String> {
        let shared = Arc::clone(&self.shared);
        let operations = lock(&shared.operations);
        for legs in &operations[self.departures.len()..] {
            let slots = 0..self.slots.num_slots;
            let departures = slots.map(|slot| {
                legs.iter().map(|leg| self.departure(*leg, slot)).collect::<Result<_, NicError>>()
            });
            let departures = departures.collect::<Result<_, NicError>>().map_err(text)?;
            self.departures.push(departures);
        }
        Ok(())
    }

    fn departure(&mut self, leg: Leg, slot: usize) -> Result<Departure, NicError> {
        let Slots { address, key, slot_bytes, .. } = self.slots;
        let slot_at = (slot * slot_bytes) as u64;
        let peer = &mut self.peers[leg.peer];
        let there = peer.slots.address + slot_at + leg.there as u64;
        let at = Remote { address: there, key: peer.slots.key };
        let address = address + slot_at + leg.offset as u64;
        let strip = vec![Segment { address, length: leg.bytes as u32, key }];
        let request = |action, segments: &[Segment], signalled| Request {
            id: leg.peer as u64,
            action,
            segments: segments.to_vec(),
            inline: false,
            signalled,
        };
        let tells = Action::WriteImmediate(at, 0);
        // SAFETY: nothing of the chain is inline.
        let in_order = unsafe { peer.pair.prepare(&[request(tells, &strip, true)]) }?;
        let split = [request(Action::Write(at), &strip, false), request(tells, &[], true)];
        let is_long = leg.bytes > MOST_BYTES_IN_ORDER as usize;
        // SAFETY: as above.
        let split = is_long.then(|| unsafe { peer.pair.prepare(&split) }).transpose()?;
        Ok(Departure { leg, in_order, split })
    }

    /// Posts the strips of the next exchange, if the device has pulled its trigger.
    fn answer_trigger(&mut self) -> Result<bool, String> {
        let Some(trigger) = self.shared.page.trigger(self.next) else { return Ok(false) };
        let sequence = self.next;
        if trigger.operation >= self.departures.len() {
            self.learn_operations()?;
        }
        let slots = self.departures.get(trigger.operation);
        let departures = slots.and_then(|slots| slots.get(trigger.slot)).ok_or_else(|| {
            format!("exchange number {sequence} has a trigger for nothing: {trigger:?}")
        })?;
        for (strip, Departure { leg, in_order, split }) in departures.iter().enumerate() {
            let length = self.shared.page.length(trigger.slot, strip).min(leg.bytes as u32);
            let (chain, last) = match split {
                Some(split) if length > MOST_BYTES_IN_ORDER => (split, REQUESTS_PER_STRIP - 1),
                _ => (in_order, 0),
            };
            let patches = [
                Patch::Length { request: 0, segment: 0, length },
                Patch::Immediate { request: last, immediate: sequence as u32 },
            ];
            let peer = &mut self.peers[leg.peer];
            peer.on_the_way.push_back(sequence);
            peer.pair.post(*chain, &patches).map_err(|error| {
                format!("the strip of exchange number {sequence} for {}: {error}", peer.rank)
            })?;
        }
        self.flights.push_back(Flight { sequence, left: departures.len() });
        self.next += 1;
        self.land();
        Ok(true)
    }

    /// Exchanges whose strips have all been delivered, oldest first.
    fn land(&mut self) {
        while self.flights.front().is_some_and(|flight| flight.left == 0) {
            let landed = self.flights.pop_front().map_or(0, |flight| flight.sequence);
            self.shared.page.set_sent(landed);
        }
    }

    fn take_completions(&mut self) -> Result<bool, String> {
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        let polled = self.nic.queue.poll(&mut completions, 64).map_err(text);
        let taken = polled
            .and_then(|_| completions.iter().try_for_each(|completion| self.take(completion)));
        let any = !completions.is_empty();
        self.completions = completions;
        taken.map(|()| any)
    }

    fn take(&mut self, completion: &Completion) -> Result<(), String> {
        let Completion { queue_pair, status, vendor, .. } = *completion;
        let reads =
            self.nic.read_back.as_ref().is_some_and(|read_back| read_back.is_of(queue_pair));
        let index = self.peers.iter().position(|peer| peer.pair.number() == queue_pair);
        if status != Status::Success {
            let what = match index {
                Some(index) => format!("the rail to {}", self.peers[index].rank),
                None => "reading back what has come".to_owned(),
            };
            return Err(format!("{what}: {status} (vendor error {vendor:#x})"));
        }
        if reads {
            self.tell_what_was_read();
            return Ok(());
        }
        let index =
            index.ok_or_else(|| format!("a completion of unknown queue pair {queue_pair:#x}"))?;
        match completion.kind {
            CompletionKind::Immediate(immediate) => self.take_arrival(index, immediate),
            _ => self.take_delivery(index),
        }
    }

    /// Something of a peer has come: the device hears of it, at once or when it has been read back.
    fn take_arrival(&mut self, index: usize, immediate: u32) -> Result<(), String> {
        // Numbers of one connection rise; the lower half of one says how far.
        let last = self.come[index];
        let sequence = last + u64::from(immediate.wrapping_sub(last as u32));
        self.come[index] = sequence;
        match &mut self.nic.read_back {
            Some(read_back) => read_back.hold(index, sequence),
            None => self.shared.page.set_arrived(index, sequence),
        }
        let again = self.peers[index].pair.post_receives(&[Receive { id: 0, segment: None }]);
        again.map_err(text)
    }

    fn tell_what_was_read(&mut self) {
        let page = &self.shared.page;
        let read = self.nic.read_back.iter_mut().flat_map(ReadBack::end);
        read.for_each(|(peer, sequence)| page.set_arrived(peer, sequence));
    }

    fn take_delivery(&mut self, index: usize) -> Result<(), String> {
        let sequence = self.peers[index].on_the_way.pop_front();
        let flight = self.flights.iter_mut().find(|flight| Some(flight.sequence) == sequence);
        flight.ok_or("a completion of nothing that was posted")?.left -= 1;
        self.land();
        Ok(())
    }

    /// Once nothing more will be sent: a last number for all peers, which says so.
    fn say_goodbye(&mut self) -> Result<(), String> {
        if self.said_goodbye || !self.flights.is_empty() {
            return Ok(());
        }
        let immediate = self.next as u32;
        for peer in &mut self.peers {
            let action = Action::WriteImmediate(peer.slots, immediate);
            let request =
                Request { id: 0, action, segments: Vec::new(), inline: false, signalled: true };
            // SAFETY: nothing of the chain is inline.
            let farewell = unsafe { peer.pair.prepare(&[request]) };
            peer.on_the_way.push_back(self.next);
            let posted = farewell.and_then(|farewell| {
                self.farewells.push(farewell);
                peer.pair.post(farewell, &[])
            });
            posted.map_err(text)?;
        }
        self.flights.push_back(Flight { sequence: self.next, left: self.peers.len() });
        self.said_goodbye = true;
        self.land();
        Ok(())
    }

    fn has_heard_all(&self) -> bool {
        self.said_goodbye
            && (0..self.peers.len()).all(|peer| self.shared.page.arrived(peer) >= self.next)
    }

    fn has_parted(&self) -> bool {
        self.has_heard_all() && self.flights.is_empty()
    }
}
