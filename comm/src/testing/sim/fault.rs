//! What goes wrong on purpose.

use std::time::Duration;

use super::random::Random;
use crate::topology::Rank;

/// When in an exchange a rank dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Its messages never leave.
    Before,
    /// Some of its messages have left, some of those arrive.
    Inside,
    /// The exchange has ended on this rank.
    After,
}

/// One thing that goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// A rank ends, as a killed process does.
    Death {
        /// Who.
        rank: Rank,
        /// In which of its exchanges, from 0.
        exchange: u64,
        /// Where in it.
        moment: Moment,
        /// No rank is notified, as when a machine loses its power: only deadlines find it.
        silent: bool,
    },
    /// A link in one direction loses everything from some message on.
    LinkLoss {
        /// The sender's side.
        from: Rank,
        /// The receiver's side.
        to: Rank,
        /// The first message lost, counted on this link from 0.
        message: u64,
    },
    /// A message arrives twice. No rank may notice.
    Duplicate {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
        /// Which message of this link, from 0.
        message: u64,
    },
    /// A rank pauses before an exchange, as a stopped process does. Noticed where it is
    /// longer than the deadline.
    Stall {
        /// Who.
        rank: Rank,
        /// Before which of its exchanges, from 0.
        exchange: u64,
        /// How long, in virtual time.
        lasts: Duration,
    },
}

impl Fault {
    /// Who is to be named when the job fails because of this fault; none where it must not fail.
    pub fn culprit(&self, deadline: Duration) -> Option<Rank> {
        match self {
            Fault::Death { rank, .. } => Some(*rank),
            Fault::LinkLoss { from, .. } => Some(*from),
            Fault::Stall { rank, lasts, .. } => (*lasts > deadline).then_some(*rank),
            Fault::Duplicate { .. } => None,
        }
    }
}

/// What goes wrong in one world.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// In no order: each names its own moment.
    pub faults: Vec<Fault>,
}

impl FaultPlan {
    /// A plan of one fault, drawn from a seed. `exchanges` is about how many exchanges a rank does,
    /// so that the fault falls into the run or shortly after its end; `deadline` is the world's.
    pub fn draw(seed: u64, num_ranks: usize, exchanges: u64, deadline: Duration) -> Self {
        let mut random = Random::new(seed ^ 0xfa17);
        let ranks = num_ranks as u64;
        let rank = random.below(ranks);
        let to = Rank(((rank + 1 + random.below(ranks.saturating_sub(1))) % ranks) as usize);
        let rank = Rank(rank as usize);
        let number = random.below(exchanges + 1);
        let moment = [Moment::Before, Moment::Inside, Moment::After][random.below(3) as usize];
        let silent = random.chance(40);
        let kind = random.below(if num_ranks == 1 { 4 } else { 8 });
        let fault = match kind {
            0..=2 => Fault::Death { rank, exchange: number, moment, silent },
            3 => {
                let longest = 3 * deadline.as_millis() as u64;
                let lasts = Duration::from_millis(random.between(1, longest));
                Fault::Stall { rank, exchange: number, lasts }
            }
            4 | 5 => Fault::LinkLoss { from: rank, to, message: random.below(exchanges / 2 + 1) },
            _ => Fault::Duplicate { from: rank, to, message: random.below(exchanges / 2 + 1) },
        };
        Self { faults: vec![fault] }
    }
}
