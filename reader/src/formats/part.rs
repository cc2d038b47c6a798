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
    /// Which of the disjoint parts of that share: 0 is the first. The last samples are one part.
    pub fold: u64,
    /// Share of the samples that are in neither part: those that a holdout of that share, fold 0
    /// and no test holds out.
    pub test: f64,
}

/// One of the two parts of data of which samples are held out. A test's samples are in neither.
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
                let before_last = |all: u64, share: f64| {
                    all - ((num_samples as f64 * share).round() as u64).min(all)
                };
                let end = before_last(num_samples, self.test);
                let border = before_last(end, self.share);
                let range = match part {
                    Part::Kept => 0..border,
                    Part::HeldOut => border..end,
                };
                Some(range).into_iter().filter(|range| range.start < range.end).collect()
            }
            HoldoutBy::Random => {
                // Hashes are evenly distributed: test, fold 0, fold 1, …
                let hash_at = |share: f64| (share * 2.0_f64.powi(64)) as u64;
                let border = |fold: u64| hash_at(self.test + fold as f64 * self.share);
                let test = hash_at(self.test);
                let held_out = border(self.fold)..border(self.fold + 1);
                let is_in = |sample: u64| {
                    let hash = fmix64(sample ^ SALT);
                    match part {
                        Part::Kept => hash >= test && !held_out.contains(&hash),
                        Part::HeldOut => held_out.contains(&hash),
                    }
                };
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
            let share = holdout.share + holdout.test;
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

    fn of(share: f64, by: HoldoutBy) -> Holdout {
        Holdout { share, by, fold: 0, test: 0.0 }
    }

    #[test]
    fn the_two_parts_are_the_whole() {
        for by in [HoldoutBy::Random, HoldoutBy::Last] {
            for (share, num_samples) in [(0.1, 10_000), (0.5, 3), (0.999, 10), (0.2, 0)] {
                let holdout = of(share, by);
                let mut all: Vec<u64> = [Part::Kept, Part::HeldOut]
                    .into_iter()
                    .flat_map(|part| holdout.ranges(part, num_samples))
                    .flatten()
                    .collect();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..num_samples), "{holdout:?} of {num_samples}");
            }
        }
        let held = |by| of(0.1, by).count(Part::HeldOut, 10_000);
        assert_eq!(held(HoldoutBy::Last), 1000);
        assert!((900..1100).contains(&held(HoldoutBy::Random)), "{}", held(HoldoutBy::Random));
    }

    #[test]
    fn the_last_are_the_latest() {
        let holdout = of(0.25, HoldoutBy::Last);
        assert_eq!(holdout.ranges(Part::Kept, 8), vec![0..6]);
        assert_eq!(holdout.ranges(Part::HeldOut, 8), vec![6..8]);
        let before = Holdout { test: 0.25, ..holdout };
        assert_eq!(before.ranges(Part::Kept, 8), vec![0..4]);
        assert_eq!(before.ranges(Part::HeldOut, 8), vec![4..6]);
    }

    #[test]
    fn folds_and_test_are_disjoint_and_no_fold_is_trained_on() {
        let samples = |holdout: Holdout, part| -> Vec<u64> {
            holdout.ranges(part, 1000).into_iter().flatten().collect()
        };
        let test = samples(of(0.2, HoldoutBy::Random), Part::HeldOut);
        let folds = (0..4).map(|fold| Holdout { fold, test: 0.2, ..of(0.2, HoldoutBy::Random) });
        let mut all = test.clone();
        for fold in folds {
            let held_out = samples(fold, Part::HeldOut);
            assert!((150..250).contains(&held_out.len()), "{}", held_out.len());
            let mut whole = [samples(fold, Part::Kept), held_out.clone(), test.clone()].concat();
            whole.sort_unstable();
            assert!(whole.into_iter().eq(0..1000), "{fold:?}");
            all.extend(held_out);
        }
        all.sort_unstable();
        assert!(all.into_iter().eq(0..1000));
    }
}
