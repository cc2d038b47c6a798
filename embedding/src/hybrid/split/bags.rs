//! How many bags owners are asked for.

use super::balance::formula_owner;
use crate::hybrid::statistics::Statistics;

/// What a step asks the owners of a table for, themselves included.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bags {
    /// Ids.
    pub(super) lookups: f64,
    /// Bags, once for each owner that has rows of it.
    pub(super) vectors: f64,
}

impl Bags {
    /// Of `owners` owners, who have rows by formula.
    pub(super) fn of(
        statistics: &Statistics,
        table: usize,
        batch_size: u64,
        owners: usize,
    ) -> Self {
        let counted = &statistics.tables[table];
        let lookups = statistics.lookups_per_step(table, batch_size);
        let ids_of_bag = lookups / batch_size.max(1) as f64;
        let all: u64 = counted.counted.iter().map(|row| row.count).sum();
        let all = all.max(counted.lookups).max(1) as f64;
        let mut shares = vec![0.0; owners];
        for row in &counted.counted {
            shares[formula_owner(table, row.row, owners)] += row.count as f64 / all;
        }
        let rest = (1.0 - shares.iter().sum::<f64>()).max(0.0) / owners as f64;
        let has_some = |share: f64| 1.0 - (1.0 - (share + rest).min(1.0)).powf(ids_of_bag);
        let vectors = batch_size as f64 * shares.into_iter().map(has_some).sum::<f64>();
        // An owner has no more bags than ids; a mean of less than one id is one in some bags.
        Self { lookups, vectors: vectors.min(lookups) }
    }
}
