//! Exchanges and messages: what happens when nothing fails.

use super::Mutation;
use super::fault::{Fault, Moment};
use super::model::Time;
use super::state::{Action, Event, Pending, Phase, State};
use super::trace::hash_bytes;
use super::wire::{Fate, Key, Message, key};
use crate::error::{CommError, Result};
use crate::topology::Rank;

impl State {
    pub fn happen(&mut self, event: Event) {
        match event {
            Event::Act { rank } => self.act(rank),
            Event::Leave { message, chunk } => self.leave(message, chunk),
            Event::Arrive { message, chunk } => self.arrive(message, chunk),
            Event::Die { rank, exchange } => {
                let waits = self.ranks[rank].phase == Phase::Waiting;
                if waits && self.ranks[rank].exchanges == exchange + 1 {
                    self.die_by_plan(rank, exchange, Moment::Inside);
                }
            }
            Event::Notice { gone, seen_by } => self.notice(gone, seen_by),
            Event::Learn { rank } => {
                if let Some(error) = self.first_error.clone() {
                    self.learn(rank, error);
                }
            }
        }
    }

    /// The call that a rank's thread has made takes place.
    fn act(&mut self, rank: usize) {
        if self.ranks[rank].phase != Phase::Running {
            return;
        }
        let Some(action) = self.ranks[rank].action.take() else { return };
        let error = self.ranks[rank].view.clone();
        match (action, error) {
            (Action::Exchange(pending), None) => self.begin(rank, pending),
            (Action::Abort(error), None) => {
                self.fail(rank, error.clone());
                let known = self.ranks[rank].view.clone();
                self.finish(rank, Err(known.unwrap_or(error)));
            }
            (Action::Close, None) => {
                self.trace
                    .note(self.now, &[5, rank as u64], || format!("rank {rank} says goodbye"));
                self.ranks[rank].phase = Phase::Closed;
                self.woken.push(rank);
            }
            (Action::Leave, None) => {
                self.die(rank, false, "its thread has ended without a goodbye")
            }
            (_, Some(error)) => self.finish(rank, Err(error)),
        }
    }

    /// An exchange begins: its buffers are poisoned, its messages are on their way, what has come
    /// before is taken.
    fn begin(&mut self, rank: usize, mut pending: Pending) {
        let exchange = self.ranks[rank].exchanges;
        self.ranks[rank].exchanges += 1;
        self.ranks[rank].progress = Some(key(&pending.id));
        self.ranks[rank].filled.clear();
        let id = pending.id;
        let parts = [1, rank as u64, id.sequence, u64::from(id.step), u64::from(id.fingerprint)];
        self.trace.note(self.now, &parts, || format!("rank {rank} begins {id:?}"));
        if self.plans_death(rank, exchange, Moment::Before) {
            self.ranks[rank].pending = Some(pending);
            return self.die_by_plan(rank, exchange, Moment::Before);
        }
        let poison = [0xff, 0xa5, 0x7f][self.random.below(3) as usize];
        for part in &pending.receives {
            // SAFETY: the rank's thread waits inside `End::exchange` with this exclusive borrow,
            // until `finish`.
            unsafe { part.target.fill(poison) };
        }
        pending.deadline = self.now + self.deadline;
        for index in 0..pending.sends.len() {
            pending.sends[index].message = self.send(rank, &pending, index);
        }
        self.ranks[rank].pending = Some(pending);
        self.ranks[rank].phase = Phase::Waiting;
        self.ranks[rank].since = self.now;
        if self.plans_death(rank, exchange, Moment::Inside) {
            let soon = self.now + self.random.below(200_000);
            self.schedule(soon, Event::Die { rank, exchange });
        }
        for message in self.ranks[rank].inbox.clone() {
            self.match_message(message);
        }
        self.complete_if_done(rank);
    }

    /// Takes up one message of an exchange; it leaves chunk by chunk, later.
    fn send(&mut self, from: usize, pending: &Pending, index: usize) -> usize {
        let part = &pending.sends[index];
        let (to, len) = (part.to, part.source.len());
        let chunks = self.model.chunks(&mut self.random, len);
        let eager = self.model.is_eager(&mut self.random);
        let link = self.link(from, to);
        let number = link.messages;
        link.messages += 1;
        self.messages += 1;
        self.bytes += len as u64;
        let message = self.wire.add(Message {
            from,
            to,
            id: pending.id,
            number,
            len,
            bytes: Vec::new(),
            source: Some(part.source),
            chunks,
            sent: 0,
            arrived: 0,
            eager,
            lost: false,
            fate: Fate::Unseen,
            events: chunks,
        });
        for chunk in 0..chunks {
            let time = self.now + self.model.rest(&mut self.random);
            self.schedule(time, Event::Leave { message, chunk });
        }
        message
    }

    /// A chunk is read from its sender's memory and gets on the way, or is lost there.
    fn leave(&mut self, message: usize, chunk: u32) {
        let state = &mut self.wire[message];
        let (from, to, number, part) = (state.from, state.to, state.number, state.chunk(chunk));
        if let Some(source) = state.source {
            // SAFETY: the sender's thread waits inside `End::exchange`; `finish` takes `source`
            // away before it returns.
            unsafe { source.read(part.clone(), &mut state.bytes) };
        } else if state.lost {
            return self.wire.event_passed(message);
        }
        state.sent |= 1 << chunk;
        let hash = hash_bytes(&state.bytes[part]);
        let parts = [2, from as u64, to as u64, number, u64::from(chunk), hash];
        self.trace.note(self.now, &parts, || {
            format!("{from} -> {to}: chunk {chunk} of message {number} leaves")
        });
        let lost_from = self.link(from, to).lost_from;
        if lost_from.is_some_and(|first| number >= first) {
            let first = lost_from.unwrap_or(0);
            self.note_fault(&Fault::LinkLoss { from: Rank(from), to: Rank(to), message: first });
            self.wire.event_passed(message);
        } else {
            let arrival = self.arrival(from, to);
            self.schedule(arrival, Event::Arrive { message, chunk });
        }
        if self.wire[message].has_left() {
            self.has_left(message);
        }
    }

    /// When a chunk that leaves now arrives.
    fn arrival(&mut self, from: usize, to: usize) -> Time {
        let mut arrival = self.now + self.model.latency(&mut self.random, from, to);
        let ordered = self.model.ordered_links();
        let link = self.link(from, to);
        if ordered {
            arrival = arrival.max(link.last_arrival);
        }
        link.last_arrival = arrival;
        arrival
    }

    /// All of a message has left its sender's memory.
    fn has_left(&mut self, message: usize) {
        self.wire[message].source = None;
        let (from, eager) = (self.wire[message].from, self.wire[message].eager);
        self.duplicate_if_planned(message);
        let Some(pending) = &mut self.ranks[from].pending else { return };
        if let Some(part) =
            pending.sends.iter_mut().find(|part| part.message == message && !part.left)
        {
            part.left = true;
            part.free |= eager;
        }
        self.complete_if_done(from);
    }

    fn duplicate_if_planned(&mut self, message: usize) {
        let original = &self.wire[message];
        let (from, to, number, id, len) =
            (original.from, original.to, original.number, original.id, original.len);
        let fault = Fault::Duplicate { from: Rank(from), to: Rank(to), message: number };
        if !self.plan.contains(&fault) {
            return;
        }
        let bytes = original.bytes.clone();
        self.note_fault(&fault);
        let copy = self.wire.add(Message {
            from,
            to,
            id,
            number,
            len,
            bytes: Vec::new(),
            source: None,
            chunks: 1,
            sent: 1,
            arrived: 0,
            eager: true,
            lost: false,
            fate: Fate::Unseen,
            events: 1,
        });
        self.wire[copy].bytes.copy_from_slice(&bytes);
        let time = self.now + self.model.latency(&mut self.random, from, to);
        self.schedule(time, Event::Arrive { message: copy, chunk: 0 });
    }

    /// A chunk arrives at its receiver's transport.
    fn arrive(&mut self, message: usize, chunk: u32) {
        let state = &self.wire[message];
        let (from, to, number) = (state.from, state.to, state.number);
        let parts = [3, from as u64, to as u64, number, u64::from(chunk)];
        self.trace.note(self.now, &parts, || {
            format!("{from} -> {to}: chunk {chunk} of message {number} arrives")
        });
        self.take_in(message, chunk);
        self.wire.event_passed(message);
    }

    fn take_in(&mut self, message: usize, chunk: u32) {
        let to = self.wire[message].to;
        let closed = self.ranks[to].phase == Phase::Closed;
        if self.wire[message].lost || !(closed || self.ranks[to].is_live()) {
            return self.wire.end(message);
        }
        if self.wire[message].fate == Fate::Unseen {
            let (from, number) = (self.wire[message].from, self.wire[message].number);
            let new = self.link(from, to).seen.is_new(number);
            if !new && self.mutation != Some(Mutation::AcceptDuplicates) {
                self.wire.end(message);
            } else if closed {
                // No rank is left to take it.
                self.wire[message].lost = true;
                return self.wire.end(message);
            } else {
                self.wire[message].fate = Fate::Held;
                self.ranks[to].inbox.push(message);
                self.match_message(message);
            }
        }
        let state = &mut self.wire[message];
        state.arrived |= 1 << chunk;
        match state.fate {
            Fate::Bound(place) => self.fill(to, place, message, 1 << chunk),
            // A second copy was quicker: the sender waits for this one all the same.
            Fate::Over if state.has_arrived() => self.acknowledge(message),
            _ => {}
        }
    }

    /// The sender of a message that has arrived need not wait for it any longer.
    fn acknowledge(&mut self, message: usize) {
        let from = self.wire[message].from;
        let Some(pending) = &mut self.ranks[from].pending else { return };
        if let Some(part) =
            pending.sends.iter_mut().find(|part| part.message == message && !part.free)
        {
            part.free = true;
            self.complete_if_done(from);
        }
    }

    /// Finds the buffer of a message that has come, if its step has begun; a message that fits no
    /// step is an error.
    fn match_message(&mut self, message: usize) {
        let to = self.wire[message].to;
        if self.wire[message].fate != Fate::Held {
            return;
        }
        let Some(pending) = &self.ranks[to].pending else { return };
        match place_of(pending, &self.wire[message], self.mutation) {
            Ok(None) => {}
            Ok(Some(place)) => self.bind(to, place, message),
            Err(error) => self.fail(to, error),
        }
    }

    /// From now on the message fills this buffer.
    fn bind(&mut self, rank: usize, place: usize, message: usize) {
        self.wire[message].fate = Fate::Bound(place);
        self.ranks[rank].inbox.retain(|&held| held != message);
        if let Some(pending) = &mut self.ranks[rank].pending {
            pending.receives[place].message = Some(message);
        }
        let arrived = self.wire[message].arrived;
        if arrived != 0 {
            self.fill(rank, place, message, arrived);
        }
    }

    /// Writes chunks that have arrived into the receiver's memory.
    fn fill(&mut self, rank: usize, place: usize, message: usize, chunks: u32) {
        let Some(pending) = &mut self.ranks[rank].pending else { return };
        let state = &self.wire[message];
        let target = pending.receives[place].target;
        for chunk in (0..state.chunks).filter(|chunk| chunks & (1 << chunk) != 0) {
            // SAFETY: the receiver's thread waits inside `End::exchange`; `finish` drops `pending`
            // before it returns.
            unsafe { target.write(state.chunk(chunk), &state.bytes) };
        }
        if !state.has_arrived() {
            return;
        }
        pending.receives[place].full = true;
        self.ranks[rank].filled.push(place);
        self.acknowledge(message);
        self.wire.end(message);
        self.complete_if_done(rank);
    }

    /// Ends an exchange whose messages have all come and gone.
    fn complete_if_done(&mut self, rank: usize) {
        let Some(pending) = &self.ranks[rank].pending else { return };
        let missing = pending.receives.iter().filter(|part| !part.full).count();
        let allowed =
            usize::from(self.mutation == Some(Mutation::SkipOnePeer) && pending.receives.len() > 1);
        let sent = pending.sends.iter().all(|part| part.free);
        if missing > allowed || !(sent || self.mutation == Some(Mutation::ReuseBeforeDelivery)) {
            return;
        }
        let exchange = self.ranks[rank].exchanges - 1;
        if self.plans_death(rank, exchange, Moment::After) {
            return self.die_by_plan(rank, exchange, Moment::After);
        }
        self.finish(rank, Ok(()));
    }

    /// Ends a rank's call: nothing of the world looks at its memory any more, and its thread goes
    /// on.
    pub fn finish(&mut self, rank: usize, outcome: Result<()>) {
        if let Some(pending) = self.ranks[rank].pending.take() {
            self.let_go(&pending);
        }
        let ok = outcome.is_ok();
        let exchange = self.ranks[rank].exchanges;
        let parts = [4, rank as u64, u64::from(ok), exchange];
        self.trace
            .note(self.now, &parts, || format!("rank {rank}, exchange {exchange}: {outcome:?}"));
        self.ranks[rank].outcome = Some(outcome);
        self.woken.push(rank);
        if ok {
            self.run_until_next_call(rank);
        } else if self.ranks[rank].is_live() {
            self.ranks[rank].phase = Phase::Failed;
        }
    }

    /// Forgets the memory of an exchange. What has not left yet never leaves.
    fn let_go(&mut self, pending: &Pending) {
        for part in pending.sends.iter().filter(|part| !part.left && part.message != usize::MAX) {
            let reused = self.mutation == Some(Mutation::ReuseBeforeDelivery);
            let message = &mut self.wire[part.message];
            message.source = None;
            message.lost = !reused;
            // Under the mutation the sender writes new bytes at once, and those travel.
            for chunk in
                (0..message.chunks).filter(|chunk| reused && message.sent & (1 << chunk) == 0)
            {
                let part = message.chunk(chunk);
                message.bytes[part].fill(0xff);
            }
        }
        let bound = pending.receives.iter().filter(|part| !part.full);
        for message in bound.filter_map(|part| part.message) {
            self.wire.end(message);
        }
    }
}

/// The buffer for a message: none yet where its step has not begun.
fn place_of(
    pending: &Pending,
    message: &Message,
    mutation: Option<Mutation>,
) -> Result<Option<usize>> {
    let free = |from: Option<usize>| {
        pending.receives.iter().position(|part| {
            let fits = part.target.len() == message.len && part.message.is_none();
            fits && from.is_none_or(|from| part.from == from)
        })
    };
    if mutation == Some(Mutation::AcceptAnyStep) {
        return Ok(free(Some(message.from)));
    }
    let (expected, found): (Key, Key) = (key(&pending.id), key(&message.id));
    if found > expected {
        return Ok(None);
    }
    if mutation == Some(Mutation::MixSources) && found == expected {
        return Ok(free(None));
    }
    let place = pending
        .receives
        .iter()
        .position(|part| part.from == message.from && part.message.is_none());
    let expects = |text: String| CommError::Mismatch {
        culprit: Rank(message.from),
        seen_by: Rank(message.to),
        expected: text,
        found: format!("{}, {} bytes", message.id, message.len),
    };
    match place {
        Some(place) if found == expected && pending.id.fingerprint == message.id.fingerprint => {
            let len = pending.receives[place].target.len();
            if len == message.len {
                Ok(Some(place))
            } else {
                Err(expects(format!("{}, {len} bytes", pending.id)))
            }
        }
        Some(_) => Err(expects(pending.id.to_string())),
        None => Err(expects(format!("{}, in which it sends nothing", pending.id))),
    }
}
