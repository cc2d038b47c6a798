//! A [`Path`] over a link.

use crate::hub::Hub;
use headlong_comm::transport::paths::{DoorbellKind, Head, Path, PathError, Progress};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Both directions between this rank and one peer, over UCX.
pub(crate) struct UcxPath {
    link: usize,
    hub: Arc<Mutex<Hub>>,
}

impl UcxPath {
    pub(crate) fn new(hub: &Arc<Mutex<Hub>>, link: usize) -> Self {
        Self { link, hub: Arc::clone(hub) }
    }

    fn hub(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Path for UcxPath {
    fn name(&self) -> &'static str {
        "ucx"
    }

    fn send(&mut self, head: &Head, bytes: &[u8], at: &mut usize) -> Result<Progress, PathError> {
        let mut hub = self.hub();
        let (link, worker) = hub.link(self.link)?;
        link.send(worker, head, bytes, at)
    }

    fn receive(
        &mut self,
        head: &Head,
        bytes: &mut [u8],
        at: &mut usize,
    ) -> Result<Progress, PathError> {
        let mut hub = self.hub();
        let (link, worker) = hub.link(self.link)?;
        link.receive(worker, head, bytes, at)
    }

    fn flush(&mut self) -> Result<Progress, PathError> {
        self.hub().flush(self.link)
    }

    fn withdraw(&mut self) {
        self.hub().withdraw();
    }

    fn rings(&self) -> Option<DoorbellKind> {
        Some(DoorbellKind::Network)
    }

    /// UCX moves what it has only while it is called, for all links at once.
    fn is_watched(&self) -> bool {
        self.link == 0
    }

    /// Note: that a peer is gone the control plane finds out, and names it rightly.
    fn watch(&mut self) -> Result<(), String> {
        self.hub().look_after();
        Ok(())
    }
}
