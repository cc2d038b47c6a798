//! Where work requests complete.

use super::super::nic::{Completion, CompletionKind, CompletionQueue, NicError, NicResult, Status};
use super::domain::Domain;
use super::raw::{self, CompChannel, Cq, Wc};
use super::{checked, last_refused, refused};
use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// At most this many completions are taken from a NIC in one call.
const AT_ONCE: usize = 16;
/// Of a function that is found in the driver's table.
const MISSING: &str = "the driver has no such function";

pub(super) struct Completions {
    domain: Arc<Domain>,
    raw: *mut Cq,
    /// Ends after the queue, which shows its completions there.
    channel: Channel,
}

// SAFETY: libibverbs' queues may be used from any thread, and from several at the same time.
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

impl Completions {
    pub(super) fn new(domain: &Arc<Domain>, depth: u32) -> NicResult<Self> {
        let (device, functions) = (&domain.device, &domain.device.library().functions);
        let (of_c, none) = (c_int::try_from(depth).unwrap_or(c_int::MAX), std::ptr::null_mut());
        let channel = Channel::new(domain)?;
        // SAFETY: the device and the channel are alive; nothing of ours is kept there.
        let raw = unsafe { (functions.create_cq)(device.raw(), of_c, none, channel.raw, 0) };
        if raw.is_null() {
            return Err(last_refused(format!("{}: a completion queue of {depth}", device.name())));
        }
        Ok(Self { domain: domain.clone(), raw, channel })
    }

    pub(super) fn raw(&self) -> *mut Cq {
        self.raw
    }

    pub(super) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Takes at most as many completions as there is room; how many.
    fn take(&self, into: &mut [Wc]) -> NicResult<usize> {
        // SAFETY: the queue is alive, and so is its device.
        let poll = unsafe { (*(*self.raw).context).ops.poll_cq };
        let poll = poll.ok_or_else(|| self.refused("ibv_poll_cq", MISSING))?;
        // SAFETY: room for this many completions.
        let taken = unsafe { poll(self.raw, into.len() as c_int, into.as_mut_ptr()) };
        usize::try_from(taken)
            .map_err(|_| self.refused("ibv_poll_cq", "the completion queue has failed"))
    }

    /// Takes what has shown, without waiting. Each event is acknowledged: the queue's end waits for
    /// that.
    fn forget(&self) -> NicResult<()> {
        let functions = &self.domain.device.library().functions;
        let (mut queue, mut mine) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is alive, and never blocks; room for one event.
        while unsafe { (functions.get_cq_event)(self.channel.raw, &mut queue, &mut mine) } == 0 {
            // SAFETY: an event of this queue, the channel's only one, was got just now.
            unsafe { (functions.ack_cq_events)(self.raw, 1) };
        }
        match io::Error::last_os_error().kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
            _ => Err(last_refused(format!("{}: its completion events", self.domain.device.name()))),
        }
    }

    fn refused(&self, call: &str, reason: &str) -> NicError {
        let what = format!("{}: {call}", self.domain.device.name());
        NicError::Refused { what, reason: reason.to_owned(), errno: None }
    }
}

impl CompletionQueue for Completions {
    fn poll(&self, into: &mut Vec<Completion>, most: usize) -> NicResult<usize> {
        let before = into.len();
        let mut some = [Wc::default(); AT_ONCE];
        while into.len() - before < most {
            let room = (most - (into.len() - before)).min(AT_ONCE);
            let taken = self.take(&mut some[..room])?;
            into.extend(some[..taken].iter().map(completion_of));
            if taken < room {
                break;
            }
        }
        Ok(into.len() - before)
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        Some(self.channel.descriptor())
    }

    fn arm(&self) -> NicResult<()> {
        self.forget()?;
        // SAFETY: the queue is alive, and so is its device.
        let notify = unsafe { (*(*self.raw).context).ops.req_notify_cq };
        let notify = notify.ok_or_else(|| self.refused("ibv_req_notify_cq", MISSING))?;
        let what = || format!("{}: ibv_req_notify_cq", self.domain.device.name());
        // SAFETY: as above; 0: any completion.
        checked(what, unsafe { notify(self.raw, 0) })
    }
}

/// Where the completions of one queue show.
struct Channel {
    domain: Arc<Domain>,
    raw: *mut CompChannel,
}

impl Channel {
    fn new(domain: &Arc<Domain>) -> NicResult<Self> {
        let (device, functions) = (&domain.device, &domain.device.library().functions);
        // SAFETY: the device is alive.
        let raw = unsafe { (functions.create_comp_channel)(device.raw()) };
        if raw.is_null() {
            return Err(last_refused(format!("{}: a completion channel", device.name())));
        }
        let channel = Self { domain: domain.clone(), raw };
        rustix::io::ioctl_fionbio(channel.descriptor(), true).map_err(|errno| {
            let what = format!("{}: a completion channel that does not block", device.name());
            refused(what, errno.raw_os_error())
        })?;
        Ok(channel)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive, and its descriptor open as long.
        unsafe { BorrowedFd::borrow_raw((*self.raw).fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the channel is alive, its queue is gone, and it is destroyed once.
        let _ = unsafe { (self.domain.device.library().functions.destroy_comp_channel)(self.raw) };
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: the queue is alive, no queue pair is left that uses it, and it is destroyed once.
        let _ = unsafe { (self.domain.device.library().functions.destroy_cq)(self.raw) };
    }
}

fn completion_of(wc: &Wc) -> Completion {
    let status = status_of(wc.status as u32);
    let kind = match (status, wc.opcode as u32) {
        (Status::Success, raw::WC_OP_SEND) => CompletionKind::Send,
        (Status::Success, raw::WC_OP_RDMA_WRITE) => CompletionKind::Write,
        (Status::Success, raw::WC_OP_RDMA_READ) => CompletionKind::Read,
        (Status::Success, raw::WC_OP_FETCH_ADD) => CompletionKind::Atomic,
        (Status::Success, raw::WC_OP_RECV) => CompletionKind::Received,
        (Status::Success, raw::WC_OP_RECV_RDMA_WITH_IMM) => {
            CompletionKind::Immediate(u32::from_be(wc.imm_data))
        }
        _ => CompletionKind::Unknown,
    };
    Completion {
        id: wc.wr_id,
        status,
        kind,
        bytes: wc.byte_len,
        queue_pair: wc.qp_num,
        vendor: wc.vendor_err,
    }
}

fn status_of(status: u32) -> Status {
    match status {
        raw::WC_SUCCESS => Status::Success,
        raw::WC_WR_FLUSH_ERR => Status::Flushed,
        raw::WC_LOC_LEN_ERR => Status::LocalLength,
        raw::WC_LOC_PROT_ERR => Status::LocalProtection,
        raw::WC_REM_ACCESS_ERR => Status::RemoteAccess,
        raw::WC_REM_INV_REQ_ERR => Status::RemoteRequest,
        raw::WC_REM_OP_ERR => Status::RemoteOperation,
        raw::WC_RETRY_EXC_ERR => Status::RetriesExceeded,
        raw::WC_RNR_RETRY_EXC_ERR => Status::ReceiverNotReady,
        other => Status::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_are_named_and_immediates_turned() {
        let wc = |status: u32, opcode: u32| Wc {
            wr_id: 7,
            status: status as c_int,
            opcode: opcode as c_int,
            imm_data: 5_u32.to_be(),
            byte_len: 9,
            ..Wc::default()
        };
        let kind = |status, opcode| completion_of(&wc(status, opcode)).kind;
        assert_eq!(kind(0, 129), CompletionKind::Immediate(5));
        assert_eq!(
            [0, 1, 2, 4, 128].map(|opcode| kind(0, opcode)),
            [
                CompletionKind::Send,
                CompletionKind::Write,
                CompletionKind::Read,
                CompletionKind::Atomic,
                CompletionKind::Received
            ]
        );
        let failed = completion_of(&wc(10, 1));
        assert_eq!(
            (failed.id, failed.status, failed.kind),
            (7, Status::RemoteAccess, CompletionKind::Unknown)
        );
        assert_eq!(
            [1, 4, 5, 9, 11, 12, 13, 21].map(status_of),
            [
                Status::LocalLength,
                Status::LocalProtection,
                Status::Flushed,
                Status::RemoteRequest,
                Status::RemoteOperation,
                Status::RetriesExceeded,
                Status::ReceiverNotReady,
                Status::Other(21)
            ]
        );
    }
}
