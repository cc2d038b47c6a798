//! A rank's doorbell: a word in the shared memory at which it sleeps, and which its peers count up
//! to wake it.

use super::segment::{Shared, order};
use crate::transport::paths::Doorbell;
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
        // First: a peer that still rings for what we have seen takes back that we listen, so that
        // no later move rings. The count must tell us.
        let seen = rings.load(Ordering::Acquire);
        listens.store(1, Ordering::Relaxed);
        // A peer that moves something after our next look sees that we listen.
        order();
        seen
    }

    fn wait(&self, seen: u32, longest: Duration) {
        // A wait that ends early only means looking earlier.
        self.segment.sleep(self.local, seen, longest);
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
        segment.wake(local);
    }
}
