//! One file an op.

mod cuda_embedding;
mod embedding;
mod interaction;
mod iteration;
mod linear;
mod parse;

use crate::harness::Harness;

/// Runs every benchmark that was asked for.
///
/// # Errors
/// When data cannot be made, or an op refuses it.
pub fn run_all(harness: &mut Harness) -> anyhow::Result<()> {
    parse::run(harness)?;
    embedding::run(harness)?;
    cuda_embedding::run(harness)?;
    interaction::run(harness)?;
    linear::run(harness)?;
    iteration::run(harness)
}
