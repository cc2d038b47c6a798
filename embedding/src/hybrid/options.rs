//! What a hybrid set is built for.

use super::partition::{Owner, Partition};
use crate::set::SetOptions;
use headlong_device::DType;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a rank requests of owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Deduplicate {
    /// One vector per id. Right only where each rank has one sum block.
    Off,
    /// One vector per row that occurs in the rank's slice.
    #[default]
    Rank,
    /// As [`Self::Rank`]; but requests come from the proxies of nodes, each of which merges what
    /// this many ranks request.
    Node {
        /// Ranks of a node: the same power of two everywhere.
        ranks: usize,
    },
}

impl HybridOptions<'_> {
    /// Tables whose bags are pooled at the owner.
    pub(super) fn pooled_tables(&self) -> impl Iterator<Item = usize> {
        let tables = self.pool_at.iter().enumerate();
        tables.filter(|(_, at)| **at == PoolAt::Owner).map(|(table, _)| table)
    }

    pub(super) fn pool_at(&self, table: usize) -> PoolAt {
        self.pool_at.get(table).copied().unwrap_or_default()
    }
}

impl Deduplicate {
    pub(super) fn ranks_per_source(self) -> usize {
        match self {
            Deduplicate::Node { ranks } => ranks,
            _ => 1,
        }
    }
}

/// Where the bags of a table become vectors, among several ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolAt {
    /// On the rank whose samples they are: owners send it rows.
    #[default]
    Rank,
    /// Where the rows are: owners send the sum of what they have of each bag. No row of such a
    /// table is frequent. In the memory of the host, of vectors in f32; on a device, of bags
    /// without weights.
    Owner,
}

/// What a hybrid set is built for, besides its tables.
#[derive(Debug, Clone)]
pub struct HybridOptions<'a> {
    /// For this rank's slice of the batch: its samples and ids, and the rank's own sum blocks. The
    /// same on all ranks.
    pub set: SetOptions<'a>,
    /// Where rows lie; the same on all ranks.
    pub partition: Arc<Partition>,
    /// Which owner this rank is.
    pub owner: Owner,
    /// What it requests of owners; the same on all ranks.
    pub deduplicate: Deduplicate,
    /// Where the bags of each table become vectors; none: all on the rank. The same on all ranks.
    pub pool_at: &'a [PoolAt],
    /// Of vectors on their way between devices; the same on all ranks.
    pub slots: SlotOptions,
}

/// What vectors lie in on their way between devices: a slot for each pair of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotOptions {
    /// What vectors are rounded to: f32, bf16 or f16; their gradients: [`gradients_of`].
    pub dtype: DType,
    /// Bytes of all slots that a rank sends, or that it receives, with the lists of their rows: as
    /// many at most, where the worst case does not need less ([`SlotOptions::shares`]).
    pub most_bytes: usize,
}

/// What gradients travel as where vectors travel as `vectors`. f16 has not their range: bf16 then,
/// which is as wide.
pub const fn gradients_of(vectors: DType) -> DType {
    match vectors {
        DType::F16 => DType::Bf16,
        other => other,
    }
}

impl Default for SlotOptions {
    fn default() -> Self {
        Self { dtype: DType::F32, most_bytes: 512 << 20 }
    }
}

/// What of a table decides how large slots are.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the names say it")]
pub struct SlotTable {
    /// Most ids of a rank's batch.
    pub ids: u64,
    pub rows: u64,
    pub dim: u64,
    /// Most bags of a rank's batch, where owners pool them: then a vector is one of a bag, and an
    /// owner is asked for a row as often as bags have it.
    pub bags: Option<u64>,
}

/// Bytes of lists for each row that a rank may be asked for, of all routes: keys and values twice
/// for sorting, rows, chunks.
const LIST_BYTES: u64 = 64;

/// Slots have room for so many even shares of a rank's ids at least: rows are spread by a formula,
/// and the hottest ones by load.
const FEWEST_SHARES: f64 = 2.0;

impl SlotTable {
    /// Rows that a slot has room for, with `shares` even shares of a rank's ids.
    pub fn rows_of_slot(&self, shares: f64, num_ranks: usize) -> u64 {
        let share = shares * self.ids as f64 / num_ranks as f64;
        let most = if self.bags.is_some() { u64::MAX } else { self.rows };
        self.ids.min(most).min(share.ceil() as u64 + 64)
    }

    /// Vectors that it has room for.
    pub fn vectors_of_slot(&self, shares: f64, num_ranks: usize) -> u64 {
        self.rows_of_slot(shares, num_ranks).min(self.bags.unwrap_or(u64::MAX))
    }
}

impl SlotOptions {
    /// How many even shares of a rank's ids its slot for one owner has room for. As many as there
    /// are ranks are the worst case: all ids are of one owner. Half as many, and half of that,
    /// where slots would take more than `most_bytes`; two at least.
    pub fn shares(&self, tables: impl Iterator<Item = SlotTable> + Clone, num_ranks: usize) -> f64 {
        let bytes = |shares: f64| -> f64 {
            let of_table = |table: SlotTable| {
                let numbers = table.vectors_of_slot(shares, num_ranks) * table.dim;
                let lists = table.rows_of_slot(shares, num_ranks) * LIST_BYTES;
                (numbers * self.dtype.bytes() as u64 + lists) as f64
            };
            tables.clone().map(of_table).sum::<f64>() * num_ranks as f64
        };
        let mut shares = num_ranks as f64;
        while shares > FEWEST_SHARES && bytes(shares) > self.most_bytes as f64 {
            shares = (shares / 2.0).max(FEWEST_SHARES);
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_room_for_the_worst_case_where_memory_allows() {
        let table = SlotTable { ids: 6912, rows: 1 << 25, dim: 128, bags: None };
        let tables = || std::iter::repeat_n(table, 26);
        // 26 tables of 55,296 samples on 8 ranks: 439 MiB in bf16, 790 in f32.
        let bf16 = SlotOptions { dtype: DType::Bf16, ..SlotOptions::default() };
        assert_eq!(bf16.shares(tables(), 8), 8.0);
        assert_eq!(SlotOptions::default().shares(tables(), 8), 4.0);
        let small = SlotOptions { most_bytes: 1, ..bf16 };
        assert_eq!(small.shares(tables(), 8), 2.0);
        assert_eq!(table.rows_of_slot(2.0, 8), 6912 / 4 + 64);
        // Of a small table no slot holds more than there is.
        let few = SlotTable { rows: 3, ..table };
        assert_eq!(few.rows_of_slot(8.0, 8), 3);
        // Bags have rows more than once, and a vector each.
        let bags = SlotTable { bags: Some(500), ..few };
        assert_eq!((bags.rows_of_slot(8.0, 8), bags.vectors_of_slot(8.0, 8)), (6912, 500));
    }
}
