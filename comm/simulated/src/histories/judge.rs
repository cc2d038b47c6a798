//! How a history may end.

use super::draw::{Case, DEADLINES, MS};
use super::ranks::{Failure, Leave};
use crate::CommError;
use crate::system::{Finish, Report, What};

type End = Finish<Result<(), Failure>>;

/// Who is to blame.
struct Blame {
    /// Ranks that failed, or that one end of a broken connection is at.
    culprits: Vec<usize>,
    /// Ranks whose own process failed: what they say of the others does not count.
    failed: Vec<usize>,
}

impl Case {
    /// # Errors
    /// What is wrong.
    pub fn judge(&self, ends: &[End], report: &Report) -> Result<(), String> {
        if let Some(finding) = &report.finding {
            return Err(finding.clone());
        }
        for (rank, end) in ends.iter().enumerate() {
            match end {
                Finish::Panicked(words) => {
                    return Err(format!("rank {rank} has panicked: {words}"));
                }
                Finish::Done(Err(Failure::Wrong(what))) => {
                    return Err(format!("rank {rank}: {what}"));
                }
                Finish::Done(Err(Failure::Comm(error)))
                    if error.to_string().contains("has panicked") =>
                {
                    return Err(format!("rank {rank}: {error}"));
                }
                _ => {}
            }
        }
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
        let (mut culprits, mut failed) = (Vec::new(), Vec::new());
        let silence = DEADLINES.silence.as_nanos() as u64;
        for fault in &report.faults {
            match fault.what {
                What::Death { rank, .. } => failed.push(rank),
                What::Pause { rank, time } if time > silence => failed.push(rank),
                What::Reset { ranks } => culprits.extend(ranks),
                What::Cut { from, to, time } if time > 1000 * MS => culprits.extend([from, to]),
                What::Pause { .. } | What::Jump { .. } | What::Cut { .. } => {}
            }
        }
        failed.extend(self.leaves.map(|(rank, _, _)| rank));
        culprits.extend(&failed);
        Blame { culprits, failed }
    }

    /// Whether a rank may have left of its own.
    pub fn leaves_silently(&self) -> bool {
        matches!(self.leaves, Some((_, Leave::Silently, _)))
    }
}

/// One who comes late hears of an error in the words of a refusal.
fn is_same(one: &CommError, other: &CommError) -> bool {
    let (one, other) = (one.to_string(), other.to_string());
    one.contains(&other) || other.contains(&one)
}

impl Blame {
    fn names(&self, error: &CommError) -> bool {
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
