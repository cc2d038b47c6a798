//! One operation at one size, timed on every rank.
//!
//! What is timed is what `benches/peers/coll_gloo.py` and `coll_mpi.py` time: three calls to warm up, one that says how often to repeat, a
//! barrier, then call after call on the same buffers, each between two readings of the clock.

use headlong_comm::{Communicator, Rank, Result};
use std::time::Instant;

/// A collective of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// In place.
    AllReduce,
    /// Each rank's buffer holds a part for everybody.
    ReduceScatter,
    /// Each rank's buffer is the result.
    AllGather,
    /// From rank 0.
    Broadcast,
    /// Equal parts.
    AllToAll,
    /// Parts of different sizes.
    AllToAllV,
    /// To the next rank, from the previous one.
    SendReceive,
    /// No data.
    Barrier,
}

impl Operation {
    /// Its name on the command line.
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

    /// Whether it adds.
    pub fn reduces(self) -> bool {
        matches!(self, Operation::AllReduce | Operation::ReduceScatter)
    }

    /// Bus bandwidth is algorithm bandwidth times this, as nccl-tests define it.
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let share = (ranks - 1) as f64 / ranks as f64;
        match self {
            Operation::AllReduce => 2.0 * share,
            Operation::ReduceScatter | Operation::AllGather | Operation::AllToAll | Operation::AllToAllV => {
                share
            }
            Operation::Broadcast | Operation::SendReceive | Operation::Barrier => 1.0,
        }
    }
}

/// How long and how often.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Calls before the clock starts.
    pub warm_up: usize,
    /// Calls that are timed; none: as many as fit into `seconds`, 10 to 20,000.
    pub iterations: Option<usize>,
    /// Time for one size.
    pub seconds: f64,
    /// Count wrong elements first.
    pub check: bool,
}

/// Fewest and most calls of a size.
const ITERATIONS: (f64, f64) = (10.0, 20_000.0);

/// What one size gave, the same on every rank.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Timing {
    /// Bytes of one rank's buffer.
    pub bytes: usize,
    /// Nanoseconds of each call on rank 0.
    pub first_rank_ns: Vec<u64>,
    /// Nanoseconds of each call on the rank where it took longest.
    pub slowest_ns: Vec<u64>,
    /// Elements with another value than expected, of all ranks, where asked.
    pub wrong: Option<u64>,
}

/// Measures one size; all ranks call it.
///
/// # Errors
/// The job's first error.
pub fn measure(
    communicator: &Communicator,
    operation: Operation,
    bytes: usize,
    effort: &Effort,
) -> Result<Timing> {
    let mut buffers = Buffers::new(communicator, operation, bytes);
    let wrong = if effort.check { Some(buffers.check(communicator, operation)?) } else { None };
    if effort.check {
        // Memory as it comes from the system, as the scripts have it: what is only read need not be in memory at all.
        buffers = Buffers::new(communicator, operation, bytes);
    }
    for _ in 0..effort.warm_up {
        buffers.call(communicator, operation)?;
    }
    let start = Instant::now();
    buffers.call(communicator, operation)?;
    let fitting = effort.seconds / start.elapsed().as_secs_f64().max(1e-9);
    let mut iterations =
        [effort.iterations.map_or(fitting.clamp(ITERATIONS.0, ITERATIONS.1) as u64, |n| n as u64)];
    communicator.broadcast(Rank(0), &mut iterations)?;
    let mut mine = vec![0u64; iterations[0] as usize];
    communicator.barrier()?;
    for taken in &mut mine {
        let start = Instant::now();
        buffers.call(communicator, operation)?;
        *taken = start.elapsed().as_nanos() as u64;
    }
    let mut all = vec![0; mine.len() * communicator.num_ranks()];
    communicator.all_gather(&mine, &mut all)?;
    let slowest = |i: usize| all.iter().skip(i).step_by(mine.len()).copied().max().unwrap_or(0);
    let slowest_ns = (0..mine.len()).map(slowest).collect();
    Ok(Timing { bytes, first_rank_ns: all[..mine.len()].to_vec(), slowest_ns, wrong })
}

/// What a rank sends and receives.
struct Buffers {
    /// Elements of a full buffer.
    count: usize,
    send: Vec<f32>,
    recv: Vec<f32>,
    send_counts: Vec<usize>,
    recv_counts: Vec<usize>,
}

impl Buffers {
    fn new(communicator: &Communicator, operation: Operation, bytes: usize) -> Self {
        let (ranks, me) = (communicator.num_ranks(), communicator.rank().0);
        let count = bytes / size_of::<f32>();
        let counts = |of: &dyn Fn(usize) -> usize| (0..ranks).map(of).collect::<Vec<usize>>();
        let send_counts = counts(&|to| uneven(count, ranks, me, to));
        let recv_counts = counts(&|from| uneven(count, ranks, from, me));
        let (send, recv) = match operation {
            Operation::AllReduce | Operation::Broadcast => (count, 0),
            Operation::ReduceScatter => (count / ranks * ranks, count / ranks),
            Operation::AllGather => (count / ranks, count / ranks * ranks),
            Operation::AllToAll => (count / ranks * ranks, count / ranks * ranks),
            Operation::AllToAllV => (send_counts.iter().sum(), recv_counts.iter().sum()),
            Operation::SendReceive => (count, count),
            Operation::Barrier => (0, 0),
        };
        Self { count, send: vec![0.0; send], recv: vec![0.0; recv], send_counts, recv_counts }
    }

    fn call(&mut self, communicator: &Communicator, operation: Operation) -> Result<()> {
        let (ranks, me) = (communicator.num_ranks(), communicator.rank().0);
        let Self { send, recv, send_counts, recv_counts, .. } = self;
        match operation {
            Operation::AllReduce => communicator.all_reduce(send),
            Operation::ReduceScatter => communicator.reduce_scatter(send, recv),
            Operation::AllGather => communicator.all_gather(send, recv),
            Operation::Broadcast => communicator.broadcast(Rank(0), send),
            Operation::AllToAll => communicator.all_to_all(send, recv),
            Operation::AllToAllV => communicator.all_to_all_v(send, send_counts, recv, recv_counts),
            Operation::SendReceive => {
                let (next, previous) = (Rank((me + 1) % ranks), Rank((me + ranks - 1) % ranks));
                communicator.send_receive(Some((next, &send[..])), Some((previous, &mut recv[..])))
            }
            Operation::Barrier => communicator.barrier(),
        }
    }

    /// Calls once on small integers, whose sums are exact, and counts the elements of all ranks that are not as they should be.
    fn check(&mut self, communicator: &Communicator, operation: Operation) -> Result<u64> {
        let (ranks, me) = (communicator.num_ranks(), communicator.rank().0);
        self.send.iter_mut().enumerate().for_each(|(i, value)| *value = known(me, i));
        self.call(communicator, operation)?;
        let sum = |i: usize| (0..ranks).map(|rank| known(rank, i)).sum();
        let wrong = |found: &[f32], expected: &dyn Fn(usize) -> f32| {
            found.iter().enumerate().filter(|&(i, &found)| found != expected(i)).count() as u64
        };
        let part = self.recv.len() / ranks.max(1);
        let mine = match operation {
            Operation::AllReduce => wrong(&self.send, &sum),
            Operation::ReduceScatter => wrong(&self.recv, &|i| sum(me * self.recv.len() + i)),
            Operation::AllGather => wrong(&self.recv, &|i| known(i / part, i % part)),
            Operation::Broadcast => wrong(&self.send, &|i| known(0, i)),
            Operation::AllToAll => wrong(&self.recv, &|i| known(i / part, me * part + i % part)),
            Operation::AllToAllV => wrong(&self.recv, &self.parts_of_any_size(ranks, me)),
            Operation::SendReceive => wrong(&self.recv, &|i| known((me + ranks - 1) % ranks, i)),
            Operation::Barrier => 0,
        };
        let mut total = [mine];
        communicator.all_reduce(&mut total)?;
        Ok(total[0])
    }

    fn parts_of_any_size(&self, ranks: usize, me: usize) -> impl Fn(usize) -> f32 + use<> {
        let mut expected = Vec::with_capacity(self.recv.len());
        for (from, &len) in self.recv_counts.iter().enumerate() {
            let begin: usize = (0..me).map(|to| uneven(self.count, ranks, from, to)).sum();
            expected.extend((begin..begin + len).map(|i| known(from, i)));
        }
        move |i| expected[i]
    }
}

/// Elements from one rank to another in an exchange of parts of different sizes: 1 to `ranks` shares.
fn uneven(count: usize, ranks: usize, from: usize, to: usize) -> usize {
    let shares = ranks * (ranks + 1) / 2;
    count / shares * (1 + (from + to) % ranks)
}

/// A small integer.
fn known(rank: usize, i: usize) -> f32 {
    ((rank * 31 + i * 7) % 61) as f32
}
