//! Receives that several queue pairs share.

use super::super::nic::{NicError, NicResult, Receive, ReceiveQueue};
use super::domain::Domain;
use super::raw::{Srq, SrqAttr, SrqInitAttr};
use super::{last_refused, refused, requests};
use std::sync::Arc;

pub(super) struct Receives {
    domain: Arc<Domain>,
    raw: *mut Srq,
}

// SAFETY: libibverbs' queues may be used from any thread, and from several at the same time.
unsafe impl Send for Receives {}
// SAFETY: as above.
unsafe impl Sync for Receives {}

impl Receives {
    pub(super) fn new(domain: &Arc<Domain>, depth: u32) -> NicResult<Self> {
        let attr = SrqAttr { max_wr: depth, max_sge: 1, srq_limit: 0 };
        let mut attr = SrqInitAttr { srq_context: std::ptr::null_mut(), attr };
        // SAFETY: the domain is alive, and the pointer to a struct that lives.
        let raw = unsafe { (domain.device.library().functions.create_srq)(domain.raw, &mut attr) };
        if raw.is_null() {
            return Err(last_refused(format!(
                "{}: a shared receive queue of {depth}",
                domain.device.name()
            )));
        }
        Ok(Self { domain: domain.clone(), raw })
    }

    pub(super) fn raw(&self) -> *mut Srq {
        self.raw
    }

    pub(super) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }
}

impl ReceiveQueue for Receives {
    fn post(&self, receives: &[Receive]) -> NicResult<()> {
        let what = || format!("{}: ibv_post_srq_recv", self.domain.device.name());
        // SAFETY: the queue is alive, and so is its device.
        let Some(post) = (unsafe { (*(*self.raw).context).ops.post_srq_recv }) else {
            return Err(refused(what(), libc::EOPNOTSUPP));
        };
        let answer = requests::receive(receives, |first| {
            let mut bad = std::ptr::null_mut();
            // SAFETY: a chain of requests that live during the call.
            unsafe { post(self.raw, first, &mut bad) }
        });
        posted(what, answer)
    }
}

pub(super) fn posted(what: impl Fn() -> String, answer: i32) -> NicResult<()> {
    match answer {
        0 => Ok(()),
        libc::ENOMEM => Err(NicError::Full(what())),
        errno => Err(refused(what(), errno)),
    }
}

impl Drop for Receives {
    fn drop(&mut self) {
        // SAFETY: the queue is alive, no queue pair is left that uses it, and it is destroyed once.
        let _ = unsafe { (self.domain.device.library().functions.destroy_srq)(self.raw) };
    }
}
