//! A pool of threads that take tiles one by one.
//!
//! Tiles are handed out dynamically from a shared counter: with a neighbour on one core, the other
//! thread simply takes more of them, where a static split would wait for the slow one at every
//! layer. Where that is not enough, the caller works alone for a while (`balance.rs`). Which thread
//! takes a tile never changes a result: ops cut their work only by shape.

mod balance;
mod hand_over;
#[cfg(test)]
mod model;

use crate::error::{DeviceError, Result};
use std::io;
use std::ops::Range;
use std::os::unix::thread::JoinHandleExt;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use balance::{Balance, Done};
use hand_over::Team;

/// Turns spent looking for a new job before a worker sleeps: layers of one step follow each other
/// within microseconds.
const SPINS_BEFORE_SLEEP: u32 = 4_000;

/// What the hand-over stands on.
mod sync {
    pub use std::hint::spin_loop;
    pub use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    pub use std::sync::{Condvar, Mutex, MutexGuard};
    pub use std::thread::{self, JoinHandle, yield_now};

    /// Memory that the gate gives to one side.
    #[derive(Debug, Default)]
    pub struct Plain<T>(std::cell::UnsafeCell<T>);

    impl<T: Copy> Plain<T> {
        /// # Safety
        /// No one else uses it.
        pub unsafe fn set(&self, value: T) {
            // SAFETY: passed on to the caller.
            unsafe { *self.0.get() = value };
        }

        /// # Safety
        /// No one writes it.
        pub unsafe fn get(&self) -> T {
            // SAFETY: passed on to the caller.
            unsafe { *self.0.get() }
        }
    }
}

/// A fixed set of owned, named worker threads; the caller of [`Pool::run`] always takes part.
#[derive(Debug)]
pub struct Pool {
    /// A second caller meanwhile works without it.
    team: Team,
    /// Of those who take the pool; none where tasks wait for each other, which need all threads.
    balance: Option<Box<Mutex<Balance>>>,
}

impl Pool {
    /// A pool of `threads` threads in all: the caller and `threads - 1` workers. Zero counts as
    /// one. Where the system gives fewer, there are fewer: what runs on a pool does not depend on
    /// their number.
    pub fn new(threads: usize) -> Self {
        Self { team: Team::new(threads.max(1) - 1), balance: Some(Box::default()) }
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
        self.team.workers() + 1
    }

    /// Keeps each worker on one of `processors`, numbers of the system in their order, as far as
    /// both go. The caller's thread stays free, and so does what it starts.
    ///
    /// # Errors
    /// What the system says of a number that it has not, or that this process may not use.
    pub fn bind(&self, processors: &[usize]) -> io::Result<()> {
        self.team.workers.iter().zip(processors).try_for_each(|(worker, &processor)| {
            // SAFETY: a set of bits, all of which may be zero.
            let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
            if processor >= 8 * size_of_val(&set) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            // SAFETY: the number lies in the set.
            unsafe { libc::CPU_SET(processor, &mut set) };
            // SAFETY: the worker has not been joined, and the set is as long as said.
            let refused = unsafe {
                libc::pthread_setaffinity_np(worker.as_pthread_t(), size_of_val(&set), &set)
            };
            if refused == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(refused)) }
        })
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
        let is_shared = tasks > 1 && self.team.workers() > 0;
        let Some(turn) = is_shared.then(|| self.team.take()).flatten() else {
            (0..tasks).for_each(body);
            return;
        };
        let mut balance = self
            .balance
            .as_ref()
            .map(|balance| balance.lock().unwrap_or_else(PoisonError::into_inner));
        if balance.as_mut().is_some_and(|balance| balance.rests_workers()) {
            (0..tasks).for_each(body);
            return;
        }
        let begin = Instant::now();
        let job = turn.open(tasks, body);
        let own = job.take_part();
        let worked = begin.elapsed();
        drop(job);
        if let Some(balance) = &mut balance {
            let now = Instant::now();
            balance.note(&Done { tasks: (tasks, own), times: (worked, now - begin) }, now);
        }
        drop(balance);
        let panicked = turn.panicked();
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
    use std::sync::atomic::{AtomicUsize, Ordering};

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

    /// The processors that the calling thread may use.
    fn processors() -> Vec<usize> {
        // SAFETY: a set of bits, all of which may be zero.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is as long as said.
        let refused = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
        assert_eq!(refused, 0);
        // SAFETY: the numbers lie in the set.
        (0..8 * size_of_val(&set))
            .filter(|&number| unsafe { libc::CPU_ISSET(number, &set) })
            .collect()
    }

    #[test]
    fn workers_stay_where_they_are_bound_and_the_caller_is_free() {
        let pool = Pool::exactly(2).unwrap();
        let all = processors();
        let last = *all.last().unwrap();
        pool.bind(&[last]).unwrap();
        let meeting = std::sync::Barrier::new(2);
        let seen = Mutex::new(Vec::new());
        pool.run(2, &|_| {
            // Each thread takes one task.
            meeting.wait();
            seen.lock().unwrap().push(processors());
        });
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable_by_key(Vec::len);
        assert_eq!(seen, if all.len() > 1 { [vec![last], all] } else { [all.clone(), all] });
        let error = pool.bind(&[1 << 20]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
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
