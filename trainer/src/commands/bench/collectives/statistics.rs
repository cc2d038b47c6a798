//! From samples to figures: nearest-rank percentiles of all of them.

use super::measure::Timing;
use clap::ValueEnum;

/// What the column `time` is over ranks, as nccl-tests' -a.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Average {
    /// Rank 0's mean.
    #[value(name = "0")]
    FirstRank,
    /// The mean of all ranks' means.
    #[value(name = "1")]
    Mean,
    /// The smallest of the ranks' means.
    #[value(name = "2")]
    Least,
    /// The largest of the ranks' means.
    #[value(name = "3")]
    Most,
}

pub const PERCENTILES: [f64; 4] = [50.0, 90.0, 99.0, 99.9];

/// A percentile means something from this many samples on: ten lie beyond it.
pub fn samples_for(percentile: f64) -> usize {
    (10.0 / (1.0 - percentile / 100.0) - 1e-6).ceil() as usize
}

/// Samples by rising size, microseconds.
#[derive(Debug, Clone)]
pub struct Distribution(Vec<f64>);

impl Distribution {
    /// Of nanoseconds in any order.
    pub fn new(ns: impl Iterator<Item = u64>) -> Self {
        let mut us: Vec<f64> = ns.map(|ns| ns as f64 * 1e-3).collect();
        us.sort_by(f64::total_cmp);
        Self(us)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The smallest sample that at least this share of the samples does not exceed, where there are
    /// enough of them.
    pub fn percentile(&self, percentile: f64) -> Option<f64> {
        (self.len() >= samples_for(percentile)).then(|| self.nearest_rank(percentile))
    }

    /// The same, however few they are.
    pub fn nearest_rank(&self, percentile: f64) -> f64 {
        let at = (percentile / 100.0 * self.len() as f64 - 1e-9).ceil() as usize;
        self.0.get(at.max(1) - 1).copied().unwrap_or(f64::NAN)
    }

    pub fn min(&self) -> f64 {
        self.0.first().copied().unwrap_or(f64::NAN)
    }

    pub fn max(&self) -> f64 {
        self.0.last().copied().unwrap_or(f64::NAN)
    }
}

/// A figure that takes enough samples.
pub fn known(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"))
}

/// The figures of one size and place; microseconds.
#[derive(Debug, Clone)]
pub struct Figures {
    /// Completion: of each sample, the rank where it took longest.
    pub latency: Distribution,
    /// Between the rank where a sample took longest and the one where it took shortest.
    pub skew: Distribution,
    /// Between the first and the last rank's begin; empty where ranks do not share a clock.
    pub arrival: Distribution,
    /// Of rank 0 alone.
    pub first_rank: Distribution,
    /// The column `time`.
    pub time_us: f64,
    /// The whole loop, seconds.
    pub wall_s: f64,
    /// Elements that came wrong, where they were looked at.
    pub wrong: Option<u64>,
}

impl Figures {
    pub fn new(timing: &Timing, average: Average) -> Self {
        let samples = timing.slowest.len().max(1) as f64;
        let mean = |total: &u64| *total as f64 * 1e-3 / samples;
        let means: Vec<f64> = timing.totals.iter().map(mean).collect();
        let skew =
            timing.slowest.iter().zip(&timing.fastest).map(|(slowest, fastest)| slowest - fastest);
        Self {
            latency: Distribution::new(timing.slowest.iter().copied()),
            skew: Distribution::new(skew),
            arrival: Distribution::new(timing.arrival.iter().copied()),
            first_rank: Distribution::new(timing.first_rank.iter().copied()),
            time_us: match average {
                Average::FirstRank => means.first().copied().unwrap_or(f64::NAN),
                Average::Mean => means.iter().sum::<f64>() / means.len().max(1) as f64,
                Average::Least => means.iter().copied().fold(f64::INFINITY, f64::min),
                Average::Most => means.iter().copied().fold(0.0, f64::max),
            },
            wall_s: timing.wall as f64 * 1e-9,
            wrong: timing.wrong,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing() -> Timing {
        Timing {
            slowest: vec![3000, 5000],
            fastest: vec![1000, 4500],
            first_rank: vec![1000, 5000],
            totals: vec![6000, 7500],
            wrong: Some(0),
            ..Timing::default()
        }
    }

    #[test]
    fn percentiles_are_the_nearest_rank_and_need_ten_samples_beyond() {
        let of = |len: u64| Distribution::new((1..=len).rev().map(|us| us * 1000));
        let hundred = of(100);
        assert_eq!((hundred.percentile(50.0), hundred.percentile(90.0)), (Some(50.0), Some(90.0)));
        assert_eq!((hundred.percentile(99.0), hundred.nearest_rank(99.0)), (None, 99.0));
        assert_eq!((hundred.min(), hundred.max(), hundred.nearest_rank(0.0)), (1.0, 100.0, 1.0));
        assert_eq!(PERCENTILES.map(samples_for), [20, 100, 1000, 10_000]);
        assert_eq!((of(999).percentile(99.0), of(1000).percentile(99.0)), (None, Some(990.0)));
    }

    #[test]
    fn latency_is_the_slowest_rank_of_each_sample_and_time_as_nccl_tests_average_it() {
        let of = |average| Figures::new(&timing(), average);
        let figures = of(Average::Mean);
        assert_eq!((figures.latency.min(), figures.latency.max()), (3.0, 5.0));
        assert_eq!((figures.skew.min(), figures.skew.max()), (0.5, 2.0));
        assert!(figures.arrival.is_empty());
        let averages = [Average::FirstRank, Average::Mean, Average::Least, Average::Most];
        assert_eq!(averages.map(|average| of(average).time_us), [3.0, 3.375, 3.0, 3.75]);
    }

    #[test]
    fn rounds_are_pooled() {
        let mut both = Timing::default();
        both.append(timing());
        both.append(timing());
        let figures = Figures::new(&both, Average::Mean);
        assert_eq!((figures.latency.len(), figures.time_us, figures.wrong), (4, 3.375, Some(0)));
    }
}
