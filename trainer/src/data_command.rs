//! `headlong data make`, `inspect` and `verify`.

use crate::cli::{DataFilesArguments, DataMakeArguments};
use crate::error::{Error, Result};

/// Builds a dictionary.
///
/// # Errors
/// Not in this build yet.
pub fn make(_arguments: &DataMakeArguments) -> Result<()> {
    Err(Error::unsupported("`headlong data make`", "it is not in this build"))
}

/// Describes files.
///
/// # Errors
/// Not in this build yet.
pub fn inspect(_arguments: &DataFilesArguments) -> Result<()> {
    Err(Error::unsupported("`headlong data inspect`", "it is not in this build"))
}

/// Checks files.
///
/// # Errors
/// Not in this build yet.
pub fn verify(_arguments: &DataFilesArguments) -> Result<()> {
    Err(Error::unsupported("`headlong data verify`", "it is not in this build"))
}
