//! A part of data: some of its samples, in their order, as if there were no others.

use std::ops::Range;
use std::sync::Arc;

use super::{About, Ranges, SampleStream, Source, cut, starts_of};
use crate::disk::DiskOptions;
use crate::error::{Result, invalid, named};
use crate::hashing::fmix64;
use crate::skipped::SkipReport;

/// Which samples are held out of training, to validate on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HoldoutBy {
    /// Each sample by the number it has in the data, as a hash decides: the same in every run.
    Random,
    /// The last ones: of data in the order of time, the latest.
    Last,
}

named!(HoldoutBy, "holdout": Random "random", Last "last");

/// How many samples are held out, and which.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Holdout {
    /// Share of the samples, above 0 and below 1.
    pub share: f64,
    /// Which of them.
    pub by: HoldoutBy,
}

/// One of the two parts of data of which samples are held out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What is trained on.
    Kept,
    /// What is held out.
    HeldOut,
}

impl Holdout {
    /// The samples of `part`, of `num_samples` in all, ascending.
    pub fn ranges(&self, part: Part, num_samples: u64) -> Vec<Range<u64>> {
        match self.by {
            HoldoutBy::Last => {
                let held = (num_samples as f64 * self.share).round() as u64;
                let border = num_samples - held.min(num_samples);
                let range = match part {
                    Part::Kept => 0..border,
                    Part::HeldOut => border..num_samples,
                };
                Some(range).into_iter().filter(|range| range.start < range.end).collect()
            }
            HoldoutBy::Random => {
                let most = (self.share * 2.0_f64.powi(64)) as u64;
                let is_in = |sample: u64| (fmix64(sample ^ SALT) < most) == (part == Part::HeldOut);
                let mut ranges = Vec::<Range<u64>>::new();
                for sample in (0..num_samples).filter(|&sample| is_in(sample)) {
                    match ranges.last_mut() {
                        Some(last) if last.end == sample => last.end += 1,
                        _ => ranges.push(sample..sample + 1),
                    }
                }
                ranges
            }
        }
    }

    /// How many these are.
    pub fn count(&self, part: Part, num_samples: u64) -> u64 {
        self.ranges(part, num_samples).iter().map(|range| range.end - range.start).sum()
    }
}

/// Other hashes of sample numbers must not hold out the same samples.
const SALT: u64 = 0x686f_6c64_6f75_7421;

/// Some samples of data.
pub struct PartSource {
    about: About,
    whole: Arc<dyn Source>,
    ranges: Arc<[Range<u64>]>,
    starts: Arc<[u64]>,
}

impl PartSource {
    /// The `part` of `whole`, whose samples have been counted.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`](crate::ReaderError::Invalid) where the number of samples is not
    /// known, or is too small for two parts.
    pub fn new(whole: Arc<dyn Source>, holdout: Holdout, part: Part) -> Result<Self> {
        let mut about = whole.about().clone();
        let Some(num_samples) = about.num_samples else {
            return Err(invalid!(
                "{}: nothing can be held out of data whose samples are not counted",
                about.names
            ));
        };
        let ranges = holdout.ranges(part, num_samples);
        let starts = starts_of(ranges.iter().map(|range| range.end - range.start));
        let here = starts.last().copied().unwrap_or_default();
        if here == 0 || here == num_samples {
            let share = holdout.share;
            return Err(invalid!(
                "{}: {share} of {num_samples} samples leaves a part without any",
                about.names
            ));
        }
        about.num_samples = Some(here);
        Ok(Self { about, whole, ranges: ranges.into(), starts })
    }
}

impl Source for PartSource {
    fn about(&self) -> &About {
        &self.about
    }

    fn skip_report(&self) -> SkipReport {
        self.whole.skip_report()
    }

    fn read(&self, ranges: Ranges, options: &DiskOptions) -> Result<Box<dyn SampleStream>> {
        let parts = Arc::clone(&self.ranges);
        let pieces = cut(ranges, Arc::clone(&self.starts)).map(move |(part, samples)| {
            let start = parts[part].start;
            start + samples.start..start + samples.end
        });
        self.whole.read(Box::new(pieces), options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_parts_are_the_whole() {
        for by in [HoldoutBy::Random, HoldoutBy::Last] {
            for (share, num_samples) in [(0.1, 10_000), (0.5, 3), (0.999, 10), (0.2, 0)] {
                let holdout = Holdout { share, by };
                let mut all: Vec<u64> = [Part::Kept, Part::HeldOut]
                    .into_iter()
                    .flat_map(|part| holdout.ranges(part, num_samples))
                    .flatten()
                    .collect();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..num_samples), "{holdout:?} of {num_samples}");
            }
        }
        let held = |by| Holdout { share: 0.1, by }.count(Part::HeldOut, 10_000);
        assert_eq!(held(HoldoutBy::Last), 1000);
        assert!((900..1100).contains(&held(HoldoutBy::Random)), "{}", held(HoldoutBy::Random));
    }

    #[test]
    fn the_last_are_the_latest() {
        let holdout = Holdout { share: 0.25, by: HoldoutBy::Last };
        assert_eq!(holdout.ranges(Part::Kept, 8), vec![0..6]);
        assert_eq!(holdout.ranges(Part::HeldOut, 8), vec![6..8]);
    }
}
