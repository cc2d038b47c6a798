//! How a rank sleeps until something comes over its NIC.

use super::nic::CompletionQueue;
use headlong_comm::transport::paths::{Doorbell, poll_read};
use std::sync::Arc;
use std::time::Duration;

/// Where the NIC refuses to tell of the next completion, a rank naps this long in place of a sleep.
const NAP: Duration = Duration::from_millis(1);
/// What [`Doorbell::listen`] gives then.
const REFUSED: u32 = 1;

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
    fn listen(&self) -> u32 {
        if self.queue.arm().is_ok() { 0 } else { REFUSED }
    }

    fn wait(&self, seen: u32, longest: Duration) {
        let Some(events) = self.queue.events() else { return };
        poll_read(&events, if seen == REFUSED { longest.min(NAP) } else { longest });
    }

    fn ignore(&self) {}
}
