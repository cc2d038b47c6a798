//! Lanes at the same time, with the stages' waits between them: one thread for the exchanges, one
//! for all that computes.

use super::{Lane, MOST_STAGES, walk_in_order};
use crate::error::{Error, Result};
use crate::iteration::model::Model;
use crate::iteration::schedule::{Call, Repeat, Schedule};
use crate::iteration::trace::Recorder;
use headlong_device::Stream;
use headlong_device::pool::Pool;
use std::iter::Enumerate;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Looks for a stage that is ready before a thread sleeps: most stages follow each other within
/// microseconds.
const LOOKS_BEFORE_SLEEP: u32 = 50;

/// Set in the counters where a stage has failed: no one waits for the walk any more.
const FAILED: u32 = 1 << 31;

const COMPUTING: [Lane; 3] = [Lane::Copy, Lane::Sparse, Lane::Dense];

/// The two threads and what they tell each other.
#[derive(Debug)]
pub(super) struct Overlapped {
    threads: Pool,
    /// How often each stage has run in this walk.
    runs: [AtomicU32; MOST_STAGES],
    /// Held while a thread goes to sleep or wakes the other.
    gate: Mutex<()>,
    wake: Condvar,
}

impl Overlapped {
    pub(super) fn new() -> Result<Self> {
        let threads = Pool::exactly(2).map_err(Error::failed("the lanes cannot be started"))?;
        Ok(Self {
            threads,
            runs: std::array::from_fn(|_| AtomicU32::new(0)),
            gate: Mutex::new(()),
            wake: Condvar::new(),
        })
    }

    pub(super) fn walk(
        &self,
        stream: &Stream,
        schedule: &Schedule,
        model: &Model,
        call: &Call<'_>,
        recorder: &mut Recorder,
    ) -> Result<()> {
        if model.is_single_rank() {
            // Nothing is exchanged, so nothing can overlap.
            return walk_in_order(stream, schedule, model, call, recorder);
        }
        assert!(schedule.stages.len() <= MOST_STAGES, "at most {MOST_STAGES} stages in a list");
        self.runs.iter().for_each(|runs| runs.store(0, Ordering::Relaxed));
        let recorder = Mutex::new(recorder);
        let first_error = Mutex::new(None);
        let walk = Walk { lanes: self, stream, schedule, model, call, recorder: &recorder };
        self.threads.run(2, &|thread| {
            // A panic must reach the walk's caller, not leave the other thread waiting for it.
            let alarm = Alarm { lanes: self, model };
            let lanes = if thread == 0 { &COMPUTING[..] } else { &[Lane::Comm] };
            let outcome = walk.run_lanes(lanes);
            std::mem::forget(alarm);
            if let Err(error) = outcome {
                // The peers first: this rank's own exchange may be waiting for them.
                model.abort(&error);
                lock(&first_error).get_or_insert(error);
                self.fail();
            }
        });
        first_error.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn has_failed(&self) -> bool {
        self.runs[0].load(Ordering::Acquire) & FAILED != 0
    }

    fn fail(&self) {
        self.runs.iter().for_each(|runs| {
            runs.fetch_or(FAILED, Ordering::Release);
        });
        self.wake_all();
    }

    fn wake_all(&self) {
        drop(lock(&self.gate));
        self.wake.notify_all();
    }
}

struct Walk<'a> {
    lanes: &'a Overlapped,
    stream: &'a Stream,
    schedule: &'a Schedule,
    model: &'a Model,
    call: &'a Call<'a>,
    recorder: &'a Mutex<&'a mut Recorder>,
}

/// How far a lane has come: its next run, and what follows.
struct Cursor<I> {
    lane: Lane,
    order: Enumerate<I>,
    /// Place in program order, place of the stage in the list, micro-batch.
    head: Option<(usize, (usize, usize))>,
}

impl<I: Iterator<Item = (usize, usize)>> Cursor<I> {
    fn new(lane: Lane, schedule: &Schedule, order: I) -> Self {
        let mut cursor = Self { lane, order: order.enumerate(), head: None };
        cursor.advance(schedule);
        cursor
    }

    fn advance(&mut self, schedule: &Schedule) {
        self.head = self.order.find(|(_, (index, _))| schedule.stages[*index].lane == self.lane);
    }
}

impl Walk<'_> {
    /// Runs the stages of `lanes` on this thread: always the first in program order of those that
    /// are ready.
    fn run_lanes(&self, lanes: &[Lane]) -> Result<()> {
        let order = self.schedule.program_order(self.call.num_micro_batches);
        let mut cursors: [Option<Cursor<_>>; COMPUTING.len()] = std::array::from_fn(|position| {
            lanes.get(position).map(|&lane| Cursor::new(lane, self.schedule, order.clone()))
        });
        let cursors = &mut cursors[..lanes.len()];
        while cursors.iter().flatten().any(|cursor| cursor.head.is_some()) {
            let Some(next) = self.first_ready(cursors) else { return Ok(()) };
            let cursor = cursors[next].as_mut().expect("each of these lanes has a cursor");
            if let Some((_, (index, micro_batch))) = cursor.head {
                self.run(index, micro_batch)?;
            }
            cursor.advance(self.schedule);
        }
        Ok(())
    }

    /// The lane whose next run comes first among those that are ready; waits for one. None where
    /// the walk has failed.
    fn first_ready<I>(&self, cursors: &[Option<Cursor<I>>]) -> Option<usize> {
        let look = || {
            let ready = cursors.iter().enumerate().filter_map(|(position, cursor)| {
                let (place, (index, micro_batch)) = cursor.as_ref()?.head?;
                self.is_ready(index, micro_batch).then_some((place, position))
            });
            ready.min().map(|(_, position)| position)
        };
        for _ in 0..LOOKS_BEFORE_SLEEP {
            if self.lanes.has_failed() {
                return None;
            }
            if let Some(found) = look() {
                return Some(found);
            }
            std::hint::spin_loop();
        }
        let mut gate = lock(&self.lanes.gate);
        loop {
            if self.lanes.has_failed() {
                return None;
            }
            if let Some(found) = look() {
                return Some(found);
            }
            gate = self.lanes.wake.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether all that a run waits for has run.
    fn is_ready(&self, index: usize, micro_batch: usize) -> bool {
        let stages = &self.schedule.stages;
        self.schedule.within[index].iter().all(|&awaited| {
            let needed = match (stages[awaited].repeat, stages[index].repeat) {
                (Repeat::Micro, Repeat::Micro) => micro_batch + 1,
                _ => self.call.times(&stages[awaited]),
            };
            self.lanes.runs[awaited].load(Ordering::Acquire) as usize >= needed
        })
    }

    fn run(&self, index: usize, micro_batch: usize) -> Result<()> {
        let stage = &self.schedule.stages[index];
        if let Some(call) = self.call.of(stage, micro_batch) {
            let started = lock(self.recorder).start();
            stage.run(self.model, self.stream, &call)?;
            lock(self.recorder).finish(stage, started);
        }
        self.lanes.runs[index].fetch_add(1, Ordering::Release);
        self.lanes.wake_all();
        Ok(())
    }
}

/// Wakes the other thread when one panics.
struct Alarm<'a> {
    lanes: &'a Overlapped,
    model: &'a Model,
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.model.abort(&Error::Usage("a lane has panicked".to_owned()));
        self.lanes.fail();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panicking thread leaves behind is plain data; the panic itself ends the walk.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
