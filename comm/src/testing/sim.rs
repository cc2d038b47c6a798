//! Ranks as threads of one process under a virtual clock: delays, orders and faults come from a
//! seed, and the same seed gives the same history.
//!
//! What a world does to its messages: each travels in one to four chunks; each chunk is read from
//! the sender's memory at a moment between the sender's call and its return, is under way for a
//! time of its own, and arrives in any order, also after chunks that left later. Some worlds have a
//! slow link, a slow rank, heavy tails, or links that keep their order; in some a sender continues
//! as soon as its messages have left, in others only when they have arrived. Incoming buffers hold
//! garbage until their bytes arrive. A [`FaultPlan`] adds deaths, lost links, duplicates and ranks
//! that stand still.
//!
//! Real time plays no part. All ranks run at once, and the world moves on to its next event only
//! when the rank whose call comes next in virtual time has really made that call; so events happen
//! in the order of virtual time, whichever thread carries them out. Where all wait and nothing is
//! under way, the clock jumps to the next deadline; where no fault explains that, it is a deadlock
//! and the [`Report`] describes it.
//!
//! What it relies on: a rank's thread depends on nothing but its own calls. A thread that waits for
//! another rank outside of the transport (a channel, a lock, a barrier) may wait for ever; so each
//! rank reads its own data under this transport. When a rank has a thread that needs no other rank
//! any more, its end must be closed or dropped.
//!
//! How the job's first error is agreed on: the first rank that finds one, in virtual time, names it
//! for all; each of the others gets the news some time later, and what it finds itself until then
//! gives way to that. A deadline that passes names the rank at the end of the chain of waits, not
//! the neighbour.

mod buffers;
mod end;
mod failure;
mod fault;
mod model;
mod network;
mod random;
mod state;
mod trace;
mod wire;

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

pub use fault::{Fault, FaultPlan, Moment};
pub use random::Random;

use crate::error::CommError;
use crate::topology::Topology;
use crate::transport::Transport;
use end::{End, Shared};
use state::State;

/// Mistakes that the transport can be told to make, so that tests can prove that they would be
/// noticed.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// A message goes into a buffer of its source at any step.
    AcceptAnyStep,
    /// A message goes into any buffer of its length, of any source.
    MixSources,
    /// An exchange returns while the message of one peer is still missing.
    SkipOnePeer,
    /// An exchange returns before its messages have left, and the sender writes into their memory.
    ReuseBeforeDelivery,
    /// A second copy of a message counts as a message.
    AcceptDuplicates,
    /// A rank that finds an error keeps it to itself.
    KeepErrorToItself,
    /// Messages to be added up are shown in the order in which they arrived.
    ShowInOrderOfArrival,
    /// A deadline that passes names the neighbour, though that one waits itself.
    BlameNeighbour,
}

impl Mutation {
    pub const ALL: [Mutation; 8] = [
        Mutation::AcceptAnyStep,
        Mutation::MixSources,
        Mutation::SkipOnePeer,
        Mutation::ReuseBeforeDelivery,
        Mutation::AcceptDuplicates,
        Mutation::KeepErrorToItself,
        Mutation::ShowInOrderOfArrival,
        Mutation::BlameNeighbour,
    ];
}

/// What makes a world.
#[derive(Debug, Clone)]
pub struct SimOptions {
    /// Everything that happens follows from this number.
    pub seed: u64,
    /// What goes wrong.
    pub faults: FaultPlan,
    /// How long an exchange may wait, in virtual time.
    pub deadline: Duration,
    /// Whether the last events are kept as text.
    pub keep_trace: bool,
    /// A mistake that the transport is to make.
    #[doc(hidden)]
    pub mutation: Option<Mutation>,
}

impl SimOptions {
    /// No faults, a deadline of 20 virtual seconds, which no delay comes near to.
    pub fn new(seed: u64) -> Self {
        let deadline = Duration::from_secs(20);
        Self { seed, faults: FaultPlan::default(), deadline, keep_trace: false, mutation: None }
    }
}

/// What happened in a world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The virtual time of the last event.
    pub virtual_time: Duration,
    /// Equal for equal histories, down to the bytes of every message.
    pub trace_hash: u64,
    /// How many events there were.
    pub events: u64,
    /// How many messages were sent.
    pub messages: u64,
    /// How many bytes were in them.
    pub bytes: u64,
    /// How many exchanges each rank began.
    pub exchanges: Vec<u64>,
    /// The faults of the plan that came to pass.
    pub faults: Vec<Fault>,
    /// The job's first error.
    pub first_error: Option<CommError>,
    /// All waited, nothing was under way and no fault explains it: who waited for what.
    pub deadlock: Option<String>,
}

/// One simulated job.
///
/// ```
/// use headlong_comm::testing::sim::{SimOptions, World};
/// use headlong_comm::transport::{Incoming, Outgoing, StepId, Transport};
/// use headlong_comm::{Rank, Topology};
///
/// let id = StepId { sequence: 0, step: 0, fingerprint: 7, operation: "swap" };
/// let (swapped, report) = World::run(&Topology::from_node_sizes(&[2]), SimOptions::new(1), |end| {
///     let peer = Rank(1 - end.rank().0);
///     let mut theirs = [0; 1];
///     let mut incoming = [Incoming { from: peer, bytes: &mut theirs }];
///     end.exchange(&id, &[Outgoing { to: peer, bytes: &[end.rank().0 as u8] }], &mut incoming)?;
///     end.close().map(|()| theirs[0])
/// });
/// assert_eq!(swapped, [Ok(1), Ok(0)]);
/// assert_eq!(report.messages, 2);
/// ```
#[derive(Debug)]
pub struct World {
    shared: Arc<Shared>,
}

impl World {
    /// A world and its ends, one per rank in rank order. Each end goes to the thread of its rank,
    /// which closes or drops it.
    pub fn new(topology: &Topology, options: &SimOptions) -> (Self, Vec<Arc<dyn Transport>>) {
        let ranks = topology.num_ranks();
        let shared = Arc::new(Shared {
            topology: topology.clone(),
            shows: Random::new(options.seed ^ 0x5409).chance(50),
            state: Mutex::new(State::new(ranks, options)),
            wakes: (0..ranks).map(|_| Condvar::new()).collect(),
        });
        let end = |rank| Arc::new(End { shared: Arc::clone(&shared), rank }) as Arc<dyn Transport>;
        let ends = (0..ranks).map(end).collect();
        (Self { shared }, ends)
    }

    /// Runs one thread per rank and gives back what they return, in rank order.
    ///
    /// # Panics
    /// With the panic of a rank's thread, after all have ended.
    pub fn run<T: Send>(
        topology: &Topology,
        options: SimOptions,
        body: impl Fn(Arc<dyn Transport>) -> T + Sync,
    ) -> (Vec<T>, Report) {
        let (world, ends) = Self::new(topology, &options);
        let body = &body;
        let results = std::thread::scope(|scope| {
            let threads: Vec<_> =
                ends.into_iter().map(|end| scope.spawn(move || body(end))).collect();
            let joined: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            joined
                .into_iter()
                .map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        (results, world.report())
    }

    /// What has happened up to now.
    pub fn report(&self) -> Report {
        let state = self.shared.lock();
        Report {
            virtual_time: Duration::from_nanos(state.now),
            trace_hash: state.trace.hash(),
            events: state.trace.events(),
            messages: state.messages,
            bytes: state.bytes,
            exchanges: state.ranks.iter().map(|rank| rank.exchanges).collect(),
            faults: state.happened.clone(),
            first_error: state.first_error.clone(),
            deadlock: state.deadlock.clone(),
        }
    }

    /// The last events as text, where [`SimOptions::keep_trace`] asked for it.
    pub fn trace(&self) -> Vec<String> {
        self.shared.lock().trace.lines()
    }
}
