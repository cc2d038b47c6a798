//! What a seed says about its history.

use crate::rendezvous::Deadlines;
use crate::system::{At, Fault, Model, Options, Time, What};
use crate::testing::sim::Random;
use std::time::Duration;

pub const MS: Time = 1_000_000;
const SECOND: Time = 1000 * MS;

/// Short enough for histories of a few seconds, and in proportions like the defaults.
pub const DEADLINES: Deadlines = Deadlines {
    rendezvous: Duration::from_secs(12),
    operation: Duration::from_secs(6),
    heartbeat: Duration::from_millis(200),
    silence: Duration::from_secs(2),
    handshake: Duration::from_secs(4),
    notice: Duration::from_secs(30),
};

/// The longest that a history may take.
const LIMIT: Time = 60 * SECOND;

/// How a rank leaves in the middle of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// With an error of its own.
    Failing,
    /// Without a goodbye.
    Silently,
}

/// What all ranks do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// All have come.
    Barrier,
    /// The sum of so many numbers.
    AllReduce(usize),
    /// So many numbers of one rank.
    Broadcast(usize, usize),
    /// So many numbers to the rank so many places further on.
    Ring(usize, usize),
    /// Each for itself, at most so long.
    Compute(Time),
    /// A rank says that it is busy for longer than others would wait.
    Busy(usize, Time),
}

/// What carries what ranks exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The TCP transport itself.
    Tcp,
    /// Paths over its connections.
    Paths,
    /// Memory inside a node, else TCP.
    Memory,
}

/// One history before it is played.
#[derive(Debug, Clone)]
pub struct Case {
    /// What all of it follows from.
    pub seed: u64,
    /// No rank may see an error.
    pub is_calm: bool,
    /// How many.
    pub num_ranks: usize,
    /// How many processes connect that do not belong to the job.
    pub num_others: u64,
    /// Everything is encrypted.
    pub encrypt: bool,
    /// What carries the payload.
    pub way: Way,
    /// Ranks of a node; they share memory where [`Case::way`] says so.
    pub ranks_per_node: usize,
    /// When each rank begins.
    pub starts: Vec<Duration>,
    /// What all ranks do.
    pub operations: Vec<Operation>,
    /// The rank that ends in the middle of the job, in which way and before which operation.
    pub leaves: Option<(usize, Leave, usize)>,
    /// What the system does.
    pub options: Options,
}

impl Case {
    /// The history of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x51_5e_ed);
        let num_ranks = [2, 2, 3, 3, 3, 4, 4, 5][random.below(8) as usize];
        let is_calm = seed.is_multiple_of(3);
        let model = model(&mut random);
        // A clock that jumps far lets its rank give up before the others know what has failed.
        let jump = if is_calm { 3000 * MS } else { 1900 * MS };
        let mut faults = calm(&mut random, num_ranks, jump);
        let mut leaves = None;
        if !is_calm {
            let count = [1, 1, 1, 2, 2, 3][random.below(6) as usize];
            for _ in 0..count {
                match random.below(7) {
                    0 if leaves.is_none() => {
                        let way = [Leave::Failing, Leave::Silently][random.below(2) as usize];
                        let rank = random.below(num_ranks as u64) as usize;
                        leaves = Some((rank, way, random.below(5) as usize));
                    }
                    _ => faults.push(fault(&mut random, num_ranks)),
                }
            }
        }
        let count = random.between(1, 6);
        let operations = (0..count).map(|_| operation(&mut random, num_ranks)).collect();
        let start = |_| Duration::from_nanos(random.below(300 * MS));
        let starts = (0..num_ranks).map(start).collect();
        let options = Options {
            seed,
            num_ranks,
            preempt_percent: [0, 3, 15, 50][random.below(4) as usize],
            network: model,
            faults,
            mistake: None,
            limit: LIMIT,
            keep_lines: false,
        };
        let num_others = random.below(6).saturating_sub(3);
        let encrypt = random.chance(25);
        let way = [Way::Tcp, Way::Tcp, Way::Paths, Way::Memory][random.below(4) as usize];
        let ranks_per_node = match way {
            Way::Memory => random.between(2, 3) as usize,
            _ => 1,
        };
        Self {
            seed,
            is_calm,
            num_ranks,
            num_others,
            encrypt,
            way,
            ranks_per_node,
            starts,
            operations,
            leaves,
            options,
        }
    }

    /// The same history, of ranks that make a mistake.
    #[must_use]
    pub fn with_mistake(mut self, name: &'static str) -> Self {
        self.options.mistake = Some(name);
        self
    }

    /// The same, with its events as text.
    #[must_use]
    pub fn with_lines(mut self) -> Self {
        self.options.keep_lines = true;
        self
    }
}

fn model(random: &mut Random) -> Model {
    let delays = [(MS / 50, MS / 20), (MS / 20, 2 * MS), (MS, 20 * MS)];
    Model {
        delay: delays[random.below(3) as usize],
        spike_percent: [0, 0, 3][random.below(3) as usize],
        part_percent: [0, 20, 80][random.below(3) as usize],
        room: [8 << 10, 64 << 10, 1 << 20][random.below(3) as usize],
    }
}

fn when(random: &mut Random, rank: usize) -> At {
    match random.chance(50) {
        true => At::Time(random.below(1500 * MS)),
        false => At::Call { rank, number: random.between(1, 500) },
    }
}

fn two(random: &mut Random, num_ranks: usize) -> (usize, usize) {
    let one = random.below(num_ranks as u64) as usize;
    let other = (one + random.between(1, num_ranks as u64 - 1) as usize) % num_ranks;
    (one, other)
}

/// What no deadline of [`DEADLINES`] is short enough for: one of a kind for each rank.
fn calm(random: &mut Random, num_ranks: usize, jump: Time) -> Vec<Fault> {
    let mut faults = Vec::new();
    for rank in 0..num_ranks {
        if random.chance(20) {
            let what = What::Pause { rank, time: random.between(MS, 500 * MS) };
            faults.push(Fault { at: when(random, rank), what });
        }
        if random.chance(10) {
            let what = What::Jump { rank, by: random.between(MS, jump) };
            faults.push(Fault { at: when(random, rank), what });
        }
    }
    if random.chance(25) {
        let (from, to) = two(random, num_ranks);
        let what = What::Cut { from, to, time: random.between(MS, 400 * MS) };
        faults.push(Fault { at: when(random, from), what });
    }
    faults
}

/// What has to be found out.
fn fault(random: &mut Random, num_ranks: usize) -> Fault {
    let (rank, other) = two(random, num_ranks);
    let what = match random.below(8) {
        0..=2 => What::Death { rank, silent: false },
        3 => What::Death { rank, silent: true },
        4 => What::Pause { rank, time: random.between(4 * SECOND, 20 * SECOND) },
        5 | 6 => What::Reset { ranks: [rank, other] },
        _ => What::Cut { from: rank, to: other, time: Time::MAX },
    };
    Fault { at: when(random, rank), what }
}

fn operation(random: &mut Random, num_ranks: usize) -> Operation {
    let length = [0, 1, 100, 3000, 20_000][random.below(5) as usize];
    let rank = random.below(num_ranks as u64) as usize;
    match random.below(8) {
        0 => Operation::Barrier,
        1 | 2 => Operation::AllReduce(length),
        3 => Operation::Broadcast(rank, length),
        4 => Operation::Compute(random.below(300 * MS)),
        5 if random.chance(30) => Operation::Busy(rank, random.between(6 * SECOND, 8 * SECOND)),
        _ => Operation::Ring(random.between(1, num_ranks as u64 - 1) as usize, length),
    }
}
