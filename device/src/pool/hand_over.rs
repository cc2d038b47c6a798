//! How jobs reach the workers, and come back: a gate instead of a lock, one counter of tasks.
//!
//! It stands on the `sync` of the module that includes it, which are two: `pool.rs`, with the
//! standard library's, and `model.rs`, which runs it in every order.

use super::SPINS_BEFORE_SLEEP;
use super::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Condvar, JoinHandle, Mutex, MutexGuard, Ordering, Plain,
    spin_loop, thread, yield_now,
};
use crate::simd::Limit;
use std::sync::{Arc, PoisonError};

/// Workers, and the right to give them a job.
#[derive(Debug)]
pub struct Team {
    shared: Arc<Shared>,
    pub(super) workers: Vec<JoinHandle<()>>,
    /// Whether a caller's job is running.
    taken: AtomicBool,
}

/// What callers and workers share. Jobs are handed over without a lock; one is taken only to sleep,
/// and to wake who sleeps.
#[derive(Debug, Default)]
struct Shared {
    gate: Gate,
    job: Plain<Option<Job>>,
    next_task: AtomicUsize,
    /// Workers that have begun.
    started: AtomicUsize,
    /// Workers that sleep, or are about to.
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    stop: AtomicBool,
    panicked: AtomicBool,
}

// SAFETY: all fields but `job` are made for sharing. `job` is written by the one caller that has
// `taken` the team, while the gate is closed and no worker is inside; it is read only by workers
// inside the gate.
unsafe impl Sync for Shared {}

/// The number of the latest job, whether workers may still join it, and how many are inside, in one
/// word: so that joining, which asks for the first two and changes the third, is one step.
#[derive(Debug, Default)]
struct Gate(AtomicU64);

const OPEN: u64 = 1 << 15;
const INSIDE: u64 = OPEN - 1;
const JOB: u32 = 16;

impl Gate {
    /// Number of the latest job.
    fn job(&self) -> u64 {
        self.0.load(Ordering::Acquire) >> JOB
    }

    /// Opens for the next job; what the opener wrote before is seen by those who enter.
    fn open(&self) {
        let next = (self.0.load(Ordering::Relaxed) >> JOB) + 1;
        // In one order with `sleepers`: either a worker that goes to sleep sees the job, or its
        // opener sees the worker.
        self.0.store(next << JOB | OPEN, Ordering::SeqCst);
    }

    /// Closes, and returns when no worker is inside.
    fn close(&self) {
        let mut inside = self.0.fetch_and(!OPEN, Ordering::AcqRel) & INSIDE;
        let mut turns = 0_u32;
        while inside != 0 {
            turns += 1;
            // Back off: on a crowded machine the worker we wait for may need this very core.
            if turns < SPINS_BEFORE_SLEEP {
                spin_loop()
            } else {
                yield_now()
            }
            inside = self.0.load(Ordering::Acquire) & INSIDE;
        }
    }

    /// Enters if it is open: the number of the latest job, and whether it was.
    fn enter(&self) -> (u64, bool) {
        let enter = |word| (word & OPEN != 0).then_some(word + 1);
        match self.0.fetch_update(Ordering::Acquire, Ordering::Acquire, enter) {
            Ok(word) => (word >> JOB, true),
            Err(word) => (word >> JOB, false),
        }
    }

    fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// A borrowed closure with its lifetime erased; valid while a worker is inside the gate, which the
/// caller closes before it returns.
#[derive(Debug, Clone, Copy)]
struct Job {
    body: *const (dyn Fn(usize) + Sync),
    tasks: usize,
    limit: Limit,
}

// SAFETY: the closure is `Sync`, and its caller does not return before every worker has let go of
// the pointer.
unsafe impl Send for Job {}

impl Team {
    /// So many workers, or as many as the system gives.
    pub fn new(workers: usize) -> Self {
        let shared = Arc::new(Shared::default());
        let workers = (1..=workers)
            .map_while(|index| {
                let shared = Arc::clone(&shared);
                let worker = thread::Builder::new().name(format!("headlong-{index}"));
                worker.spawn(move || work(&shared)).ok()
            })
            .collect::<Vec<_>>();
        // A thread allocates while it starts. With a pool that is done: no step allocates.
        while shared.started.load(Ordering::Acquire) < workers.len() {
            yield_now();
        }
        Self { shared, workers, taken: AtomicBool::new(false) }
    }

    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// The right to hand out jobs, if no other caller has it.
    pub fn take(&self) -> Option<Turn<'_>> {
        // Made only then: dropped, a turn gives the right back.
        (!self.taken.swap(true, Ordering::Acquire)).then(|| Turn(self))
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake_all();
        for worker in self.workers.drain(..) {
            // A worker that panicked has said so already, through `panicked`.
            let _ = worker.join();
        }
    }
}

/// The right to hand out jobs.
pub struct Turn<'a>(&'a Team);

impl Turn<'_> {
    /// Opens a job to the workers, until it is dropped.
    pub fn open<'a>(&'a self, tasks: usize, body: &'a (dyn Fn(usize) + Sync)) -> Open<'a> {
        let open = Open { shared: &self.0.shared, tasks, body };
        self.0.shared.start(tasks, body);
        open
    }

    /// Whether a task of the latest job has panicked on a worker.
    pub fn panicked(&self) -> bool {
        self.0.shared.panicked.load(Ordering::Relaxed)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

/// A job. Dropped, it is closed and waits for the workers that joined it, also when the caller's
/// own share panicked.
///
/// A worker that never woke up (its core is taken by a neighbour) is not waited for.
pub struct Open<'a> {
    shared: &'a Shared,
    tasks: usize,
    body: &'a (dyn Fn(usize) + Sync),
}

impl Open<'_> {
    /// The caller's share: how many tasks it took.
    pub fn take_part(&self) -> usize {
        take_tasks(&self.shared.next_task, self.tasks, self.body)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.shared.gate.close();
    }
}

impl Shared {
    /// Opens a job. The caller has taken the team, and its [`Open`] waits for all who join.
    fn start(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        self.next_task.store(0, Ordering::Relaxed);
        self.panicked.store(false, Ordering::Relaxed);
        // SAFETY: only the lifetime changes. `Open` keeps its caller from returning before every
        // worker that joined is done with it, and closes the job to all others.
        let body = unsafe {
            std::mem::transmute::<
                *const (dyn Fn(usize) + Sync + '_),
                *const (dyn Fn(usize) + Sync + 'static),
            >(body)
        };
        // SAFETY: the gate is closed and no worker is inside, since the caller before has closed
        // it.
        unsafe { self.job.set(Some(Job { body, tasks, limit: Limit::current() })) };
        self.gate.open();
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.wake_all();
        }
    }

    fn wake_all(&self) {
        // No worker is between its search for a job and its sleep once the lock was held.
        drop(lock(&self.sleep));
        self.wake.notify_all();
    }

    /// Returns when there is another job than number `seen`, or `false` when there will be none.
    fn wait_for_job(&self, seen: u64) -> bool {
        for _ in 0..SPINS_BEFORE_SLEEP {
            if self.gate.job() != seen {
                return true;
            }
            spin_loop();
        }
        let mut guard = lock(&self.sleep);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let is_stopped = || self.stop.load(Ordering::SeqCst);
        while self.gate.0.load(Ordering::SeqCst) >> JOB == seen && !is_stopped() {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        !is_stopped()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns how many it took.
fn take_tasks(next: &AtomicUsize, tasks: usize, body: &(dyn Fn(usize) + Sync)) -> usize {
    let mut taken = 0;
    loop {
        let task = next.fetch_add(1, Ordering::Relaxed);
        if task >= tasks {
            return taken;
        }
        body(task);
        taken += 1;
    }
}

fn work(shared: &Shared) {
    shared.started.fetch_add(1, Ordering::Release);
    let mut seen = 0;
    while shared.wait_for_job(seen) {
        let (latest, is_inside) = shared.gate.enter();
        seen = latest;
        if !is_inside {
            continue;
        }
        // SAFETY: inside the gate the job is not written, and it stays valid: `Open`
        // waits until all have left.
        let job = unsafe { shared.job.get() };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let Some(Job { body, tasks, limit }) = job else {
                unreachable!("the gate opens for a job")
            };
            limit.set();
            // SAFETY: as above.
            take_tasks(&shared.next_task, tasks, unsafe { &*body });
        }));
        if outcome.is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.gate.leave();
    }
}
