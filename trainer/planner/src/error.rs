//! What can be wrong with a description, or with a plan.

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can be wrong with a description, or with a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What a cluster's description must not say: its place, the key, what was expected.
    #[error("{0}")]
    Description(String),
    /// The plan needs more than there is.
    #[error("the plan needs {needed_bytes} bytes and {available_bytes} are available; {help}")]
    DoesNotFit {
        /// Bytes the plan needs; `u64::MAX` for more than 64 bits hold.
        needed_bytes: u64,
        available_bytes: u64,
        help: String,
    },
}
