//! What is kept of a model: checkpoints, and digests that tell whether two models are equal.

pub mod checkpoint;
pub mod digest;
