//! The queues that a step is cut into.

/// An ordered queue of work. Stages of one lane run in program order; lanes run next to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Batches on their way to the device.
    Copy,
    /// Routing, lookups and updates of the tables.
    Sparse,
    Comm,
    /// Dense layers, interaction, loss, dense optimiser.
    Dense,
}

impl Lane {
    /// All lanes, in the order of their tracks in a trace.
    pub const ALL: [Lane; 4] = [Lane::Copy, Lane::Sparse, Lane::Comm, Lane::Dense];

    pub const fn name(self) -> &'static str {
        match self {
            Lane::Copy => "copy",
            Lane::Sparse => "sparse",
            Lane::Comm => "comm",
            Lane::Dense => "dense",
        }
    }
}
