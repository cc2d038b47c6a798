//! How a history may end.

use super::draw::{Case, DEADLINES, MS, Operation};
use super::ranks::{Failure, Marks};
use crate::CommError;
use crate::system::{Befallen, Finish, NEVER, Report, Time, What};
use std::sync::atomic::Ordering;

const SILENCE: Time = DEADLINES.silence.as_nanos() as Time;
/// A failure ends dialling after the attempt at hand.
const ATTEMPT: Time = DEADLINES.handshake.as_nanos() as Time;

type End = Finish<Result<(), Failure>>;

/// Who is to blame.
struct Blame {
    /// Ranks that failed, or that one end of a broken connection is at.
    culprits: Vec<usize>,
    /// Ranks whose own process failed: what they say of the others does not count.
    failed: Vec<usize>,
    /// Ranks whose clock has jumped, or who were stopped for a moment.
    hurried: Vec<usize>,
}

impl Case {
    /// # Errors
    /// What is wrong.
    pub fn judge(&self, ends: &[End], marks: &[Marks], report: &Report) -> Result<(), String> {
        if let Some(finding) = &report.finding {
            return Err(finding.clone());
        }
        no_rank_is_broken(ends)?;
        self.errors_are_true(ends, report)?;
        no_rank_is_left_behind(ends, marks)?;
        self.is_noticed_in_time(ends, marks, report)
    }

    /// Who fails, names one that something has befallen, and all say the same.
    fn errors_are_true(&self, ends: &[End], report: &Report) -> Result<(), String> {
        let blame = self.blame(report);
        let errors = ends.iter().enumerate().filter_map(|(rank, end)| match end {
            Finish::Done(Err(Failure::Comm(error))) if !blame.failed.contains(&rank) => {
                Some((rank, error))
            }
            _ => None,
        });
        let errors: Vec<(usize, &CommError)> = errors.collect();
        for (rank, error) in &errors {
            if !blame.names(error) {
                let culprits = &blame.culprits;
                return Err(format!(
                    "rank {rank} blames the wrong one, {culprits:?} failed: {error}"
                ));
            }
        }
        // What rank 0 says is what all hear, where it can be heard. Who fails by itself knows why.
        let is_told = |(rank, error): &&(usize, &CommError)| {
            error.culprit().is_none_or(|culprit| culprit.0 != *rank)
        };
        let errors: Vec<(usize, &CommError)> = errors.iter().filter(is_told).copied().collect();
        let first = errors.first().filter(|_| !blame.culprits.contains(&0));
        if let Some((one, first)) = first
            && let Some((other, error)) = errors.iter().find(|(_, error)| !is_same(error, first))
        {
            return Err(format!("rank {one} says: {first}; rank {other}: {error}"));
        }
        Ok(())
    }

    fn blame(&self, report: &Report) -> Blame {
        let (mut culprits, mut failed, mut hurried) = (Vec::new(), Vec::new(), Vec::new());
        for Befallen { fault, .. } in &report.faults {
            match fault.what {
                What::Death { rank, .. } => failed.push(rank),
                What::Pause { rank, time } if time > SILENCE => failed.push(rank),
                What::Reset { ranks } => culprits.extend(ranks),
                What::Cut { from, to, time } if time > SILENCE => culprits.extend([from, to]),
                What::Pause { rank, .. } | What::Jump { rank, .. } => hurried.push(rank),
                What::Cut { .. } => {}
            }
        }
        failed.extend(self.leaves.map(|(rank, _, _)| rank));
        culprits.extend(&failed);
        Blame { culprits, failed, hurried }
    }

    /// A rank that alone fails in a whole job is noticed as soon as it can be.
    fn is_noticed_in_time(
        &self,
        ends: &[End],
        marks: &[Marks],
        report: &Report,
    ) -> Result<(), String> {
        let hard: Vec<_> = report.faults.iter().filter(|one| is_hard(&one.fault.what)).collect();
        let is_long = |operation: &Operation| matches!(operation, Operation::Busy(..));
        let [fault] = hard[..] else { return Ok(()) };
        if self.leaves.is_some() || self.operations.iter().any(is_long) {
            return Ok(());
        }
        let (rank, longest) = match fault.fault.what {
            What::Death { rank, silent: false } => (rank, 1500 * MS),
            What::Death { rank, .. } | What::Pause { rank, .. } => (rank, ATTEMPT + 1000 * MS),
            _ => return Ok(()),
        };
        if marks.iter().any(|one| one.joined.load(Ordering::Relaxed) > fault.time) {
            return Ok(());
        }
        // Clocks that jump and ranks that are stopped put it off.
        let calm = report.faults.iter().map(|fault| match fault.fault.what {
            What::Pause { time, .. } | What::Cut { time, .. } if time <= SILENCE => time,
            What::Jump { by, .. } => by + SILENCE,
            _ => 0,
        });
        let until = fault.time + longest + calm.sum::<Time>();
        let others = ends.iter().zip(marks).enumerate().filter(|(one, _)| *one != rank);
        for (one, (_, marks)) in others {
            let ended = marks.ended.load(Ordering::Relaxed);
            if ended > until {
                let (at, late) = (fault.time / MS, (ended - fault.time) / MS);
                return Err(format!(
                    "rank {one} ends {late} ms after rank {rank} has failed at {at} ms"
                ));
            }
        }
        Ok(())
    }
}

/// What has to be found out.
pub fn is_hard(what: &What) -> bool {
    match *what {
        What::Death { .. } | What::Reset { .. } => true,
        What::Pause { time, .. } | What::Cut { time, .. } => time > SILENCE,
        What::Jump { .. } => false,
    }
}

fn no_rank_is_broken(ends: &[End]) -> Result<(), String> {
    for (rank, end) in ends.iter().enumerate() {
        match end {
            Finish::Panicked(words) => return Err(format!("rank {rank} has panicked: {words}")),
            Finish::Done(Err(Failure::Wrong(what))) => return Err(format!("rank {rank}: {what}")),
            Finish::Done(Err(Failure::Comm(error)))
                if error.to_string().contains("has panicked") =>
            {
                return Err(format!("rank {rank}: {error}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Where one rank has not come to its goodbye, none has ended well.
fn no_rank_is_left_behind(ends: &[End], marks: &[Marks]) -> Result<(), String> {
    let is_behind = |one: &Marks| one.closing.load(Ordering::Relaxed) == NEVER;
    let well = ends.iter().position(|end| *end == Finish::Done(Ok(())));
    match (marks.iter().position(is_behind), well) {
        (Some(behind), Some(well)) => {
            Err(format!("rank {well} has ended well, without a goodbye of rank {behind}"))
        }
        _ => Ok(()),
    }
}

/// One who comes late hears of an error in the words of a refusal.
fn is_same(one: &CommError, other: &CommError) -> bool {
    let (one, other) = (one.to_string(), other.to_string());
    one.contains(&other) || other.contains(&one)
}

impl Blame {
    fn names(&self, error: &CommError) -> bool {
        // A rank that was stopped, or whose clock is fast, has waited in an exchange for less time
        // than it says: whom it then names may have done nothing. Silence is another matter: there
        // its own stops do not count.
        if let CommError::Timeout { seen_by, operation, .. } = error
            && operation != "heartbeat"
            && (self.hurried.contains(&seen_by.0) || self.failed.contains(&seen_by.0))
        {
            return true;
        }
        match error.culprit() {
            Some(culprit) => self.culprits.contains(&culprit.0),
            // The text names those who have not come.
            None => {
                let text = error.to_string();
                let mut words = text.split(|letter: char| !letter.is_ascii_digit());
                words.any(|word| self.culprits.iter().any(|rank| rank.to_string() == word))
            }
        }
    }
}
