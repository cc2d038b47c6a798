//! The path to a rank of the same node: two rings.

use super::doorbell::ring;
use super::ring::End;
use super::segment::{Shared, order};
use crate::transport::paths::{DoorbellKind, Head, Path, PathError, Progress};

pub struct ShmPath {
    segment: Shared,
    peer: usize,
    sends: End,
    receives: End,
    shown: usize,
}

impl ShmPath {
    pub fn new(segment: &Shared, local: usize, peer: usize) -> Result<Self, String> {
        Ok(Self {
            segment: segment.clone(),
            peer,
            sends: End::new(segment, local, peer, true)?,
            receives: End::new(segment, peer, local, false)?,
            shown: 0,
        })
    }

    /// There is room again: wakes a writer that waits for it.
    fn tell_writer(&self) {
        order();
        if self.receives.takes_hunger() {
            ring(&self.segment, self.peer);
        }
    }
}

impl Path for ShmPath {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn send(&mut self, head: &Head, bytes: &[u8], at: &mut usize) -> Result<Progress, PathError> {
        let moved = self.sends.send(head, bytes, at)?;
        if moved != Progress::Idle {
            order();
            ring(&self.segment, self.peer);
        }
        Ok(moved)
    }

    fn receive(
        &mut self,
        head: &Head,
        bytes: &mut [u8],
        at: &mut usize,
    ) -> Result<Progress, PathError> {
        let moved = self.receives.receive(head, bytes, at)?;
        if moved != Progress::Idle {
            self.tell_writer();
        }
        Ok(moved)
    }

    fn shows(&self) -> u64 {
        self.receives.shows() as u64
    }

    fn peek(&mut self, head: &Head) -> Result<Option<&[u8]>, PathError> {
        self.shown = head.length as usize;
        self.receives.peek(head)
    }

    fn release(&mut self) {
        self.receives.release(self.shown);
        self.tell_writer();
    }

    fn rings(&self) -> Option<DoorbellKind> {
        Some(DoorbellKind::Node)
    }
}
