//! How long things take in one world: drawn once from the seed, so that some worlds are calm and
//! some are wild.

use super::random::Random;

/// Virtual time in nanoseconds since the world began.
pub(super) type Time = u64;

const MICROSECOND: Time = 1_000;

/// What a chunk needs from the sender's memory to the receiver's.
#[derive(Debug)]
enum Latency {
    Constant(Time),
    Uniform {
        longest: Time,
    },
    /// Half of the chunks take the typical time, a quarter twice that, and so on, up to 1024 times.
    HeavyTail {
        typical: Time,
    },
}

/// The delays of one world.
#[derive(Debug)]
pub(super) struct NetworkModel {
    latency: Latency,
    /// This link is 20 times slower than the others.
    slow_link: Option<(usize, usize)>,
    /// This rank computes 50 times longer than the others.
    slow_rank: Option<usize>,
    /// Chunks of one link arrive in the order in which they left.
    ordered_links: bool,
    /// Of 100 messages, how many let their sender continue as soon as they have left its memory;
    /// the others hold it until they have arrived.
    eager_percent: u64,
    most_chunks: u64,
    longest_compute: Time,
    /// How long a chunk may lie in its sender's memory before it is read.
    longest_rest: Time,
}

impl NetworkModel {
    /// The model of a seed among `ranks` ranks.
    pub fn draw(random: &mut Random, ranks: usize) -> Self {
        let latency = match random.below(4) {
            0 => Latency::Constant(5 * MICROSECOND),
            1 => Latency::Uniform { longest: random.between(1, 500) * MICROSECOND },
            _ => Latency::HeavyTail { typical: random.between(1, 10) * MICROSECOND },
        };
        let mut any_rank = |percent| {
            let drawn = random.below(ranks as u64) as usize;
            random.chance(percent).then_some(drawn)
        };
        let (slow_rank, from, to) = (any_rank(30), any_rank(40), any_rank(100));
        Self {
            latency,
            slow_link: from.zip(to),
            slow_rank,
            ordered_links: random.chance(30),
            eager_percent: random.below(3) * 50,
            most_chunks: random.between(1, 4),
            longest_compute: random.between(0, 100) * MICROSECOND,
            longest_rest: random.between(0, 50) * MICROSECOND,
        }
    }

    /// How long a rank computes until its next call.
    pub fn compute(&self, random: &mut Random, rank: usize) -> Time {
        let slow = if self.slow_rank == Some(rank) { 50 } else { 1 };
        random.below(self.longest_compute + 1) * slow
    }

    /// How long a chunk lies in its sender's memory.
    pub fn rest(&self, random: &mut Random) -> Time {
        random.below(self.longest_rest + 1)
    }

    /// How long a chunk is under way.
    pub fn latency(&self, random: &mut Random, from: usize, to: usize) -> Time {
        let time = match self.latency {
            Latency::Constant(time) => time,
            Latency::Uniform { longest } => random.between(1, longest),
            Latency::HeavyTail { typical } => {
                let doublings = random.next_u64().trailing_zeros().min(10);
                random.between(typical, 2 * typical) << doublings
            }
        };
        if self.slow_link == Some((from, to)) { time * 20 } else { time }
    }

    /// How long the news of a failure is under way to a rank.
    pub fn news(&self, random: &mut Random) -> Time {
        random.between(1, 2_000) * MICROSECOND
    }

    /// In how many chunks a message of `len` bytes travels.
    pub fn chunks(&self, random: &mut Random, len: usize) -> u32 {
        random.between(1, self.most_chunks.min(len.max(1) as u64)) as u32
    }

    /// Whether a message lets its sender continue before it has arrived.
    pub fn is_eager(&self, random: &mut Random) -> bool {
        random.chance(self.eager_percent)
    }

    /// Whether the links of this world keep the order.
    pub fn ordered_links(&self) -> bool {
        self.ordered_links
    }
}
