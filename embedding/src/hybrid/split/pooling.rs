//! Where the bags of a table become vectors, by the bytes that either way sends.
//!
//! The choice decides the shape of a sum ([`PoolAt::Owner`]), so it must not depend on how many
//! ranks there are, nor on how they exchange. It is made for as many owners as a bag's sum has
//! parts, each on a rank of its own: where `train.sum_blocks` is left to the number of ranks, those
//! that there are. Of `S` of them, a step of `B` samples sends, of a table with `h` ids a sample:
//!
//! | pooled | bytes |
//! |---|---|
//! | on the rank | `Σ min((S−1) q(1/S) (2 v + 8), 2 (S−1) (g + 4))` over rows |
//! | at the owner | `(S−1)/S (V (2 v + 8) + 8 B h)`, `V = B Σ (1 − (1 − p)^h)` over owners |
//!
//! where `v` are the bytes of a vector, `g` those of a frequent row's gradient, `p` is an owner's
//! share of the lookups, and `q` as in [`crate::hybrid::traffic`].

use super::bags::Bags;
use super::groups::{Group, groups};
use super::{PlacementChoice, gradient_bytes};
use crate::hybrid::options::PoolAt;
use crate::hybrid::statistics::Statistics;
use crate::hybrid::traffic::ID_BYTES;
use crate::table::{Grain, Keys, TableSpec};
use serde::Serialize;

/// Bags are pooled at the owner where that sends at most this part of the bytes.
pub const OWNER_PAYS: f64 = 0.75;

/// What is chosen for one table, and what either way sends in a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PoolChoice {
    /// Where its bags become vectors.
    pub at: PoolAt,
    /// Bytes that the parts of a sum send, if they are on ranks of their own, with vectors pooled
    /// on the rank.
    pub rank_bytes: f64,
    /// The same, pooled at the owner.
    pub owner_bytes: f64,
}

impl PoolChoice {
    /// The better of two ways: the rule of plans and of the program.
    pub fn of(rank_bytes: f64, owner_bytes: f64) -> Self {
        let pays = owner_bytes <= OWNER_PAYS * rank_bytes && rank_bytes > 0.0;
        Self { at: if pays { PoolAt::Owner } else { PoolAt::Rank }, rank_bytes, owner_bytes }
    }
}

/// What the choice depends on, besides statistics.
#[derive(Debug, Clone, Copy)]
pub struct PoolingOptions<'a> {
    /// The tables.
    pub specs: &'a [TableSpec],
    /// One for each table, or none: all are `Auto`.
    pub placements: &'a [PlacementChoice],
    /// Samples of a step, over all ranks.
    pub batch_size: u64,
    /// Parts of a bag's sum: the sum blocks of all ranks.
    pub num_parts: usize,
    /// Bytes of one element of a vector on its way.
    pub wire_bytes: usize,
    /// Bytes of one element of the all-reduce on its way.
    pub sum_bytes: usize,
}

/// Whether the bags of a table can be pooled at the owner at all, by what it is and where it lies;
/// an error is why not.
pub fn may_pool_at_owner(spec: &TableSpec, placement: PlacementChoice) -> Result<(), &'static str> {
    match (spec.keys, spec.grain, placement) {
        (Keys::RawIds, ..) => Err("tables keyed by raw ids pool on the rank"),
        (_, Grain::Whole, _) => Err("rows that share storage are pooled on the rank"),
        (.., PlacementChoice::DataParallel) => Err("every rank has all of its rows"),
        _ => Ok(()),
    }
}

/// Where the bags of table `table` become vectors.
pub fn pool_choice(
    statistics: &Statistics,
    options: &PoolingOptions<'_>,
    table: usize,
) -> PoolChoice {
    let spec = &options.specs[table];
    let parts = options.num_parts as f64;
    let placement = options.placements.get(table).copied().unwrap_or_default();
    let evidence_steps = statistics.num_samples as f64 / options.batch_size.max(1) as f64;
    let both_ways = 2.0 * (spec.dim * options.wire_bytes) as f64 + ID_BYTES;
    let replica = 2.0 * gradient_bytes(spec) * options.sum_bytes as f64 / 4.0;
    let row = |group: &Group| {
        let owned = group.rate.chance_in(1.0 / parts) * both_ways;
        group.rows * (parts - 1.0) * owned.min(replica)
    };
    let rank_bytes = groups(table, &statistics.tables[table], evidence_steps).iter().map(row).sum();
    let owners = if let PlacementChoice::TableWise(_) = placement { 1 } else { options.num_parts };
    let Bags { lookups, vectors } = Bags::of(statistics, table, options.batch_size, owners);
    let owner_bytes = (parts - 1.0) / parts * (vectors * both_ways + lookups * ID_BYTES);
    match may_pool_at_owner(spec, placement) {
        Ok(()) => PoolChoice::of(rank_bytes, owner_bytes),
        Err(_) => PoolChoice { at: PoolAt::Rank, rank_bytes, owner_bytes },
    }
}
