//! Training of deep-learning recommendation models, from the command line and as a library.
//!
//! The way of a run: [`config`] (what the user asked for) → `plan` (what it means on this machine) → `build` →
//! `session`, which calls `schedule` once a step.

pub mod auc;
pub mod checkpoint;
pub mod config;
pub mod digest;
pub mod error;
pub mod metrics;
pub mod preset;
pub mod report;

pub use config::Config;
pub use error::{Error, Result};
