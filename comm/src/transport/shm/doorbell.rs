//! A rank's doorbell: a word in the shared memory at which it sleeps, and which its peers count up
//! to wake it.

use super::segment::{Shared, order};
use crate::transport::paths::Doorbell;
use rustix::thread::futex;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub struct ShmDoorbell {
    segment: Shared,
    local: usize,
}

impl ShmDoorbell {
    /// The doorbell of the rank with this local index, which is the caller.
    pub fn new(segment: Shared, local: usize) -> Self {
        Self { segment, local }
    }
}

impl Doorbell for ShmDoorbell {
    fn listen(&self) -> u32 {
        let (rings, listens) = self.segment.doorbell(self.local);
        listens.store(1, Ordering::Relaxed);
        // A peer that moves something after our next look sees that we listen.
        order();
        rings.load(Ordering::Acquire)
    }

    fn wait(&self, seen: u32, longest: Duration) {
        let time = futex::Timespec::try_from(longest).expect("naps are short");
        let (rings, _) = self.segment.doorbell(self.local);
        // A wait that ends early only means looking earlier.
        let _ = futex::wait(rings, futex::Flags::empty(), seen, Some(&time));
        self.ignore();
    }

    fn ignore(&self) {
        let (_, listens) = self.segment.doorbell(self.local);
        listens.store(0, Ordering::Relaxed);
    }
}

/// Wakes the rank with this local index, if it listens. Called after something was moved for it,
/// and [`order`].
pub fn ring(segment: &Shared, local: usize) {
    let (rings, listens) = segment.doorbell(local);
    if listens.load(Ordering::Relaxed) == 1 && listens.swap(0, Ordering::Relaxed) == 1 {
        rings.fetch_add(1, Ordering::Release);
        let _ = futex::wake(rings, futex::Flags::empty(), 1);
    }
}
