//! A pool of threads that take tiles one by one.
//!
//! Tiles are handed out dynamically from a shared counter: with a neighbour on one core, the other thread simply takes
//! more of them, where a static split would wait for the slow one at every layer. Which thread takes a tile never changes
//! a result: ops cut their work by shape alone.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Turns spent looking for a new job before a worker sleeps: layers of one step follow each other within microseconds.
const SPINS_BEFORE_SLEEP: u32 = 4_000;

/// A fixed set of owned, named worker threads; the caller of [`Pool::run`] always takes part.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the caller whose job is running; a second caller works alone meanwhile.
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    /// Counts jobs, so that a spinning worker sees a new one without the lock.
    generation: AtomicUsize,
    next_task: AtomicUsize,
    /// Workers that have begun.
    started: AtomicUsize,
    /// Workers that joined the running job and may still touch it. Raised under the lock only.
    active: AtomicUsize,
    panicked: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    job: Option<Job>,
    generation: usize,
    stop: bool,
}

/// A borrowed closure with its lifetime erased; valid until `run` has seen `active` fall to zero.
#[derive(Debug, Clone, Copy)]
struct Job {
    body: *const (dyn Fn(usize) + Sync),
    tasks: usize,
}

// SAFETY: the closure is `Sync`, and `Pool::run` does not return before every worker has let go of the pointer.
unsafe impl Send for Job {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic in a task is counted in `panicked`; the data behind our locks is plain and stays valid.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// A pool of `threads` threads in all: the caller and `threads - 1` workers. Zero counts as one.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared::default());
        let workers = (1..threads.max(1))
            .map(|index| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("headlong-{index}"))
                    .spawn(move || work(&shared))
                    .expect("the system starts a thread; without it there is no pool to run on")
            })
            .collect::<Vec<_>>();
        // A thread allocates while it starts. Whoever has a pool has that behind it: no step allocates.
        while shared.started.load(Ordering::Acquire) < workers.len() {
            std::thread::yield_now();
        }
        Self { shared, workers, turn: Mutex::new(()) }
    }

    /// Threads in all, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `body` once with each of `0 .. tasks`, on all threads, and returns when all calls have returned.
    ///
    /// Allocates nothing. When another caller's job is running, this one works alone rather than wait.
    ///
    /// # Panics
    /// When a call of `body` panics.
    pub fn run(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        let turn = if tasks > 1 && !self.workers.is_empty() { self.turn.try_lock().ok() } else { None };
        if turn.is_none() {
            (0..tasks).for_each(body);
            return;
        }
        let finish = Finish(&self.shared);
        self.start(tasks, body);
        take_tasks(&self.shared.next_task, tasks, body);
        drop(finish);
        assert!(!self.shared.panicked.swap(false, Ordering::AcqRel), "a task of the pool panicked");
    }

    fn start(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        let shared = &self.shared;
        shared.next_task.store(0, Ordering::Relaxed);
        // SAFETY: only the lifetime changes. `Finish` keeps `run` from returning before every worker that joined is done
        // with it, and closes the job to all others.
        let body = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync + 'static)>(
                body,
            )
        };
        let mut state = lock(&shared.state);
        state.job = Some(Job { body, tasks });
        state.generation += 1;
        shared.generation.store(state.generation, Ordering::Release);
        drop(state);
        shared.wake.notify_all();
    }

    /// Cuts `data` into chunks of `chunk_len` (the last may be shorter) and calls `body(index, chunk)` for each.
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
            // SAFETY: `first + count <= len`, and each index is handed out once, so chunks never overlap.
            let chunk = unsafe { std::slice::from_raw_parts_mut(base.at(first), count) };
            body(index, chunk);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.state).stop = true;
        self.shared.generation.fetch_add(1, Ordering::Release);
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker that panicked has said so already, through `panicked`.
            let _ = worker.join();
        }
    }
}

/// Closes the job and waits for the workers that joined it, also when the caller's own share panicked.
///
/// A worker that never woke up (its core is taken by a neighbour) is not waited for.
struct Finish<'a>(&'a Shared);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).job = None;
        let mut turns = 0_u32;
        while self.0.active.load(Ordering::Acquire) != 0 {
            turns += 1;
            // Back off: on a crowded machine the worker we wait for may need this very core.
            if turns < SPINS_BEFORE_SLEEP { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
}

fn take_tasks(next: &AtomicUsize, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
    loop {
        let task = next.fetch_add(1, Ordering::Relaxed);
        if task >= tasks {
            return;
        }
        body(task);
    }
}

fn work(shared: &Shared) {
    shared.started.fetch_add(1, Ordering::Release);
    let mut seen = 0;
    loop {
        let mut turns = 0;
        while shared.generation.load(Ordering::Acquire) == seen && turns < SPINS_BEFORE_SLEEP {
            turns += 1;
            std::hint::spin_loop();
        }
        let mut state = lock(&shared.state);
        while state.generation == seen && !state.stop {
            state = shared.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stop {
            return;
        }
        seen = state.generation;
        let Some(job) = state.job else { continue };
        shared.active.fetch_add(1, Ordering::Relaxed);
        drop(state);
        // SAFETY: joined under the lock while the job was open, so `run` waits in `Finish` for the subtraction below.
        let body = unsafe { &*job.body };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            take_tasks(&shared.next_task, job.tasks, body);
        }));
        if outcome.is_err() {
            shared.panicked.store(true, Ordering::Release);
        }
        shared.active.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A pointer that tasks on several threads may use, each for a part of its own.
///
/// Ops that write to several matrices from one tile use this, with one `SAFETY:` note that says why tiles do not overlap.
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
    /// Shares the elements of `data`; the borrow must outlive every use, which a `Pool::run` inside its scope gives.
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
    /// The range lies inside the shared slice, the slice is still borrowed, and no other use of the range is alive.
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
