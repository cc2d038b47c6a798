//! The state of a job as one rank sees it: its first error, who waits for whom, who has said
//! goodbye.

use super::busy::BusyRanks;
use super::control_frame::{BusyRank, Control, Outbox};
use crate::error::{CommError, Result};
use crate::system::{Condvar, Instant, Mutex, MutexGuard, TcpStream, WakeUp};
use crate::topology::Rank;
use crate::transport::StepId;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{OnceLock, PoisonError};
use std::time::Duration;

/// How long a lost data connection waits for the control channel to say what really happened.
const GRACE: Duration = Duration::from_millis(200);
const VERDICT: Duration = Duration::from_secs(1);
/// The most that a stop of this process takes of such a wait.
const SLICE: Duration = Duration::from_millis(50);
const NONE: usize = usize::MAX;

/// A control connection: to rank 0, or from it.
pub struct Link {
    pub peer: Rank,
    pub stream: TcpStream,
    pub outbox: Mutex<Outbox>,
}

pub struct Status {
    /// [`StepId::progress`].
    progress: AtomicU64,
    waiting_for: AtomicUsize,
    /// In time listened.
    heard_ns: AtomicU64,
}

#[derive(Default)]
struct Ending {
    first: Option<CommError>,
    said_goodbye: bool,
    /// Who has said it, by rank, and how many have.
    goodbyes: Vec<bool>,
    num_goodbyes: usize,
    farewell: bool,
}

/// Shared by the thread that computes and the thread of the control channel.
pub struct Health {
    rank: Rank,
    num_ranks: usize,
    /// How long this rank has listened to others: time in which it was stopped itself says nothing
    /// of them.
    listened_ns: AtomicU64,
    /// A status older than this says nothing.
    fresh: Duration,
    failed: AtomicBool,
    stop: AtomicBool,
    ending: Mutex<Ending>,
    changed: Condvar,
    statuses: Vec<Status>,
    pub(super) busy: BusyRanks,
    links: Vec<Link>,
    wake_up: WakeUp,
    /// By rank; none to itself, and none before the first exchange with a peer.
    data: Vec<OnceLock<TcpStream>>,
}

#[derive(Debug, Clone, Copy)]
pub struct Wait {
    since: Instant,
    excused: Duration,
}

impl Wait {
    pub fn begin(health: &Health) -> Self {
        Self { since: Instant::now(), excused: health.excused() }
    }

    /// How long it lasts, without the time for which other ranks were busy.
    pub fn time(self, health: &Health) -> Duration {
        self.since.elapsed().saturating_sub(health.excused().saturating_sub(self.excused))
    }
}

impl Health {
    /// The state at the start: rank 0 has a link from everybody, the others have one to rank 0.
    pub fn new(
        rank: Rank,
        num_ranks: usize,
        links: Vec<Link>,
        heartbeat: Duration,
    ) -> Result<Self> {
        let wake_up = WakeUp::new().map_err(|error| CommError::system("eventfd", error))?;
        let status = || Status {
            progress: AtomicU64::new(0),
            waiting_for: AtomicUsize::new(NONE),
            heard_ns: AtomicU64::new(0),
        };
        Ok(Self {
            rank,
            num_ranks,
            listened_ns: AtomicU64::new(0),
            fresh: heartbeat * 5 / 2,
            failed: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            ending: Mutex::new(Ending { goodbyes: vec![false; num_ranks], ..Ending::default() }),
            changed: Condvar::new(),
            statuses: (0..num_ranks).map(|_| status()).collect(),
            busy: BusyRanks::default(),
            links,
            wake_up,
            data: (0..num_ranks).map(|_| OnceLock::new()).collect(),
        })
    }

    pub fn rank(&self) -> Rank {
        self.rank
    }

    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Becomes readable when the control thread should look around.
    pub fn wake_up(&self) -> &WakeUp {
        &self.wake_up
    }

    /// Takes the data connection to `peer`, so that a failure can end all waiting on it.
    pub fn set_data(&self, peer: Rank, stream: TcpStream) {
        assert!(self.data[peer.0].set(stream).is_ok(), "a peer has one data connection");
        if self.has_failed() {
            self.cut();
        }
    }

    pub fn has_data(&self, peer: Rank) -> bool {
        self.data[peer.0].get().is_some()
    }

    pub fn data(&self, peer: Rank) -> &TcpStream {
        self.data[peer.0].get().expect("peers are connected before they exchange")
    }

    fn lock(&self) -> MutexGuard<'_, Ending> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the job has failed: one load.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub fn check(&self) -> Result<()> {
        if !self.has_failed() {
            return Ok(());
        }
        self.lock().first.clone().map_or(Ok(()), Err)
    }

    /// Ends the job with `error`, unless it has ended already, and tells the others. Returns the
    /// first error.
    pub fn fail(&self, error: CommError) -> CommError {
        let mut ending = self.lock();
        if let Some(first) = &ending.first {
            return first.clone();
        }
        ending.first = Some(error.clone());
        let over = ending.farewell;
        drop(ending);
        self.failed.store(true, Ordering::Release);
        if !over {
            self.tell(&match self.rank {
                Rank(0) => Control::Abort { error: error.clone() },
                _ => Control::Report { error: error.clone(), suspicion: false },
            });
        }
        self.cut();
        self.changed.notify_all();
        error
    }

    /// Ends all waiting on data connections: their reader finds the first error.
    fn cut(&self) {
        for stream in self.data.iter().filter_map(OnceLock::get) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// This rank has seen what a failure looks like from here. Rank 0 sees more: its word is waited
    /// for, shortly.
    pub fn suspect(&self, error: CommError) -> CommError {
        if self.rank == Rank(0) {
            if matches!(error, CommError::PeerLost { .. }) {
                self.wait_for_first(GRACE);
            }
            return self.fail(self.resolve(error));
        }
        self.tell(&Control::Report { error: error.clone(), suspicion: true });
        match self.wait_for_first(VERDICT) {
            Some(first) => first,
            // Rank 0 does not answer. If it has been silent anyway, it is the one.
            None => self.fail(self.resolve(error)),
        }
    }

    /// Waits until [`Health::announce`] has been called and `is_there` says yes, at most `longest`.
    ///
    /// # Errors
    /// The job's first error.
    pub fn wait_for_change(&self, longest: Duration, is_there: impl Fn() -> bool) -> Result<()> {
        let waits = |ending: &mut Ending| ending.first.is_none() && !is_there();
        let waited = self.changed.wait_timeout_while(self.lock(), longest, waits);
        let (ending, _) = waited.unwrap_or_else(PoisonError::into_inner);
        ending.first.clone().map_or(Ok(()), Err)
    }

    /// Wakes who waits in [`Health::wait_for_change`].
    pub fn announce(&self) {
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Waits in slices: if this process is stopped meanwhile, that uses up one slice at most, since
    /// nothing can arrive while it is stopped.
    fn wait_for_first(&self, longest: Duration) -> Option<CommError> {
        let mut left = longest;
        loop {
            let slice = left.min(SLICE);
            let nothing_yet = |ending: &mut Ending| ending.first.is_none();
            let waited = self.changed.wait_timeout_while(self.lock(), slice, nothing_yet);
            let (ending, _) = waited.unwrap_or_else(PoisonError::into_inner);
            left -= slice;
            if ending.first.is_some() || left.is_zero() {
                return ending.first.clone();
            }
        }
    }

    /// Whom an error should name. A timeout: the rank at the end of the line of those that wait for
    /// each other, as far as rank 0 knows. Anything that another rank sees while rank 0 is silent:
    /// rank 0, which may have ended the job without its hearing of it.
    pub fn resolve(&self, error: CommError) -> CommError {
        let is_cut_off = self.rank != Rank(0) && !self.is_fresh(Rank(0));
        match error {
            CommError::Timeout { culprit, seen_by, operation, sequence, waited_ms } => {
                let culprit = match self.rank {
                    Rank(0) => self.end_of_line(culprit),
                    _ if is_cut_off => Rank(0),
                    _ => culprit,
                };
                CommError::Timeout { culprit, seen_by, operation, sequence, waited_ms }
            }
            CommError::PeerLost { culprit, seen_by, reason }
                if is_cut_off && culprit != Rank(0) =>
            {
                let reason = format!("it is silent, and from {culprit} comes: {reason}");
                CommError::PeerLost { culprit: Rank(0), seen_by, reason }
            }
            other => other,
        }
    }

    /// The rank that `first` waits for in the end, and that waits for none.
    fn end_of_line(&self, first: Rank) -> Rank {
        let mut line = vec![first];
        let mut is_in_line = vec![false; self.num_ranks];
        loop {
            let last = line[line.len() - 1];
            is_in_line[last.0] = true;
            let next = self.statuses[last.0].waiting_for.load(Ordering::Relaxed);
            // One that has said goodbye waits for the end alone: it has left out something before.
            let waits = next < self.num_ranks && !self.has_said_goodbye(last);
            if !waits || !self.is_fresh(last) {
                return last;
            }
            if is_in_line[next] {
                let begin = line.iter().position(|rank| rank.0 == next).unwrap_or(0);
                return self.end_of_circle(&line[begin..]);
            }
            line.push(Rank(next));
        }
    }

    /// Of ranks that wait for each other in a circle, the one that the rank furthest behind waits
    /// for: what it has sent must have been lost. Of several such it is the first of the circle.
    fn end_of_circle(&self, circle: &[Rank]) -> Rank {
        let progress = |place: &usize| {
            let waiting = circle[(place + circle.len() - 1) % circle.len()];
            self.statuses[waiting.0].progress.load(Ordering::Relaxed)
        };
        circle[(0..circle.len()).min_by_key(progress).unwrap_or(0)]
    }

    fn is_fresh(&self, rank: Rank) -> bool {
        let heard = Duration::from_nanos(self.statuses[rank.0].heard_ns.load(Ordering::Relaxed));
        rank == self.rank || self.listened().saturating_sub(heard) < self.fresh
    }

    /// For how long the control thread has listened.
    fn listened(&self) -> Duration {
        Duration::from_nanos(self.listened_ns.load(Ordering::Relaxed))
    }

    /// The control thread has listened for so long again.
    pub fn note_listened(&self, time: Duration) {
        self.listened_ns.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub fn note_step(&self, id: &StepId) {
        self.statuses[self.rank.0].progress.store(id.progress(), Ordering::Relaxed);
    }

    pub fn note_waiting(&self, peer: Option<Rank>) {
        let peer = peer.map_or(NONE, |rank| rank.0);
        self.statuses[self.rank.0].waiting_for.store(peer, Ordering::Relaxed);
    }

    /// A peer has said what it does; of rank 0, also what others do.
    pub fn note_heartbeat(
        &self,
        peer: Rank,
        progress: u64,
        waiting_for: Option<usize>,
        busy: Vec<BusyRank>,
    ) {
        let told = busy.into_iter().filter(|busy| busy.rank == peer.0 || peer == Rank(0));
        self.busy.hear(peer, told.filter(|busy| busy.rank != self.rank.0).collect());
        let status = &self.statuses[peer.0];
        status.progress.store(progress, Ordering::Relaxed);
        status.waiting_for.store(waiting_for.unwrap_or(NONE), Ordering::Relaxed);
        status.heard_ns.store(self.listened().as_nanos() as u64, Ordering::Relaxed);
    }

    pub fn heartbeat(&self) -> Control {
        let status = &self.statuses[self.rank.0];
        let waiting_for =
            Some(status.waiting_for.load(Ordering::Relaxed)).filter(|peer| *peer != NONE);
        let progress = status.progress.load(Ordering::Relaxed);
        Control::Heartbeat { progress, waiting_for, busy: self.told_busy() }
    }

    /// The busy ranks that this one tells of: itself; rank 0 all that it knows of, because the
    /// others hear of them only from it.
    pub fn told_busy(&self) -> Vec<BusyRank> {
        let mut busy = self.busy_ranks();
        busy.retain(|busy| self.rank == Rank(0) || busy.rank == self.rank.0);
        busy
    }

    /// Ranks that are busy, as far as this one knows. One that waits for a peer itself is not: it
    /// could wait for ever.
    pub fn busy_ranks(&self) -> Vec<BusyRank> {
        let waits = self.statuses[self.rank.0].waiting_for.load(Ordering::Relaxed) != NONE;
        let own = self.busy.own(self.rank).filter(|_| !waits);
        own.into_iter().chain(self.busy.others(&|rank| self.is_fresh(rank))).collect()
    }

    pub fn is_anybody_waiting(&self) -> bool {
        let waits = |status: &Status| status.waiting_for.load(Ordering::Relaxed) != NONE;
        self.statuses.iter().any(waits)
    }

    /// For how long other ranks have been busy since the job began: waiting for them does not
    /// count.
    pub fn excused(&self) -> Duration {
        self.busy.excused()
    }

    pub fn tell(&self, frame: &Control) {
        let mut all_sent = true;
        let bytes = frame.to_bytes();
        for link in &self.links {
            let mut outbox = link.outbox.lock().unwrap_or_else(PoisonError::into_inner);
            outbox.send(&link.stream, &bytes);
            all_sent &= outbox.is_empty();
        }
        if !all_sent {
            self.wake();
        }
    }

    pub fn wake(&self) {
        self.wake_up.ring();
    }

    /// A peer has said goodbye; the last one makes rank 0 send everybody home.
    pub fn note_goodbye(&self, peer: Rank) {
        let mut ending = self.lock();
        let is_first = !std::mem::replace(&mut ending.goodbyes[peer.0], true);
        ending.num_goodbyes += usize::from(is_first);
        self.maybe_farewell(ending);
        // Rank 0 may be waiting for this one: it notes which is missing now.
        self.changed.notify_all();
    }

    pub fn has_said_goodbye(&self, peer: Rank) -> bool {
        self.lock().goodbyes[peer.0]
    }

    fn maybe_farewell(&self, mut ending: MutexGuard<'_, Ending>) {
        let complete = ending.said_goodbye && ending.num_goodbyes + 1 == self.num_ranks;
        if self.rank != Rank(0) || !complete || ending.farewell || ending.first.is_some() {
            return;
        }
        ending.farewell = true;
        drop(ending);
        self.tell(&Control::Farewell);
        self.changed.notify_all();
        self.wake();
    }

    pub fn note_farewell(&self) {
        self.lock().farewell = true;
        self.changed.notify_all();
    }

    pub fn is_over(&self) -> bool {
        self.lock().farewell
    }

    pub fn close(&self, longest: Duration) -> Result<()> {
        let mut ending = self.lock();
        if ending.farewell {
            return Ok(());
        }
        if let Some(first) = &ending.first {
            return Err(first.clone());
        }
        let wait = Wait::begin(self);
        if !std::mem::replace(&mut ending.said_goodbye, true) && self.rank != Rank(0) {
            drop(ending);
            self.tell(&Control::Goodbye);
        } else {
            self.maybe_farewell(ending);
        }
        self.wait_for_farewell(wait, longest)
    }

    fn wait_for_farewell(&self, wait: Wait, longest: Duration) -> Result<()> {
        loop {
            let ending = self.lock();
            if ending.farewell {
                self.note_waiting(None);
                return Ok(());
            }
            if let Some(first) = &ending.first {
                return Err(first.clone());
            }
            let others = (1..self.num_ranks).map(Rank);
            let missing = match self.rank {
                Rank(0) => {
                    others.into_iter().find(|rank| !ending.goodbyes[rank.0]).unwrap_or(Rank(0))
                }
                _ => Rank(0),
            };
            self.note_waiting(Some(missing));
            let left = longest.saturating_sub(wait.time(self));
            if left.is_zero() {
                drop(ending);
                return Err(self.suspect(self.late(missing, "goodbye", 0, longest)));
            }
            drop(self.changed.wait_timeout(ending, left));
        }
    }

    pub fn late(
        &self,
        culprit: Rank,
        operation: &str,
        sequence: u64,
        waited: Duration,
    ) -> CommError {
        CommError::Timeout {
            culprit,
            seen_by: self.rank,
            operation: operation.into(),
            sequence,
            waited_ms: waited.as_millis() as u64,
        }
    }

    pub fn lost(&self, culprit: Rank, reason: impl Into<String>) -> CommError {
        CommError::PeerLost { culprit, seen_by: self.rank, reason: reason.into() }
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    pub fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}
