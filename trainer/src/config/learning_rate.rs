//! The learning rate as a pure function of the step.
//!
//! Linear warm-up, a constant stretch, polynomial decay to a floor: the formula of
//! facebookresearch/dlrm's `LRPolicyScheduler` (`dlrm_s_pytorch.py`) and of all MLPerf v1
//! submissions. With step t counted from 1, warm-up w, decay start d, decay steps n, power p, base
//! rate r and floor f:
//!
//! ```text
//! t < w            r · t / w
//! d ≤ t < d + n    max(f, r · ((d + n − t) / n)^p)      where n > 0
//! d + n ≤ t        f                                    where n > 0
//! otherwise        r
//! ```
//!
//! Note: two quirks of the original, and of HugeCTR after it, are left out. Between warm-up and
//! decay it stays at r · (w − 1) / w, the last value of the warm-up, where n > 0; after the decay
//! it stays at the last decayed value, which is the floor unless n is small. Published results were
//! made with the first: `train.hugectr_compat` brings it back.

use crate::config::TrainConfig;

/// A schedule of learning rates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRate {
    /// Rate after the warm-up.
    pub base: f64,
    /// Steps of the warm-up; 0: none.
    pub warmup_steps: u64,
    /// First step of the decay.
    pub decay_start_step: u64,
    /// Steps of the decay; 0: none.
    pub decay_steps: u64,
    /// Power of the decay.
    pub decay_power: f64,
    /// The decay does not go below this.
    pub floor: f64,
    /// Whether the rate stays at the warm-up's last value until the decay begins, as in the
    /// original.
    pub keeps_last_of_warmup: bool,
}

impl LearningRate {
    /// The dense network's schedule.
    pub fn dense(train: &TrainConfig) -> Self {
        Self {
            base: train.learning_rate,
            warmup_steps: train.warmup_steps,
            decay_start_step: train.decay_start_step,
            decay_steps: train.decay_steps,
            decay_power: train.decay_power,
            floor: train.final_learning_rate,
            keeps_last_of_warmup: train.hugectr_compat,
        }
    }

    /// The tables' schedule: the dense one with a base of its own, where one is set.
    pub fn sparse(train: &TrainConfig) -> Self {
        Self {
            base: train.sparse_learning_rate.unwrap_or(train.learning_rate),
            ..Self::dense(train)
        }
    }

    /// The rate of the step with this index, counted from 0: of the first step at 0.
    pub fn at(&self, step_index: u64) -> f64 {
        let step = step_index.saturating_add(1);
        if step < self.warmup_steps {
            return self.base * step as f64 / self.warmup_steps as f64;
        }
        if self.decay_steps == 0 {
            return self.base;
        }
        if step < self.decay_start_step {
            return self.plateau();
        }
        let left = self.decay_steps.saturating_sub(step - self.decay_start_step);
        let share = left as f64 / self.decay_steps as f64;
        // Note: a floor above the base would raise the rate; the smaller of the two is meant.
        (self.base * share.powf(self.decay_power)).max(self.floor.min(self.base))
    }

    /// The rate between warm-up and decay.
    fn plateau(&self) -> f64 {
        match self.keeps_last_of_warmup && self.warmup_steps > 1 {
            true => self.base * (self.warmup_steps - 1) as f64 / self.warmup_steps as f64,
            false => self.base,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MLPerf v1 at batch 32768.
    const MLPERF: LearningRate = LearningRate {
        base: 18.0,
        warmup_steps: 8000,
        decay_start_step: 70_000,
        decay_steps: 30_000,
        decay_power: 2.0,
        floor: 1e-7,
        keeps_last_of_warmup: false,
    };

    #[test]
    fn hand_values() {
        // Steps counted from 1, as the formula does.
        for (step, rate) in [
            (1, 18.0 / 8000.0),
            (4000, 9.0),
            (7999, 18.0 * 7999.0 / 8000.0),
            (8000, 18.0),
            (69_999, 18.0),
            (70_000, 18.0),
            (85_000, 4.5),
            (99_000, 18.0 / 900.0),
            (99_999, 1e-7),
            (100_000, 1e-7),
            (10_000_000, 1e-7),
        ] {
            let found = MLPERF.at(step - 1);
            assert!((found - rate).abs() <= 1e-12 * rate, "step {step}: {found} != {rate}");
        }
    }

    /// What a program that only changes a variable in the two branches prints: the warm-up's last
    /// value stays, 24 · 2749 / 2750.
    #[test]
    fn the_ancestors_plateau() {
        let ours = LearningRate {
            base: 24.0,
            warmup_steps: 2750,
            decay_start_step: 49_315,
            decay_steps: 27_772,
            ..MLPERF
        };
        let theirs = LearningRate { keeps_last_of_warmup: true, ..ours };
        let mut kept = 0.0;
        for step in 1..=80_000_u64 {
            if step < 2750 {
                kept = step as f64 * 24.0 / 2750.0;
            } else if (49_315..49_315 + 27_772).contains(&step) {
                let left = (27_772 - (step - 49_315)) as f64 / 27_772.0;
                kept = f64::max(1e-7, 24.0 * left.powi(2));
            }
            assert!((theirs.at(step - 1) - kept).abs() < 1e-7, "step {step}");
            let same = !(2750..49_315).contains(&step);
            assert_eq!(ours.at(step - 1) == theirs.at(step - 1), same, "step {step}");
        }
        let constant = LearningRate { decay_steps: 0, ..theirs };
        assert_eq!(
            constant.at(10_000),
            24.0,
            "without a decay the original has its base there, too"
        );
    }

    #[test]
    fn constant_without_warm_up_and_decay() {
        let constant = LearningRate { warmup_steps: 0, decay_steps: 0, ..MLPERF };
        assert_eq!([0, 1, 70_000, u64::MAX].map(|step| constant.at(step)), [18.0; 4]);
    }

    #[test]
    fn other_powers() {
        let linear = LearningRate {
            decay_power: 1.0,
            warmup_steps: 0,
            decay_start_step: 1,
            decay_steps: 4,
            ..MLPERF
        };
        assert_eq!([0, 1, 2, 3, 4].map(|step| linear.at(step)), [18.0, 13.5, 9.0, 4.5, 1e-7]);
    }

    #[test]
    fn it_rises_then_falls() {
        let rates: Vec<f64> = (0..110_000).map(|step| MLPERF.at(step)).collect();
        assert!(rates[..8000].is_sorted() && rates[8000..].is_sorted_by(|a, b| a >= b));
    }
}
