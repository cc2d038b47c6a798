//! Where work requests complete.

use super::super::nic::{Completion, CompletionKind, CompletionQueue, NicError, NicResult, Status};
use super::domain::Domain;
use super::raw::{self, CompChannel, Cq, Wc};
use super::{checked, last_refused};
use std::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// At most this many completions are taken from a NIC in one call.
const AT_ONCE: usize = 16;

pub(super) struct Completions {
    domain: Arc<Domain>,
    channel: *mut CompChannel,
    raw: *mut Cq,
    /// What a wait has found after asking for an interrupt, to be given to the next poll.
    found: Mutex<Vec<Wc>>,
    has_found: AtomicBool,
}

// SAFETY: libibverbs' queues may be used from any thread, and from several at the same time.
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

impl Completions {
    pub(super) fn new(domain: &Arc<Domain>, depth: u32) -> NicResult<Self> {
        let (device, functions) = (&domain.device, &domain.device.library().functions);
        // SAFETY: the device is open.
        let channel = unsafe { (functions.create_comp_channel)(device.raw()) };
        if channel.is_null() {
            return Err(last_refused(format!("{}: ibv_create_comp_channel", device.name())));
        }
        let depth_of_c = c_int::try_from(depth).unwrap_or(c_int::MAX);
        // SAFETY: device and channel are alive; nothing of ours is kept there.
        let raw = unsafe {
            (functions.create_cq)(device.raw(), depth_of_c, std::ptr::null_mut(), channel, 0)
        };
        if raw.is_null() {
            let error = last_refused(format!("{}: a completion queue of {depth}", device.name()));
            // SAFETY: the channel is alive, and nothing is left of it.
            let _ = unsafe { (functions.destroy_comp_channel)(channel) };
            return Err(error);
        }
        let queue = Self {
            domain: domain.clone(),
            channel,
            raw,
            found: Mutex::new(Vec::with_capacity(1)),
            has_found: AtomicBool::new(false),
        };
        // SAFETY: the descriptor is the channel's own.
        let answer = unsafe {
            let flags = libc::fcntl((*channel).fd, libc::F_GETFL);
            libc::fcntl((*channel).fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
        };
        checked(|| format!("{}: a channel that does not block", device.name()), answer)?;
        Ok(queue)
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
        let poll = poll.ok_or_else(|| self.without("ibv_poll_cq"))?;
        // SAFETY: room for this many completions.
        let taken = unsafe { poll(self.raw, into.len() as c_int, into.as_mut_ptr()) };
        usize::try_from(taken).map_err(|_| {
            let what = format!("{}: ibv_poll_cq", self.domain.device.name());
            NicError::Refused {
                what,
                reason: "the completion queue has failed".to_owned(),
                errno: None,
            }
        })
    }

    fn without(&self, function: &str) -> NicError {
        let what = format!("{}: {function}", self.domain.device.name());
        NicError::Refused {
            what,
            reason: "the driver has no such function".to_owned(),
            errno: None,
        }
    }

    fn arm(&self) -> NicResult<()> {
        // SAFETY: the queue is alive, and so is its device.
        let notify = unsafe { (*(*self.raw).context).ops.req_notify_cq };
        let notify = notify.ok_or_else(|| self.without("ibv_req_notify_cq"))?;
        // SAFETY: as above.
        checked(|| format!("{}: ibv_req_notify_cq", self.domain.device.name()), unsafe {
            notify(self.raw, 0)
        })
    }

    fn drain(&self) {
        let functions = &self.domain.device.library().functions;
        let (mut queue, mut mine) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is alive and its descriptor never blocks; both pointers are to
        // pointers that live.
        while unsafe { (functions.get_cq_event)(self.channel, &mut queue, &mut mine) } == 0 {
            // SAFETY: got just now, of the only queue of this channel.
            unsafe { (functions.ack_cq_events)(queue, 1) };
        }
    }
}

impl CompletionQueue for Completions {
    fn poll(&self, into: &mut Vec<Completion>, most: usize) -> NicResult<usize> {
        let before = into.len();
        if self.has_found.load(Ordering::Acquire) {
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            let count = found.len().min(most);
            into.extend(found.drain(..count).map(|wc| completion_of(&wc)));
            self.has_found.store(!found.is_empty(), Ordering::Release);
        }
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

    fn wait(&self, longest: Duration) -> NicResult<()> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if !found.is_empty() {
            return Ok(());
        }
        self.drain();
        self.arm()?;
        // What came before the interrupt was asked for causes none.
        let mut one = [Wc::default()];
        if self.take(&mut one)? == 1 {
            found.push(one[0]);
            self.has_found.store(true, Ordering::Release);
            return Ok(());
        }
        drop(found);
        // SAFETY: the channel is alive.
        let fd = unsafe { (*self.channel).fd };
        let mut wanted = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let millis = longest.as_micros().div_ceil(1000).min(c_int::MAX as u128) as c_int;
        // SAFETY: one descriptor, of a struct that lives.
        if unsafe { libc::poll(&mut wanted, 1, millis) } < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(last_refused(format!(
                    "{}: waiting for completions",
                    self.domain.device.name()
                )));
            }
        }
        Ok(())
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        self.drain();
        let functions = &self.domain.device.library().functions;
        // SAFETY: the queue is alive, all of its interrupts are given back, no queue pair is left
        // that uses it, and it is destroyed once, before its channel.
        unsafe {
            let _ = (functions.destroy_cq)(self.raw);
            let _ = (functions.destroy_comp_channel)(self.channel);
        }
    }
}

fn completion_of(wc: &Wc) -> Completion {
    let status = status_of(wc.status as u32);
    let kind = match (status, wc.opcode as u32) {
        (Status::Success, raw::WC_OP_SEND) => CompletionKind::Send,
        (Status::Success, raw::WC_OP_RDMA_WRITE) => CompletionKind::Write,
        (Status::Success, raw::WC_OP_RDMA_READ) => CompletionKind::Read,
        (Status::Success, raw::WC_OP_COMP_SWAP | raw::WC_OP_FETCH_ADD) => CompletionKind::Atomic,
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
            [0, 1, 2, 3, 4, 128].map(|opcode| kind(0, opcode)),
            [
                CompletionKind::Send,
                CompletionKind::Write,
                CompletionKind::Read,
                CompletionKind::Atomic,
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
