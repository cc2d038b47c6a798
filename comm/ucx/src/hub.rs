//! A rank's worker with all of its links.

use crate::link::Link;
use crate::sys::{Endpoint, Request, Unwell, Worker};
use headlong_comm::Rank;
use headlong_comm::transport::paths::{PathError, Progress};
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

/// Messages of an exchange that fails are given this long to end by themselves: a peer that is
/// well is about to take them.
const END: Duration = Duration::from_millis(100);
/// UCX is called for at most this long until it has let go of requests, and as long for endpoints.
const LET_GO: Duration = Duration::from_millis(400);

/// What was sent and has not left yet.
enum Flush {
    Open,
    Runs(Request),
    Done,
}

pub(crate) struct Hub {
    worker: ManuallyDrop<Worker>,
    links: Vec<Link>,
    flush: Flush,
    /// UCX has not let go of something: it is never called again.
    stuck: bool,
    closed: bool,
}

impl Hub {
    /// Without a link.
    pub(crate) fn new(worker: Worker) -> Self {
        let (worker, links) = (ManuallyDrop::new(worker), Vec::new());
        Self { worker, links, flush: Flush::Open, stuck: false, closed: false }
    }

    /// Adds the link from one rank to another.
    pub(crate) fn add(&mut self, endpoint: Endpoint, ends: (Rank, Rank)) -> Result<(), PathError> {
        self.links.push(Link::new(endpoint, ends));
        let link = self.links.last_mut().expect("it was just added");
        link.expect_heads(&mut self.worker)
    }

    /// A link and the worker that moves it, unless the hub has been left.
    pub(crate) fn link(&mut self, link: usize) -> Result<(&mut Link, &mut Worker), PathError> {
        match self.closed {
            true => Err(PathError::Failed("an exchange before has failed".to_owned())),
            false => Ok((&mut self.links[link], &mut self.worker)),
        }
    }

    /// As [`Worker::moves`].
    pub(crate) fn moves(&self) -> u32 {
        self.worker.moves()
    }

    /// Whether a rank may sleep until UCX's descriptor can be read.
    pub(crate) fn arm(&mut self) -> bool {
        !self.closed && self.worker.arm()
    }

    /// Moves what UCX still has, while no one exchanges.
    pub(crate) fn look_after(&mut self) {
        if !self.closed {
            self.worker.progress();
        }
    }

    /// Whether all that was sent has left: asked by each link in turn, once nothing more is sent.
    pub(crate) fn flush(&mut self, link: usize) -> Result<Progress, PathError> {
        match self.flush_worker() {
            Ok(progress) => Ok(progress),
            Err(unwell) if self.links[link].endpoint().check().is_err() => {
                Err(PathError::Lost(self.worker.words(unwell)))
            }
            // Its own turn comes, and names its peer.
            Err(_) if self.links.iter().any(|link| link.endpoint().check().is_err()) => {
                Ok(Progress::Idle)
            }
            Err(unwell) => Err(PathError::Failed(self.worker.words(unwell))),
        }
    }

    fn flush_worker(&mut self) -> Result<Progress, Unwell> {
        if self.closed {
            return Ok(Progress::Done);
        }
        if let Flush::Open = self.flush {
            self.flush = self.worker.flush()?.map_or(Flush::Done, Flush::Runs);
        }
        let Flush::Runs(request) = &self.flush else { return Ok(Progress::Done) };
        self.worker.progress();
        if !self.worker.is_complete(request)? {
            return Ok(Progress::Idle);
        }
        if let Flush::Runs(request) = std::mem::replace(&mut self.flush, Flush::Done) {
            self.worker.free(request);
        }
        Ok(Progress::Done)
    }

    /// After a failure: returns when UCX touches no caller's bytes any more, or has not let go of
    /// them in time. Then it is not called again, but a NIC may still use them.
    pub(crate) fn withdraw(&mut self) {
        if self.closed || !self.links.iter().any(Link::has_callers_bytes) {
            return;
        }
        if !self.progress_until(END, |links| !links.iter().any(Link::has_callers_bytes)) {
            self.close();
        }
    }

    /// Calls UCX until its links are as `is_done` asks, for at most `longest`: whether they are.
    fn progress_until(&mut self, longest: Duration, is_done: impl Fn(&[Link]) -> bool) -> bool {
        let begin = Instant::now();
        loop {
            self.worker.progress();
            self.links.iter_mut().for_each(|link| link.sweep(&mut self.worker));
            if is_done(&self.links) {
                return true;
            }
            if begin.elapsed() > longest {
                return false;
            }
        }
    }

    /// Ends everything: requests are cancelled, and endpoints closed without a word of their
    /// peers, which may be gone.
    fn close(&mut self) {
        self.closed = true;
        let Self { links, worker, .. } = self;
        links.iter_mut().for_each(|link| link.cancel(worker));
        worker.progress();
        let closing = |link: &Link| worker.close(link.endpoint()).ok().flatten();
        let mut closing: Vec<Request> = links.iter().filter_map(closing).collect();
        if let Flush::Runs(request) = std::mem::replace(&mut self.flush, Flush::Done) {
            closing.push(request);
        }
        let let_go = self.progress_until(LET_GO, |links| !links.iter().any(Link::has_requests));
        let begin = Instant::now();
        while closing.iter().any(|request| self.worker.is_complete(request) == Ok(false)) {
            self.worker.progress();
            if begin.elapsed() > LET_GO {
                // Note: what UCX has not let go of it would touch in a later call. There is none.
                self.stuck = true;
                return;
            }
        }
        closing.into_iter().for_each(|request| self.worker.free(request));
        self.stuck = !let_go;
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        if !self.closed {
            self.close();
        }
        if self.stuck {
            // The worker stays, and what it may still look at with it.
            std::mem::forget(std::mem::take(&mut self.links));
            return;
        }
        // SAFETY: taken once, here; nothing of it is left.
        drop(unsafe { ManuallyDrop::take(&mut self.worker) });
    }
}

/// Closes endpoints of which no hub was made.
pub(crate) fn close_all(worker: &mut Worker, endpoints: Vec<Endpoint>) {
    let begin = Instant::now();
    for endpoint in endpoints {
        let is_closed = match worker.close(&endpoint) {
            Ok(None) => true,
            Ok(Some(request)) => {
                while worker.is_complete(&request) == Ok(false) && begin.elapsed() < LET_GO {
                    worker.progress();
                }
                let is_closed = worker.is_complete(&request) != Ok(false);
                worker.free(request);
                is_closed
            }
            Err(_) => false,
        };
        if !is_closed {
            // UCX may still write to its flag.
            std::mem::forget(endpoint);
        }
    }
}
