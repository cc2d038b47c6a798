//! The transport over paths: payload on the best way to each peer, everything else over TCP.

use super::progress_loop::{Frame, ProgressLoop};
use super::watch::Watch;
use super::{Doorbells, Path, TcpPath};
use crate::error::{CommError, Result};
use crate::topology::{Rank, Topology};
use crate::transport::tcp::TcpTransport;
use crate::transport::{Expected, GOODBYE, Incoming, Outgoing, StepId, Transport};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One rank's end of a job whose payload takes several ways.
///
/// Note: the watch ends before what it looks at.
pub struct PathTransport {
    _watch: Option<Watch>,
    control: Arc<TcpTransport>,
    doorbells: Doorbells,
    progress: Arc<Mutex<ProgressLoop>>,
    name: &'static str,
    in_place_bytes: usize,
}

impl PathTransport {
    /// Over `control`; peers that `paths` do not name are reached over its own connections.
    /// `doorbells` are what those paths ring. After this, no other caller may exchange over
    /// `control`.
    ///
    /// # Panics
    /// When a path leads nowhere, or back to this rank.
    pub fn new(
        control: Arc<TcpTransport>,
        paths: Vec<(Rank, Box<dyn Path>)>,
        doorbells: Doorbells,
    ) -> Result<Self> {
        let (topology, rank) = (control.topology(), control.rank());
        let mut by_rank: Vec<Option<Box<dyn Path>>> = topology.ranks().map(|_| None).collect();
        for (peer, path) in paths {
            assert!(
                peer != rank && peer.0 < by_rank.len(),
                "a path leads to another rank of the job"
            );
            by_rank[peer.0] = Some(path);
        }
        for peer in topology.ranks().filter(|&peer| peer != rank) {
            if by_rank[peer.0].is_none() {
                by_rank[peer.0] = Some(Box::new(TcpPath::new(&control, peer)));
            }
        }
        let name = name_of(by_rank.iter().flatten().map(|path| path.name()));
        let progress = ProgressLoop::new(by_rank, topology.node_size(topology.node_of(rank)));
        let is_watched = progress.is_watched();
        let progress = Arc::new(Mutex::new(progress));
        let watch = is_watched.then(|| Watch::start(&control, &progress)).transpose()?;
        Ok(Self { _watch: watch, control, doorbells, progress, name, in_place_bytes: usize::MAX })
    }

    /// With what all ranks must see alike, although their own paths may differ: the name that
    /// is for all paths of the job, and the longest message that every path shows which shows
    /// any.
    pub fn with_common(self, name: &'static str, in_place_bytes: usize) -> Self {
        Self { name, in_place_bytes, ..self }
    }

    fn frame(&self) -> Frame<'_> {
        let (health, epoch, deadline) =
            (self.control.health(), self.control.epoch(), self.control.deadline());
        Frame { health, doorbells: &self.doorbells, epoch, deadline }
    }

    fn enter(&self) -> Result<MutexGuard<'_, ProgressLoop>> {
        self.control.check()?;
        Ok(self.progress.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One name for all paths: theirs, or what they are together.
pub fn name_of<'a>(names: impl Iterator<Item = &'a str>) -> &'static str {
    let (mut shm, mut verbs, mut ucx, mut tcp, mut other) = (false, false, false, false, false);
    for name in names {
        match name {
            "shm" => shm = true,
            "verbs" => verbs = true,
            "ucx" => ucx = true,
            "tcp" => tcp = true,
            _ => other = true,
        }
    }
    match (shm, verbs, tcp, other || ucx) {
        (false, false, false, true) if !other => "ucx",
        (true, false, false, false) => "shm",
        (false, true, false, false) => "verbs",
        (false, false, true, false) => "tcp",
        (true, true, false, false) => "shm+verbs",
        (true, false, true, false) => "shm+tcp",
        (false, true, true, false) => "verbs+tcp",
        _ => "paths",
    }
}

impl Transport for PathTransport {
    fn name(&self) -> &'static str {
        self.name
    }

    fn rank(&self) -> Rank {
        self.control.rank()
    }

    fn topology(&self) -> &Topology {
        self.control.topology()
    }

    fn exchange(
        &self,
        id: &StepId,
        outgoing: &[Outgoing],
        incoming: &mut [Incoming],
    ) -> Result<()> {
        self.enter()?.exchange(&self.frame(), id, outgoing, incoming)
    }

    fn exchange_reading(
        &self,
        id: &StepId,
        outgoing: &[Outgoing],
        expected: &[Expected],
        read: &mut dyn FnMut(&[&[u8]]),
    ) -> Result<()> {
        self.enter()?.exchange_reading(&self.frame(), id, outgoing, expected, read)
    }

    fn in_place_bytes(&self) -> Option<usize> {
        Some(self.in_place_bytes)
    }

    fn set_sealed(&self, sealed: bool) {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).set_sealed(sealed);
    }

    fn abort(&self, error: CommError) {
        self.control.abort(error);
    }

    fn set_busy(&self, what: Option<&'static str>) -> Option<&'static str> {
        self.control.set_busy(what)
    }

    fn excused(&self) -> Duration {
        self.control.excused()
    }

    fn check(&self) -> Result<()> {
        self.control.check()
    }

    /// Lets everything leave, then says goodbye over the control plane.
    fn close(&self) -> Result<()> {
        let id = StepId { sequence: GOODBYE, step: 0, fingerprint: 0, operation: "goodbye" };
        self.enter()?.flush(&self.frame(), &id)?;
        self.control.close()
    }
}
