//! What snapshots take: memory of each machine, besides that of its ranks.

use super::{Count, TablePlan};
use crate::config::Config;
use crate::report::{bytes, count};
use serde::Serialize;

/// Snapshots that there are for a moment: one is whole while the next is written.
const COPIES: u64 = 2;

/// The snapshots of a run that takes some.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SnapshotPlan {
    /// Steps between two.
    pub every: u64,
    /// Bytes of all weights and states, as a checkpoint holds them.
    pub bytes_of_one: Count,
    /// Bytes of a machine's memory for as many as there are at a time. On several machines, each
    /// has its part and that of the one before.
    pub bytes: Count,
}

impl SnapshotPlan {
    pub(super) fn new(
        config: &Config,
        tables: &[TablePlan],
        dense_parameters: Count,
        machines: usize,
    ) -> Option<Self> {
        config.snapshot_dir()?;
        let of_table =
            |table: &TablePlan| Count::from(table.rows) * table.dim * 4_u64 + table.state_bytes;
        let states = config.optimizer.dense.optimizer().states().len() as u64;
        let dense = dense_parameters * 4_u64 * (1 + states);
        let bytes_of_one = tables.iter().map(of_table).sum::<Count>() + dense;
        let every = config.checkpoint.snapshot_every;
        let of_machine = match machines {
            0..=2 => bytes_of_one,
            more => Count::from(bytes_of_one.get().div_ceil(more as u64)) * 2_u64,
        };
        Some(Self { every, bytes_of_one, bytes: of_machine * COPIES })
    }

    pub(super) fn to_text(self) -> String {
        let Self { every, bytes_of_one, bytes: all } = self;
        format!(
            "snapshots: {} each, one every {} steps; {} of each machine's memory, besides",
            bytes(bytes_of_one.get()),
            count(every),
            bytes(all.get())
        )
    }
}
