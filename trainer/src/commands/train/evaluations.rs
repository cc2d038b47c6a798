//! When a run evaluates, and when it hears what was found.
//!
//! Scores are sorted and counted while training continues. A run looks at what they came to a fixed
//! number of steps later ([`known_after`]), not as soon as they are ready: so that it stops at the
//! same step, with the same weights, however fast the machine, on any number of ranks.
//!
//! ```text
//! step        32        33        34                      48
//!             forward   scores are exchanged              the next evaluation
//!             passes    (between processes)
//!                                 metrics are known, the run stops where they reach the target
//! ```
//!
//! Where the run's end is known, an evaluation that would come right before it is left to the one
//! at the end.
//!
//! Ranks of their own (`--eval-ranks`) have the whole time to the next evaluation: their metrics
//! are looked at right before it.

use super::Run;
use crate::error::Result;
use crate::report::{At, Eval, count};
use serde_json::Map;

/// The metrics of an evaluation are looked at a sixteenth of the way to the next one.
const PART_OF_INTERVAL: u64 = 16;

/// An evaluation that would come within this part of the interval before the run's end is left to
/// the one at the end.
const PART_LEFT_TO_THE_END: u64 = 10;

/// Whether the evaluation that is due at `step`, where there are `every` steps between evaluations,
/// is left to the one at the end of the run: a fraction of an epoch is rounded down to steps, so
/// that its last multiple is a few steps short of the end.
fn is_left_to_the_end(step: u64, every: u64, end: Option<u64>) -> bool {
    let rest = end.map_or(u64::MAX, |end| end.saturating_sub(step));
    0 < rest && rest < every && rest <= every.div_ceil(PART_LEFT_TO_THE_END)
}

/// Steps after an evaluation at which its metrics are looked at, where there are `every` steps
/// between evaluations.
fn known_after(every: u64) -> u64 {
    every.div_ceil(PART_OF_INTERVAL)
}

impl Run<'_> {
    /// After a step: hears of the evaluation before, and begins one where it is time. True where
    /// the target is reached.
    pub(super) fn evaluate_when_due(&mut self) -> Result<bool> {
        let Some(every) = self.eval_every else { return Ok(false) };
        let (step, known_after) = (self.session.steps(), self.known_after(every));
        if let Some(evaluated) = self.session.pending_evaluation() {
            match step - evaluated {
                since if since >= known_after => self.conclude_evaluation()?,
                since if since == known_after.div_ceil(2) => self.session.exchange_scores()?,
                _ => {}
            }
        }
        if !self.is_target_reached(step)
            && step.is_multiple_of(every)
            && !self.is_left_to_the_end(every)
        {
            self.begin_evaluation()?;
            if known_after == 0 {
                self.conclude_evaluation()?;
            }
        }
        Ok(self.is_target_reached(step))
    }

    /// At the end of the data: evaluates the last weights, where that has not been done. True where
    /// the target is reached.
    pub(super) fn evaluate_last(&mut self) -> Result<bool> {
        self.conclude_evaluation()?;
        if !self.is_target_reached(u64::MAX)
            && self.session.memory().last_eval_step != Some(self.session.steps())
        {
            self.begin_evaluation()?;
            self.conclude_evaluation()?;
        }
        Ok(self.is_target_reached(u64::MAX))
    }

    /// Whether an evaluation has reached the target for which the run stops at `step` or before.
    fn is_target_reached(&self, step: u64) -> bool {
        self.session
            .memory()
            .reached
            .is_some_and(|(due, auc)| step >= due && self.reaches_target(auc))
    }

    /// Whether training stops at `step` because evaluations have not been better for long enough:
    /// as for a target, at a step that no machine's speed decides.
    pub(super) fn is_patience_over(&self, step: u64) -> bool {
        let memory = self.session.memory();
        let known_after = self.eval_every.map_or(0, |every| self.known_after(every));
        memory.last_eval_step.is_some_and(|evaluated| step >= evaluated + known_after)
            && memory.patience_is_over(self.config)
    }

    /// Not where a target or MLPerf's log counts evaluations: there, each is where the rule has it.
    fn is_left_to_the_end(&self, every: u64) -> bool {
        let counts = self.config.eval.target_auc.is_some() || self.options.flags.mllog.is_some();
        !counts && is_left_to_the_end(self.session.steps(), every, self.ends_at_step)
    }

    /// None where every evaluation is waited for: because that was asked for, or because the best
    /// checkpoint is kept, which can only be written while the weights are there.
    fn known_after(&self, every: u64) -> u64 {
        match self.config.run.evaluating() {
            Some(_) => every,
            None if self.config.saves_best() || !self.config.eval.asynchronous => 0,
            None => known_after(every),
        }
    }

    fn reaches_target(&self, auc: f64) -> bool {
        self.config.eval.target_auc.is_some_and(|target| auc >= target)
    }

    fn begin_evaluation(&mut self) -> Result<()> {
        if self.session.has_validation() {
            self.log_eval_start()?;
        }
        self.session.begin_evaluation()?;
        self.say_who_is_lost(None)?;
        let Some(drift) = self.session.repartition_after_drift()? else { return Ok(()) };
        self.reporter.note(&format!(
            "frequent rows served {:.1} % of the lookups instead of {:.1} %: {} rows are frequent \
             now, for {:.1} %",
            100.0 * drift.measured,
            100.0 * drift.expected,
            count(drift.frequent_rows),
            100.0 * drift.covered_share
        ));
        Ok(())
    }

    /// Where processes that evaluated are lost, training continues. `step`: whose evaluation is
    /// lost with them.
    fn say_who_is_lost(&mut self, step: Option<u64>) -> Result<()> {
        let Some(reason) = self.session.take_lost_evaluators() else { return Ok(()) };
        let evaluation = step.map_or(String::new(), |step| {
            format!(", and the evaluation of step {} with them", count(step))
        });
        let message = format!(
            "the processes that evaluate are lost{evaluation}: {reason}; from now on the ranks \
             that train evaluate"
        );
        self.reporter.warning(&message, Map::new())
    }

    /// Waits for the pending evaluation, where there is one, and says what it found.
    pub(super) fn conclude_evaluation(&mut self) -> Result<()> {
        let pending = self.session.pending_evaluation();
        let evaluated = self.session.finish_evaluation()?;
        self.say_who_is_lost(pending.filter(|_| evaluated.is_none()))?;
        let Some(evaluated) = evaluated else { return Ok(()) };
        let eval = Eval {
            metrics: evaluated.metrics,
            eval_s: evaluated.held.as_secs_f64(),
            known_at_step: Some(self.session.steps()),
        };
        self.meter.evaluated(eval);
        let at = At { step: evaluated.step, samples: evaluated.samples };
        self.log_eval_stop(at, &eval)?;
        self.reporter.eval(at, &eval)?;
        if let Some(auc) = eval.metrics.auc.filter(|&auc| self.reaches_target(auc)) {
            let known_after = self.eval_every.map_or(0, |every| self.known_after(every));
            self.session.memory_mut().reached = Some((evaluated.step + known_after, auc));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{is_left_to_the_end, known_after};

    #[test]
    fn metrics_are_known_before_the_next_evaluation_is_scored() {
        assert_eq!([1, 2, 16, 17, 3200].map(known_after), [1, 1, 1, 2, 200]);
    }

    #[test]
    fn the_end_takes_the_place_of_an_evaluation_right_before_it() {
        let is_left = |step, every, end| is_left_to_the_end(step, every, Some(end));
        // A quarter of 3,125 steps.
        assert_eq!(
            [781, 1562, 2343, 3124].map(|step| is_left(step, 781, 3125)),
            [false, false, false, true]
        );
        assert_eq!([10, 11].map(|rest| is_left(100, 100, 100 + rest)), [true, false]);
        assert!(!is_left(100, 100, 100), "at the end itself there is one");
        assert!(!is_left(5, 1, 6), "every step was asked for");
        assert!(!is_left_to_the_end(3124, 781, None), "the end is not known");
    }
}
