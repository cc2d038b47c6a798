//! Whose fault it was: a pure function over how the ranks have ended.

use super::told::Named;
use crate::error::{Error, Result};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Code(i32),
    /// By a signal that the launcher has not sent.
    Signal(i32),
    /// Not by itself: the launcher has killed it when its time was over.
    Late,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    pub rank: usize,
    pub end: End,
    /// When, since the start.
    pub at: Duration,
    /// Training does not end with it.
    pub only_evaluates: bool,
}

/// The exit code of a rank whose communication has failed: mostly a victim of another rank.
const COMMUNICATION: i32 = 3;

impl Outcome {
    /// How likely this rank is the one that has failed first: smaller is likelier.
    fn suspicion(&self) -> (u8, Duration) {
        let class = match self.end {
            End::Signal(_) => 0,
            End::Code(code) if code != 0 && code != COMMUNICATION => 1,
            End::Late => 2,
            End::Code(COMMUNICATION) => 3,
            End::Code(_) => 4,
        };
        (class, self.at)
    }

    /// It has ended for a reason of its own.
    fn is_evident(&self) -> bool {
        self.suspicion().0 < 2
    }
}

/// Names the rank that has failed first: the one with an end of its own, else whom the ranks have
/// named, the first first. `forwarded` is the signal that the user has sent, if any.
///
/// # Errors
/// [`Error::Rank`] with the culprit and its exit code; [`Error::Interrupted`] when all ended
/// because they were asked to.
pub fn judge(
    outcomes: &[Outcome],
    named: &[Named],
    forwarded: Option<i32>,
    grace: Duration,
) -> Result<()> {
    let training = || outcomes.iter().filter(|outcome| !outcome.only_evaluates);
    let culprit = training()
        .min_by_key(|outcome| outcome.suspicion())
        .filter(|outcome| outcome.end != End::Code(0));
    let Some(culprit) = culprit else { return Ok(()) };
    if let Some(signal) = asked_to_end(outcomes, forwarded) {
        // Rank 0 has said what was saved, where it had the time to.
        let is_said =
            outcomes.iter().any(|one| one.rank == 0 && one.end == End::Code(128 + signal));
        return Err(Error::Interrupted { signal, outcome: String::new(), is_said });
    }
    let is_known = |named: &&Named| training().any(|outcome| outcome.rank == named.culprit);
    let told = named.iter().find(is_known).filter(|_| !culprit.is_evident());
    let rank = told.map_or(culprit.rank, |named| named.culprit);
    let end =
        outcomes.iter().find(|outcome| outcome.rank == rank).map_or(culprit.end, |one| one.end);
    let victims: Vec<String> = outcomes
        .iter()
        .filter(|outcome| outcome.rank != rank && outcome.end == End::Code(COMMUNICATION))
        .map(|outcome| outcome.rank.to_string())
        .collect();
    let (how, exit_code) = match (end, told) {
        (End::Code(_), Some(Named { error, .. })) => {
            (format!("was lost: {error}"), COMMUNICATION as u8)
        }
        (End::Code(code), None) => {
            (format!("has failed with exit code {code}"), u8::try_from(code).unwrap_or(1))
        }
        (End::Signal(signal), _) => {
            let code = if victims.is_empty() { 1 } else { COMMUNICATION as u8 };
            (format!("was killed by {}", signal_text(signal)), code)
        }
        (End::Late, _) => {
            let seconds = grace.as_secs_f64();
            (
                format!(
                    "did not end within {seconds} s after the others had failed, and was killed"
                ),
                COMMUNICATION as u8,
            )
        }
    };
    let others = match victims.len() {
        0 => String::new(),
        1 => format!("; rank {} then had no one to talk to", victims[0]),
        _ => format!("; ranks {} then had no one to talk to", victims.join(", ")),
    };
    Err(Error::Rank { rank, how: format!("{how}{others}"), exit_code })
}

/// Whether a rank was lost, and the job could do better another time: one was killed, or was no
/// longer heard of. An error of its own would come again.
pub fn has_lost(outcomes: &[Outcome], error: &Error) -> bool {
    let was_killed = || {
        let training = outcomes.iter().filter(|one| !one.only_evaluates);
        training.map(|one| one.end).any(|end| matches!(end, End::Signal(_)))
    };
    match error {
        Error::Rank { exit_code, .. } => *exit_code == COMMUNICATION as u8 || was_killed(),
        _ => false,
    }
}

/// The signal by which all ranks that train were asked to end, and have: `forwarded`, or one that
/// somebody has sent to a rank of theirs, which ends with the others at the same step.
fn asked_to_end(outcomes: &[Outcome], forwarded: Option<i32>) -> Option<i32> {
    let ends = || outcomes.iter().filter(|one| !one.only_evaluates).map(|one| one.end);
    match forwarded {
        Some(signal) => {
            let asked = [End::Code(0), End::Signal(signal), End::Code(128 + signal)];
            ends().all(|end| asked.contains(&end)).then_some(signal)
        }
        None => [libc::SIGINT, libc::SIGTERM]
            .into_iter()
            .find(|signal| ends().all(|end| end == End::Code(128 + signal))),
    }
}

/// What there is to say of ranks that evaluated and did not come to the end of a job that did.
pub fn without_training(outcomes: &[Outcome]) -> Vec<String> {
    let lost = outcomes.iter().filter(|one| one.only_evaluates && one.end != End::Code(0));
    let how = |end| match end {
        End::Code(code) => format!("has failed with exit code {code}"),
        End::Signal(signal) => format!("was killed by {}", signal_text(signal)),
        End::Late => "did not end after training, and was killed".to_owned(),
    };
    lost.map(|one| format!("note: rank {}, which evaluated, {}", one.rank, how(one.end))).collect()
}

fn signal_text(signal: i32) -> String {
    let hint = if signal == libc::SIGKILL {
        ": by somebody, or by the system for want of memory"
    } else {
        ""
    };
    match signal_hook::low_level::signal_name(signal) {
        Some(name) => format!("{name}{hint}"),
        None => format!("signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(ends: &[(End, u64)], forwarded: Option<i32>) -> Option<(String, u8)> {
        told_verdict(ends, &[], forwarded)
    }

    fn told_verdict(
        ends: &[(End, u64)],
        named: &[usize],
        forwarded: Option<i32>,
    ) -> Option<(String, u8)> {
        let error = |culprit: usize| format!("rank {culprit} has not come");
        let named: Vec<Named> =
            named.iter().map(|&culprit| Named { culprit, error: error(culprit) }).collect();
        let outcome = |(rank, (end, at)): (usize, &(End, u64))| Outcome {
            rank,
            end: *end,
            at: Duration::from_millis(*at),
            only_evaluates: false,
        };
        let outcomes: Vec<Outcome> = ends.iter().enumerate().map(outcome).collect();
        let error = judge(&outcomes, &named, forwarded, Duration::from_secs(10)).err()?;
        Some((error.to_string(), error.exit_code()))
    }

    #[test]
    fn the_culprit_is_named_even_where_victims_end_first() {
        use End::{Code, Late, Signal};
        assert_eq!(verdict(&[(Code(0), 5), (Code(0), 9)], None), None);
        type Case<'a> = (&'a [(End, u64)], &'a str, u8);
        let cases: &[Case<'_>] = &[
            (
                &[(Code(3), 10), (Code(1), 20), (Code(3), 15)],
                "rank 1 has failed with exit code 1; ranks 0, 2",
                1,
            ),
            (&[(Code(3), 10), (Signal(9), 20)], "rank 1 was killed by SIGKILL", 3),
            (&[(Code(0), 10), (Signal(11), 20)], "rank 1 was killed by SIGSEGV", 1),
            (&[(Code(3), 10), (Late, 9000)], "rank 1 did not end within 10 s", 3),
            (&[(Code(2), 10), (Late, 9000)], "rank 0 has failed with exit code 2", 2),
            (&[(Code(3), 12), (Code(3), 10)], "rank 1 has failed with exit code 3; rank 0", 3),
        ];
        for (ends, words, code) in cases {
            let (text, found) = verdict(ends, None).expect("a failure");
            assert!(text.contains(words) && found == *code, "{ends:?}: {text} ({found})");
        }
    }

    /// A rank that was stopped for a while ends like those that have lost it, and sometimes after
    /// them.
    #[test]
    fn whom_ranks_have_named_the_launcher_names() {
        use End::{Code, Late, Signal};
        type Case<'a> = (&'a [(End, u64)], &'a [usize], &'a str);
        let cases: &[Case<'_>] = &[
            (
                &[(Code(3), 10), (Code(3), 15)],
                &[1, 0],
                "rank 1 was lost: rank 1 has not come; rank 0 then",
            ),
            (
                &[(Code(3), 15), (Code(3), 10)],
                &[0, 1],
                "rank 0 was lost: rank 0 has not come; rank 1 then",
            ),
            (
                &[(Code(3), 10), (Late, 15), (Code(3), 12)],
                &[2],
                "rank 2 was lost: rank 2 has not come; rank 0",
            ),
            (&[(Code(3), 10), (Late, 15)], &[1], "rank 1 did not end within 10 s"),
            (&[(Code(3), 10), (Signal(9), 15)], &[0], "rank 1 was killed by SIGKILL"),
            (&[(Code(3), 10), (Code(1), 15)], &[0], "rank 1 has failed with exit code 1"),
            (&[(Code(3), 10), (Code(3), 15)], &[9], "rank 0 has failed with exit code 3"),
        ];
        for (ends, named, words) in cases {
            let (text, _) = told_verdict(ends, named, None).expect("a failure");
            assert!(text.contains(words), "{ends:?} {named:?}: {text}");
        }
    }

    #[test]
    fn ranks_that_were_asked_to_end_have_not_failed() {
        let asked = [(End::Code(130), 10), (End::Signal(2), 11), (End::Code(0), 12)];
        assert_eq!(verdict(&asked, Some(2)), Some(("stopped by SIGINT".into(), 130)));
        let one_was_asked = [(End::Code(143), 10), (End::Code(143), 11)];
        assert_eq!(verdict(&one_was_asked, None), Some(("stopped by SIGTERM".into(), 143)));
        let not_all = [(End::Code(143), 10), (End::Code(0), 11)];
        assert!(verdict(&not_all, None).is_some_and(|(text, _)| text.starts_with("rank 0")));
        for (ends, is_said) in [(asked, true), ([asked[1], asked[0], asked[2]], false)] {
            let outcome = |(rank, (end, at)): (usize, (End, u64))| Outcome {
                rank,
                end,
                at: Duration::from_millis(at),
                only_evaluates: false,
            };
            let outcomes: Vec<Outcome> = ends.into_iter().enumerate().map(outcome).collect();
            let error = judge(&outcomes, &[], Some(2), Duration::ZERO).unwrap_err();
            let found = matches!(error, Error::Interrupted { is_said: true, .. });
            assert_eq!(found, is_said, "{error}");
        }
        let not_all = [(End::Code(130), 10), (End::Code(1), 11)];
        assert!(verdict(&not_all, Some(2)).is_some_and(|(text, _)| text.starts_with("rank")));
    }
}
