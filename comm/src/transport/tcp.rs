//! Ranks as processes, joined by TCP.
//!
//! [`join`](crate::rendezvous::join) makes one: data connections to those ranks with which this one
//! exchanges, made when it first does and used by the thread that computes and by no other, and a
//! control channel around rank 0, served by a thread of its own. What happens when something goes
//! wrong is in `docs/multi-node.md`.

mod busy;
pub(crate) mod control;
pub mod control_frame;
pub(crate) mod health;
pub(crate) mod mesh;
mod progress_loop;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

use crate::error::{CommError, Result};
use crate::launcher_env::Remark;
use crate::system::{JoinHandle, Mutex, MutexGuard};
use crate::topology::{Rank, Topology};
use crate::transport::{Incoming, Outgoing, StepId, Transport};
use health::Health;
use mesh::Mesh;
use progress_loop::{Pace, ProgressLoop};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use wire::Wire;

/// One rank's end of a job of several processes.
pub struct TcpTransport {
    mesh: Arc<Mesh>,
    topology: Topology,
    pace: Pace,
    progress: Mutex<ProgressLoop>,
    control: Mutex<Option<JoinHandle<()>>>,
    remarks: Vec<Remark>,
}

/// What a transport is made of; a rank of one has no control thread.
pub(crate) struct Parts {
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) topology: Topology,
    pub(crate) control: Option<JoinHandle<()>>,
    pub(crate) remarks: Vec<Remark>,
}

impl TcpTransport {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { mesh, topology, control, remarks } = parts;
        let pace = Pace { epoch: mesh.epoch, deadline: mesh.deadline };
        let progress = Mutex::new(ProgressLoop::new(topology.num_ranks()));
        let control = Mutex::new(control);
        Self { mesh, topology, pace, progress, control, remarks }
    }

    pub(crate) fn health(&self) -> &Health {
        &self.mesh.health
    }

    /// Number of this coming-together of the job, equal on all ranks and new each time.
    pub fn epoch(&self) -> u32 {
        self.pace.epoch
    }

    fn progress(&self) -> MutexGuard<'_, ProgressLoop> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The data connections, for a path.
    pub(crate) fn mesh(&self) -> &Arc<Mesh> {
        &self.mesh
    }

    /// What there is of a connection to `peer`, for a path: this transport exchanges with it no
    /// more.
    pub(crate) fn take_wire(&self, peer: Rank) -> Option<Box<Wire>> {
        self.progress().take_wire(peer)
    }

    /// Where the others reach a rank.
    pub(crate) fn address(&self, rank: Rank) -> IpAddr {
        self.mesh.address(rank)
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.pace.deadline
    }

    /// What a careful user wants to know about how the job came together: ignored variables, a
    /// missing secret.
    pub fn remarks(&self) -> &[Remark] {
        &self.remarks
    }
}

impl Transport for TcpTransport {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn rank(&self) -> Rank {
        self.health().rank()
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn exchange(
        &self,
        id: &StepId,
        outgoing: &[Outgoing],
        incoming: &mut [Incoming],
    ) -> Result<()> {
        self.health().check()?;
        self.progress().exchange(&self.mesh, &self.pace, id, outgoing, incoming)
    }

    fn set_sealed(&self, sealed: bool) {
        self.progress().set_sealed(sealed);
    }

    fn abort(&self, error: CommError) {
        self.health().fail(error);
    }

    fn set_busy(&self, what: Option<&'static str>) -> Option<&'static str> {
        self.health().busy.set_own(what)
    }

    fn excused(&self) -> Duration {
        self.health().excused()
    }

    fn check(&self) -> Result<()> {
        self.health().check()
    }

    /// Waits until all ranks have said goodbye, at most the deadline of an operation: a rank that
    /// is lost before that has not finished, and the others should know.
    fn close(&self) -> Result<()> {
        match self.topology.num_ranks() {
            1 => Ok(()),
            _ => self.health().close(self.pace.deadline),
        }
    }
}

impl Drop for TcpTransport {
    /// Takes at most half a second: the last words leave, the control thread ends.
    fn drop(&mut self) {
        let rank = self.health().rank();
        if self.topology.num_ranks() > 1 && !self.health().is_over() && !self.health().has_failed()
        {
            self.health().fail(CommError::Aborted {
                culprit: rank,
                reason: "it left without a goodbye".into(),
            });
        }
        self.health().stop();
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = control {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for TcpTransport {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "TcpTransport(rank {} of {})",
            self.health().rank().0,
            self.topology.num_ranks()
        )
    }
}
