//! The collectives of the command line: their names, sizes and bandwidths as nccl-tests define
//! them.

use headlong_comm::Rank;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    AllReduce,
    /// Each rank's buffer holds a part for everybody.
    ReduceScatter,
    AllGather,
    Broadcast,
    AllToAll,
    AllToAllV,
    /// To the next rank, from the previous one.
    SendReceive,
    Barrier,
}

impl Operation {
    pub fn name(self) -> &'static str {
        match self {
            Operation::AllReduce => "all_reduce",
            Operation::ReduceScatter => "reduce_scatter",
            Operation::AllGather => "all_gather",
            Operation::Broadcast => "broadcast",
            Operation::AllToAll => "alltoall",
            Operation::AllToAllV => "alltoallv",
            Operation::SendReceive => "sendrecv",
            Operation::Barrier => "barrier",
        }
    }

    pub fn reduces(self) -> bool {
        matches!(self, Operation::AllReduce | Operation::ReduceScatter)
    }

    /// Bus bandwidth is algorithm bandwidth times this.
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let share = (ranks - 1) as f64 / ranks as f64;
        match self {
            Operation::AllReduce => 2.0 * share,
            Operation::ReduceScatter
            | Operation::AllGather
            | Operation::AllToAll
            | Operation::AllToAllV => share,
            Operation::Broadcast | Operation::SendReceive | Operation::Barrier => 1.0,
        }
    }

    /// The places that can be measured, the library's own form first: the other one is that form
    /// and a copy.
    pub fn places(self) -> &'static [Place] {
        match self {
            Operation::Barrier => &[Place::Out],
            Operation::AllReduce | Operation::Broadcast => &[Place::In, Place::Out],
            _ => &[Place::Out, Place::In],
        }
    }
}

/// Where a result lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    Out,
    In,
}

impl Place {
    pub fn name(self) -> &'static str {
        match self {
            Place::Out => "out_of_place",
            Place::In => "in_place",
        }
    }
}

/// One operation of one size, as one rank sees it.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub operation: Operation,
    pub count: usize,
    /// Where a broadcast begins.
    pub root: Rank,
    pub ranks: usize,
    pub me: usize,
}

impl Case {
    pub fn send_len(&self) -> usize {
        match self.operation {
            Operation::AllGather => self.count / self.ranks,
            Operation::ReduceScatter | Operation::AllToAll => self.count / self.ranks * self.ranks,
            Operation::AllToAllV => (0..self.ranks).map(|to| self.uneven(self.me, to)).sum(),
            Operation::AllReduce | Operation::Broadcast | Operation::SendReceive => self.count,
            Operation::Barrier => 0,
        }
    }

    pub fn recv_len(&self) -> usize {
        match self.operation {
            Operation::AllGather => self.count / self.ranks * self.ranks,
            Operation::ReduceScatter => self.count / self.ranks,
            _ => self.send_len(),
        }
    }

    /// The column `size` in elements: the larger of what a rank gives and gets.
    pub fn size_len(&self) -> usize {
        self.send_len().max(self.recv_len())
    }

    /// The column `count`: what nccl-tests hand to the call.
    pub fn call_count(&self) -> usize {
        match self.operation {
            Operation::ReduceScatter => self.recv_len(),
            Operation::AllToAll | Operation::AllToAllV => self.send_len() / self.ranks,
            _ => self.send_len(),
        }
    }

    /// Elements from one rank to another in an exchange of parts of different sizes: 1 to `ranks`
    /// shares. All ranks give and get equally many.
    pub fn uneven(&self, from: usize, to: usize) -> usize {
        let shares = self.ranks * (self.ranks + 1) / 2;
        self.count / shares * (1 + (from + to) % self.ranks)
    }

    /// The neighbours around the ring: to whom a rank sends, and from whom it receives.
    pub fn neighbours(&self) -> (Rank, Rank) {
        (Rank((self.me + 1) % self.ranks), Rank((self.me + self.ranks - 1) % self.ranks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts_are_those_of_nccl_tests() {
        let case = |operation| Case { operation, count: 1024, root: Rank(0), ranks: 4, me: 1 };
        let columns = |operation| (case(operation).size_len(), case(operation).call_count());
        assert_eq!(columns(Operation::AllReduce), (1024, 1024));
        assert_eq!(columns(Operation::AllGather), (1024, 256));
        assert_eq!(columns(Operation::ReduceScatter), (1024, 256));
        assert_eq!(columns(Operation::AllToAll), (1024, 256));
        assert_eq!(columns(Operation::Broadcast), (1024, 1024));
        assert_eq!(columns(Operation::Barrier), (0, 0));
        assert_eq!(case(Operation::AllToAllV).send_len(), 1024 / 10 * 10);
        assert_eq!(Operation::AllReduce.bus_factor(4), 1.5);
        assert_eq!(Operation::AllToAll.bus_factor(4), 0.75);
        assert_eq!(Operation::Broadcast.bus_factor(4), 1.0);
    }
}
