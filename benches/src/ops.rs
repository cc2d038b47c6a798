//! One file an op.

mod cuda_embedding;
mod embedding;
mod interaction;
mod iteration;
mod linear;
mod parse;
mod staging;
mod tcp;

use crate::harness::Harness;

pub fn run_all(harness: &mut Harness) -> anyhow::Result<()> {
    parse::run(harness)?;
    embedding::run(harness)?;
    cuda_embedding::run(harness)?;
    staging::run(harness)?;
    interaction::run(harness)?;
    linear::run(harness)?;
    iteration::run(harness)?;
    tcp::run(harness)
}
