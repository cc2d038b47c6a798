//! Threads in turn: exactly one runs, and the seed says which is next.
//!
//! A thread gives up its turn in calls of the system. When none can go on, the clock goes to the
//! next time at which one can.

use super::network::{Handle, Network};
use super::plan::{At, Befallen, Fault, NEVER, Options, Time, What};
use super::trace::Trace;
use crate::testing::sim::Random;
use rustix::event::PollFlags;
use std::cell::OnceCell;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;

/// More turns than any history takes that ends.
const MOST_TURNS: u64 = 500_000;

/// What ends the threads of a rank that has died.
pub struct Killed;

/// What a thread waits for.
#[derive(Debug, Clone)]
pub enum On {
    /// Its due time alone.
    Nothing,
    /// One of these stirs.
    Any(Vec<(Handle, PollFlags)>),
    /// A lock is free.
    Lock(Arc<AtomicBool>),
    /// A condition's count is another one.
    Signal(Arc<AtomicU64>, u64),
    /// A thread has ended.
    End(usize),
}

#[derive(Debug, Clone)]
enum Status {
    Ready,
    Waits { on: On, due: Time },
    Ended,
}

struct SimThread {
    rank: Option<usize>,
    name: String,
    status: Status,
    /// It has been told that its rank is dead.
    unwinds: bool,
    turn: Arc<AtomicBool>,
    os: Option<Thread>,
}

/// A process.
#[derive(Debug, Clone, Default)]
pub struct Process {
    /// Ends with `kill -9`, or with its machine.
    pub dead: bool,
    /// Stopped until then.
    pub paused_until: Time,
    /// How far its clock has jumped.
    pub jumped: Time,
    /// Calls of the system so far.
    pub calls: u64,
}

/// Everything that the threads share.
pub struct State {
    pub now: Time,
    pub random: Random,
    pub processes: Vec<Process>,
    pub network: Network,
    pub trace: Trace,
    /// What is wrong with this history: it hangs.
    pub finding: Option<String>,
    /// Faults that have happened.
    pub happened: Vec<Befallen>,
    pub options: Options,
    to_come: Vec<Fault>,
    threads: Vec<SimThread>,
    turns: u64,
    dead_ticks: Time,
    /// How often something was woken that sleeps at a word.
    pub wakes: Arc<AtomicU64>,
}

/// One history.
pub struct World {
    state: Mutex<State>,
    mistake: Option<&'static str>,
}

struct Current {
    world: Arc<World>,
    thread: usize,
}

thread_local! {
    static CURRENT: OnceCell<Current> = const { OnceCell::new() };
}

/// What a call of the system works with: the state, and who calls.
pub struct Call<'a> {
    world: &'a World,
    state: Option<MutexGuard<'a, State>>,
    pub thread: usize,
    pub rank: Option<usize>,
    /// The caller's process has died: it is only cleaning up, and nothing that it does counts.
    pub is_dead: bool,
}

impl std::ops::Deref for Call<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().expect("a call holds the state between waits")
    }
}

impl std::ops::DerefMut for Call<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("a call holds the state between waits")
    }
}

/// Runs one call of the system: `what` is its number in the trace.
///
/// # Panics
/// On a thread of no history.
pub fn call<R>(what: &'static str, body: impl FnOnce(&mut Call<'_>) -> R) -> R {
    CURRENT.with(|current| {
        let current = current.get().expect("only threads of a history call the simulated system");
        let mut call = current.world.enter(current.thread, what);
        body(&mut call)
    })
}

/// As [`call`], which neither counts nor waits: the clock, and what drops do.
pub fn glance<R>(body: impl FnOnce(&mut Call<'_>) -> R) -> Option<R> {
    CURRENT.with(|current| {
        let current = current.get()?;
        let mut call = current.world.begin(current.thread);
        Some(body(&mut call))
    })
}

/// Whether the ranks of this history make this mistake.
pub fn makes(mistake: &str) -> bool {
    CURRENT.with(|current| current.get().is_some_and(|c| c.world.mistake == Some(mistake)))
}

impl World {
    pub fn new(options: Options) -> Arc<Self> {
        let processes = vec![Process::default(); options.num_ranks];
        let mistake = options.mistake;
        let state = State {
            now: 0,
            random: Random::new(options.seed),
            processes,
            network: Network::new(options.network.clone()),
            trace: Trace::new(options.keep_lines),
            finding: None,
            happened: Vec::new(),
            to_come: options.faults.clone(),
            threads: Vec::new(),
            turns: 0,
            dead_ticks: 0,
            wakes: Arc::default(),
            options,
        };
        Arc::new(Self { state: Mutex::new(state), mistake })
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread of `rank` that may have the next turn; its number.
    pub fn add(&self, rank: Option<usize>, name: &str) -> usize {
        let mut state = self.lock();
        state.threads.push(SimThread {
            rank,
            name: name.to_owned(),
            status: Status::Ready,
            unwinds: false,
            turn: Arc::default(),
            os: None,
        });
        state.threads.len() - 1
    }

    /// What an operating system's thread begins with: it is that thread, and waits for its turn.
    pub fn become_thread(self: &Arc<Self>, thread: usize) {
        let current = Current { world: Arc::clone(self), thread };
        CURRENT.with(|place| assert!(place.set(current).is_ok(), "a thread is of one history"));
        let turn = {
            let mut state = self.lock();
            state.threads[thread].os = Some(std::thread::current());
            Arc::clone(&state.threads[thread].turn)
        };
        wait_for_turn(&turn);
    }

    /// The first turn, once all threads of the beginning have been added.
    pub fn start(&self) {
        let mut state = self.lock();
        let first = state.choose();
        state.hand_over(first);
    }

    /// The calling thread is done.
    pub fn end_thread(&self, thread: usize) {
        let mut state = self.lock();
        state.threads[thread].status = Status::Ended;
        state.note("ends", thread, 0);
        let next = state.choose();
        state.hand_over(next);
    }

    fn begin(&self, thread: usize) -> Call<'_> {
        let state = self.lock();
        let rank = state.threads[thread].rank;
        let is_dead = state.threads[thread].unwinds;
        Call { world: self, state: Some(state), thread, rank, is_dead }
    }

    fn enter(&self, thread: usize, what: &'static str) -> Call<'_> {
        let mut call = self.begin(thread);
        if call.is_dead {
            return call;
        }
        if let Some(rank) = call.rank {
            call.processes[rank].calls += 1;
            let calls = call.processes[rank].calls;
            call.fire(|at| *at == At::Call { rank, number: calls });
        }
        call.note(what, thread, 0);
        let percent = call.options.preempt_percent;
        if call.random.chance(percent) || call.has_to_stop(thread) {
            call.give_up(Status::Ready);
        }
        call
    }
}

/// Returns when the baton is here.
fn wait_for_turn(turn: &AtomicBool) {
    while !turn.swap(false, Ordering::Acquire) {
        std::thread::park();
    }
}

impl Call<'_> {
    /// Waits until `on` is there, at most until `due`.
    pub fn wait(&mut self, on: On, due: Time) {
        // Locks and threads are waited for by the dead, too: those who hold them are as dead.
        if !self.is_dead || matches!(on, On::Lock(_) | On::End(_)) {
            self.give_up(Status::Waits { on, due });
        }
    }

    fn give_up(&mut self, status: Status) {
        let me = self.thread;
        self.threads[me].status = status;
        let next = self.choose();
        if next != me {
            let turn = Arc::clone(&self.threads[me].turn);
            let mut state = self.state.take().expect("it is put back below");
            state.hand_over(next);
            drop(state);
            wait_for_turn(&turn);
            self.state = Some(self.world.lock());
        }
        let rank_is_dead =
            self.is_over() || self.rank.is_some_and(|rank| self.processes[rank].dead);
        if rank_is_dead && !self.threads[me].unwinds {
            self.threads[me].unwinds = true;
            self.is_dead = true;
            if !std::thread::panicking() {
                self.state = None;
                resume_unwind(Box::new(Killed));
            }
        }
    }

    /// The caller's process died while its thread cleans up: a clock by which all waits are over.
    pub fn dead_time(&mut self) -> Time {
        self.dead_ticks += 60_000_000_000;
        self.now + self.dead_ticks
    }

    /// A thread of the same rank as the caller.
    pub fn start_thread(
        &mut self,
        name: &str,
        start: impl FnOnce(Arc<World>, usize) -> std::io::Result<()>,
    ) -> std::io::Result<usize> {
        let world = CURRENT.with(|current| current.get().map(|c| Arc::clone(&c.world)));
        let world = world.expect("a call is made by a thread of a history");
        let rank = self.rank;
        self.state = None;
        let thread = world.add(rank, name);
        let started = start(Arc::clone(&world), thread);
        self.state = Some(self.world.lock());
        started.map(|()| thread)
    }
}

impl State {
    /// One event of the trace.
    pub fn note(&mut self, what: &'static str, who: usize, number: u64) {
        let Self { trace, now, threads, .. } = self;
        trace.note(*now, what, who as u64, number, || {
            let thread = &threads[who];
            let rank = thread.rank.map_or("no rank".to_owned(), |rank| format!("rank {rank}"));
            format!("{rank} {}: {what} {number}", thread.name)
        });
    }

    fn is_over(&self) -> bool {
        self.finding.is_some()
    }

    /// How a thread's process stands.
    fn has_to_stop(&self, thread: usize) -> bool {
        self.is_over()
            || self.threads[thread].rank.is_some_and(|rank| {
                let process = &self.processes[rank];
                process.dead || process.paused_until > self.now
            })
    }

    pub fn has_ended(&self, thread: usize) -> bool {
        matches!(self.threads[thread].status, Status::Ended)
    }

    fn hand_over(&self, next: usize) {
        let Some(thread) = self.threads.get(next) else { return };
        thread.turn.store(true, Ordering::Release);
        // A thread that has not begun yet looks at its turn before it waits.
        if let Some(os) = &thread.os {
            os.unpark();
        }
    }

    /// Who is next. The clock moves on where none can; none is left when all have ended.
    fn choose(&mut self) -> usize {
        loop {
            let now = self.now;
            self.fire(|at| matches!(at, At::Time(time) if *time <= now));
            self.turns += 1;
            if self.turns > MOST_TURNS {
                self.find("the ranks are busy for ever, and no time passes".to_owned());
            }
            let ready: Vec<usize> =
                (0..self.threads.len()).filter(|&thread| self.can_go_on(thread)).collect();
            if !ready.is_empty() {
                let next = ready[self.random.below(ready.len() as u64) as usize];
                self.threads[next].status = Status::Ready;
                return next;
            }
            if self.threads.iter().all(|thread| matches!(thread.status, Status::Ended)) {
                return usize::MAX;
            }
            self.pass_time();
        }
    }

    fn pass_time(&mut self) {
        let changes = (0..self.threads.len()).map(|thread| self.next_change(thread));
        let faults = self.to_come.iter().filter_map(|fault| match fault.at {
            At::Time(time) => Some(time),
            At::Call { .. } => None,
        });
        let next = changes.chain(faults).filter(|time| *time > self.now).min().unwrap_or(NEVER);
        if next == NEVER {
            let waits = self.describe();
            self.find(format!("no thread can ever go on: {waits}"));
        } else if next > self.options.limit {
            let waits = self.describe();
            self.find(format!("it hangs: {waits}"));
        } else {
            self.now = next;
        }
    }

    fn describe(&self) -> String {
        let of = |thread: &SimThread| match &thread.status {
            Status::Ended => None,
            status => Some(format!("{} of rank {:?}: {status:?}", thread.name, thread.rank)),
        };
        self.threads.iter().filter_map(of).collect::<Vec<_>>().join("; ")
    }

    /// The history is over, with this.
    fn find(&mut self, what: String) {
        self.finding.get_or_insert(what);
    }

    fn can_go_on(&self, thread: usize) -> bool {
        let SimThread { status, rank, unwinds, .. } = &self.threads[thread];
        let dead = self.is_over() || rank.is_some_and(|rank| self.processes[rank].dead);
        let paused = rank.is_some_and(|rank| self.processes[rank].paused_until > self.now);
        match status {
            Status::Ended => false,
            _ if dead && !unwinds => true,
            _ if paused && !dead => false,
            Status::Ready => true,
            Status::Waits { on, due } => *due <= self.now || self.is_there(on),
        }
    }

    fn is_there(&self, on: &On) -> bool {
        match on {
            On::Nothing => false,
            On::Any(handles) => handles
                .iter()
                .any(|(handle, wanted)| !self.network.stirs(handle, *wanted, self.now).is_empty()),
            On::Lock(held) => !held.load(Ordering::Relaxed),
            On::Signal(count, seen) => count.load(Ordering::Relaxed) != *seen,
            On::End(thread) => self.has_ended(*thread),
        }
    }

    /// When a thread may be able to go on by itself.
    fn next_change(&self, thread: usize) -> Time {
        let SimThread { status, rank, .. } = &self.threads[thread];
        let pause = rank.map_or(0, |rank| self.processes[rank].paused_until);
        let change = match status {
            Status::Ended => return NEVER,
            Status::Ready => self.now,
            Status::Waits { on: On::Any(handles), due } => {
                let stirs = handles.iter().map(|(handle, _)| self.network.next_change(handle));
                stirs.fold(*due, Time::min)
            }
            Status::Waits { due, .. } => *due,
        };
        change.max(pause)
    }

    /// The faults happen whose moment has come.
    fn fire(&mut self, has_come: impl Fn(&At) -> bool) {
        if !self.to_come.iter().any(|fault| has_come(&fault.at)) {
            return;
        }
        let come: Vec<Fault> = self.to_come.extract_if(.., |fault| has_come(&fault.at)).collect();
        for fault in come {
            let line = format!("{fault:?}");
            self.trace.note(self.now, "fault", 0, 0, || line);
            self.befall(&fault.what);
            self.happened.push(Befallen { time: self.now, fault });
        }
    }

    fn befall(&mut self, what: &What) {
        let now = self.now;
        match *what {
            What::Death { rank, silent } => {
                self.processes[rank].dead = true;
                self.network.die(rank, silent, now, &mut self.random);
            }
            What::Pause { rank, time } => {
                let process = &mut self.processes[rank];
                process.paused_until = process.paused_until.max(now.saturating_add(time));
            }
            What::Jump { rank, by } => {
                self.processes[rank].jumped += by;
                // What waits with a time waits less.
                for thread in self.threads.iter_mut().filter(|one| one.rank == Some(rank)) {
                    if let Status::Waits { due, .. } = &mut thread.status
                        && *due != NEVER
                    {
                        *due = due.saturating_sub(by).max(now);
                    }
                }
            }
            What::Reset { ranks } => self.network.reset(ranks, now, &mut self.random),
            What::Cut { from, to, time } => self.network.cut(from, to, now.saturating_add(time)),
        }
    }
}
