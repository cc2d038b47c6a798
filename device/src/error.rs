//! What can go wrong below the ops.

/// Errors of the ground floor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The system refused memory that the plan asked for.
    #[error("arena `{arena}`: the system refused {bytes} bytes: {source}")]
    OutOfMemory {
        /// Name of the arena that asked.
        arena: String,
        /// Bytes asked for.
        bytes: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// A device was named that this build or machine does not have.
    #[error("device `{device}` is not available: {reason}")]
    Unavailable {
        /// The device as the user named it.
        device: String,
        /// Why it cannot be used, and what would help.
        reason: String,
    },
}

/// Result of the ground floor.
pub type Result<T> = std::result::Result<T, DeviceError>;
