//! How many trials there are, and how long each is trained: decided once, from the time that there
//! is and from how fast the first trials were. What follows depends on nothing but the plan.

use crate::report::duration;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Trials whose speed is measured: those that any plan has.
pub const MEASURED: usize = 4;
/// More than that choose among noise.
const MOST_TRIALS: usize = 256;
/// Lengths of a trial after which it may be stopped, in parts of the base's epochs. The last one is
/// longer than the base: settings may be best when trained for longer.
const RUNGS: [f64; 4] = [0.25, 0.5, 1.0, 2.0];
/// How many of the best trials are compared with the base on how many other folds, the most exact
/// comparison first.
const COMPARISONS: [(usize, u64); 4] = [(16, 8), (8, 6), (4, 4), (2, 2)];
/// Folds after which the better half of those that are compared stays.
const FOLDS_OF_STAGE: u64 = 2;
/// Of the time, a comparison may take this much.
const SHARE_OF_COMPARISON: f64 = 0.5;

/// What is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Epochs after which trials are compared, ascending.
    pub rungs: Vec<f64>,
    /// New trials, the base not counted: each group is drawn around the best of those before.
    pub groups: Vec<usize>,
    /// How many of the best are compared with the base on other folds.
    pub finalists: usize,
    /// How many folds for those that stay to the end.
    pub folds: u64,
}

/// Seconds that one processor needs.
#[derive(Debug, Clone, Copy)]
pub struct Costs {
    /// For an epoch.
    pub epoch_s: f64,
    /// To begin, to read the data and to evaluate.
    pub start_s: f64,
    /// Models whose mean is scored in the end.
    pub models: usize,
}

/// The rungs of a base configuration.
pub fn rungs(epochs: f64) -> Vec<f64> {
    RUNGS.iter().map(|part| part * epochs).collect()
}

impl Plan {
    /// That of so many trials, the base among them.
    pub fn of_trials(trials: usize, epochs: f64, most_folds: u64) -> Self {
        let (finalists, folds) = COMPARISONS[match trials {
            0..8 => 3,
            8..24 => 2,
            24..64 => 1,
            _ => 0,
        }];
        let folds = folds.min(most_folds);
        Self { rungs: rungs(epochs), groups: groups(trials.saturating_sub(1)), finalists, folds }
    }

    /// That which takes about `seconds` of `workers` processors, with trials of `costs` on average;
    /// and the seconds that it takes.
    pub fn of_time(
        (seconds, workers): (f64, usize),
        costs: Costs,
        epochs: f64,
        most_folds: u64,
    ) -> (Self, f64) {
        let all = seconds * workers as f64;
        let whole = |epochs: f64| costs.start_s + epochs * costs.epoch_s;
        let comparison = |(finalists, folds): (usize, u64)| {
            let stages = stages(folds.min(most_folds));
            let mut alive = finalists;
            let runs = stages.map(|stage| {
                // The base is one more.
                let runs = (alive as u64 + 1) * (stage.end - stage.start);
                alive = rivals(alive);
                runs
            });
            runs.sum::<u64>() as f64 * whole(1.2 * epochs)
        };
        let affordable = |of: &&(usize, u64)| comparison(**of) <= SHARE_OF_COMPARISON * all;
        let chosen = COMPARISONS.iter().find(affordable);
        let (finalists, folds) = *chosen.unwrap_or(&COMPARISONS[COMPARISONS.len() - 1]);
        // The base is trained to the end, and it and the best in the end on all rows.
        let last = RUNGS[RUNGS.len() - 1] * epochs;
        let finals = 2.0 * costs.models as f64 * whole(1.2 * epochs);
        let fixed = comparison((finalists, folds)) + whole(last) + finals;
        let of_trials = |count: usize| -> f64 {
            let plan = Self { rungs: rungs(epochs), groups: groups(count), finalists, folds };
            let tasks = plan.groups.iter().flat_map(|&group| plan.lengths(group));
            tasks.map(|(trials, length)| trials as f64 * whole(length)).sum()
        };
        let fits = |count: &usize| fixed + of_trials(*count) <= all;
        let count = (MEASURED..MOST_TRIALS).rev().find(fits).unwrap_or(MEASURED - 1);
        let folds = folds.min(most_folds);
        let plan = Self { rungs: rungs(epochs), groups: groups(count), finalists, folds };
        (plan, (fixed + of_trials(count)) / workers as f64)
    }

    /// What is said of it, with the seconds that are expected, where they are.
    pub fn in_words(&self, expected_s: Option<f64>) -> String {
        let rungs: Vec<String> = self.rungs.iter().map(f64::to_string).collect();
        let takes = expected_s
            .map_or(String::new(), |seconds| format!(", about {} in all", duration(seconds)));
        format!(
            "plan: {} trials and the base, the better half trained further after {} epochs; the \
             best {} compared with the base, the last of them on {} other folds{takes}",
            self.groups.iter().sum::<usize>(),
            rungs.join(", "),
            self.finalists,
            self.folds
        )
    }

    /// Trials of a group on each rung, and the epochs from the rung before.
    fn lengths(&self, group: usize) -> Vec<(usize, f64)> {
        let (mut alive, mut before) = (group, 0.0);
        let mut lengths = Vec::new();
        for &rung in &self.rungs {
            lengths.push((alive, rung - before));
            (alive, before) = (survivors(alive), rung);
        }
        lengths
    }
}

/// How many of so many trials are trained further.
pub fn survivors(trials: usize) -> usize {
    trials.div_ceil(2)
}

/// The folds of a comparison, stage by stage.
pub fn stages(folds: u64) -> impl Iterator<Item = Range<u64>> {
    let starts = (1..=folds).step_by(FOLDS_OF_STAGE as usize);
    starts.map(move |start| start..(start + FOLDS_OF_STAGE).min(folds + 1))
}

/// How many of so many that are compared stay for the next stage: two at least.
pub fn rivals(compared: usize) -> usize {
    survivors(compared).max(2).min(compared)
}

/// Groups of so many trials: later ones know more, earlier ones look around.
fn groups(trials: usize) -> Vec<usize> {
    match trials {
        0..12 => vec![trials],
        12..24 => vec![trials - trials / 3, trials / 3],
        _ => vec![trials - 2 * (trials / 4), trials / 4, trials / 4],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_time_is_more_trials_and_a_better_comparison() {
        let costs = Costs { epoch_s: 2.0, start_s: 0.5, models: 1 };
        let plan = |seconds: f64| Plan::of_time((seconds, 2), costs, 1.0, 8);
        let counts: Vec<usize> =
            [1.0, 60.0, 120.0, 300.0].map(|s| plan(s).0.groups.iter().sum()).to_vec();
        assert_eq!(counts[0], MEASURED - 1, "the least there is");
        assert!(counts.is_sorted() && counts[3] > 2 * counts[1], "{counts:?}");
        assert!(plan(60.0).0.folds < plan(300.0).0.folds);
        for seconds in [60.0, 120.0, 300.0] {
            let expected = plan(seconds).1;
            assert!(expected <= seconds && expected > 0.8 * seconds, "{expected} of {seconds}");
        }
    }

    #[test]
    fn half_of_a_group_is_trained_further() {
        let plan = Plan { rungs: rungs(2.0), ..Plan::of_trials(6, 2.0, 8) };
        assert_eq!(plan.groups, [5]);
        assert_eq!(plan.lengths(5), [(5, 0.5), (3, 0.5), (2, 1.0), (1, 2.0)]);
        assert_eq!(groups(40), [20, 10, 10]);
    }

    #[test]
    fn folds_come_in_stages_and_two_rivals_stay() {
        assert_eq!(stages(5).collect::<Vec<_>>(), [1..3, 3..5, 5..6]);
        assert_eq!([16, 5, 2, 1].map(rivals), [8, 3, 2, 1]);
    }
}
