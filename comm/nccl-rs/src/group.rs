//! What is enqueued on a stream.

use crate::error::Result;
use crate::kinds::{DataType, ReduceOp};
use crate::state::Turn;
use crate::sys::{self, Code, Functions, Stream};
use std::cell::Cell;
use std::ffi::{c_int, c_void};

/// What an operation reads and writes. Addresses are of the rank's device, and all counts are
/// elements.
#[derive(Debug, Clone, Copy)]
pub struct Data {
    /// Where it reads. It may be `to`, or the rank's own part of `to`.
    pub from: u64,
    /// Where it writes.
    pub to: u64,
    /// Elements; of what, each operation says.
    pub count: usize,
    /// Their type.
    pub kind: DataType,
    /// A `CUstream`.
    pub stream: Stream,
}

impl Data {
    fn from(&self) -> *const c_void {
        address(self.from)
    }

    fn to(&self) -> *mut c_void {
        address(self.to)
    }
}

/// Operations that start together; made by [`Comm::group`](crate::Comm::group).
///
/// An operation only lists what is to be done: it has read and written its memory when the stream
/// has come past it.
///
/// # Safety
/// Of every operation: what `data` names is memory of the communicator's device that holds as many
/// elements as the operation reads and writes there, and stays until the stream has come past it;
/// the stream is of that device.
pub struct Group<'a> {
    turn: &'a Turn<'a>,
    rank: usize,
    num_ranks: usize,
    ended: Cell<bool>,
}

impl<'a> Group<'a> {
    pub(crate) fn start(turn: &'a Turn<'a>, (rank, num_ranks): (usize, usize)) -> Result<Self> {
        let start = turn.shared.library.functions.group_start;
        // SAFETY: takes nothing; groups are of a thread.
        turn.call("ncclGroupStart", |_| unsafe { start() })?;
        Ok(Self { turn, rank, num_ranks, ended: Cell::new(false) })
    }

    pub(crate) fn end(&self) -> Code {
        if self.ended.replace(true) {
            return Code::SUCCESS;
        }
        // SAFETY: takes nothing, and ends what `start` began, on the same thread.
        unsafe { (self.turn.shared.library.functions.group_end)() }
    }

    fn list(
        &self,
        function: &'static str,
        call: impl FnOnce(&Functions, sys::Comm) -> Code,
    ) -> Result<()> {
        self.turn.list(function, |comm| call(&self.turn.shared.library.functions, comm))
    }

    /// Sends `data.count` elements from `data.from` to `peer`, which receives as many.
    ///
    /// # Safety
    /// See [`Group`].
    pub unsafe fn send(&self, data: Data, peer: usize) -> Result<()> {
        let Data { count, kind, stream, .. } = data;
        self.list("ncclSend", |nccl, comm| {
            // SAFETY: the communicator is alive; the rest is the caller's word.
            unsafe { (nccl.send)(data.from(), count, kind.number, peer as c_int, comm, stream) }
        })
    }

    /// Receives `data.count` elements into `data.to` from `peer`, which sends as many.
    ///
    /// # Safety
    /// See [`Group`].
    pub unsafe fn receive(&self, data: Data, peer: usize) -> Result<()> {
        let Data { count, kind, stream, .. } = data;
        self.list("ncclRecv", |nccl, comm| {
            // SAFETY: the communicator is alive; the rest is the caller's word.
            unsafe { (nccl.recv)(data.to(), count, kind.number, peer as c_int, comm, stream) }
        })
    }

    /// `count` elements of every rank become one array of `count` elements, `to` on every rank. The
    /// order of addition is NCCL's, and may differ between versions and numbers of ranks.
    ///
    /// # Safety
    /// See [`Group`].
    pub unsafe fn all_reduce(&self, data: Data, op: ReduceOp) -> Result<()> {
        let Data { count, kind, stream, .. } = data;
        self.list("ncclAllReduce", |nccl, comm| {
            // SAFETY: the communicator is alive; the rest is the caller's word.
            unsafe {
                (nccl.all_reduce)(data.from(), data.to(), count, kind.number, op.0, comm, stream)
            }
        })
    }

    /// As [`Group::all_reduce`], for rank `root` alone: `to` of others is not looked at.
    ///
    /// # Safety
    /// See [`Group`].
    pub unsafe fn reduce(&self, data: Data, op: ReduceOp, root: usize) -> Result<()> {
        let Data { count, kind, stream, .. } = data;
        self.list("ncclReduce", |nccl, comm| {
            let (from, to, root) = (data.from(), data.to(), root as c_int);
            // SAFETY: the communicator is alive; the rest is the caller's word.
            unsafe { (nccl.reduce)(from, to, count, kind.number, op.0, root, comm, stream) }
        })
    }

    /// `count` elements of each rank, one after another, in `to` of every rank.
    ///
    /// # Safety
    /// See [`Group`].
    pub unsafe fn all_gather(&self, data: Data) -> Result<()> {
        let Data { count, kind, stream, .. } = data;
        self.list("ncclAllGather", |nccl, comm| {
            // SAFETY: the communicator is alive; the rest is the caller's word.
            unsafe { (nccl.all_gather)(data.from(), data.to(), count, kind.number, comm, stream) }
        })
    }

    /// `count` elements of `from` of rank `root`, in `to` of every rank.
    ///
    /// # Safety
    /// See [`Group`].
    pub unsafe fn broadcast(&self, data: Data, root: usize) -> Result<()> {
        let Data { count, kind, stream, .. } = data;
        self.list("ncclBroadcast", |nccl, comm| {
            // SAFETY: the communicator is alive; the rest is the caller's word.
            unsafe {
                (nccl.broadcast)(
                    data.from(),
                    data.to(),
                    count,
                    kind.number,
                    root as c_int,
                    comm,
                    stream,
                )
            }
        })
    }

    /// Part `p` of `from`, `count` elements of ranks · `count`, goes to rank `p`, which has it as
    /// part of this rank in its `to`; the two do not overlap. One call where the library has it
    /// (2.28), else sends and receives.
    ///
    /// # Safety
    /// See [`Group`].
    pub unsafe fn all_to_all(&self, data: Data) -> Result<()> {
        let Data { count, kind, stream, .. } = data;
        if let Some(call) = self.turn.shared.library.functions.all_to_all {
            return self.list("ncclAlltoAll", |_, comm| {
                // SAFETY: the communicator is alive; the rest is the caller's word.
                unsafe { call(data.from(), data.to(), count, kind.number, comm, stream) }
            });
        }
        // Every rank begins with itself and its neighbour, so that not all send to rank 0 first.
        for peer in (0..self.num_ranks).map(|step| (self.rank + step) % self.num_ranks) {
            let at = (peer * count * kind.bytes) as u64;
            // SAFETY: the caller's word.
            unsafe { self.send(Data { from: data.from + at, ..data }, peer) }?;
            // SAFETY: the caller's word.
            unsafe { self.receive(Data { to: data.to + at, ..data }, peer) }?;
        }
        Ok(())
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        // Only where the body has panicked: an open group would swallow all later calls of this
        // thread.
        let _ = self.end();
    }
}

/// A device's address as C sees it. It is never dereferenced on the host.
fn address(device: u64) -> *mut c_void {
    device as *mut c_void
}
