//! A run: batches from data, evaluations and checkpoints around the steps of [`crate::iteration`].

pub mod device;
pub mod dictionary;
pub mod drift;
pub mod evaluation;
pub mod open;
pub mod outlook;
pub mod prepare;
pub mod session;
mod snapshots;
pub mod statistics;
pub mod sums;
