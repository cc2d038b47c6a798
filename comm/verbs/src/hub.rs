//! What all links of a rank share: the NIC, the memory, the queues.

use super::arena::Arena;
use super::layout::Near;
use super::link::Link;
use super::nic::{Completion, CompletionQueue, Nic, NicResult, Receive, ReceiveQueue};
use super::watch::Watch;
use headlong_comm::transport::paths::PathError;
use std::sync::Arc;

const AT_ONCE: usize = 64;
/// The device is asked for events at every so-manieth look at its queue: every half second at most
/// where a rank that shares its core looks three times between two sleeps of 20 ms.
const LOOKS_PER_EVENT: u32 = 64;

/// All links of a rank.
///
/// Note: the order of the fields is that in which they end: connections, queues, memory, NIC.
pub(super) struct Hub {
    pub(super) links: Vec<Link>,
    pub(super) queue: Arc<dyn CompletionQueue>,
    pub(super) receives: SignalReceives,
    pub(super) slots: Arc<Arena>,
    pub(super) flags: Arena,
    pub(super) nic: Arc<dyn Nic>,
    pub(super) watch: Watch,
    pub(super) completions: Vec<Completion>,
    pub(super) looks: u32,
}

pub(super) struct SignalReceives {
    pub(super) queue: Arc<dyn ReceiveQueue>,
    pub(super) batch: Vec<Receive>,
    used: usize,
}

impl SignalReceives {
    /// Of a batch, which may be used up and not posted again yet.
    fn batch(most: usize) -> usize {
        (most / 4).max(1)
    }

    /// How many receives lie in the queue where `most` signals may be on the way.
    pub(super) fn depth(most: usize) -> usize {
        most + Self::batch(most)
    }

    /// Enough for `most` signals on the way, posted.
    pub(super) fn new(nic: &dyn Nic, most: usize) -> NicResult<Self> {
        let (batch, depth) = (Self::batch(most), Self::depth(most));
        let queue = nic.receive_queue(depth as u32)?;
        queue.post(&vec![Receive { id: 0, segment: None }; depth])?;
        Ok(Self { queue, batch: vec![Receive { id: 0, segment: None }; batch], used: 0 })
    }

    pub(super) fn used(&mut self) -> NicResult<()> {
        self.used += 1;
        if self.used < self.batch.len() {
            return Ok(());
        }
        self.used = 0;
        self.queue.post(&self.batch)
    }
}

impl Hub {
    /// Whether whatever comes is a completion that a rank can sleep for.
    pub(super) fn rings(&self) -> bool {
        self.queue.events().is_some() && self.links.first().is_some_and(Link::completes)
    }

    pub(super) fn look(&mut self) {
        if let Err(error) = self.take_completions() {
            self.fail_all(&format!("{}: {error}", self.nic.name()));
        }
        let near = Near { slots: &self.slots, flags: &self.flags };
        self.links.iter_mut().for_each(|link| link.look_at_flags(near));
        self.looks += 1;
        if self.looks >= LOOKS_PER_EVENT {
            self.looks = 0;
            self.look_at_events();
        }
    }

    fn take_completions(&mut self) -> NicResult<()> {
        loop {
            self.completions.clear();
            let taken = self.queue.poll(&mut self.completions, AT_ONCE)?;
            let near = Near { slots: &self.slots, flags: &self.flags };
            for completion in &self.completions {
                let link = self.links.iter_mut().find(|link| link.has(completion.queue_pair));
                if let Some(link) = link {
                    link.complete(near, completion);
                }
                if matches!(completion.kind, super::nic::CompletionKind::Immediate(_)) {
                    self.receives.used()?;
                }
            }
            if taken < AT_ONCE {
                return Ok(());
            }
        }
    }

    pub(super) fn look_at_events(&mut self) {
        if let Err(reason) = self.watch.look(&*self.nic) {
            self.fail_all(&reason);
        }
    }

    fn fail_all(&mut self, reason: &str) {
        for link in &mut self.links {
            link.fail(PathError::Failed(reason.to_owned()));
        }
    }
}
