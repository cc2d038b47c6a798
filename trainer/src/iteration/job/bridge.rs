//! The way between the process that leads training and the first of those that evaluate.
//!
//! It is a job of two ranks, with an end of its own: neither side is lost with it.

use crate::error::{Error, chain};
use headlong_comm::transport::Transport;
use headlong_comm::{Busy, CommError, CommOptions, Communicator, Element, Rank};
use std::sync::Arc;
use std::time::Duration;

pub struct Bridge {
    link: Communicator,
    /// The two as the launcher counts them.
    ranks: [Rank; 2],
    /// Each side waits for the other for as long as that lives.
    _busy: Busy,
}

/// The ends, as the link counts them.
const LEADER: Rank = Rank(0);
const EVALUATOR: Rank = Rank(1);

impl Bridge {
    pub(super) fn new(transport: Arc<dyn Transport>, deadline: Duration, ranks: [Rank; 2]) -> Self {
        let link = Communicator::new(transport, CommOptions { deadline, ..CommOptions::default() });
        let busy = link.busy(if link.rank() == LEADER { "trains" } else { "evaluates" });
        Self { link, ranks, _busy: busy }
    }

    fn named<T>(&self, result: Result<T, CommError>) -> Result<T, CommError> {
        result.map_err(|error| error.in_whole(&self.ranks))
    }

    /// What the process that leads says.
    pub fn from_leader<T: Element>(&self, data: &mut [T]) -> Result<(), CommError> {
        self.named(self.link.broadcast(LEADER, data))
    }

    /// What the first process that evaluates says.
    pub fn from_evaluator<T: Element>(&self, data: &mut [T]) -> Result<(), CommError> {
        self.named(self.link.broadcast(EVALUATOR, data))
    }

    /// The first error of either side, if one has failed.
    pub fn check(&self) -> Result<(), CommError> {
        self.named(self.link.check())
    }

    /// Tells the other side that this one ends, and why.
    pub fn abort(&self, error: &Error) {
        let reason = chain(error);
        self.link.abort(CommError::Aborted { culprit: self.link.rank(), reason });
    }

    /// Both sides are done.
    pub fn close(&self) -> Result<(), CommError> {
        self.named(self.link.close())
    }
}
