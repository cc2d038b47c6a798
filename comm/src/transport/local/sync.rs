//! What links are made of; a model of them has the same names of its own.

pub use std::sync::atomic::{AtomicU32, Ordering};
pub use std::thread::yield_now;

/// Memory that a slot's state gives to one side.
pub struct Plain<T>(std::cell::UnsafeCell<T>);

impl<T: Copy> Plain<T> {
    pub fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

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
