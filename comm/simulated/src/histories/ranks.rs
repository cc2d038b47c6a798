//! What the ranks of a history do.

use super::draw::{Case, DEADLINES, Leave, Operation, Way};
use crate::launcher_env::{Launch, SecretSource};
use crate::rendezvous::{JoinOptions, join};
use crate::system::{NEVER, Time, machine, now, sleep};
use crate::transport::Transport;
use crate::transport::choose::{ChooseOptions, choose};
use crate::transport::paths::{Doorbells, PathTransport};
use crate::{CommError, CommOptions, Communicator, Rank};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How a rank may end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The transport says so.
    Comm(CommError),
    /// What came is not what was sent.
    Wrong(String),
    /// It has left as its case says.
    Left,
}

impl From<CommError> for Failure {
    fn from(error: CommError) -> Self {
        Self::Comm(error)
    }
}

const PORT: u16 = 29_577;

fn launch(case: &Case, rank: usize) -> Launch {
    Launch {
        master_host: machine(0).to_string(),
        secret: SecretSource::Value(b"a secret of the history".into()),
        ..Launch::on_loopback(rank, case.num_ranks, PORT)
    }
}

/// When a rank got how far; [`NEVER`]: not at all.
#[derive(Debug)]
pub struct Marks {
    /// All have come.
    pub joined: AtomicU64,
    /// It has nothing to do any more.
    pub closing: AtomicU64,
    /// It has ended, well or not.
    pub ended: AtomicU64,
}

impl Default for Marks {
    fn default() -> Self {
        let never = || AtomicU64::new(NEVER);
        Self { joined: never(), closing: never(), ended: never() }
    }
}

/// The whole life of a rank.
pub fn work(case: &Case, rank: usize, marks: &Marks) -> Result<(), Failure> {
    let result = live(case, rank, marks);
    marks.ended.store(now(), Ordering::Relaxed);
    result
}

fn live(case: &Case, rank: usize, marks: &Marks) -> Result<(), Failure> {
    sleep(case.starts[rank]);
    let options = JoinOptions {
        deadlines: DEADLINES,
        ranks_per_node: case.ranks_per_node,
        encrypt_data: case.encrypt,
        ..JoinOptions::new(launch(case, rank), [7; 32])
    };
    let control = join(&options)?;
    let transport: Arc<dyn Transport> = match case.way {
        Way::Tcp => control,
        Way::Paths => Arc::new(PathTransport::new(control, Vec::new(), Doorbells::default())?),
        Way::Memory => choose(control, &ChooseOptions::default())?.transport,
    };
    marks.joined.store(now(), Ordering::Relaxed);
    let communicator = Communicator::new(transport, CommOptions::default());
    for (number, operation) in case.operations.iter().enumerate() {
        match case.leaves {
            Some((leaver, Leave::Failing, at)) if leaver == rank && at == number => {
                let reason = "its disk is full".into();
                communicator.abort(CommError::Aborted { culprit: Rank(rank), reason });
                communicator.check()?;
                return Err(Failure::Wrong("an abort has left no trace".into()));
            }
            Some((leaver, Leave::Silently, at)) if leaver == rank && at == number => {
                return Err(Failure::Left);
            }
            _ => {}
        }
        operate(&communicator, *operation, number)?;
    }
    marks.closing.store(now(), Ordering::Relaxed);
    Ok(communicator.close()?)
}

fn value(rank: usize, number: usize, at: usize) -> u32 {
    (rank as u32 + 1) * 1_000_003 + number as u32 * 7919 + at as u32 * 31
}

fn operate(
    communicator: &Communicator,
    operation: Operation,
    number: usize,
) -> Result<(), Failure> {
    let (own, ranks) = (communicator.rank().0, communicator.num_ranks());
    let of = |rank, length| (0..length).map(|at| value(rank, number, at)).collect::<Vec<u32>>();
    match operation {
        Operation::Barrier => communicator.barrier()?,
        Operation::AllReduce(length) => {
            let mut data = of(own, length);
            communicator.all_reduce(&mut data)?;
            let sum = |at| (0..ranks).map(|rank| value(rank, number, at)).sum();
            expect("a sum", &data, &(0..length).map(sum).collect::<Vec<u32>>())?;
        }
        Operation::Broadcast(root, length) => {
            let mut data = if own == root { of(root, length) } else { vec![0; length] };
            communicator.broadcast(Rank(root), &mut data)?;
            expect("a broadcast", &data, &of(root, length))?;
        }
        Operation::Ring(places, length) => {
            let (to, from) = ((own + places) % ranks, (own + ranks - places) % ranks);
            let mut data = vec![0; length];
            let send = of(own, length);
            communicator.send_receive(Some((Rank(to), &send)), Some((Rank(from), &mut data)))?;
            expect("a message", &data, &of(from, length))?;
        }
        Operation::Compute(longest) => {
            let share = (own as u64 * 37 + number as u64 * 11) % 100;
            sleep(Duration::from_nanos(longest * share / 100));
        }
        Operation::Busy(rank, time) if rank == own => {
            let _busy = communicator.busy("saves a checkpoint");
            sleep(Duration::from_nanos(time));
        }
        Operation::Busy(..) => {}
    }
    Ok(())
}

fn expect(what: &str, found: &[u32], expected: &[u32]) -> Result<(), Failure> {
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(at) => Err(Failure::Wrong(format!(
            "{what}: number {at} is {}, expected {}",
            found[at], expected[at]
        ))),
    }
}
