//! What a history follows from.

/// Nanoseconds since the history began.
pub type Time = u64;

/// A time that never comes.
pub const NEVER: Time = Time::MAX;

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

/// A fault that has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Befallen {
    /// When, in nanoseconds since the history began.
    pub time: Time,
    /// What was planned.
    pub fault: Fault,
}

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// When.
    pub at: At,
    /// What.
    pub what: What,
}

/// How the network is.
#[derive(Debug, Clone)]
pub struct Model {
    /// The shortest and the longest way, in nanoseconds.
    pub delay: (Time, Time),
    /// Of 100 messages, so many take ten times as long.
    pub spike_percent: u64,
    /// Of 100 looks at what has come, so many give a part of it.
    pub part_percent: u64,
    /// Bytes on their way or not yet taken.
    pub room: usize,
}

/// What a history follows from.
#[derive(Debug, Clone)]
pub struct Options {
    /// Everything that is drawn.
    pub seed: u64,
    /// How many processes.
    pub num_ranks: usize,
    /// Of 100 calls, so many let another thread go first.
    pub preempt_percent: u64,
    /// How the network is.
    pub network: Model,
    /// What happens to processes and connections.
    pub faults: Vec<Fault>,
    /// A mistake of [`mistakes`](crate::mistakes) that the ranks make.
    pub mistake: Option<&'static str>,
    /// The history hangs if it is not over by then.
    pub limit: Time,
    /// Events are kept as text.
    pub keep_lines: bool,
}
