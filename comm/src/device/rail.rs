//! Rails: what carries strips between nodes, from one device's memory to another's.
//!
//! The rank that carries for a rank of another node (`comm/src/plan/hierarchical.rs`) sends it one
//! strip an exchange. A [`Route`] says which strips a rank sends and receives in one kind of
//! exchange, and where they lie in a slot; it follows from the topology alone, so that every rank
//! knows everybody's.

pub(super) mod nccl;

use crate::topology::Rank;
use headlong_device::cuda::{CudaStream, DevicePtr};

/// One strip on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Hop {
    pub peer: Rank,
    /// Where it lies in this rank's slot, and where in the peer's.
    pub offset: usize,
    pub there: usize,
    /// Its length, when all blocks are as long as they can be.
    pub bytes: usize,
}

/// The strips of one kind of exchange.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Route {
    /// Those that this rank sends, nearest node first, so that not all send to node 0 at once. Two
    /// may lie at one place.
    pub sends: Vec<Hop>,
    /// Those that it receives, in the order of their nodes.
    pub receives: Vec<Hop>,
}

/// One enqueued exchange.
pub struct Exchange<'a> {
    /// Which strips travel.
    pub route: &'a Route,
    /// The first of the slots that are sent from.
    pub from: DevicePtr,
    /// The first of the slots that are received into.
    pub to: DevicePtr,
    /// The device's `State` of state.cuh.
    pub state: DevicePtr,
    /// The host's `Report` of state.cuh.
    pub report: DevicePtr,
}

/// What carries strips between nodes. A rank calls its methods in the order of its exchanges, which
/// is the same on all ranks.
pub trait Rails: Send + Sync {
    /// `nccl`; `verbs`, and through which memory.
    fn name(&self) -> &str;

    /// How many slots exchanges use in turns.
    fn num_slots(&self) -> usize;

    /// The slots that are sent from and received into, where they must lie in memory of the rails';
    /// else the caller takes them.
    fn memory(&self) -> Option<[DevicePtr; 2]> {
        None
    }

    /// Enqueues that the stream continues when the next exchange's slot may be written.
    fn prepare(&self, _stream: &CudaStream, _exchange: &Exchange<'_>) -> Result<(), String> {
        Ok(())
    }

    /// Enqueues that the strips of the exchange leave once the stream has come here: headers and
    /// blocks have been written. It may also wait for those that come in.
    fn begin(&self, stream: &CudaStream, exchange: &Exchange<'_>) -> Result<(), String>;

    /// Enqueues that the stream continues when the strips of the exchange that was begun last have
    /// come in.
    fn finish(&self, stream: &CudaStream, exchange: &Exchange<'_>) -> Result<(), String>;

    /// Whether all is well, as far as can be known without asking a driver.
    fn check(&self) -> Result<(), String>;

    /// Releases what waits on the device: the job has failed.
    fn give_up(&self);

    /// Ends with all ranks, after the streams are done.
    fn close(self: Box<Self>) -> Result<(), String>;
}
