//! The list of stages as a simulation sees it: lanes, repetition and waits, without what a stage
//! does.

use serde::Serialize;

/// An ordered queue of work. Stages of one lane run in program order; lanes run concurrently.
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

/// How often a stage runs in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    Once,
    /// Once for every micro-batch (`train.accumulate` of them).
    Micro,
}

/// How two steps meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Steps {
    /// No stage of a step begins before all of the step before have ended.
    Barrier,
    /// A stage begins as soon as those that it waits for have ended, of its step and of the one
    /// before.
    Overlap,
}

impl Steps {
    /// How the steps of a run meet: lanes of a device overlap them, where lanes run at the same
    /// time. On a processor, whose cores all lanes share, a step ends before the next begins.
    pub const fn of(on_device: bool, overlapped: bool) -> Self {
        if on_device && overlapped { Self::Overlap } else { Self::Barrier }
    }

    /// As a plan says it.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Barrier => "a step begins when the one before has ended",
            Self::Overlap => "a step begins while the one before continues",
        }
    }
}

/// One stage of a list in program order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// Its name in traces and plans.
    pub name: &'static str,
    pub lane: Lane,
    pub repeat: Repeat,
    /// The earlier stages that it waits for, by place in the list: no more than needed, where lanes
    /// run in order.
    pub within: Vec<usize>,
    /// The stages of the step before that it waits for where steps overlap.
    pub across: Vec<usize>,
}

/// Every run of every stage in program order: place in the list, and micro-batch. Neighbouring
/// stages that repeat run once per micro-batch, together.
pub fn program_order<S>(
    stages: &[S],
    repeat: impl Fn(&S) -> Repeat + Copy,
    micro_batches: usize,
) -> impl Iterator<Item = (usize, usize)> + Clone {
    let groups = stages.chunk_by(move |one, other| repeat(one) == repeat(other));
    let starts =
        groups.clone().scan(0, |start, group| Some(std::mem::replace(start, *start + group.len())));
    groups.zip(starts).flat_map(move |(group, start)| {
        let times = if repeat(&group[0]) == Repeat::Micro { micro_batches } else { 1 };
        (0..times)
            .flat_map(move |micro| (start..start + group.len()).map(move |stage| (stage, micro)))
    })
}
