//! What the standard library has under these names, as loom runs it.
//!
//! **`SeqCst`.** Loom takes such an access for one that acquires and releases. Here, a load that is
//! `SeqCst` shows the newest value of an atomic that was ever written as `SeqCst`: what is promised
//! of accesses that are all `SeqCst`, and nothing for those that are not.
//!
//! **Stores.** Loom does not know that nothing comes between what a `swap` has read and what it
//! writes: a later store of another thread could seem older. So a store is a swap here: it comes
//! after all that were there, and who acquires it acquires what was released with those, too. So a
//! store that is weakened where others of its atomic are not may pass unseen.

use crate::site::{Of, note, order};
use loom::sync::atomic;
use std::panic::Location;
use std::sync::atomic::AtomicBool as Flag;

pub use loom::hint::spin_loop;
pub use loom::sync::{Condvar, Mutex, MutexGuard};
pub use loom::thread::{self, JoinHandle, yield_now};
pub use std::sync::atomic::Ordering;

/// As [`std::sync::atomic::fence`].
#[track_caller]
pub fn fence(wanted: Ordering) {
    note(Of::Fence, 0, Location::caller());
    match order(Of::Fence, wanted, Location::caller()) {
        Ordering::Relaxed => {}
        wanted => atomic::fence(wanted),
    }
}

macro_rules! atomic {
    ($name:ident, $number:ty, $show:ident, $nothing:expr, $wide:expr) => {
        /// As the standard library's.
        #[derive(Debug, Default)]
        pub struct $name {
            own: atomic::$name,
            /// It was written as `SeqCst`. No part of the model: loom's threads take turns.
            in_one_order: Flag,
        }

        #[expect(missing_docs, reason = "as the standard library's")]
        impl $name {
            pub fn new(value: $number) -> Self {
                Self { own: atomic::$name::new(value), in_one_order: Flag::new(false) }
            }

            #[track_caller]
            pub fn load(&self, wanted: Ordering) -> $number {
                let wanted = order(Of::Load, wanted, Location::caller());
                let in_one_order = self.in_one_order.load(Ordering::Relaxed);
                let value = if wanted == Ordering::SeqCst && in_one_order {
                    // Reads the newest, as everything does that writes as well.
                    self.own.$show($nothing, Ordering::Acquire)
                } else {
                    self.own.load(wanted)
                };
                note(Of::Load, $wide(value), Location::caller());
                value
            }

            #[track_caller]
            pub fn store(&self, value: $number, wanted: Ordering) {
                let wanted = self.writes(Of::Store, wanted, Location::caller());
                self.own.swap(value, wanted);
                note(Of::Store, $wide(value), Location::caller());
            }

            #[track_caller]
            pub fn swap(&self, value: $number, wanted: Ordering) -> $number {
                let wanted = self.writes(Of::Both, wanted, Location::caller());
                let old = self.own.swap(value, wanted);
                note(Of::Both, $wide(old), Location::caller());
                old
            }

            /// The ordering of a failure is never weakened.
            #[track_caller]
            pub fn compare_exchange(
                &self,
                old: $number,
                new: $number,
                wanted: Ordering,
                failed: Ordering,
            ) -> Result<$number, $number> {
                let wanted = self.writes(Of::Both, wanted, Location::caller());
                let found = self.own.compare_exchange(old, new, wanted, failed);
                let (Ok(value) | Err(value)) = found;
                note(Of::Both, $wide(value), Location::caller());
                found
            }

            #[track_caller]
            pub fn fetch_update(
                &self,
                wanted: Ordering,
                failed: Ordering,
                update: impl FnMut($number) -> Option<$number>,
            ) -> Result<$number, $number> {
                let wanted = self.writes(Of::Both, wanted, Location::caller());
                // It reads before it writes: the two are weaker together.
                let failed = order(Of::Both, failed, Location::caller());
                let found = self.own.fetch_update(wanted, failed, update);
                let (Ok(value) | Err(value)) = found;
                note(Of::Both, $wide(value), Location::caller());
                found
            }

            fn writes(
                &self,
                of: Of,
                wanted: Ordering,
                place: &'static Location<'static>,
            ) -> Ordering {
                let wanted = order(of, wanted, place);
                if wanted == Ordering::SeqCst {
                    self.in_one_order.store(true, Ordering::Relaxed);
                }
                wanted
            }
        }
    };
}

macro_rules! counts {
    ($name:ident, $number:ty, $($counts:ident)*) => {
        #[expect(missing_docs, reason = "as the standard library's")]
        impl $name {
            $(#[track_caller]
            pub fn $counts(&self, value: $number, wanted: Ordering) -> $number {
                let wanted = self.writes(Of::Both, wanted, Location::caller());
                let old = self.own.$counts(value, wanted);
                note(Of::Both, old as u64, Location::caller());
                old
            })*
        }
    };
}

atomic!(AtomicBool, bool, fetch_or, false, u64::from);
atomic!(AtomicU32, u32, fetch_add, 0, u64::from);
atomic!(AtomicU64, u64, fetch_add, 0, u64::from);
atomic!(AtomicUsize, usize, fetch_add, 0, |value| value as u64);
counts!(AtomicU32, u32, fetch_add fetch_sub fetch_and);
counts!(AtomicU64, u64, fetch_add fetch_sub fetch_and);
counts!(AtomicUsize, usize, fetch_add fetch_sub fetch_and);

/// Memory without atomics: two that use it at once, of whom one writes, are an error.
#[derive(Debug, Default)]
pub struct Plain<T>(loom::cell::UnsafeCell<T>);

// SAFETY: who uses it against the rules ends the model.
unsafe impl<T: Send> Sync for Plain<T> {}

impl<T: Copy> Plain<T> {
    /// Holds this value.
    pub fn new(value: T) -> Self {
        Self(loom::cell::UnsafeCell::new(value))
    }

    /// Writes it.
    ///
    /// # Safety
    /// None: loom looks.
    #[track_caller]
    pub unsafe fn set(&self, value: T) {
        // SAFETY: loom has just looked that no one else uses it.
        self.0.with_mut(|place| unsafe { *place = value });
    }

    /// Reads it.
    ///
    /// # Safety
    /// None: loom looks.
    #[track_caller]
    pub unsafe fn get(&self) -> T {
        // SAFETY: loom has just looked that no one else writes it.
        self.0.with(|place| unsafe { *place })
    }
}
