//! What goes wrong between ranks, with the culprit's name.

use crate::readable::readable;
use crate::topology::Rank;

/// An error of this crate. It can be cloned: every rank, and every call after the first failure,
/// gets the same one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum CommError {
    /// A peer did not come to an operation in time.
    #[error(
        "rank {} has not come to {operation} number {sequence} within {waited_ms} ms (seen from \
         rank {})",
        culprit.0, seen_by.0
    )]
    Timeout { culprit: Rank, seen_by: Rank, operation: String, sequence: u64, waited_ms: u64 },
    /// A peer's process or thread has ended in the middle of the job.
    #[error("rank {} is gone: {reason} (seen from rank {})", culprit.0, seen_by.0)]
    PeerLost { culprit: Rank, seen_by: Rank, reason: String },
    /// Two ranks are not in the same operation.
    #[error(
        "rank {} and rank {} are not in the same operation: expected {expected}, found {found}",
        seen_by.0, culprit.0
    )]
    Mismatch { culprit: Rank, seen_by: Rank, expected: String, found: String },
    /// A rank has failed for a reason of its own: bad data, a full disk, a panic.
    #[error("rank {} has failed: {reason}", culprit.0)]
    Aborted { culprit: Rank, reason: String },
    /// An exchange between devices has failed, or cannot begin.
    #[error("rank {}: {operation}: {reason}", seen_by.0)]
    Device { seen_by: Rank, operation: String, reason: String },
    /// A rank was refused when the job came together.
    #[error("rank {rank} was refused: {reason}")]
    Refused { rank: String, reason: String },
    /// The job did not come together.
    #[error("the job did not come together: {reason}")]
    Rendezvous { reason: String },
    /// A setting that cannot work, of the launcher's environment or of the caller.
    #[error("{setting}: {reason}")]
    Setting { setting: String, reason: String },
    /// The system refuses.
    #[error("{what}: {reason}")]
    System { what: String, reason: String },
}

impl CommError {
    /// Whose fault it is, where that is known.
    pub fn culprit(&self) -> Option<Rank> {
        match self {
            CommError::Timeout { culprit, .. }
            | CommError::PeerLost { culprit, .. }
            | CommError::Mismatch { culprit, .. }
            | CommError::Aborted { culprit, .. } => Some(*culprit),
            _ => None,
        }
    }

    /// What the system says to `what`.
    pub(crate) fn system(what: impl Into<String>, error: impl std::fmt::Display) -> Self {
        CommError::System { what: what.into(), reason: error.to_string() }
    }

    /// An error that a peer has told: about ranks of a job of `num_ranks`, with texts that can be
    /// shown.
    ///
    /// # Errors
    /// A rank that there is not.
    pub(crate) fn told(mut self, num_ranks: usize) -> std::result::Result<Self, String> {
        let (ranks, texts) = self.parts();
        if let Some(rank) = ranks.into_iter().flatten().find(|rank| rank.0 >= num_ranks) {
            return Err(format!("an error of rank {}, and there are {num_ranks} ranks", rank.0));
        }
        texts.into_iter().flatten().for_each(|text| *text = readable(text));
        Ok(self)
    }

    /// The ranks that it names.
    pub(crate) fn ranks_mut(&mut self) -> [Option<&mut Rank>; 2] {
        match self {
            CommError::Timeout { culprit, seen_by, .. }
            | CommError::PeerLost { culprit, seen_by, .. }
            | CommError::Mismatch { culprit, seen_by, .. } => [Some(culprit), Some(seen_by)],
            CommError::Aborted { culprit: rank, .. } | CommError::Device { seen_by: rank, .. } => {
                [Some(rank), None]
            }
            CommError::Refused { .. }
            | CommError::Rendezvous { .. }
            | CommError::Setting { .. }
            | CommError::System { .. } => [None, None],
        }
    }

    fn parts(&mut self) -> ([Option<Rank>; 2], [Option<&mut String>; 2]) {
        match self {
            CommError::Timeout { culprit, seen_by, operation: text, .. }
            | CommError::PeerLost { culprit, seen_by, reason: text } => {
                ([Some(*culprit), Some(*seen_by)], [Some(text), None])
            }
            CommError::Mismatch { culprit, seen_by, expected, found } => {
                ([Some(*culprit), Some(*seen_by)], [Some(expected), Some(found)])
            }
            CommError::Aborted { culprit, reason } => {
                ([Some(*culprit), None], [Some(reason), None])
            }
            CommError::Device { seen_by, operation, reason } => {
                ([Some(*seen_by), None], [Some(operation), Some(reason)])
            }
            CommError::Rendezvous { reason } => ([None; 2], [Some(reason), None]),
            CommError::Refused { rank: one, reason: other }
            | CommError::Setting { setting: one, reason: other }
            | CommError::System { what: one, reason: other } => {
                ([None; 2], [Some(one), Some(other)])
            }
        }
    }
}

/// A result of this crate.
pub type Result<T, E = CommError> = std::result::Result<T, E>;
