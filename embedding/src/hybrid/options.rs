//! What a hybrid set is built for.

use super::partition::{Owner, Partition};
use crate::set::SetOptions;
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

impl Deduplicate {
    pub(super) fn ranks_per_source(self) -> usize {
        match self {
            Deduplicate::Node { ranks } => ranks,
            _ => 1,
        }
    }
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
    /// On a device: how many even shares of a rank's ids its slot for one owner has room for,
    /// [`DEFAULT_SLOT_FACTOR`] as a rule; the same on all ranks. A slot never takes more than the
    /// worst case needs, which is as many shares as there are ranks.
    pub slot_factor: f64,
}

/// Twice an even share: rows are spread by a formula, and the hottest ones by load.
pub const DEFAULT_SLOT_FACTOR: f64 = 2.0;
