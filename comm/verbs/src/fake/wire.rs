//! What happens to posted work as time passes.

use super::super::nic::{Action, Completion, CompletionKind, Event, Receive, Remote, Status};
use super::Fault;
use super::memory::Place;
use super::pair::{Arrival, Landing, Phase};
use super::state::State;

/// How the first waiting request of a pair gets on.
enum Fate {
    /// It is at the peer.
    Sent,
    /// Later.
    Waits(u64),
    /// It fails.
    Fails(Status),
}

impl State {
    /// Whether time did anything at this pair: what its peer sent lands and completes, its own
    /// requests leave and complete.
    pub(super) fn advance_pair(&mut self, pair: usize) -> bool {
        if self.pairs[pair].phase == Phase::Gone {
            return false;
        }
        let mut moved = self.land(pair);
        while self.arrive(pair) {
            moved = true;
        }
        while self.send_next(pair) {
            moved = true;
        }
        while self.pairs[pair]
            .flights
            .front()
            .is_some_and(|first| first.is_sent && first.due <= self.now)
        {
            self.finish_first(pair);
            moved = true;
        }
        moved
    }

    /// Bytes whose time has come are in memory, in any order.
    fn land(&mut self, pair: usize) -> bool {
        let now = self.now;
        let mut moved = false;
        let mut index = 0;
        while index < self.pairs[pair].landings.len() {
            if self.pairs[pair].landings[index].due > now {
                index += 1;
                continue;
            }
            let landing = self.pairs[pair].landings.swap_remove(index);
            self.regions.write(landing.place, landing.offset, &landing.bytes);
            moved = true;
        }
        moved
    }

    /// The next completion of a peer's work, once all bytes before it are there.
    fn arrive(&mut self, pair: usize) -> bool {
        let Some(first) = self.pairs[pair].arrivals.front() else { return false };
        let early = |landing: &Landing| landing.number < first.after && !landing.is_device;
        if first.due > self.now || self.pairs[pair].landings.iter().any(early) {
            return false;
        }
        let arrival = self.pairs[pair].arrivals.pop_front().expect("looked at above");
        self.complete(self.pairs[pair].receives, arrival.completion, None);
        true
    }

    /// Sends the next request of a pair, if its time has come.
    fn send_next(&mut self, pair: usize) -> bool {
        let Some(index) = self.pairs[pair].flights.iter().position(|flight| !flight.is_sent) else {
            return false;
        };
        if self.pairs[pair].flights[index].due > self.now {
            return false;
        }
        match self.try_to_send(pair, index) {
            Fate::Sent => {
                let due = self.now + self.delay();
                let flight = &mut self.pairs[pair].flights[index];
                (flight.is_sent, flight.due) = (true, due);
                true
            }
            Fate::Waits(due) => {
                self.pairs[pair].flights[index].due = due;
                false
            }
            Fate::Fails(status) => {
                self.fail_pair(pair, Some(status));
                true
            }
        }
    }

    fn try_to_send(&mut self, pair: usize, index: usize) -> Fate {
        let nic = self.pairs[pair].nic;
        if let Some(status) = self.nics[nic].next_send.take() {
            return Fate::Fails(status);
        }
        let flight = &self.pairs[pair].flights[index];
        if !flight.request.inline && !flight.request.is_answered() {
            match self.gather(nic, &flight.request.segments) {
                Ok(bytes) => self.pairs[pair].flights[index].bytes = bytes,
                Err(reason) => {
                    self.violation(nic, format!("a send: {reason}"));
                    return Fate::Fails(Status::LocalProtection);
                }
            }
        }
        match self.route(pair) {
            Some(peer) => {
                self.pairs[pair].flights[index].silent_since = None;
                self.execute(pair, index, peer)
            }
            None => self.no_answer(pair, index),
        }
    }

    fn no_answer(&mut self, pair: usize, index: usize) -> Fate {
        let retries = self.pairs[pair].settings.map_or(0, |settings| u64::from(settings.retries));
        let (now, retry) = (self.now, self.model.retry);
        let since = *self.pairs[pair].flights[index].silent_since.get_or_insert(now);
        match now - since >= retry * (retries + 1) {
            true => Fate::Fails(Status::RetriesExceeded),
            false => Fate::Waits(now + (retry / 8 + 1).min(64)),
        }
    }

    /// What a request does at the peer.
    fn execute(&mut self, pair: usize, index: usize, peer: usize) -> Fate {
        let action = self.pairs[pair].flights[index].request.action;
        let done = match action {
            Action::Write(at) => self.write(pair, index, peer, at, None),
            Action::WriteImmediate(at, immediate) => {
                self.write(pair, index, peer, at, Some(immediate))
            }
            Action::Send => self.deliver(pair, index, peer),
            Action::Read(at) => self.read(pair, index, peer, at),
            Action::FetchAdd(at, add) => {
                self.change(pair, index, peer, at, &|old| old.wrapping_add(add))
            }
        };
        done.unwrap_or_else(|reason| {
            let nic = self.pairs[peer].nic;
            self.violation(nic, format!("a peer's {action:?}: {reason}"));
            self.nics[nic].events.push_back(Event::QueuePairFatal(self.pairs[peer].number));
            self.fail_pair(peer, None);
            Fate::Fails(Status::RemoteAccess)
        })
    }

    fn write(
        &mut self,
        pair: usize,
        index: usize,
        peer: usize,
        at: Remote,
        immediate: Option<u32>,
    ) -> Result<Fate, String> {
        let length = self.pairs[pair].flights[index].bytes.len();
        let place = match length {
            0 => None,
            _ => Some(self.reached(peer, at, length, |access| access.remote_write)?),
        };
        let number = match immediate {
            None => None,
            Some(_) => match self.take_receive(peer) {
                Some(receive) => Some(receive),
                None => return Ok(self.not_ready(pair, index)),
            },
        };
        if let Some(place) = place {
            let bytes = self.pairs[pair].flights[index].bytes.clone();
            self.scatter_in_time(peer, place, &bytes);
        }
        if let (Some(receive), Some(immediate)) = (number, immediate) {
            self.announce(peer, receive, CompletionKind::Immediate(immediate), length);
        }
        Ok(Fate::Sent)
    }

    fn deliver(&mut self, pair: usize, index: usize, peer: usize) -> Result<Fate, String> {
        let Some(receive) = self.take_receive(peer) else { return Ok(self.not_ready(pair, index)) };
        let bytes = self.pairs[pair].flights[index].bytes.clone();
        let room = receive.segment.map_or(0, |segment| segment.length as usize);
        if room < bytes.len() {
            return Err(format!("{} bytes do not fit a receive of {room}", bytes.len()));
        }
        if let Some(segment) = receive.segment {
            let place = self.regions.local(self.pairs[peer].nic, &segment, true)?;
            self.scatter_in_time(peer, place, &bytes);
        }
        self.announce(peer, receive, CompletionKind::Received, bytes.len());
        Ok(Fate::Sent)
    }

    fn read(&mut self, pair: usize, index: usize, peer: usize, at: Remote) -> Result<Fate, String> {
        let (nic, now) = (self.pairs[peer].nic, self.now);
        // A read pushes everything before it that came in through this NIC.
        if self.pairs.iter().any(|other| other.nic == nic && !other.landings.is_empty()) {
            return Ok(Fate::Waits(now + 1));
        }
        let segments = self.pairs[pair].flights[index].request.segments.clone();
        let length = segments.iter().map(|segment| segment.length as usize).sum();
        let place = self.reached(peer, at, length, |access| access.remote_read)?;
        let mut bytes = Vec::new();
        self.regions.read(place, &mut bytes);
        self.scatter(self.pairs[pair].nic, &segments, &bytes)?;
        Ok(Fate::Sent)
    }

    fn change(
        &mut self,
        pair: usize,
        index: usize,
        peer: usize,
        at: Remote,
        change: &dyn Fn(u64) -> u64,
    ) -> Result<Fate, String> {
        if !at.address.is_multiple_of(8) {
            return Err(format!("{:#x} is not on a multiple of 8", at.address));
        }
        let place = self.reached(peer, at, 8, |access| access.remote_atomic)?;
        // Note: a relaxed write may overtake the writes before it, and this is one.
        let relaxed =
            self.regions.region(place).is_some_and(|region| region.access.relaxed_ordering);
        let waits = !relaxed && self.fault != Some(Fault::SignalElsewhere);
        if waits && self.pairs[peer].landings.iter().any(|landing| !landing.is_device) {
            return Ok(Fate::Waits(self.now + 1));
        }
        let old = self.regions.atomic(place, change).unwrap_or(0);
        let segments = self.pairs[pair].flights[index].request.segments.clone();
        self.scatter(self.pairs[pair].nic, &segments, &old.to_ne_bytes())?;
        Ok(Fate::Sent)
    }

    /// The memory that a peer's request names.
    fn reached(
        &self,
        peer: usize,
        at: Remote,
        length: usize,
        allowed: impl Fn(&super::super::nic::Access) -> bool,
    ) -> Result<Place, String> {
        let pair = &self.pairs[peer];
        let settings = pair.settings.expect("a connected pair has settings");
        if !allowed(&settings.access) {
            return Err("the queue pair does not allow this access".into());
        }
        self.regions.remote(pair.nic, at.key, (at.address, length), allowed)
    }

    fn take_receive(&mut self, peer: usize) -> Option<Receive> {
        match self.pairs[peer].shared {
            Some(shared) => self.shared[shared].posted.pop_front(),
            None => self.pairs[peer].own_receives.pop_front(),
        }
    }

    fn not_ready(&mut self, pair: usize, index: usize) -> Fate {
        const FOR_EVER: u8 = 7;
        let most = self.pairs[pair].settings.map_or(0, |settings| settings.receiver_retries);
        let flight = &mut self.pairs[pair].flights[index];
        flight.receiver_tries += 1;
        match most != FOR_EVER && flight.receiver_tries > u32::from(most) {
            true => Fate::Fails(Status::ReceiverNotReady),
            false => Fate::Waits(self.now + 4),
        }
    }

    /// Bytes come in pieces that take their time, each on its own.
    fn scatter_in_time(&mut self, peer: usize, place: Place, bytes: &[u8]) {
        let is_device = self.regions.region(place).is_some_and(|region| region.is_device);
        let mut offset = 0;
        while offset < bytes.len() {
            let piece = 1 + self.random.below(self.model.piece) as usize;
            let end = bytes.len().min(offset + piece);
            let due = self.now + self.delay();
            let number = self.pairs[peer].num_landed;
            self.pairs[peer].num_landed += 1;
            if due <= self.now {
                self.regions.write(place, offset, &bytes[offset..end]);
            } else {
                let bytes = bytes[offset..end].to_vec();
                self.pairs[peer].landings.push(Landing {
                    number,
                    due,
                    place,
                    offset,
                    bytes,
                    is_device,
                });
            }
            offset = end;
        }
    }

    fn announce(&mut self, peer: usize, receive: Receive, kind: CompletionKind, length: usize) {
        let due = self.now + self.delay();
        let pair = &mut self.pairs[peer];
        let completion = Completion {
            id: receive.id,
            status: Status::Success,
            kind,
            bytes: length as u32,
            queue_pair: pair.number,
            vendor: 0,
        };
        let waits = self.fault != Some(Fault::SignalElsewhere);
        let after = if waits { pair.num_landed } else { 0 };
        pair.arrivals.push_back(Arrival { after, due, completion });
    }
}
