//! How a rank sleeps until something comes over its NIC.

use super::nic::CompletionQueue;
use headlong_comm::transport::paths::Doorbell;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::sync::Arc;
use std::time::Duration;

/// The events of the queue in which everything completes that a rank waits for.
pub(super) struct VerbsDoorbell {
    queue: Arc<dyn CompletionQueue>,
}

impl VerbsDoorbell {
    pub(super) fn new(queue: &Arc<dyn CompletionQueue>) -> Self {
        Self { queue: Arc::clone(queue) }
    }
}

impl Doorbell for VerbsDoorbell {
    /// Note: what is wrong with the queue, the next look at it finds.
    fn listen(&self) -> u32 {
        let _ = self.queue.arm();
        0
    }

    fn wait(&self, _seen: u32, longest: Duration) {
        let Some(events) = self.queue.events() else { return };
        let time = Timespec::try_from(longest).expect("waits are shorter than centuries");
        // A wait that is interrupted ends early: its caller looks again.
        let _ = rustix::event::poll(&mut [PollFd::new(&events, PollFlags::IN)], Some(&time));
    }

    fn ignore(&self) {}
}
