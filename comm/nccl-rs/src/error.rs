//! What goes wrong, as values.

use crate::version::Version;
use std::path::PathBuf;

/// An error of NCCL, or of finding it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum Error {
    /// The library is nowhere.
    #[error("libnccl.so.2 was not found; looked at {}", looked.join("; "))]
    NotFound { looked: Vec<String> },
    /// A file with the library's name is not the library.
    #[error("{}: not a usable NCCL: {reason}", path.display())]
    Broken { path: PathBuf, reason: String },
    /// The library is older than what this crate calls.
    #[error("{}: NCCL {found} is too old, {needed} or newer is needed", path.display())]
    TooOld { path: PathBuf, found: Version, needed: Version },
    /// NCCL has refused a call, or reports what went wrong since.
    #[error(
        "{function}: {text} (NCCL error {code}){}{detail}",
        if detail.is_empty() { "" } else { ": " }
    )]
    Call {
        function: &'static str,
        /// Its code: 1 CUDA, 2 system, 3 internal, 4 argument, 5 usage, 6 a remote rank.
        code: i32,
        text: String,
        detail: String,
    },
    /// A call was still in progress at the deadline.
    #[error("{function} was not done within {waited_ms} ms")]
    Timeout { function: &'static str, waited_ms: u64 },
    /// The communicator was aborted, by an earlier call of this process.
    #[error("{function}: the communicator has been aborted")]
    Aborted { function: &'static str },
    /// This library is too old for what is asked.
    #[error("{what} is not in NCCL {found}: {advice}")]
    Unsupported { what: String, found: Version, advice: String },
    /// What is required is not there.
    #[error("{what} is required, but {reason}: {advice}")]
    Unavailable { what: &'static str, reason: String, advice: &'static str },
    /// What the caller gives does not fit; the communicator stays usable.
    #[error("{function}: {reason}")]
    Argument { function: &'static str, reason: String },
    /// The system gives no thread for the watchdog.
    #[error("no thread to watch over the communicator: {reason}")]
    Watchdog { reason: String },
}

impl Error {
    /// Whether a remote rank is the cause, as far as NCCL knows.
    pub fn is_remote(&self) -> bool {
        matches!(self, Error::Call { code: 6, .. })
    }
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
