//! How a rank sleeps until something comes.

use crate::hub::Hub;
use headlong_comm::transport::paths::Doorbell;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
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
}

impl Doorbell for UcxDoorbell {
    fn listen(&self) -> u32 {
        0
    }

    /// Note: the order is UCX's: arming fails where something has come since the last look.
    fn wait(&self, _seen: u32, longest: Duration) {
        if !self.hub.lock().unwrap_or_else(PoisonError::into_inner).arm() {
            return;
        }
        let time = Timespec::try_from(longest).expect("waits are shorter than centuries");
        // A wait that is interrupted ends early: its caller looks again.
        let _ = rustix::event::poll(&mut [PollFd::new(&self.events, PollFlags::IN)], Some(&time));
    }

    fn ignore(&self) {}
}
