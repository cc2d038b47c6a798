//! One rank's end of the simulated network, and how its thread drives the world.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::Mutation;
use super::state::{Action, Event, Pending, Phase, State};
use crate::error::{CommError, Result};
use crate::topology::{Rank, Topology};
use crate::transport::{Expected, Incoming, Outgoing, StepId, Transport};
use zerocopy::IntoBytes;

/// A thread that waits looks so often, in real time, whether another has panicked or never comes.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// After so many looks without any event the world gives up.
const PATIENCE: u32 = 6;

/// What all ends of a world share.
#[derive(Debug)]
pub(super) struct Shared {
    pub topology: Topology,
    /// Whether messages are shown where they lie: one world can, another cannot.
    pub shows: bool,
    pub state: Mutex<State>,
    pub wakes: Vec<Condvar>,
}

impl Shared {
    /// The world, for one thread.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a thread has panicked inside the simulated network")
    }

    /// Lets everything happen up to the next call of a rank whose thread has not come to it yet.
    /// That thread continues here.
    ///
    /// This is what makes the history depend on the seed alone: events happen in the order of
    /// virtual time, whichever thread carries them out, and none happens before an earlier call is
    /// known.
    fn drive(&self, state: &mut State) {
        loop {
            let deadline = state.next_deadline();
            match (state.next_event(), deadline) {
                (Some((time, event)), deadline) if deadline.is_none_or(|(end, _)| time <= end) => {
                    if let Event::Act { rank } = event {
                        let coming = state.ranks[rank].phase == Phase::Running;
                        if coming && state.ranks[rank].action.is_none() {
                            return;
                        }
                    }
                    if let Some(event) = state.take_event() {
                        state.happen(event);
                    }
                }
                (_, Some((end, rank))) => {
                    state.now = end;
                    state.expire(rank);
                }
                (_, None) => return,
            }
            for rank in state.woken.drain(..) {
                self.wakes[rank].notify_all();
            }
        }
    }

    /// Waits until `done` for this rank.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        rank: usize,
        done: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        let mut looks = 0;
        while !done(&state) {
            let before = state.trace.events();
            let waited = self.wakes[rank].wait_timeout(state, LOOK_AGAIN);
            let (next, timeout) =
                waited.expect("a thread has panicked inside the simulated network");
            state = next;
            looks =
                if timeout.timed_out() && state.trace.events() == before { looks + 1 } else { 0 };
            assert!(looks < PATIENCE, "a rank's thread does not come: {}", state.describe_waits());
        }
        state
    }
}

#[derive(Debug)]
pub(super) struct End {
    pub shared: Arc<Shared>,
    pub rank: usize,
}

impl End {
    fn check_parts(&self, outgoing: &[Outgoing], incoming: &[Incoming]) {
        let ranks = self.shared.topology.num_ranks();
        let peers = |list: &mut dyn Iterator<Item = usize>| {
            let mut seen = vec![false; ranks];
            for peer in list {
                assert!(peer != self.rank, "no message goes to its own sender");
                assert!(
                    !std::mem::replace(&mut seen[peer], true),
                    "at most one message per peer and direction"
                );
            }
        };
        peers(&mut outgoing.iter().map(|part| part.to.0));
        peers(&mut incoming.iter().map(|part| part.from.0));
    }
}

impl Transport for End {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn rank(&self) -> Rank {
        Rank(self.rank)
    }

    fn topology(&self) -> &Topology {
        &self.shared.topology
    }

    fn exchange(
        &self,
        id: &StepId,
        outgoing: &[Outgoing],
        incoming: &mut [Incoming],
    ) -> Result<()> {
        self.check_parts(outgoing, incoming);
        let mut state = self.shared.lock();
        match state.ranks[self.rank].phase {
            Phase::Running => {}
            Phase::Waiting => panic!("one thread at a time calls exchange"),
            _ => return Err(state.error_of(self.rank)),
        }
        // A rank that has called `abort` waits here until that takes place.
        if state.ranks[self.rank].action.is_none() {
            state.ranks[self.rank].outcome = None;
            state.ranks[self.rank].action =
                Some(Action::Exchange(Pending::new(id, outgoing, incoming)));
        }
        self.shared.drive(&mut state);
        let rank = self.rank;
        let mut state = self.shared.wait(state, rank, |state| state.ranks[rank].outcome.is_some());
        match state.ranks[rank].outcome.take() {
            Some(outcome) => outcome,
            None => Err(state.error_of(rank)),
        }
    }

    fn exchange_reading(
        &self,
        id: &StepId,
        outgoing: &[Outgoing],
        expected: &[Expected],
        read: &mut dyn FnMut(&[&[u8]]),
    ) -> Result<()> {
        // Words, so that every message is aligned for every element.
        let mut room: Vec<Vec<u64>> =
            expected.iter().map(|message| vec![0; message.length.div_ceil(8)]).collect();
        let parts = expected.iter().zip(&mut room);
        let mut incoming: Vec<Incoming> = parts
            .map(|(message, room)| Incoming {
                from: message.from,
                bytes: &mut room.as_mut_bytes()[..message.length],
            })
            .collect();
        self.exchange(id, outgoing, &mut incoming)?;
        let mut views: Vec<&[u8]> = incoming.iter().map(|part| &*part.bytes).collect();
        let state = self.shared.lock();
        if state.mutation == Some(Mutation::ShowInOrderOfArrival) {
            let order = &state.ranks[self.rank].filled;
            views = order.iter().map(|&place| &*incoming[place].bytes).collect();
        }
        drop(state);
        read(&views);
        Ok(())
    }

    fn in_place_bytes(&self) -> Option<usize> {
        self.shared.shows.then_some(usize::MAX)
    }

    fn abort(&self, error: CommError) {
        let mut state = self.shared.lock();
        match state.ranks[self.rank].phase {
            Phase::Running => {
                if state.ranks[self.rank].action.is_none() {
                    state.ranks[self.rank].outcome = None;
                    state.ranks[self.rank].action = Some(Action::Abort(error));
                }
            }
            Phase::Waiting => state.fail(self.rank, error),
            Phase::Failed | Phase::Closed | Phase::Dead => return,
        }
        self.shared.drive(&mut state);
    }

    fn check(&self) -> Result<()> {
        let state = self.shared.lock();
        let rank = &state.ranks[self.rank];
        match (&rank.phase, &rank.action) {
            (Phase::Running, Some(Action::Abort(error))) => Err(error.clone()),
            // What arrives while a rank computes is known with its next call, so that the history
            // stays the seed's.
            (Phase::Running, _) => Ok(()),
            _ => rank.view.clone().map_or(Ok(()), Err),
        }
    }

    fn close(&self) -> Result<()> {
        let mut state = self.shared.lock();
        if state.ranks[self.rank].phase == Phase::Running {
            if state.ranks[self.rank].action.is_none() {
                state.ranks[self.rank].action = Some(Action::Close);
            }
            self.shared.drive(&mut state);
            let rank = self.rank;
            state =
                self.shared.wait(state, rank, |state| state.ranks[rank].phase != Phase::Running);
        }
        state.ranks[self.rank].view.clone().map_or(Ok(()), Err)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // A poisoned world has ended with the panic that poisoned it.
        let Ok(mut state) = self.shared.state.lock() else { return };
        if state.ranks[self.rank].phase == Phase::Running {
            if state.ranks[self.rank].action.is_none() {
                state.ranks[self.rank].action = Some(Action::Leave);
            }
            self.shared.drive(&mut state);
        }
    }
}
