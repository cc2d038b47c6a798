//! Locks and conditions, at which threads give up their turn.

use super::network::Handle;
use super::plan::NEVER;
use super::streams::Pollable;
use super::time::nanoseconds;
use super::world::{On, call};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LockResult, MutexGuard as StdGuard, PoisonError};
use std::time::Duration;

/// As the standard library's; a thread that panics does not poison it.
#[derive(Debug, Default)]
pub struct Mutex<T> {
    held: Arc<AtomicBool>,
    value: std::sync::Mutex<T>,
}

/// The lock is held.
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    value: Option<StdGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self { held: Arc::default(), value: std::sync::Mutex::new(value) }
    }

    /// Waits for its turn.
    ///
    /// # Errors
    /// None: the type is the standard library's.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        call("locks", |call| {
            while self.held.load(Ordering::Relaxed) {
                call.wait(On::Lock(Arc::clone(&self.held)), NEVER);
            }
            self.held.store(true, Ordering::Relaxed);
        });
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(MutexGuard { mutex: self, value: Some(value) })
    }

    /// # Errors
    /// None.
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        Ok(self.value.get_mut().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        self.mutex.held.store(false, Ordering::Relaxed);
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("a guard holds its lock until it is dropped")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("a guard holds its lock until it is dropped")
    }
}

/// As the standard library's.
#[derive(Debug, Default)]
pub struct Condvar(Arc<AtomicU64>);

impl Condvar {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn notify_all(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits for a notice, at most `longest`. Whether that is over is the second.
    ///
    /// # Errors
    /// None.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        longest: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, bool)> {
        let mutex = guard.mutex;
        let is_late = call("waits", |call| {
            // Nothing comes between the release and the wait: no other thread has its turn.
            let seen = self.0.load(Ordering::Relaxed);
            drop(guard);
            let due = call.now.saturating_add(nanoseconds(longest));
            call.wait(On::Signal(Arc::clone(&self.0), seen), due);
            call.is_dead || call.now >= due
        });
        Ok((mutex.lock().unwrap_or_else(PoisonError::into_inner), is_late))
    }

    /// As [`Condvar::wait_timeout`], for as long as `waits`.
    ///
    /// # Errors
    /// None.
    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        longest: Duration,
        mut waits: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, bool)> {
        let due = super::Instant::now() + longest;
        while waits(&mut guard) {
            let left = due.saturating_duration_since(super::Instant::now());
            if left.is_zero() {
                return Ok((guard, true));
            }
            (guard, _) = self.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner);
        }
        Ok((guard, false))
    }
}

/// Wakes a thread that polls it.
#[derive(Debug)]
pub struct WakeUp(Arc<AtomicBool>);

impl WakeUp {
    /// # Errors
    /// None.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self(Arc::default()))
    }

    pub fn ring(&self) {
        call("rings", |_| self.0.store(true, Ordering::Relaxed));
    }

    pub fn clear(&self) {
        call("clears", |_| self.0.store(false, Ordering::Relaxed));
    }
}

impl Pollable for WakeUp {
    fn handle(&self) -> Handle {
        Handle::WakeUp(Arc::clone(&self.0))
    }
}
