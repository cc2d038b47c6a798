//! What the ranks of a process share: their links, where each of them is, and how the job ended.

use super::link::Links;
use crate::error::{CommError, Result};
use crate::topology::{Rank, Topology};
use crate::transport::StepId;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Asks whether the message is there between so many times (2 to 50 microseconds) before the core
/// is offered to others, where every rank can have one. Each time in vain halves it, because
/// another program may have the peer's core, and then the peer waits for this one; each time with
/// success doubles it, because on a busy machine a core that was offered is gone for milliseconds.
const POLLS: (u32, u32) = (40, 1000);
/// As above, where ranks share cores: the rank that is waited for may be waiting for this core.
const POLLS_CROWDED: (u32, u32) = (5, 5);
/// How long the core is offered to others before the thread sleeps until it is woken.
const YIELDING: Duration = Duration::from_micros(50);
/// A sleeper looks up this often although no rank has woken it: to see that its time is over.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

pub struct World {
    pub topology: Topology,
    pub links: Links,
    seats: Box<[Seat]>,
    failed: AtomicBool,
    error: OnceLock<CommError>,
    deadline: Duration,
    /// The fewest and the most looks before a core is offered to others.
    polls: (u32, u32),
}

#[derive(Default)]
#[repr(align(128))]
struct Seat {
    /// Read by all peers after each message: sleeps, or is about to.
    sleeps: AtomicBool,
    closed: AtomicBool,
    mutex: Mutex<()>,
    condvar: Condvar,
    own: Own,
}

/// What a rank writes at each step: not on the line that the peers read.
#[derive(Default)]
#[repr(align(128))]
struct Own {
    /// The step it has entered last.
    place: AtomicU64,
    /// How often it looks before it offers its core to others.
    polls: AtomicU32,
}

fn learn((fewest, most): (u32, u32), polls: u32, in_time: bool) -> u32 {
    if in_time { (polls * 2).min(most) } else { (polls / 2).max(fewest) }
}

impl World {
    pub fn new(topology: &Topology, deadline: Duration, eager_bytes: usize) -> Self {
        let num_ranks = topology.num_ranks();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let polls = if num_ranks <= cores { POLLS } else { POLLS_CROWDED };
        let own = || Own { place: AtomicU64::new(0), polls: AtomicU32::new(polls.1) };
        Self {
            topology: topology.clone(),
            links: Links::new(num_ranks, eager_bytes),
            seats: (0..num_ranks).map(|_| Seat { own: own(), ..Seat::default() }).collect(),
            failed: AtomicBool::new(false),
            error: OnceLock::new(),
            deadline,
            polls,
        }
    }

    pub fn check(&self) -> Result<()> {
        match self.failed.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(self.error.get().expect("the error is set before the flag").clone()),
        }
    }

    /// Ends the job with `error`, unless it has ended with another one, and wakes everybody. The
    /// answer is the job's error.
    pub fn fail(&self, error: CommError) -> CommError {
        let error = self.error.get_or_init(|| error).clone();
        self.failed.store(true, Ordering::SeqCst);
        self.wake_all();
        error
    }

    /// Notes that `rank` has come to a step.
    pub fn enter(&self, rank: Rank, id: &StepId) {
        let place = (id.sequence << 16 | u64::from(id.step.min(0xffff))) + 1;
        self.seats[rank.0].own.place.store(place, Ordering::Relaxed);
    }

    /// Notes that `rank` is done.
    pub fn close(&self, rank: Rank) {
        self.seats[rank.0].closed.store(true, Ordering::SeqCst);
        self.wake_all();
    }

    /// Wakes `rank` if it sleeps. To be called after what it may be waiting for has been stored and
    /// [`World::order`] was called.
    pub fn wake(&self, rank: Rank) {
        if self.seats[rank.0].sleeps.load(Ordering::SeqCst) {
            self.seats[rank.0].wake();
        }
    }

    /// Between a store that a rank may be waiting for and the question whether it sleeps; it
    /// stores that he sleeps before he looks a last time, so one of the two sees the other.
    pub fn order(&self) {
        fence(Ordering::SeqCst);
    }

    /// Waits until `poll` answers that no rank is pending.
    pub fn wait(
        &self,
        me: Rank,
        id: &StepId,
        mut poll: impl FnMut() -> Result<Option<Rank>>,
    ) -> Result<()> {
        if poll()?.is_none() {
            return Ok(());
        }
        let patience = &self.seats[me.0].own.polls;
        let polls = patience.load(Ordering::Relaxed);
        for _ in 1..polls {
            std::hint::spin_loop();
            if poll()?.is_none() {
                patience.store(learn(self.polls, polls, true), Ordering::Relaxed);
                return Ok(());
            }
            if self.failed.load(Ordering::Relaxed) {
                break;
            }
        }
        patience.store(learn(self.polls, polls, false), Ordering::Relaxed);
        self.wait_long(me, id, &mut poll)
    }

    #[cold]
    fn wait_long(
        &self,
        me: Rank,
        id: &StepId,
        poll: &mut dyn FnMut() -> Result<Option<Rank>>,
    ) -> Result<()> {
        let start = Instant::now();
        loop {
            // The order matters: what a peer has done before it closed or failed still counts.
            let closed = self.any_closed();
            let Some(pending) = poll()? else { return Ok(()) };
            self.check()?;
            let waited = start.elapsed();
            if closed && let Some(gone) = self.gone(me, poll)? {
                let reason = format!("it left before {} {}", id.operation, id.sequence);
                return Err(self.fail(CommError::PeerLost { culprit: gone, seen_by: me, reason }));
            }
            if waited >= self.deadline {
                return Err(self.fail(self.timeout(me, id, pending, waited)));
            }
            if waited < YIELDING {
                std::thread::yield_now();
            } else if self.sleep(me, poll, (self.deadline - waited).min(LONGEST_SLEEP))? {
                return Ok(());
            }
        }
    }

    /// Sleeps until woken, for `longest` at most. True: no rank was pending any more.
    fn sleep(
        &self,
        me: Rank,
        poll: &mut dyn FnMut() -> Result<Option<Rank>>,
        longest: Duration,
    ) -> Result<bool> {
        let seat = &self.seats[me.0];
        seat.sleeps.store(true, Ordering::SeqCst);
        self.order();
        let done = poll().map(|pending| pending.is_none());
        if matches!(done, Ok(false)) && !self.failed.load(Ordering::SeqCst) {
            seat.sleep(longest);
        }
        seat.sleeps.store(false, Ordering::Relaxed);
        done
    }

    fn any_closed(&self) -> bool {
        self.seats.iter().any(|seat| seat.closed.load(Ordering::SeqCst))
    }

    fn gone(
        &self,
        me: Rank,
        poll: &mut dyn FnMut() -> Result<Option<Rank>>,
    ) -> Result<Option<Rank>> {
        let pending = poll()?.filter(|rank| self.seats[rank.0].closed.load(Ordering::SeqCst));
        debug_assert_ne!(pending, Some(me), "no rank waits for itself");
        Ok(pending)
    }

    /// The rank that is furthest behind is to blame; `pending` where several are.
    fn timeout(&self, me: Rank, id: &StepId, pending: Rank, waited: Duration) -> CommError {
        let place = |rank: Rank| self.seats[rank.0].own.place.load(Ordering::Relaxed);
        let others = self.topology.ranks().filter(|&rank| rank != me);
        let culprit = others.min_by_key(|&rank| (place(rank), rank != pending)).unwrap_or(pending);
        CommError::Timeout {
            culprit,
            seen_by: me,
            operation: id.operation.to_owned(),
            sequence: id.sequence,
            waited_ms: waited.as_millis() as u64,
        }
    }

    fn wake_all(&self) {
        self.order();
        for seat in &self.seats {
            seat.wake();
        }
    }
}

impl Seat {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let _guard = self.lock();
        self.sleeps.store(false, Ordering::SeqCst);
        self.condvar.notify_all();
    }

    /// Sleeps unless a rank has taken `sleeps` back in the meantime.
    fn sleep(&self, longest: Duration) {
        let guard = self.lock();
        if self.sleeps.load(Ordering::SeqCst) {
            drop(self.condvar.wait_timeout(guard, longest).unwrap_or_else(PoisonError::into_inner));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_grows_with_success_and_ends_where_it_was_in_vain() {
        // A world whose rank may keep its core, on any machine.
        let mut world = World::new(&Topology::one_node(1), Duration::from_secs(20), 0);
        world.polls = POLLS;
        world.seats[0].own.polls = AtomicU32::new(POLLS.1);
        let id = StepId { sequence: 0, step: 0, fingerprint: 0, operation: "test" };
        let polls = || world.seats[0].own.polls.load(Ordering::Relaxed);
        let wait = |looks: u32| {
            let mut left = looks;
            let ready = world.wait(Rank(0), &id, || {
                left -= 1;
                Ok((left > 0).then_some(Rank(0)))
            });
            ready.expect("nothing fails");
        };
        assert_eq!(polls(), POLLS.1);
        for expected in [500, 250, 125, 62, 40, 40] {
            wait(polls() + 2);
            assert_eq!(polls(), expected, "in vain");
        }
        wait(1);
        assert_eq!(polls(), 40, "what was there at once teaches nothing");
        for expected in [80, 160, 320, 640, 1000, 1000] {
            wait(30);
            assert_eq!(polls(), expected, "in time");
        }
    }
}
