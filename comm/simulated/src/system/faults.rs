//! What befalls processes and connections.

use super::world::Time;

/// When.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// At this time.
    Time(Time),
    /// As a rank makes its call of the system with this number, counted from 1.
    Call {
        /// Whose.
        rank: usize,
        /// Which.
        number: u64,
    },
}

/// What.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A process ends in the middle of what it does. `silent`: its machine does, and sends nothing
    /// any more.
    Death {
        /// Whose.
        rank: usize,
        /// Without a word of its kernel.
        silent: bool,
    },
    /// A process is stopped.
    Pause {
        /// Whose.
        rank: usize,
        /// For how long.
        time: Time,
    },
    /// The clock of a process jumps forwards.
    Jump {
        /// Whose.
        rank: usize,
        /// How far.
        by: Time,
    },
    /// A connection between two ranks, where there is one, is reset at both ends.
    Reset {
        /// Between whom.
        ranks: [usize; 2],
    },
    /// What one rank sends to another does not come before this has ended.
    Cut {
        /// Who sends.
        from: usize,
        /// Who hears nothing.
        to: usize,
        /// For how long.
        time: Time,
    },
}

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// When.
    pub at: At,
    /// What.
    pub what: What,
}
