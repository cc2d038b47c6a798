//! How a rank sleeps until something comes.

use crate::hub::Hub;
use headlong_comm::transport::paths::{Doorbell, poll_read};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// UCX's own descriptor, which shows that a peer has sent something.
pub(crate) struct UcxDoorbell {
    hub: Arc<Mutex<Hub>>,
    events: OwnedFd,
}

impl UcxDoorbell {
    pub(crate) fn new(hub: &Arc<Mutex<Hub>>, events: OwnedFd) -> Self {
        Self { hub: Arc::clone(hub), events }
    }

    fn hub(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Doorbell for UcxDoorbell {
    fn listen(&self) -> u32 {
        self.hub().moves()
    }

    /// Note: the order is UCX's: arming fails where something has come since the last look. In that
    /// look a link may have moved what an earlier one waits for, so what was moved is counted.
    fn wait(&self, seen: u32, longest: Duration) {
        let mut hub = self.hub();
        if hub.moves() != seen || !hub.arm() {
            return;
        }
        drop(hub);
        poll_read(&self.events, longest);
    }

    fn ignore(&self) {}
}
