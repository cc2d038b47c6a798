//! Which checkpoints stay: the last N, and the best one.

use std::cmp::Ordering;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub step: u64,
    /// What its evaluation came to, the higher the better; `None` where there was none.
    pub score: Option<f64>,
}

/// The steps of the checkpoints to remove, ascending: all but the last `keep_last` (at least one)
/// and the best one.
pub fn superfluous(candidates: &[Candidate], keep_last: usize) -> Vec<u64> {
    let mut steps: Vec<u64> = candidates.iter().map(|candidate| candidate.step).collect();
    steps.sort_unstable();
    let best = best(candidates);
    let old = steps.len().saturating_sub(keep_last.max(1));
    steps.truncate(old);
    steps.retain(|step| Some(*step) != best);
    steps
}

/// The step of the checkpoint with the highest score; of equals, the first.
pub fn best(candidates: &[Candidate]) -> Option<u64> {
    let order = |a: &(f64, u64), b: &(f64, u64)| match a.0.total_cmp(&b.0) {
        Ordering::Equal => b.1.cmp(&a.1),
        order => order,
    };
    let measured =
        candidates.iter().filter_map(|candidate| Some((candidate.score?, candidate.step)));
    measured.max_by(order).map(|(_, step)| step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(of: &[(u64, Option<f64>)]) -> Vec<Candidate> {
        of.iter().map(|&(step, score)| Candidate { step, score }).collect()
    }

    #[test]
    fn the_last_and_the_best_stay() {
        let all = candidates(&[
            (10, Some(0.7)),
            (20, Some(0.8)),
            (30, Some(0.75)),
            (40, None),
            (50, Some(0.79)),
        ]);
        assert_eq!(superfluous(&all, 2), [10, 30]);
        assert_eq!(superfluous(&all, 1), [10, 30, 40]);
        assert_eq!(superfluous(&all, 0), [10, 30, 40], "one always stays");
        assert_eq!(superfluous(&all, 5), [] as [u64; 0]);
        assert_eq!(best(&all), Some(20));
    }

    #[test]
    fn without_any_auc_only_the_last_stay() {
        let all = candidates(&[(30, None), (10, None), (20, None)]);
        assert_eq!(superfluous(&all, 1), [10, 20]);
        assert_eq!(best(&all), None);
    }

    #[test]
    fn of_equals_the_first_is_the_best() {
        assert_eq!(
            best(&candidates(&[(10, Some(0.5)), (30, Some(0.5)), (20, Some(0.5))])),
            Some(10)
        );
    }
}
