//! Each lane on a thread of its own, with the stages' waits between them.

use super::{Lane, Repeat, Stage, in_program_order};
use crate::build::Model;
use crate::error::{Error, Result};
use crate::schedule::Call;
use crate::trace::Recorder;
use headlong_device::Stream;
use headlong_device::pool::Pool;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Stages of the longest list.
const MOST_STAGES: usize = 32;

/// Looks at a counter before a lane sleeps: most stages follow each other within microseconds.
const SPINS_BEFORE_SLEEP: u32 = 200;

/// Set in a counter where a stage has failed: nobody waits for the walk any more.
const FAILED: u32 = 1 << 31;

/// The lanes' threads and what they tell each other.
#[derive(Debug)]
pub(super) struct Overlapped {
    /// One thread a lane. Every lane is one task; since lanes wait for each other, each task needs a thread.
    threads: Pool,
    /// How often each stage has run in this walk.
    runs: [AtomicU32; MOST_STAGES],
    /// Held while somebody goes to sleep or wakes sleepers.
    gate: Mutex<()>,
    wake: Condvar,
}

impl Overlapped {
    pub(super) fn new() -> Self {
        Self {
            threads: Pool::new(Lane::ALL.len()),
            runs: std::array::from_fn(|_| AtomicU32::new(0)),
            gate: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    pub(super) fn walk(
        &self,
        stream: &Stream,
        stages: &[Stage],
        model: &Model,
        call: &Call<'_>,
        recorder: &mut Recorder,
    ) -> Result<()> {
        assert!(stages.len() <= MOST_STAGES, "at most {MOST_STAGES} stages in a list");
        self.runs.iter().for_each(|runs| runs.store(0, Ordering::Relaxed));
        let recorder = Mutex::new(recorder);
        let first_error = Mutex::new(None);
        self.threads.run(Lane::ALL.len(), &|lane| {
            // A panic in a lane must reach the walk's caller, not leave the other lanes waiting for it.
            let alarm = Alarm { lanes: self, model };
            let outcome = self.run_lane(Lane::ALL[lane], stream, stages, (model, call), &recorder);
            std::mem::forget(alarm);
            if let Err(error) = outcome {
                // The peers first: this rank's own exchange lane may be waiting for them.
                model.abort(&error);
                lock(&first_error).get_or_insert(error);
                self.fail();
            }
        });
        first_error.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn run_lane(
        &self,
        lane: Lane,
        stream: &Stream,
        stages: &[Stage],
        (model, call): (&Model, &Call<'_>),
        recorder: &Mutex<&mut Recorder>,
    ) -> Result<()> {
        let walked = in_program_order(stages, call, |index, stage, call| {
            if stage.lane != lane {
                return Ok(());
            }
            for wait in stage.waits {
                self.wait(stages, stage, wait, call)?;
            }
            if stage.is_in(model) {
                let started = lock(recorder).start();
                (stage.run)(model, stream, call)?;
                lock(recorder).finish(stage, started);
            }
            self.runs[index].fetch_add(1, Ordering::Release);
            self.wake_all();
            Ok(())
        });
        match walked {
            // Another lane has the error to tell.
            Err(Error::Abandoned) => Ok(()),
            other => other,
        }
    }

    /// Waits until `wait` has run as often as `stage` needs. The step before has ended, so waits for it are over.
    fn wait(&self, stages: &[Stage], stage: &Stage, wait: &str, call: &Call<'_>) -> Result<()> {
        let Some(index) = stages.iter().position(|other| other.name == wait) else { return Ok(()) };
        let needed = match (stages[index].repeat, stage.repeat) {
            (Repeat::MicroBatch, Repeat::MicroBatch) => call.micro_batch + 1,
            _ => stages[index].times(call),
        } as u32;
        let runs = &self.runs[index];
        for _ in 0..SPINS_BEFORE_SLEEP {
            if runs.load(Ordering::Acquire) >= needed {
                return outcome(runs);
            }
            std::hint::spin_loop();
        }
        let mut gate = lock(&self.gate);
        while runs.load(Ordering::Acquire) < needed {
            gate = self.wake.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        outcome(runs)
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

fn outcome(runs: &AtomicU32) -> Result<()> {
    if runs.load(Ordering::Acquire) & FAILED == 0 { Ok(()) } else { Err(Error::Abandoned) }
}

/// Wakes all lanes when a lane panics.
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
    // What a panicking lane leaves behind is plain data; the panic itself ends the walk.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
