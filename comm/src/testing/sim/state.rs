//! The world's state and its list of coming events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::buffers::{Source, Target};
use super::fault::Fault;
use super::model::{NetworkModel, Time};
use super::random::Random;
use super::trace::Trace;
use super::wire::{Key, Seen, Wire};
use super::{Mutation, SimOptions};
use crate::error::{CommError, Result};
use crate::topology::Rank;
use crate::transport::{Incoming, Outgoing, StepId};

/// What is to happen, in virtual time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A rank makes its next call. The world waits here until its thread has really come to it.
    Act {
        rank: usize,
    },
    /// A chunk is read from its sender's memory and leaves.
    Leave {
        message: usize,
        chunk: u32,
    },
    Arrive {
        message: usize,
        chunk: u32,
    },
    /// A rank dies inside an exchange, unless that has ended.
    Die {
        rank: usize,
        exchange: u64,
    },
    /// A rank notices that a connection has ended.
    Notice {
        gone: usize,
        seen_by: usize,
    },
    /// A rank gets the news of the job's first error.
    Learn {
        rank: usize,
    },
}

/// What a rank's thread has called.
#[derive(Debug)]
pub(super) enum Action {
    Exchange(Pending),
    Abort(CommError),
    Close,
    /// Its end of the transport was dropped.
    Leave,
}

/// Where a rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Between two calls: its thread may run.
    Running,
    Waiting,
    /// It knows the job's error.
    Failed,
    /// It has said goodbye.
    Closed,
    /// It has died, by the plan or by itself.
    Dead,
}

/// One message of an exchange, on the sender's side.
#[derive(Debug)]
pub(super) struct SendPart {
    pub to: usize,
    pub source: Source,
    pub message: usize,
    /// All of it has left this rank's memory.
    pub left: bool,
    /// The rank needs to wait for it no longer.
    pub free: bool,
}

/// One message of an exchange, on the receiver's side.
#[derive(Debug)]
pub(super) struct ReceivePart {
    pub from: usize,
    pub target: Target,
    /// The message that fills it, once known.
    pub message: Option<usize>,
    pub full: bool,
}

/// An exchange that a rank waits in.
#[derive(Debug)]
pub(super) struct Pending {
    pub id: StepId,
    pub sends: Vec<SendPart>,
    pub receives: Vec<ReceivePart>,
    pub deadline: Time,
}

impl Pending {
    /// An exchange that has been called and has not begun.
    pub fn new(id: &StepId, outgoing: &[Outgoing], incoming: &mut [Incoming]) -> Self {
        let send = |part: &Outgoing| {
            let source = Source::new(part.bytes);
            SendPart { to: part.to.0, source, message: usize::MAX, left: false, free: false }
        };
        let receive = |part: &mut Incoming| {
            let target = Target::new(part.bytes);
            ReceivePart { from: part.from.0, target, message: None, full: false }
        };
        let sends = outgoing.iter().map(send).collect();
        let receives = incoming.iter_mut().map(receive).collect();
        Self { id: *id, sends, receives, deadline: 0 }
    }
}

/// One rank as the world sees it.
#[derive(Debug)]
pub(super) struct RankState {
    pub phase: Phase,
    /// What its thread has called and the world has not yet come to.
    pub action: Option<Action>,
    pub pending: Option<Pending>,
    /// How the last exchange ended, until its thread takes it.
    pub outcome: Option<Result<()>>,
    /// The job's error, as soon as this rank knows it.
    pub view: Option<CommError>,
    /// How many exchanges it has begun.
    pub exchanges: u64,
    /// The last step it has begun.
    pub progress: Option<Key>,
    /// Since when it is in its phase.
    pub since: Time,
    /// Messages that have come before their step.
    pub inbox: Vec<usize>,
    /// The places of the last exchange, in the order in which they became full.
    pub filled: Vec<usize>,
}

impl RankState {
    fn new() -> Self {
        Self {
            phase: Phase::Running,
            action: None,
            pending: None,
            outcome: None,
            view: None,
            exchanges: 0,
            progress: None,
            since: 0,
            inbox: Vec::new(),
            filled: Vec::new(),
        }
    }

    /// It still takes part in the job.
    pub fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Waiting)
    }
}

/// One direction between two ranks.
#[derive(Debug, Default, Clone)]
pub(super) struct Link {
    /// How many messages have been sent.
    pub messages: u64,
    pub seen: Seen,
    /// When the last chunk arrives.
    pub last_arrival: Time,
    /// It loses everything from this message on.
    pub lost_from: Option<u64>,
}

#[derive(Debug)]
pub(super) struct State {
    pub now: Time,
    pub deadline: Time,
    pub mutation: Option<Mutation>,
    pub random: Random,
    pub model: NetworkModel,
    pub ranks: Vec<RankState>,
    /// By sender × receivers + receiver.
    pub links: Vec<Link>,
    pub wire: Wire,
    pub trace: Trace,
    pub messages: u64,
    pub bytes: u64,
    /// What goes wrong here.
    pub plan: Vec<Fault>,
    /// Those of the plan that have happened.
    pub happened: Vec<Fault>,
    pub first_error: Option<CommError>,
    pub deadlock: Option<String>,
    /// Ranks whose threads are to be woken.
    pub woken: Vec<usize>,
    queue: BinaryHeap<Reverse<(Time, u64, Event)>>,
    queued: u64,
}

impl State {
    /// A world in which every rank computes until its first call.
    pub fn new(num_ranks: usize, options: &SimOptions) -> Self {
        let mut random = Random::new(options.seed);
        let model = NetworkModel::draw(&mut random, num_ranks);
        let mut state = Self {
            now: 0,
            deadline: options.deadline.as_nanos() as Time,
            mutation: options.mutation,
            random,
            model,
            ranks: (0..num_ranks).map(|_| RankState::new()).collect(),
            links: vec![Link::default(); num_ranks * num_ranks],
            wire: Wire::default(),
            trace: Trace::new(options.keep_trace),
            messages: 0,
            bytes: 0,
            plan: options.faults.faults.clone(),
            happened: Vec::new(),
            first_error: None,
            deadlock: None,
            woken: Vec::new(),
            queue: BinaryHeap::new(),
            queued: 0,
        };
        for fault in &options.faults.faults {
            if let Fault::LinkLoss { from, to, message } = fault {
                state.links[from.0 * num_ranks + to.0].lost_from = Some(*message);
            }
        }
        (0..num_ranks).for_each(|rank| state.run_until_next_call(rank));
        state
    }

    /// Puts an event on the list; events of one moment happen in the order in which they were put.
    pub fn schedule(&mut self, time: Time, event: Event) {
        self.queued += 1;
        self.queue.push(Reverse((time, self.queued, event)));
    }

    /// When the next event happens, and which.
    pub fn next_event(&self) -> Option<(Time, Event)> {
        self.queue.peek().map(|Reverse((time, _, event))| (*time, *event))
    }

    /// Takes the next event off the list; time moves on to it.
    pub fn take_event(&mut self) -> Option<Event> {
        let Reverse((time, _, event)) = self.queue.pop()?;
        self.now = time;
        Some(event)
    }

    /// The next deadline of a rank that waits.
    pub fn next_deadline(&self) -> Option<(Time, usize)> {
        let waiting = self.ranks.iter().enumerate();
        waiting.filter_map(|(rank, state)| Some((state.pending.as_ref()?.deadline, rank))).min()
    }

    /// The link from one rank to another.
    pub fn link(&mut self, from: usize, to: usize) -> &mut Link {
        let ranks = self.ranks.len();
        &mut self.links[from * ranks + to]
    }

    /// Lets a rank run: it makes its next call after the time it computes and pauses.
    pub fn run_until_next_call(&mut self, rank: usize) {
        let compute = self.model.compute(&mut self.random, rank);
        let next = self.ranks[rank].exchanges;
        let is_due = |fault: &&Fault| match fault {
            Fault::Stall { rank: who, exchange, .. } => who.0 == rank && *exchange == next,
            _ => false,
        };
        let stall = self.plan.iter().find(is_due).cloned();
        let stands = match &stall {
            Some(Fault::Stall { lasts, .. }) => lasts.as_nanos() as Time,
            _ => 0,
        };
        self.happened.extend(stall);
        self.ranks[rank].phase = Phase::Running;
        self.ranks[rank].since = self.now;
        self.schedule(self.now + compute + stands, Event::Act { rank });
    }

    /// Notes that a fault of the plan has happened.
    pub fn note_fault(&mut self, fault: &Fault) {
        if !self.happened.contains(fault) {
            self.trace.note(self.now, &[0xfa17], || format!("fault: {fault:?}"));
            self.happened.push(fault.clone());
        }
    }

    /// What waits for what, for the report of a deadlock.
    pub fn describe_waits(&self) -> String {
        let mut text = String::new();
        for (rank, state) in self.ranks.iter().enumerate() {
            let Some(pending) = &state.pending else {
                text += &format!("rank {rank} is {:?}; ", state.phase);
                continue;
            };
            let missing = pending.receives.iter().filter(|part| !part.full).map(|part| part.from);
            let held = pending.sends.iter().filter(|part| !part.free).map(|part| part.to);
            let id = &pending.id;
            text += &format!(
                "rank {rank} is in {} number {} step {}, waits for messages from {:?} and for \
                 delivery to {:?}; ",
                id.operation,
                id.sequence,
                id.step,
                missing.collect::<Vec<_>>(),
                held.collect::<Vec<_>>(),
            );
        }
        text.trim_end_matches("; ").to_owned()
    }

    /// The error that a rank gets from now on.
    pub fn error_of(&self, rank: usize) -> CommError {
        let state = &self.ranks[rank];
        state.view.clone().unwrap_or_else(|| {
            let reason = match state.phase {
                Phase::Closed => "it has said goodbye and calls again",
                _ => "it has died",
            };
            CommError::PeerLost {
                culprit: Rank(rank),
                seen_by: Rank(rank),
                reason: reason.to_owned(),
            }
        })
    }
}
