//! Work requests in C's form, kept for posting again and again.

use super::super::nic::{Action, Patch, Receive, Remote, Request, Segment};
use super::raw::{self, RecvWr, SendWr, Sge, WrPart};
use std::ptr;

/// A chain of send requests. The requests point at each other and at their segments, which never
/// move.
pub(super) struct Chain {
    requests: Box<[SendWr]>,
    segments: Box<[Sge]>,
    starts: Box<[usize]>,
}

impl Chain {
    /// A chain that does `requests` in order; at least one.
    pub(super) fn new(requests: &[Request]) -> Self {
        assert!(!requests.is_empty(), "a chain has at least one request");
        let segments: Vec<Sge> =
            requests.iter().flat_map(|request| &request.segments).map(sge).collect();
        let mut starts = Vec::with_capacity(requests.len());
        let mut next = 0;
        for request in requests {
            starts.push(next);
            next += request.segments.len();
        }
        Self {
            requests: requests.iter().map(send).collect(),
            segments: segments.into(),
            starts: starts.into(),
        }
    }

    pub(super) fn patch(&mut self, patch: &Patch) {
        match *patch {
            Patch::Length { request, segment, length } => {
                assert!(segment < self.requests[request].num_sge as usize, "no such segment");
                self.segments[self.starts[request] + segment].length = length;
            }
            Patch::Immediate { request, immediate } => {
                self.requests[request].imm_data = immediate.to_be();
            }
        }
    }

    /// The first request, for the NIC, with all pointers set: they are good until the chain is
    /// touched again.
    pub(super) fn first(&mut self) -> *mut SendWr {
        let base = self.segments.as_mut_ptr();
        let first = self.requests.as_mut_ptr();
        for (at, &start) in self.starts.iter().enumerate() {
            let is_last = at + 1 == self.starts.len();
            // SAFETY: there are as many requests as starts.
            let request = unsafe { &mut *first.add(at) };
            // The pointer of a request without segments is never read.
            request.sg_list = base.wrapping_add(start);
            request.next = if is_last { ptr::null_mut() } else { first.wrapping_add(at + 1) };
        }
        first
    }
}

fn sge(segment: &Segment) -> Sge {
    Sge { addr: segment.address, length: segment.length, lkey: segment.key }
}

fn send(request: &Request) -> SendWr {
    let rdma =
        |at: Remote| WrPart { rdma: raw::RdmaPart { remote_addr: at.address, rkey: at.key } };
    let atomic = |at: Remote, compare_add| WrPart {
        atomic: raw::AtomicPart { remote_addr: at.address, compare_add, swap: 0, rkey: at.key },
    };
    let nowhere = Remote { address: 0, key: 0 };
    let (opcode, immediate, wr) = match request.action {
        Action::Write(at) => (raw::WR_RDMA_WRITE, 0, rdma(at)),
        Action::WriteImmediate(at, immediate) => (raw::WR_RDMA_WRITE_WITH_IMM, immediate, rdma(at)),
        Action::Read(at) => (raw::WR_RDMA_READ, 0, rdma(at)),
        Action::FetchAdd(at, add) => (raw::WR_ATOMIC_FETCH_AND_ADD, 0, atomic(at, add)),
        Action::Send => (raw::WR_SEND, 0, rdma(nowhere)),
    };
    let flag = |wanted: bool, flag| if wanted { flag } else { 0 };
    SendWr {
        wr_id: request.id,
        next: ptr::null_mut(),
        sg_list: ptr::null_mut(),
        num_sge: request.segments.len() as i32,
        opcode: opcode as i32,
        send_flags: flag(request.signalled, raw::SEND_SIGNALED)
            | flag(request.inline, raw::SEND_INLINE),
        imm_data: immediate.to_be(),
        wr,
        unused_xrc: 0,
        unused_windows: [0; 6],
    }
}

/// A segment that is never read.
const NOTHING: Sge = Sge { addr: 0, length: 0, lkey: 0 };

/// At most this many receives are given to a NIC in one call.
const AT_ONCE: usize = 16;

/// Calls `post` with chains of receives in C's form until all are posted or one is refused.
pub(super) fn receive(receives: &[Receive], mut post: impl FnMut(*mut RecvWr) -> i32) -> i32 {
    for some in receives.chunks(AT_ONCE) {
        let mut segments = [NOTHING; AT_ONCE];
        let mut requests = [const {
            RecvWr { wr_id: 0, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 }
        }; AT_ONCE];
        let (first, base) = (requests.as_mut_ptr(), segments.as_mut_ptr());
        for (at, receive) in some.iter().enumerate() {
            let is_last = at + 1 == some.len();
            let next = if is_last { ptr::null_mut() } else { first.wrapping_add(at + 1) };
            let sg_list = base.wrapping_add(at);
            let num_sge = i32::from(receive.segment.is_some());
            // SAFETY: a bunch is at most as long as both arrays.
            unsafe {
                sg_list.write(receive.segment.as_ref().map_or(NOTHING, sge));
                first.add(at).write(RecvWr { wr_id: receive.id, next, sg_list, num_sge });
            }
        }
        let answer = post(first);
        if answer != 0 {
            return answer;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: u64, action: Action, segments: usize) -> Request {
        let segment =
            |at: usize| Segment { address: 100 * id + at as u64, length: 10 + at as u32, key: 7 };
        Request {
            id,
            action,
            segments: (0..segments).map(segment).collect(),
            inline: false,
            signalled: id == 3,
        }
    }

    #[test]
    fn a_chain_is_linked_in_order_and_patched_for_good() {
        let at = Remote { address: 0x1000, key: 42 };
        let mut chain = Chain::new(&[
            request(1, Action::Write(at), 2),
            request(2, Action::WriteImmediate(at, 5), 0),
            request(3, Action::FetchAdd(at, 8), 1),
        ]);
        chain.patch(&Patch::Length { request: 0, segment: 1, length: 77 });
        chain.patch(&Patch::Immediate { request: 1, immediate: 0x0102_0304 });
        let first = chain.first();
        // SAFETY: the chain lives and has three requests, each pointing at the next and at its
        // segments.
        let (one, two, three, last) = unsafe {
            let two = (*first).next;
            (&*first, &*two, &*(*two).next, (*(*two).next).next)
        };
        assert!(last.is_null());
        assert_eq!([one.wr_id, two.wr_id, three.wr_id], [1, 2, 3]);
        assert_eq!([one.num_sge, two.num_sge, three.num_sge], [2, 0, 1]);
        assert_eq!(two.imm_data.to_ne_bytes(), [1, 2, 3, 4]);
        assert_eq!([one.send_flags, three.send_flags], [0, raw::SEND_SIGNALED]);
        // SAFETY: segments as just counted; the first request is an RDMA write, the third an
        // atomic.
        unsafe {
            assert_eq!(((*one.sg_list).length, (*one.sg_list.add(1)).length), (10, 77));
            assert_eq!((*three.sg_list).addr, 300);
            assert_eq!((one.wr.rdma.remote_addr, one.wr.rdma.rkey), (0x1000, 42));
            assert_eq!((three.wr.atomic.compare_add, three.wr.atomic.rkey), (8, 42));
        }
    }

    #[test]
    fn receives_are_posted_in_bunches_up_to_the_first_refusal() {
        let receives: Vec<Receive> = (0..40).map(|id| Receive { id, segment: None }).collect();
        let mut seen = Vec::new();
        let mut calls = 0;
        let answer = receive(&receives, |mut next| {
            while !next.is_null() {
                // SAFETY: a chain of live requests that ends in null.
                unsafe {
                    seen.push((*next).wr_id);
                    next = (*next).next;
                }
            }
            calls += 1;
            if calls == 2 { 12 } else { 0 }
        });
        assert_eq!((answer, calls), (12, 2));
        assert_eq!(seen, (0..32).collect::<Vec<u64>>());
    }
}
