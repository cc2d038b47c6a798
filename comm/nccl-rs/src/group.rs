//! What is enqueued on a stream.

use crate::communicator::Held;
use crate::error::Result;
use crate::sys::{Code, Stream};
use std::cell::Cell;
use std::ffi::{c_int, c_void};

/// A type of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum DataType {
    /// Signed bytes.
    I8 = 0,
    /// Bytes.
    U8 = 1,
    /// 32-bit integers.
    I32 = 2,
    /// 32-bit integers without sign.
    U32 = 3,
    /// 64-bit integers.
    I64 = 4,
    /// 64-bit integers without sign.
    U64 = 5,
    /// IEEE half precision.
    F16 = 6,
    /// IEEE single precision.
    F32 = 7,
    /// IEEE double precision.
    F64 = 8,
    /// bfloat16.
    Bf16 = 9,
}

/// How elements of several ranks become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum ReduceOp {
    /// Their sum.
    Sum = 0,
    /// Their product.
    Product = 1,
    /// The largest.
    Max = 2,
    /// The smallest.
    Min = 3,
    /// Their mean.
    Mean = 4,
}

/// Operations that start together; made by [`Comm::group`](crate::Comm::group).
///
/// Addresses are of the rank's device. All counts are elements. An operation only lists what is to be done: it has read and
/// written its memory when the stream has come past it.
///
/// # Safety
/// Of every operation: `from` and `to` are of memory of the communicator's device that holds as many elements as the operation
/// reads and writes there, and stays until the stream has come past it; `stream` is a `CUstream` of that device.
pub struct Group<'a> {
    held: &'a Held<'a>,
    ended: Cell<bool>,
}

impl<'a> Group<'a> {
    pub(crate) fn start(held: &'a Held<'a>) -> Result<Self> {
        // SAFETY: takes nothing; the guard in `held` makes this the only call.
        let code = unsafe { (held.library.functions.group_start)() };
        held.library.result("ncclGroupStart", code, held.raw)?;
        Ok(Self { held, ended: Cell::new(false) })
    }

    /// Starts everything.
    pub(crate) fn end(&self) -> Code {
        if self.ended.replace(true) {
            return Code::SUCCESS;
        }
        // SAFETY: takes nothing, and ends what `start` began, on the same thread.
        unsafe { (self.held.library.functions.group_end)() }
    }

    fn listed(&self, function: &'static str, code: Code) -> Result<()> {
        // Inside a group, "in progress" says no more than that the group has not ended.
        match code {
            Code::IN_PROGRESS => Ok(()),
            code => self.held.library.result(function, code, self.held.raw),
        }
    }

    /// Sends `count` elements to `peer`, which receives as many.
    ///
    /// # Errors
    /// [`Error::Call`](crate::Error::Call).
    ///
    /// # Safety
    /// See [`Group`].
    pub unsafe fn send(
        &self,
        from: u64,
        count: usize,
        kind: DataType,
        peer: usize,
        stream: Stream,
    ) -> Result<()> {
        let functions = &self.held.library.functions;
        // SAFETY: the communicator is alive; the rest is the caller's word.
        let code = unsafe {
            (functions.send)(address(from), count, kind as c_int, peer as c_int, self.held.raw, stream)
        };
        self.listed("ncclSend", code)
    }

    /// Receives `count` elements from `peer`, which sends as many.
    ///
    /// # Errors
    /// [`Error::Call`](crate::Error::Call).
    ///
    /// # Safety
    /// See [`Group`].
    pub unsafe fn receive(
        &self,
        to: u64,
        count: usize,
        kind: DataType,
        peer: usize,
        stream: Stream,
    ) -> Result<()> {
        let functions = &self.held.library.functions;
        // SAFETY: the communicator is alive; the rest is the caller's word.
        let code = unsafe {
            (functions.recv)(address(to), count, kind as c_int, peer as c_int, self.held.raw, stream)
        };
        self.listed("ncclRecv", code)
    }

    /// `count` elements of every rank become one array of `count` elements, `to` on every rank; `from` may be `to`. The order of
    /// addition is NCCL's, and may differ between versions and numbers of ranks.
    ///
    /// # Errors
    /// [`Error::Call`](crate::Error::Call).
    ///
    /// # Safety
    /// See [`Group`].
    pub unsafe fn all_reduce(
        &self,
        (from, to): (u64, u64),
        count: usize,
        kind: DataType,
        op: ReduceOp,
        stream: Stream,
    ) -> Result<()> {
        let functions = &self.held.library.functions;
        let (kind, op) = (kind as c_int, op as c_int);
        // SAFETY: the communicator is alive; the rest is the caller's word.
        let code = unsafe {
            (functions.all_reduce)(address(from), address(to), count, kind, op, self.held.raw, stream)
        };
        self.listed("ncclAllReduce", code)
    }

    /// As [`Group::all_reduce`] of `count` · ranks elements, of which each rank gets its `count`.
    ///
    /// # Errors
    /// [`Error::Call`](crate::Error::Call).
    ///
    /// # Safety
    /// See [`Group`].
    pub unsafe fn reduce_scatter(
        &self,
        (from, to): (u64, u64),
        count: usize,
        kind: DataType,
        op: ReduceOp,
        stream: Stream,
    ) -> Result<()> {
        let functions = &self.held.library.functions;
        let (kind, op) = (kind as c_int, op as c_int);
        // SAFETY: the communicator is alive; the rest is the caller's word.
        let code = unsafe {
            (functions.reduce_scatter)(address(from), address(to), count, kind, op, self.held.raw, stream)
        };
        self.listed("ncclReduceScatter", code)
    }

    /// `count` elements of each rank, one after another, in `to` of every rank.
    ///
    /// # Errors
    /// [`Error::Call`](crate::Error::Call).
    ///
    /// # Safety
    /// See [`Group`].
    pub unsafe fn all_gather(
        &self,
        (from, to): (u64, u64),
        count: usize,
        kind: DataType,
        stream: Stream,
    ) -> Result<()> {
        let functions = &self.held.library.functions;
        // SAFETY: the communicator is alive; the rest is the caller's word.
        let code = unsafe {
            (functions.all_gather)(address(from), address(to), count, kind as c_int, self.held.raw, stream)
        };
        self.listed("ncclAllGather", code)
    }

    /// `count` elements of `from` of rank `root`, in `to` of every rank.
    ///
    /// # Errors
    /// [`Error::Call`](crate::Error::Call).
    ///
    /// # Safety
    /// See [`Group`].
    pub unsafe fn broadcast(
        &self,
        (from, to): (u64, u64),
        count: usize,
        kind: DataType,
        root: usize,
        stream: Stream,
    ) -> Result<()> {
        let functions = &self.held.library.functions;
        let (kind, root) = (kind as c_int, root as c_int);
        // SAFETY: the communicator is alive; the rest is the caller's word.
        let code = unsafe {
            (functions.broadcast)(address(from), address(to), count, kind, root, self.held.raw, stream)
        };
        self.listed("ncclBroadcast", code)
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        // Only where the body has panicked: an open group would swallow all later calls of this thread.
        let _ = self.end();
    }
}

/// A device's address as C sees it. It is never dereferenced on the host.
fn address(device: u64) -> *mut c_void {
    device as *mut c_void
}
