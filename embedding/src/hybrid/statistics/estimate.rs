//! From counts to rates: how often a row comes in a step, rows that were never seen among them.
//!
//! The most frequent rows are known well; most rows of Criteo's large columns were seen once or
//! never. Three estimates keep predictions right there:
//!
//! * **Rarefaction** (Hurlbert, Ecology 1971): the expected number of distinct rows in `m` of `N`
//!   counted lookups is `Σ 1 − C(N−c, m)/C(N, m)` over rows of count `c`. Nothing is assumed but
//!   that the order of samples does not matter.
//! * **Good–Turing** (Good, Biometrika 1953; smoothed as in Gale and Sampson, "Good–Turing
//!   frequency estimation without tears", 1995): a row counted `c` times is worth
//!   `c* = (c+1)·f(c+1)/f(c)` lookups, where `f(c)` rows were counted `c` times; all rows never
//!   seen together are worth `f(1)`.
//! * **Chao1** (Chao, Scand. J. Statist. 1984): at least `f(1)²/(2·f(2))` rows were never seen; a
//!   table's rows bound it.
//!
//! Among rows of one count the true rates differ. Good's second moment, `c*·(c+1)*`, is that of a
//! Gamma distribution of shape `c*` where `(c+1)* = c* + 1`: a row counted `c` times is then absent
//! from `m` further lookups with chance `(1+m/N)^−c*`, more than `exp(−m·c*/N)`. For rows never
//! seen, `0* = 1*` by Chao's estimate: no spread, and the exponential is right.

use super::{RowCount, TableStatistics};

/// Counts from which on the exact product of the rarefaction is replaced by a power: the relative
/// error is below 1e-6 where the term itself matters.
const EXACT_FACTORS: u64 = 64;

/// Fewer rows that were seen once than this say nothing about rows never seen.
const LEAST_SINGLES: f64 = 4.0;

/// Where Turing's estimate differs from the smoothed one by less than this many standard errors,
/// the smoothed one is taken (Gale and Sampson).
const SIGNIFICANT: f64 = 1.65;

/// Rows of one table that were counted equally often.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateClass {
    /// How often each was counted; 0 for the rows never seen.
    pub count: u64,
    /// How many there are: an estimate for rows never seen and for the sampled tail.
    pub rows: f64,
    /// Lookups, of as many as were counted, that each is worth.
    pub worth: f64,
}

impl RateClass {
    /// The chance that a row of the class is absent from further lookups, `growth` times as many as
    /// were counted.
    pub fn chance_of_absence(&self, growth: f64) -> f64 {
        if self.count == 0 {
            (-self.worth * growth).exp()
        } else {
            (-self.worth * growth.ln_1p()).exp()
        }
    }
}

/// All rows of one table by how often they come.
#[derive(Debug, Clone, PartialEq)]
pub struct TableRates {
    /// Lookups counted: what [`RateClass::worth`] is a part of.
    pub lookups: f64,
    /// Classes by falling count, the rows never seen last.
    pub classes: Vec<RateClass>,
}

impl TableRates {
    /// Lookups that a row counted `count` times is worth: the class of that count, else `count`
    /// itself.
    pub fn worth(&self, count: u64) -> f64 {
        let found = self.classes.binary_search_by_key(&std::cmp::Reverse(count), |class| {
            std::cmp::Reverse(class.count)
        });
        found.map_or(count as f64, |index| self.classes[index].worth)
    }

    /// Number of distinct rows that `lookups` further lookups are expected to hold.
    pub fn expected_distinct(&self, lookups: f64) -> f64 {
        let growth = lookups / self.lookups.max(1.0);
        self.classes.iter().map(|class| class.rows * (1.0 - class.chance_of_absence(growth))).sum()
    }
}

impl TableStatistics {
    /// How many rows were counted how often, by rising count: exact, or for counts up to the error
    /// bound from the sample.
    pub fn frequencies(&self) -> Vec<(u64, f64)> {
        let Some(sample) = &self.sample else {
            return run_lengths(&self.counted, 1.0);
        };
        let (listed, tail_end) = (&self.counted, self.error_bound);
        let head = listed.partition_point(|row| row.count > tail_end);
        let head_lookups: u64 = listed[..head].iter().map(|row| row.count).sum();
        let tail = &sample.rows[sample.rows.partition_point(|row| row.count > tail_end)..];
        let sampled: u64 = tail.iter().map(|row| row.count).sum();
        // All lookups are known, so the tail's sum is: better than 2^level, which holds on average.
        let scale =
            if sampled == 0 { 0.0 } else { (self.lookups - head_lookups) as f64 / sampled as f64 };
        let mut frequencies = run_lengths(tail, scale);
        frequencies.extend(run_lengths(&listed[..head], 1.0));
        frequencies
    }

    /// Rates of all rows.
    pub fn rates(&self) -> TableRates {
        let frequencies = self.frequencies();
        let lookups = self.lookups as f64;
        let seen: f64 = frequencies.iter().map(|(_, rows)| rows).sum();
        let unseen_most = self.rows.map_or(f64::INFINITY, |rows| (rows as f64 - seen).max(0.0));
        let (unseen, worths) = good_turing(&frequencies, lookups, unseen_most);
        let known = frequencies.iter().zip(worths);
        let mut classes: Vec<_> =
            known.map(|(&(count, rows), worth)| RateClass { count, rows, worth }).rev().collect();
        classes.extend(unseen);
        TableRates { lookups, classes }
    }

    /// Number of distinct rows that `lookups` further lookups are expected to hold; see
    /// [`super::Statistics::expected_distinct`].
    pub fn expected_distinct(&self, lookups: f64) -> f64 {
        let all = self.lookups as f64;
        if lookups <= all {
            let term =
                |&(count, rows): &(u64, f64)| rows * (1.0 - chance_of_absence(all, lookups, count));
            return self.frequencies().iter().map(term).sum();
        }
        self.rates().expected_distinct(lookups)
    }
}

/// Runs of equal counts in `rows`, which fall, as (count, number × scale) by rising count.
fn run_lengths(rows: &[RowCount], scale: f64) -> Vec<(u64, f64)> {
    let runs = rows.chunk_by(|one, next| one.count == next.count).rev();
    runs.filter(|run| run[0].count > 0)
        .map(|run| (run[0].count, run.len() as f64 * scale))
        .collect()
}

/// The chance that none of `drawn` lookups out of `all` is one of `count` marked ones: C(all −
/// count, drawn) / C(all, drawn).
fn chance_of_absence(all: f64, drawn: f64, count: u64) -> f64 {
    let factor = |index: f64| ((all - drawn - index) / (all - index)).max(0.0);
    match count {
        0..=EXACT_FACTORS => (0..count).map(|index| factor(index as f64)).product(),
        _ => factor((count - 1) as f64 / 2.0).powf(count as f64),
    }
}

/// The class of rows never seen, and what a row of each of `frequencies` is worth.
fn good_turing(
    frequencies: &[(u64, f64)],
    lookups: f64,
    unseen_most: f64,
) -> (Option<RateClass>, Vec<f64>) {
    let plain: Vec<f64> = frequencies.iter().map(|&(count, _)| count as f64).collect();
    let rows_of = |count: u64| {
        frequencies.iter().take(2).find(|(of, _)| *of == count).map_or(0.0, |(_, rows)| *rows)
    };
    let (once, twice) = (rows_of(1), rows_of(2));
    if unseen_most < 0.5 || once < LEAST_SINGLES || frequencies.len() < 3 {
        return (None, plain);
    }
    let smoothed = smoothed_worths(frequencies).unwrap_or(plain);
    let chao = if twice > 0.0 { once * once / (2.0 * twice) } else { once * (once - 1.0) / 2.0 };
    let unseen_rows = chao.clamp(1.0, unseen_most.max(1.0));
    // A row never seen is not worth more than one that was seen once.
    let unseen_worth = (once / unseen_rows).min(smoothed[0]);
    let unseen = RateClass { count: 0, rows: unseen_rows, worth: unseen_worth };
    // What all rows are worth together is what was counted.
    let seen: f64 = frequencies.iter().zip(&smoothed).map(|((_, rows), worth)| rows * worth).sum();
    let scale = (lookups - unseen_rows * unseen_worth) / seen;
    (Some(unseen), smoothed.into_iter().map(|worth| worth * scale).collect())
}

/// Simple Good–Turing: Turing's estimate for small counts, a line through log f(c) over log c from
/// where the two agree. None where the line is too flat to make sense.
fn smoothed_worths(frequencies: &[(u64, f64)]) -> Option<Vec<f64>> {
    let slope = slope(frequencies);
    if slope >= -1.0 {
        return None;
    }
    let mut use_turing = true;
    let worths = frequencies.iter().enumerate().map(|(index, &(count, rows))| {
        let c = count as f64;
        let line = c * (1.0 + 1.0 / c).powf(slope + 1.0);
        let next = frequencies
            .get(index + 1)
            .filter(|(next, _)| *next == count + 1)
            .map(|(_, rows)| *rows);
        let Some(next) = next.filter(|_| use_turing) else {
            use_turing = false;
            return line;
        };
        let turing = (c + 1.0) * next / rows;
        let error = (c + 1.0) / rows * (next * (1.0 + next / rows)).sqrt();
        use_turing = (turing - line).abs() > SIGNIFICANT * error;
        if use_turing { turing } else { line }
    });
    Some(worths.collect())
}

/// Slope of log f(c) over log c, each f(c) spread over the gap to its neighbours.
fn slope(frequencies: &[(u64, f64)]) -> f64 {
    let points = frequencies.iter().enumerate().map(|(index, &(count, rows))| {
        let c = count as f64;
        let before = if index == 0 { 0.0 } else { frequencies[index - 1].0 as f64 };
        let after = frequencies.get(index + 1).map_or(2.0 * c - before, |(next, _)| *next as f64);
        (c.ln(), (rows / (0.5 * (after - before))).ln())
    });
    let points: Vec<(f64, f64)> = points.collect();
    let number = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / number;
    let (mean_x, mean_y) = (mean(|point| point.0), mean(|point| point.1));
    let covariance: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let variance: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    covariance / variance
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worked example of Gale and Sampson's paper (prosody data, table 1): f(1..) and what P0
    /// and r* come to.
    const PROSODY: [(u64, f64); 31] = [
        (1, 120.0),
        (2, 40.0),
        (3, 24.0),
        (4, 13.0),
        (5, 15.0),
        (6, 5.0),
        (7, 11.0),
        (8, 2.0),
        (9, 2.0),
        (10, 1.0),
        (12, 3.0),
        (14, 2.0),
        (15, 1.0),
        (16, 1.0),
        (17, 3.0),
        (19, 1.0),
        (20, 3.0),
        (21, 2.0),
        (23, 3.0),
        (24, 3.0),
        (25, 3.0),
        (26, 2.0),
        (27, 2.0),
        (28, 1.0),
        (31, 2.0),
        (32, 2.0),
        (33, 1.0),
        (34, 2.0),
        (36, 2.0),
        (41, 3.0),
        (43, 1.0),
    ];

    #[test]
    fn the_smoothing_is_that_of_the_paper() {
        // The table of the paper continues; its slope over all rows is -1.389. These rows suffice
        // to tell Turing from the line.
        let worths = smoothed_worths(&PROSODY).unwrap();
        assert!(slope(&PROSODY) < -1.0);
        // r = 1: Turing's 2·40/120 = 0.667 against the line's about 0.76: not significant, so the
        // line is taken throughout.
        let line = |c: f64| c * (1.0 + 1.0 / c).powf(slope(&PROSODY) + 1.0);
        for (&(count, _), worth) in PROSODY.iter().zip(worths) {
            assert!((worth - line(count as f64)).abs() < 1e-12, "{count}: {worth}");
        }
    }

    #[test]
    fn absence_is_a_ratio_of_binomials() {
        // C(10 - 3, 4) / C(10, 4) = 35 / 210.
        assert!((chance_of_absence(10.0, 4.0, 3) - 35.0 / 210.0).abs() < 1e-12);
        assert_eq!(chance_of_absence(10.0, 8.0, 3), 0.0);
        let exact: f64 =
            (0..100).map(|i| (1e6 - 1e4 - f64::from(i)) / (1e6 - f64::from(i))).product();
        assert!((chance_of_absence(1e6, 1e4, 100) / exact - 1.0).abs() < 1e-6);
    }
}
