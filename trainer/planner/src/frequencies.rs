//! How often the rows of a table are asked for: counted, of Criteo's published figures, or a power
//! law.

use crate::terabyte::{Batches, Law};
use headlong_embedding::hybrid::statistics::TableStatistics;

/// Rows of a table that are asked for equally often.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Class {
    pub rows: f64,
    /// Part of the table's lookups that each of them has.
    pub share: f64,
}

/// All classes of a table, most frequent first.
#[derive(Debug, Clone, PartialEq)]
pub struct Frequencies(pub Vec<Class>);

/// Ranks of a power law are taken together a sixteenth of the rank at a time.
const BIN_BITS: u32 = 4;

impl Frequencies {
    /// The row of rank `k` (from 1) has a share in proportion to `k^-alpha`. 0: all alike.
    pub fn power_law(rows: u64, alpha: f64) -> Self {
        let (mut classes, mut first) = (Vec::new(), 0_u64);
        while first < rows {
            let len = (first >> BIN_BITS).max(1).min(rows - first);
            let middle = first as f64 + (len as f64 + 1.0) / 2.0;
            classes.push(Class { rows: len as f64, share: middle.powf(-alpha) });
            first += len;
        }
        Self(classes).normalised()
    }

    /// The columns of Criteo's Terabyte logs, in tables of `rows` rows each, shuffled over all days
    /// as MLPerf has them.
    pub fn terabyte(rows: &[u64]) -> Vec<Self> {
        let laws = Law::all(Batches::FromAllDays);
        let capped = |(law, &rows): (&Law, &u64)| {
            let classes =
                law.bins.iter().map(|bin| Class { rows: bin.len as f64, share: bin.share });
            Self(classes.collect()).capped(rows)
        };
        laws.iter().zip(rows).map(capped).collect()
    }

    /// As counted; rows that were not seen get what Good and Turing give them.
    pub fn counted(table: &TableStatistics) -> Self {
        let lookups = table.lookups.max(1) as f64;
        let classes = table.rates().classes;
        let classes = classes.iter().filter(|class| class.rows > 0.0);
        Self(
            classes.map(|class| Class { rows: class.rows, share: class.worth / lookups }).collect(),
        )
        .normalised()
    }

    /// Each lookup is `ids` lookups: of the row itself and of others that hang on it, drawn evenly
    /// from the table (MLPerf's multi-hot data). So there are as many times more rows of a share,
    /// as far as the table has them.
    pub fn multi_hot(self, ids: f64, rows: u64) -> Self {
        let spread =
            self.0.iter().map(|class| Class { rows: class.rows * ids, share: class.share / ids });
        Self(spread.collect()).capped(rows)
    }

    /// No more rows than the table has: those of further ranks share rows with the others.
    fn capped(mut self, rows: u64) -> Self {
        let (mut left, mut rest) = (rows as f64, 0.0);
        for class in &mut self.0 {
            let kept = class.rows.min(left);
            rest += (class.rows - kept) * class.share;
            (class.rows, left) = (kept, left - kept);
        }
        self.0.retain(|class| class.rows > 0.0);
        let each = rest / rows.max(1) as f64;
        self.0.iter_mut().for_each(|class| class.share += each);
        self.normalised()
    }

    fn normalised(mut self) -> Self {
        let all: f64 = self.0.iter().map(|class| class.rows * class.share).sum();
        self.0.iter_mut().for_each(|class| class.share /= all);
        self
    }

    /// Rows that `lookups` draws hit.
    pub fn distinct(&self, lookups: f64) -> f64 {
        self.0.iter().map(|class| class.rows * -(-lookups * class.share).exp_m1()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(of: &Frequencies) -> (f64, f64) {
        of.0.iter().fold((0.0, 0.0), |(rows, share), class| {
            (rows + class.rows, share + class.rows * class.share)
        })
    }

    #[test]
    fn a_power_law_has_all_rows_and_all_lookups() {
        for (rows, alpha) in [(1, 1.0), (17, 0.0), (40_000_000, 1.05)] {
            let law = Frequencies::power_law(rows, alpha);
            let (all, share) = total(&law);
            assert_eq!(all, rows as f64);
            assert!((share - 1.0).abs() < 1e-9);
            assert!(law.0.windows(2).all(|two| two[0].share >= two[1].share));
        }
        assert!((Frequencies::power_law(1000, 0.0).distinct(1e6) - 1000.0).abs() < 1e-6);
    }

    #[test]
    fn several_ids_touch_more_rows_but_never_more_than_there_are() {
        let one = Frequencies::power_law(1_000_000, 1.0);
        let three = one.clone().multi_hot(3.0, 1_000_000);
        let (rows, share) = total(&three);
        assert!(rows <= 1_000_000.0 + 1e-6 && (share - 1.0).abs() < 1e-9);
        assert!(three.distinct(3e4) > 1.5 * one.distinct(1e4));
        assert!(total(&Frequencies::power_law(10, 1.0).multi_hot(100.0, 10)).0 <= 10.0);
    }
}
