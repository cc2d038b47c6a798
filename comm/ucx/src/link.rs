//! Messages between this rank and one peer.
//!
//! Each direction counts its messages. A message begins with its head, in one piece with up to
//! [`SHORT_BYTES`] bytes; longer ones follow by themselves, straight from the sender's bytes into
//! the receiver's. Tags say who sends, which message of that direction it is, and which part,
//! so that no order of arrival matters. Room for the next heads is posted before they come.

use crate::slots::{SHORT_BYTES, Slots};
use crate::sys::{Endpoint, Request, Unwell, Worker};
use headlong_comm::Rank;
use headlong_comm::transport::head::{HEAD_BYTES, Head};
use headlong_comm::transport::paths::{PathError, Progress};

const MAGIC: [u8; 4] = *b"hlu1";
/// Heads of a direction that find room made for them; UCX keeps further ones itself.
const AHEAD: usize = 4;
/// The slot of the head that is being sent; those of heads to come are before it.
const OUT: usize = AHEAD;

/// Bits of a tag: which part of a message, who sends, which message.
const BODY: u64 = 1 << 63;
const SENDER: (u32, u64) = (44, (1 << 19) - 1);
/// The bits of a tag that say who sends.
pub(crate) const SENDER_MASK: u64 = SENDER.1 << SENDER.0;

pub(crate) struct Link {
    endpoint: Endpoint,
    slots: Slots,
    /// Tags of what this side and the other send, without the number.
    tags: (u64, u64),
    sent: u64,
    received: u64,
    heads: [Option<Request>; AHEAD],
    sending: [Option<Request>; 2],
    body: Option<Request>,
    failed: Option<PathError>,
}

fn tag(sender: u64, number: u64) -> u64 {
    sender | number & ((1 << SENDER.0) - 1)
}

fn free(worker: &mut Worker, request: &mut Option<Request>) {
    if let Some(request) = request.take() {
        worker.free(request);
    }
}

impl Link {
    /// Over an endpoint of `me` to `peer`.
    pub(crate) fn new(endpoint: Endpoint, (me, peer): (Rank, Rank)) -> Self {
        let sender = |rank: Rank| (rank.0 as u64 & SENDER.1) << SENDER.0;
        Self {
            endpoint,
            slots: Slots::new(AHEAD + 1),
            tags: (sender(me), sender(peer)),
            sent: 0,
            received: 0,
            heads: [const { None }; AHEAD],
            sending: [None, None],
            body: None,
            failed: None,
        }
    }

    /// Makes room for the first heads.
    pub(crate) fn expect_heads(&mut self, worker: &mut Worker) -> Result<(), PathError> {
        (0..AHEAD as u64).try_for_each(|number| self.expect_head(worker, number))
    }

    /// Makes room for the head with this number.
    fn expect_head(&mut self, worker: &mut Worker, number: u64) -> Result<(), PathError> {
        let slot = number as usize % AHEAD;
        let (room, tag) = (self.slots.place(slot), tag(self.tags.1, number));
        // SAFETY: the slot lives as long as this link, which ends its requests first, and is
        // looked at only once its request is complete.
        let posted = unsafe { worker.receive(room, HEAD_BYTES + SHORT_BYTES, tag) };
        self.heads[slot] = Some(posted.map_err(|unwell| self.fail(worker, unwell))?);
        Ok(())
    }

    /// The first error of the link stays, and comes back.
    fn fail(&mut self, worker: &Worker, unwell: Unwell) -> PathError {
        self.failed.get_or_insert_with(|| PathError::Lost(worker.words(unwell))).clone()
    }

    /// Why the link leads nowhere any more.
    pub(crate) fn check(&mut self, worker: &Worker) -> Result<(), PathError> {
        self.failed.clone().map_or(Ok(()), Err)?;
        self.endpoint.check().map_err(|unwell| self.fail(worker, unwell))
    }

    /// Sends one message, as [`Path::send`](headlong_comm::transport::paths::Path::send) says;
    /// `at` is 1 once UCX has it.
    pub(crate) fn send(
        &mut self,
        worker: &mut Worker,
        head: &Head,
        bytes: &[u8],
        at: &mut usize,
    ) -> Result<Progress, PathError> {
        self.check(worker)?;
        let begins = *at == 0;
        if begins {
            assert!(self.is_quiet(), "the message before is done");
            self.begin(worker, head, bytes).map_err(|unwell| self.fail(worker, unwell))?;
            *at = 1;
        } else {
            worker.progress();
        }
        self.free_sent(worker)?;
        Ok(match (self.is_quiet(), begins) {
            (true, _) => Progress::Done,
            (false, true) => Progress::Moved,
            (false, false) => Progress::Idle,
        })
    }

    fn begin(&mut self, worker: &mut Worker, head: &Head, bytes: &[u8]) -> Result<(), Unwell> {
        let tag = tag(self.tags.0, self.sent);
        let is_long = bytes.len() > SHORT_BYTES;
        let (short, body) = bytes.split_at(if is_long { 0 } else { bytes.len() });
        // SAFETY: no head is being sent.
        unsafe { self.slots.write(OUT, &head.to_bytes(MAGIC), short) };
        let first = self.slots.place(OUT);
        // SAFETY: the slot is not written before the request is complete.
        let sending = unsafe { worker.send(&self.endpoint, first, HEAD_BYTES + short.len(), tag) };
        self.sending[0] = sending?;
        self.sent += 1;
        if !body.is_empty() {
            // SAFETY: the caller's bytes stay until the message is done, or withdrawn.
            let sending =
                unsafe { worker.send(&self.endpoint, body.as_ptr(), body.len(), tag | BODY) };
            self.sending[1] = sending?;
        }
        Ok(())
    }

    /// Frees what has been sent.
    fn free_sent(&mut self, worker: &mut Worker) -> Result<(), PathError> {
        for part in 0..self.sending.len() {
            let Some(request) = &self.sending[part] else { continue };
            if worker.is_complete(request).map_err(|unwell| self.fail(worker, unwell))? {
                free(worker, &mut self.sending[part]);
            }
        }
        Ok(())
    }

    /// Whether nothing is being sent.
    pub(crate) fn is_quiet(&self) -> bool {
        self.sending.iter().all(Option::is_none)
    }

    /// Takes one message, as [`Path::receive`](headlong_comm::transport::paths::Path::receive)
    /// says; `at` is 1 once its head has come.
    pub(crate) fn receive(
        &mut self,
        worker: &mut Worker,
        head: &Head,
        bytes: &mut [u8],
        at: &mut usize,
    ) -> Result<Progress, PathError> {
        let is_long = bytes.len() > SHORT_BYTES;
        if is_long && *at == 0 && self.body.is_none() {
            self.check(worker)?;
            let tag = tag(self.tags.1, self.received) | BODY;
            // SAFETY: the caller's bytes are this link's until the message is done, or withdrawn.
            let posted = unsafe { worker.receive(bytes.as_mut_ptr(), bytes.len(), tag) };
            self.body = Some(posted.map_err(|unwell| self.fail(worker, unwell))?);
        }
        if *at == 0 {
            let Some(short) = self.peek(worker, head)? else { return Ok(Progress::Idle) };
            bytes[..short.len()].copy_from_slice(short);
            self.release(worker)?;
            if !is_long {
                return Ok(Progress::Done);
            }
            *at = 1;
        }
        self.finish_body(worker, bytes.len())
    }

    fn finish_body(&mut self, worker: &mut Worker, length: usize) -> Result<Progress, PathError> {
        let Some(request) = &self.body else { unreachable!("a long message has a body") };
        let mut found = worker.received(request);
        if found == Ok(None) {
            worker.progress();
            found = worker.received(request);
        }
        match found.map_err(|unwell| self.fail(worker, unwell))? {
            None => self.check(worker).map(|()| Progress::Idle),
            Some(found) if found == length => {
                free(worker, &mut self.body);
                Ok(Progress::Done)
            }
            Some(found) => {
                Err(PathError::Failed(format!("{found} bytes came where {length} were announced")))
            }
        }
    }

    /// What has come with the next head, once it has and is the expected one. Asked again, it
    /// shows the same.
    pub(crate) fn peek(
        &mut self,
        worker: &mut Worker,
        head: &Head,
    ) -> Result<Option<&[u8]>, PathError> {
        let slot = self.received as usize % AHEAD;
        let Some(request) = &self.heads[slot] else { return self.check(worker).map(|()| None) };
        let mut found = worker.received(request);
        if found == Ok(None) {
            worker.progress();
            found = worker.received(request);
        }
        let Some(length) = found.map_err(|unwell| self.fail(worker, unwell))? else {
            return self.check(worker).map(|()| None);
        };
        // SAFETY: the request is complete, and room is made in the slot again only by `release`.
        let bytes = unsafe { self.slots.show(slot, length) };
        let first = bytes.first_chunk().and_then(|first| Head::from_bytes(first, MAGIC));
        let Some(found) = first else {
            return Err(PathError::Failed("what came is no message of this job".to_owned()));
        };
        let short = if found.length > SHORT_BYTES as u64 { 0 } else { found.length as usize };
        match found == *head && length == HEAD_BYTES + short {
            true => Ok(Some(&bytes[HEAD_BYTES..])),
            false => Err(PathError::Mismatch(found)),
        }
    }

    /// Done with what [`Link::peek`] has shown: its room is for a later head.
    pub(crate) fn release(&mut self, worker: &mut Worker) -> Result<(), PathError> {
        let slot = self.received as usize % AHEAD;
        free(worker, &mut self.heads[slot]);
        self.received += 1;
        self.expect_head(worker, self.received - 1 + AHEAD as u64)
    }

    /// Whether UCX may still use bytes of a caller.
    pub(crate) fn has_callers_bytes(&self) -> bool {
        self.sending[1].is_some() || self.body.is_some()
    }

    /// Asks UCX to be done with everything, and takes no more.
    pub(crate) fn cancel(&mut self, worker: &mut Worker) {
        self.failed.get_or_insert_with(|| PathError::Failed("withdrawn".to_owned()));
        let all = self.heads.iter().chain(&self.sending).chain([&self.body]);
        all.flatten().for_each(|request| worker.cancel(request));
    }

    /// Frees everything that is complete.
    pub(crate) fn sweep(&mut self, worker: &mut Worker) {
        let all = self.heads.iter_mut().chain(&mut self.sending).chain([&mut self.body]);
        for request in all {
            let ends = |request: &mut Request| worker.is_complete(request) != Ok(false);
            if let Some(request) = request.take_if(ends) {
                worker.free(request);
            }
        }
    }

    /// Whether UCX still has anything of this link.
    pub(crate) fn has_requests(&self) -> bool {
        self.has_callers_bytes() || !self.is_quiet() || self.heads.iter().any(Option::is_some)
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_tag_do_not_touch() {
        let sender = SENDER.1 << SENDER.0;
        assert_eq!((sender & BODY, sender & tag(0, u64::MAX)), (0, 0));
        assert_eq!(BODY | sender | tag(0, u64::MAX), u64::MAX);
        assert_eq!(tag(sender, 1 << 44), sender, "numbers begin again");
    }
}
