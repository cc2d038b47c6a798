//! What can go wrong in the dense part.

use headlong_device::DeviceError;

/// Errors of dense layers and their optimisers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MlpError {
    /// An optimiser that has no form for dense parameters.
    #[error(
        "optimizer `{optimizer}` is not for dense parameters; expected sgd, adagrad, adam or lamb"
    )]
    NotDense {
        /// Its name.
        optimizer: &'static str,
    },
    /// The base crate refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Result of the dense part.
pub type Result<T> = std::result::Result<T, MlpError>;
