//! A pool of threads that take tiles one by one.
//!
//! Tiles are handed out dynamically from a shared counter: with a neighbour on one core, the other
//! thread simply takes more of them, where a static split would wait for the slow one at every
//! layer. Where that is not enough, the caller works alone for a while (`balance.rs`). Which thread
//! takes a tile never changes a result: ops cut their work only by shape.

mod balance;

use crate::error::{DeviceError, Result};
use crate::simd::Limit;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use balance::{Balance, Done};

/// Turns spent looking for a new job before a worker sleeps: layers of one step follow each other
/// within microseconds.
const SPINS_BEFORE_SLEEP: u32 = 4_000;

/// A fixed set of owned, named worker threads; the caller of [`Pool::run`] always takes part.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Whether a caller's job is running; a second caller meanwhile works without the pool.
    taken: AtomicBool,
    /// Of those who take the pool; none where tasks wait for each other, which need all threads.
    balance: Option<Box<Mutex<Balance>>>,
}

/// What callers and workers share. Jobs are handed over without a lock; one is taken only to sleep,
/// and to wake who sleeps.
#[derive(Debug, Default)]
struct Shared {
    gate: Gate,
    job: UnsafeCell<Option<Job>>,
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
// `taken` the pool, while the gate is closed and no worker is inside; it is read only by workers
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
                std::hint::spin_loop()
            } else {
                std::thread::yield_now()
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

/// A borrowed closure with its lifetime erased; valid while a worker is inside the gate, which
/// `run` closes before it returns.
#[derive(Debug, Clone, Copy)]
struct Job {
    body: *const (dyn Fn(usize) + Sync),
    tasks: usize,
    limit: Limit,
}

// SAFETY: the closure is `Sync`, and `Pool::run` does not return before every worker has let go of
// the pointer.
unsafe impl Send for Job {}

impl Pool {
    /// A pool of `threads` threads in all: the caller and `threads - 1` workers. Zero counts as
    /// one. Where the system gives fewer, there are fewer: what runs on a pool does not depend on
    /// their number.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared::default());
        let workers = (1..threads.max(1))
            .map_while(|index| {
                let shared = Arc::clone(&shared);
                let worker = std::thread::Builder::new().name(format!("headlong-{index}"));
                worker.spawn(move || work(&shared)).ok()
            })
            .collect::<Vec<_>>();
        // A thread allocates while it starts. With a pool that is done: no step allocates.
        while shared.started.load(Ordering::Acquire) < workers.len() {
            std::thread::yield_now();
        }
        let balance = Some(Box::default());
        Self { shared, workers, taken: AtomicBool::new(false), balance }
    }

    /// Exactly so many threads, all of which take part: for tasks that wait for each other.
    ///
    /// # Errors
    /// [`DeviceError::Threads`]: the system gives fewer.
    pub fn exactly(threads: usize) -> Result<Self> {
        let mut pool = Self::new(threads);
        pool.balance = None;
        if pool.threads() == threads.max(1) {
            Ok(pool)
        } else {
            Err(DeviceError::Threads { wanted: threads, given: pool.threads() })
        }
    }

    /// Threads in all, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `body` once with each of `0 .. tasks`, on all threads or on the caller's, and returns
    /// when all calls have returned.
    ///
    /// Allocates nothing. When another caller's job is running, this one works without the pool
    /// rather than wait.
    ///
    /// # Panics
    /// When a call of `body` panics.
    pub fn run(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        let is_shared = tasks > 1 && !self.workers.is_empty();
        if !is_shared || self.taken.swap(true, Ordering::Acquire) {
            (0..tasks).for_each(body);
            return;
        }
        let turn = Turn(&self.taken);
        let mut balance = self.balance.as_ref().map(|balance| lock(balance));
        if balance.as_mut().is_some_and(|balance| balance.rests_workers()) {
            (0..tasks).for_each(body);
            return;
        }
        let begin = Instant::now();
        let finish = Finish(&self.shared.gate);
        self.shared.start(tasks, body);
        let own = take_tasks(&self.shared.next_task, tasks, body);
        let worked = begin.elapsed();
        drop(finish);
        if let Some(balance) = &mut balance {
            let now = Instant::now();
            balance.note(&Done { tasks: (tasks, own), times: (worked, now - begin) }, now);
        }
        drop(balance);
        let panicked = self.shared.panicked.load(Ordering::Relaxed);
        drop(turn);
        assert!(!panicked, "a task of the pool panicked");
    }

    /// Cuts `data` into chunks of `chunk_len` (the last may be shorter) and calls
    /// `body(index, chunk)` for each.
    pub fn chunks_mut<T: Send>(
        &self,
        data: &mut [T],
        chunk_len: usize,
        body: impl Fn(usize, &mut [T]) + Sync,
    ) {
        assert!(chunk_len > 0, "chunks hold at least one element");
        let len = data.len();
        let base = SharedMut(data.as_mut_ptr());
        self.run(len.div_ceil(chunk_len), &|index| {
            let first = index * chunk_len;
            let count = chunk_len.min(len - first);
            // SAFETY: `first + count <= len`, and each index is handed out once, so chunks never
            // overlap.
            let chunk = unsafe { std::slice::from_raw_parts_mut(base.at(first), count) };
            body(index, chunk);
        });
    }

    /// Calls `body(index, part)` for the part of `data` that each of `ranges` names.
    ///
    /// # Panics
    /// When a range begins before the one before it has ended, or ends behind `data`.
    pub fn ranges_mut<T: Send>(
        &self,
        data: &mut [T],
        ranges: &[Range<usize>],
        body: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let mut free = 0;
        for range in ranges {
            assert!(free <= range.start && range.start <= range.end, "{range:?} behind {free}");
            free = range.end;
        }
        assert!(free <= data.len(), "ranges end at {free} of {}", data.len());
        let base = SharedMut(data.as_mut_ptr());
        self.run(ranges.len(), &|index| {
            let range = &ranges[index];
            // SAFETY: all ranges lie inside `data`, each behind the one before, as was just seen,
            // and each index is handed out once.
            let part = unsafe { std::slice::from_raw_parts_mut(base.at(range.start), range.len()) };
            body(index, part);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake_all();
        for worker in self.workers.drain(..) {
            // A worker that panicked has said so already, through `panicked`.
            let _ = worker.join();
        }
    }
}

/// Closes the job and waits for the workers that joined it, also when the caller's own share
/// panicked.
///
/// A worker that never woke up (its core is taken by a neighbour) is not waited for.
struct Finish<'a>(&'a Gate);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The right to hand out jobs.
struct Turn<'a>(&'a AtomicBool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Shared {
    /// Opens a job. The caller has taken the pool, and its [`Finish`] waits for all who join.
    fn start(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        self.next_task.store(0, Ordering::Relaxed);
        self.panicked.store(false, Ordering::Relaxed);
        // SAFETY: only the lifetime changes. `Finish` keeps `run` from returning before every
        // worker that joined is done with it, and closes the job to all others.
        let body = unsafe {
            std::mem::transmute::<
                *const (dyn Fn(usize) + Sync + '_),
                *const (dyn Fn(usize) + Sync + 'static),
            >(body)
        };
        // SAFETY: the gate is closed and no worker is inside, since the caller before has closed
        // it.
        unsafe { *self.job.get() = Some(Job { body, tasks, limit: Limit::current() }) };
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
            std::hint::spin_loop();
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
        // SAFETY: inside the gate the job is not written, and it stays valid: `run` waits in
        // `Finish` until all have left.
        let job = unsafe { *shared.job.get() };
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

/// A pointer that tasks on several threads may use, each for a part of its own.
///
/// Ops that write to several matrices from one tile use this, with one `SAFETY:` note that says why
/// tiles do not overlap.
#[derive(Debug)]
pub struct SharedMut<T>(*mut T);

// SAFETY: the pointer itself carries no right to touch memory; `at` hands that duty to its caller.
unsafe impl<T: Send> Send for SharedMut<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<T> {}

impl<T> Clone for SharedMut<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedMut<T> {}

impl<T> SharedMut<T> {
    /// Shares the elements of `data`; the borrow must outlive every use, which a `Pool::run` inside
    /// its scope gives.
    pub fn new(data: &mut [T]) -> Self {
        Self(data.as_mut_ptr())
    }

    /// Pointer to element `index`.
    ///
    /// # Safety
    /// `index` is at most the length of the shared slice.
    pub unsafe fn at(self, index: usize) -> *mut T {
        // SAFETY: the caller keeps `index` inside the slice.
        unsafe { self.0.add(index) }
    }

    /// The elements `first .. first + count` as a slice.
    ///
    /// # Safety
    /// The range lies inside the shared slice, the slice is still borrowed, and no other use of the
    /// range is alive.
    pub unsafe fn slice<'a>(self, first: usize, count: usize) -> &'a mut [T] {
        // SAFETY: passed on to the caller.
        unsafe { std::slice::from_raw_parts_mut(self.at(first), count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_for_any_number_of_threads() {
        for threads in [1, 2, 3, 7] {
            let pool = Pool::new(threads);
            for tasks in [0, 1, 2, 5, 100] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|task| {
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    counts.iter().all(|count| count.load(Ordering::Relaxed) == 1),
                    "{threads} threads, {tasks} tasks"
                );
            }
        }
    }

    #[test]
    fn parts_are_those_that_ranges_name() {
        let pool = Pool::new(2);
        let mut data = vec![0; 10];
        pool.ranges_mut(&mut data, &[1..3, 3..3, 4..10], |index, part| part.fill(index + 1));
        assert_eq!(data, [0, 1, 1, 0, 3, 3, 3, 3, 3, 3]);
    }

    #[test]
    #[should_panic(expected = "2..4 behind 3")]
    fn ranges_that_overlap_are_refused() {
        Pool::new(2).ranges_mut(&mut [0; 4], &[0..3, 2..4], |_, _| {});
    }

    #[test]
    #[should_panic(expected = "ranges end at 5 of 4")]
    fn ranges_behind_the_end_are_refused() {
        Pool::new(2).ranges_mut(&mut [0; 4], &[0..3, 3..5], |_, _| {});
    }

    #[test]
    fn many_small_jobs_in_a_row() {
        let pool = Pool::new(2);
        let total = AtomicUsize::new(0);
        for _ in 0..20_000 {
            pool.run(3, &|task| {
                total.fetch_add(task, Ordering::Relaxed);
            });
        }
        assert_eq!(total.load(Ordering::Relaxed), 60_000);
    }

    #[test]
    fn workers_that_sleep_or_are_about_to_are_woken() {
        let pool = Pool::exactly(3).unwrap();
        let all = std::sync::Barrier::new(3);
        for round in 0..300 {
            // No task ends before each thread has one. Pauses are shorter than a worker looks for a
            // job, longer, and between.
            pool.run(3, &|_| {
                all.wait();
            });
            std::thread::sleep(std::time::Duration::from_micros(round));
        }
    }

    #[test]
    fn chunks_cover_the_slice() {
        let pool = Pool::new(2);
        let mut data = vec![0_usize; 103];
        pool.chunks_mut(&mut data, 10, |index, chunk| chunk.fill(index));
        assert!(data.iter().enumerate().all(|(i, &chunk)| chunk == i / 10));
    }

    #[test]
    fn a_panicking_task_is_reported_and_the_pool_lives_on() {
        let pool = Pool::new(2);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(50, &|task| assert!(task != 25, "task 25 fails"));
        }));
        assert!(outcome.is_err());
        let count = AtomicUsize::new(0);
        pool.run(50, &|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.load(Ordering::Relaxed), 50);
    }

    #[test]
    fn two_callers_at_once_and_nested_calls() {
        let pool = Pool::new(2);
        let total = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.run(4, &|_| {
                            pool.run(2, &|_| {
                                total.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(total.load(Ordering::Relaxed), 3 * 200 * 8);
    }
}
