//! What travels where owners pool the bags of a table, and where that is less than rows would be:
//! the rule of [`headlong_embedding::hybrid::split`], of described frequencies.

use crate::workload::TableLoad;
use headlong_embedding::hybrid::split::{PlacementChoice, PoolChoice};
use headlong_embedding::hybrid::traffic::{ID_BYTES, TOUCHED_BYTES};

/// Bytes of what travels, of one element.
#[derive(Debug, Clone, Copy)]
pub struct ElementBytes {
    /// Of a vector.
    pub vector: f64,
    /// Of the all-reduce.
    pub sum: f64,
}

/// What a step asks owners that pool for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct AskedBags {
    /// Ids.
    pub lookups: f64,
    /// Bags, once for each owner that has rows of it.
    pub vectors: f64,
    /// Variance of the bags, and of the ids, that one of as many ranks as there are owners asks an
    /// owner for.
    pub vector_variance: f64,
    pub lookup_variance: f64,
}

impl AskedBags {
    /// Of a step of `samples` samples, whose rows `owners` owners have.
    pub(crate) fn of(table: &TableLoad, samples: f64, owners: usize) -> Self {
        let shares = shares(table, owners);
        let bags = samples / owners as f64;
        let has_some = |&share: &f64| 1.0 - (1.0 - share).powf(table.hotness);
        let chances: Vec<f64> = shares.iter().map(has_some).collect();
        let lookups = samples * table.hotness;
        // An owner has no more bags than ids; a mean of less than one id is one in some bags.
        let vectors = (samples * chances.iter().sum::<f64>()).min(lookups);
        Self {
            lookups,
            vectors,
            vector_variance: variance(&chances, bags),
            lookup_variance: variance(&shares, bags * table.hotness),
        }
    }
}

/// Of `draws` draws that each have these chances, the variance within and between them.
fn variance(chances: &[f64], draws: f64) -> f64 {
    let mean = |of: &dyn Fn(f64) -> f64| {
        chances.iter().map(|&chance| of(chance)).sum::<f64>() / chances.len() as f64
    };
    let middle = mean(&|chance| chance);
    let within = draws * mean(&|chance| chance * (1.0 - chance));
    within + draws * draws * mean(&|chance| (chance - middle).powi(2))
}

/// The part of the lookups that each owner has: rows are dealt out one after the other, the most
/// frequent first.
fn shares(table: &TableLoad, owners: usize) -> Vec<f64> {
    let (mut shares, mut even, mut next) = (vec![0.0; owners], 0.0, 0);
    for class in &table.frequencies.0 {
        let each = (class.rows / owners as f64).floor();
        even += each * class.share;
        let mut rest = class.rows - each * owners as f64;
        while rest > 0.0 {
            shares[next] += rest.min(1.0) * class.share;
            (rest, next) = (rest - 1.0, (next + 1) % owners);
        }
    }
    shares.iter().map(|share| (share + even).min(1.0)).collect()
}

/// What a step of `samples` samples sends of `table`, pooled either way, if the sum of a bag has
/// `parts` parts on ranks of their own.
pub fn choice(table: &TableLoad, samples: f64, parts: usize, bytes: ElementBytes) -> PoolChoice {
    let (dim, ranks, lookups) = (table.dim as f64, parts as f64, samples * table.hotness);
    let both_ways = 2.0 * dim * bytes.vector + ID_BYTES;
    let replica = 2.0 * (dim * 4.0 + TOUCHED_BYTES) * bytes.sum / 4.0;
    let rows = table.frequencies.0.iter().map(|class| {
        let owned = -(-lookups * class.share / ranks).exp_m1() * both_ways;
        class.rows * (ranks - 1.0) * owned.min(replica)
    });
    let owners = if let PlacementChoice::TableWise(_) = table.choice { 1 } else { parts };
    let AskedBags { lookups, vectors, .. } = AskedBags::of(table, samples, owners);
    let owner = (ranks - 1.0) / ranks * (vectors * both_ways + lookups * ID_BYTES);
    PoolChoice::of(rows.sum(), owner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frequencies::{Class, Frequencies};
    use headlong_embedding::hybrid::PoolAt;

    fn table(hotness: f64, classes: &[(f64, f64)]) -> TableLoad {
        let classes = classes.iter().map(|&(rows, share)| Class { rows, share });
        TableLoad {
            name: "C1".to_owned(),
            rows: 1 << 20,
            dim: 16,
            weight_bytes: 64,
            state_bytes: 0,
            held_bytes: 0_u64.into(),
            hotness,
            frequencies: Frequencies(classes.collect()),
            choice: PlacementChoice::Auto,
        }
    }

    #[test]
    fn an_owner_sends_a_vector_for_each_bag_that_it_has_rows_of() {
        let even = table(3.0, &[(1024.0, 1.0 / 1024.0)]);
        let asked = AskedBags::of(&even, 100.0, 4);
        let expected = 100.0 * 4.0 * (1.0 - 0.75_f64.powi(3));
        assert!((asked.vectors - expected).abs() < 1e-9, "{asked:?}");
        assert_eq!(asked.lookups, 300.0);
        assert_eq!(AskedBags::of(&even, 100.0, 1).vectors, 100.0, "a bag has one owner");
        // Half of all lookups are of one row: three owners have what is left.
        let hot = table(3.0, &[(1.0, 0.5), (1024.0, 0.5 / 1024.0)]);
        assert!(AskedBags::of(&hot, 100.0, 4).vectors < asked.vectors);
        assert!(AskedBags::of(&table(0.5, &[(1.0, 1.0)]), 100.0, 4).vectors <= 50.0);
    }

    #[test]
    fn what_pays_depends_on_ids_owners_and_equal_rows() {
        let bytes = ElementBytes { vector: 4.0, sum: 4.0 };
        let rows = f64::from(1 << 20);
        let even = |hotness| table(hotness, &[(rows, 1.0 / rows)]);
        assert_eq!(choice(&even(40.0), 512.0, 4, bytes).at, PoolAt::Owner);
        // Of 64 owners nearly each has one of 40 ids.
        assert_eq!(choice(&even(40.0), 512.0, 64, bytes).at, PoolAt::Rank);
        let whole = TableLoad { choice: PlacementChoice::TableWise(None), ..even(40.0) };
        assert_eq!(choice(&whole, 512.0, 64, bytes).at, PoolAt::Owner);
        let few = table(40.0, &[(100.0, 0.01)]);
        assert_eq!(choice(&few, 512.0, 4, bytes).at, PoolAt::Rank, "equal rows travel once");
        assert_eq!(choice(&even(40.0), 512.0, 1, bytes).at, PoolAt::Rank, "nothing travels");
    }
}
