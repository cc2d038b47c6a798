//! What is enqueued on a stream.

use crate::error::{Error, Result};
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

/// The parts of an array that go to, or come from, each rank, in elements.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// How many, by rank. None are none: nothing travels, not even a word about it.
    pub counts: &'a [usize],
    /// Where they begin, by rank.
    pub offsets: &'a [usize],
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
            unsafe { (nccl.send)(data.from(), count, kind.0, peer as c_int, comm, stream) }
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
            unsafe { (nccl.recv)(data.to(), count, kind.0, peer as c_int, comm, stream) }
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
            unsafe { (nccl.all_reduce)(data.from(), data.to(), count, kind.0, op.0, comm, stream) }
        })
    }

    /// As [`Group::all_reduce`], but only rank `root` gets the result.
    ///
    /// # Safety
    /// See [`Group`].
    pub unsafe fn reduce(&self, data: Data, op: ReduceOp, root: usize) -> Result<()> {
        let library = &self.turn.shared.library;
        let reduce = library.later("ncclReduce", library.functions.reduce)?;
        let (Data { count, kind, stream, .. }, root) = (data, root as c_int);
        self.list("ncclReduce", |_, comm| {
            // SAFETY: the communicator is alive; the rest is the caller's word.
            unsafe { reduce(data.from(), data.to(), count, kind.0, op.0, root, comm, stream) }
        })
    }

    /// As [`Group::all_reduce`] of `count` · ranks elements, of which each rank gets its `count`.
    ///
    /// # Safety
    /// See [`Group`].
    pub unsafe fn reduce_scatter(&self, data: Data, op: ReduceOp) -> Result<()> {
        let Data { count, kind, stream, .. } = data;
        self.list("ncclReduceScatter", |nccl, comm| {
            // SAFETY: the communicator is alive; the rest is the caller's word.
            unsafe {
                (nccl.reduce_scatter)(data.from(), data.to(), count, kind.0, op.0, comm, stream)
            }
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
            unsafe { (nccl.all_gather)(data.from(), data.to(), count, kind.0, comm, stream) }
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
                (nccl.broadcast)(data.from(), data.to(), count, kind.0, root as c_int, comm, stream)
            }
        })
    }

    /// Part `p` of `from`, `count` elements of ranks · `count`, goes to rank `p`, which has it as
    /// part of this rank in its `to`; the two do not overlap. One call where the library has it
    /// (2.28), else sends and receives.
    ///
    /// # Errors
    /// [`Error::Call`]; [`Error::Argument`] where the bytes are more than can be counted.
    ///
    /// # Safety
    /// See [`Group`].
    pub unsafe fn all_to_all(&self, data: Data) -> Result<()> {
        let Data { count, kind, stream, .. } = data;
        if let Some(call) = self.turn.shared.library.functions.all_to_all {
            return self.list("ncclAlltoAll", |_, comm| {
                // SAFETY: the communicator is alive; the rest is the caller's word.
                unsafe { call(data.from(), data.to(), count, kind.0, comm, stream) }
            });
        }
        let counts = vec![count; self.num_ranks];
        let offsets: Vec<usize> =
            (0..self.num_ranks).map(|peer| peer.saturating_mul(count)).collect();
        let parts = Parts { counts: &counts, offsets: &offsets };
        // SAFETY: the caller's word.
        unsafe { self.all_to_all_v(data, parts, parts) }
    }

    /// Part `p` of `from`, as `sends` says, goes to rank `p`; what comes from rank `p` becomes part
    /// `p` of `to`, as `receives` says. What one rank sends another expects. `data.count` says
    /// nothing here.
    ///
    /// # Errors
    /// [`Error::Call`]; [`Error::Argument`] where there is not one part for each rank, or the bytes
    /// are more than can be counted.
    ///
    /// # Safety
    /// See [`Group`].
    pub unsafe fn all_to_all_v(
        &self,
        data: Data,
        sends: Parts<'_>,
        receives: Parts<'_>,
    ) -> Result<()> {
        // Everything is looked at before anything is listed.
        let (from, to) =
            (self.places(data.from, data.kind, sends)?, self.places(data.to, data.kind, receives)?);
        // Every rank begins with itself and its neighbour, so that not all send to rank 0 first.
        for peer in (0..self.num_ranks).map(|step| (self.rank + step) % self.num_ranks) {
            if sends.counts[peer] > 0 {
                // SAFETY: the caller's word.
                unsafe {
                    self.send(Data { from: from[peer], count: sends.counts[peer], ..data }, peer)
                }?;
            }
            if receives.counts[peer] > 0 {
                // SAFETY: the caller's word.
                unsafe {
                    self.receive(Data { to: to[peer], count: receives.counts[peer], ..data }, peer)
                }?;
            }
        }
        Ok(())
    }

    /// Where each part begins.
    fn places(&self, begin: u64, kind: DataType, parts: Parts<'_>) -> Result<Vec<u64>> {
        let refuse = |reason| Error::Argument { function: "all-to-all", reason };
        let (counts, offsets) = (parts.counts.len(), parts.offsets.len());
        if (counts, offsets) != (self.num_ranks, self.num_ranks) {
            let ranks = self.num_ranks;
            return Err(refuse(format!("{counts} counts and {offsets} offsets for {ranks} ranks")));
        }
        let bytes =
            kind.bytes().ok_or_else(|| refuse(format!("elements of unknown size: {kind:?}")))?
                as u64;
        let place = |(offset, count): (&usize, &usize)| {
            let end = (*offset as u64).checked_add(*count as u64)?.checked_mul(bytes)?;
            begin.checked_add(end)?;
            Some(begin + *offset as u64 * bytes)
        };
        let places: Option<Vec<u64>> = parts.offsets.iter().zip(parts.counts).map(place).collect();
        places.ok_or_else(|| refuse("a part ends beyond the last address there is".to_owned()))
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
