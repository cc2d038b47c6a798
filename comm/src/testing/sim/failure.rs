//! Deaths, deadlines and the job's first error.

use super::Mutation;
use super::fault::{Fault, Moment};
use super::model::Time;
use super::state::{Event, Phase, State};
use super::wire::{Key, key};
use crate::error::CommError;
use crate::topology::Rank;

/// Who is waited for in the end.
struct Blame {
    culprit: usize,
    seen_by: usize,
    /// Its message has been sent and has not come.
    lost: bool,
    /// Since when there is no progress here.
    since: Time,
}

/// A message that has not got from its sender to its receiver; `peer` is the other end of who asks.
struct Wait {
    peer: usize,
    sender: usize,
    receiver: usize,
}

impl State {
    /// A rank has found an error. The first of the job is the job's; all ranks get the news of it.
    pub fn fail(&mut self, rank: usize, error: CommError) {
        if !self.ranks[rank].is_live() || self.ranks[rank].view.is_some() {
            return;
        }
        let keeps = self.mutation == Some(Mutation::KeepErrorToItself);
        if self.first_error.is_none() {
            self.trace.note(self.now, &[6, rank as u64], || format!("rank {rank} finds: {error}"));
            self.first_error = Some(error.clone());
            for other in (0..self.ranks.len()).filter(|&other| other != rank && !keeps) {
                let time = self.now + self.model.news(&mut self.random);
                self.schedule(time, Event::Learn { rank: other });
            }
        }
        let first = self.first_error.clone().filter(|_| !keeps);
        self.learn(rank, first.unwrap_or(error));
    }

    /// From now on a rank knows the job's error.
    pub fn learn(&mut self, rank: usize, error: CommError) {
        if !self.ranks[rank].is_live() || self.ranks[rank].view.is_some() {
            return;
        }
        self.ranks[rank].view = Some(error.clone());
        // A rank that runs hears of it in its next call.
        if self.ranks[rank].phase == Phase::Waiting {
            self.finish(rank, Err(error));
        }
    }

    /// The plan lets this rank die here.
    pub fn plans_death(&self, rank: usize, number: u64, at: Moment) -> bool {
        self.planned_death(rank, number, at).is_some()
    }

    fn planned_death(&self, who: usize, number: u64, at: Moment) -> Option<&Fault> {
        self.plan.iter().find(|fault| match fault {
            Fault::Death { rank, exchange, moment, .. } => {
                // An exchange that ends before its rank could die inside it ends with the death.
                let inside_late = *moment == Moment::Inside && at == Moment::After;
                rank.0 == who && *exchange == number && (*moment == at || inside_late)
            }
            _ => false,
        })
    }

    /// A rank dies as planned.
    pub fn die_by_plan(&mut self, rank: usize, exchange: u64, at: Moment) {
        let Some(fault) = self.planned_death(rank, exchange, at).cloned() else { return };
        self.note_fault(&fault);
        let silent = matches!(fault, Fault::Death { silent: true, .. });
        self.die(rank, silent, "killed by the simulation's plan");
    }

    /// A rank is gone; some of what it has under way is lost, and its peers notice that connections
    /// end, unless it went silently.
    pub fn die(&mut self, rank: usize, silent: bool, reason: &str) {
        self.trace.note(self.now, &[7, rank as u64], || format!("rank {rank} is gone: {reason}"));
        self.ranks[rank].phase = Phase::Dead;
        for message in self.wire.iter_mut().filter(|message| message.from == rank) {
            message.lost |= self.random.chance(50);
        }
        let error = CommError::PeerLost {
            culprit: Rank(rank),
            seen_by: Rank(rank),
            reason: reason.to_owned(),
        };
        self.ranks[rank].view = Some(error.clone());
        self.finish(rank, Err(error));
        for seen_by in (0..self.ranks.len()).filter(|&other| other != rank && !silent) {
            let time = self.now + self.model.news(&mut self.random);
            self.schedule(time, Event::Notice { gone: rank, seen_by });
        }
    }

    /// A rank sees that its connection with another has ended without a goodbye.
    pub fn notice(&mut self, gone: usize, seen_by: usize) {
        let reason = "its connection has ended without a goodbye".to_owned();
        self.fail(
            seen_by,
            CommError::PeerLost { culprit: Rank(gone), seen_by: Rank(seen_by), reason },
        );
    }

    /// A rank has waited too long. Whom it waits for may itself wait: the one at the end of the
    /// chain is named.
    pub fn expire(&mut self, rank: usize) {
        let quiet =
            self.next_event().is_none() && self.happened.is_empty() && self.first_error.is_none();
        if quiet && self.deadlock.is_none() {
            self.deadlock = Some(self.describe_waits());
        }
        let mut visited = vec![false; self.ranks.len()];
        // In a circle no rank is at the end: the first peer waited for is named.
        let blame = self.blame(rank, &mut visited).unwrap_or_else(|| {
            let culprit = self.waits(rank).first().map_or(rank, |wait| wait.peer);
            Blame { culprit, seen_by: rank, lost: false, since: 0 }
        });
        let pending =
            self.ranks[blame.seen_by].pending.as_ref().or(self.ranks[rank].pending.as_ref());
        let (operation, sequence) = pending.map_or((String::new(), 0), |pending| {
            (pending.id.operation.to_owned(), pending.id.sequence)
        });
        let (culprit, seen_by) = (Rank(blame.culprit), Rank(blame.seen_by));
        let error = if blame.lost {
            let reason = format!("what it sent for {operation} number {sequence} has not come");
            CommError::PeerLost { culprit, seen_by, reason }
        } else {
            let waited_ms = self.deadline / 1_000_000;
            CommError::Timeout { culprit, seen_by, operation, sequence, waited_ms }
        };
        self.fail(rank, error);
    }

    /// What keeps a rank in its exchange.
    fn waits(&self, rank: usize) -> Vec<Wait> {
        let Some(pending) = &self.ranks[rank].pending else { return Vec::new() };
        let missing = pending.receives.iter().filter(|part| !part.full);
        let missing =
            missing.map(|part| Wait { peer: part.from, sender: part.from, receiver: rank });
        let held = pending.sends.iter().filter(|part| !part.free);
        let held = held.map(|part| Wait { peer: part.to, sender: rank, receiver: part.to });
        missing.chain(held).collect()
    }

    /// Follows who waits for whom from one rank on; the oldest end of all chains.
    fn blame(&self, waiter: usize, visited: &mut [bool]) -> Option<Blame> {
        if std::mem::replace(&mut visited[waiter], true) {
            return None;
        }
        let step = key(&self.ranks[waiter].pending.as_ref()?.id);
        let waits = self.waits(waiter);
        let ends = waits.iter().filter_map(|wait| self.blame_peer(waiter, step, wait, visited));
        ends.min_by_key(|blame| blame.since)
    }

    /// Why one peer keeps a rank waiting: it has come and the message is lost, it waits itself, or
    /// it has not come.
    fn blame_peer(
        &self,
        waiter: usize,
        step: Key,
        wait: &Wait,
        visited: &mut [bool],
    ) -> Option<Blame> {
        let Wait { peer, sender, receiver } = *wait;
        let state = &self.ranks[peer];
        let since = self.ranks[waiter].since;
        let neighbour = self.mutation == Some(Mutation::BlameNeighbour);
        if state.progress.is_some_and(|reached| reached >= step) && state.phase != Phase::Dead {
            // It has been here: its message is lost, or it has sent none.
            let lost = self.wire.is_under_way(sender, receiver, step);
            return Some(Blame { culprit: sender, seen_by: receiver, lost, since });
        }
        if state.pending.is_some() && !neighbour {
            return self.blame(peer, visited);
        }
        Some(Blame { culprit: peer, seen_by: waiter, lost: false, since: state.since })
    }
}
