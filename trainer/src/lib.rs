//! Training of deep-learning recommendation models, from the command line and as a library.
//!
//! The way of a run: [`config`] (what the user asked for) → [`plan`] (what it means on this machine) → `build` →
//! `session`, which calls `schedule` once a step.

pub mod auc;
pub mod bench;
pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod config_command;
pub mod data_command;
pub mod digest;
pub mod doctor;
pub mod error;
pub mod learning_rate;
pub mod machine;
pub mod metrics;
pub mod output;
pub mod plan;
pub mod plan_command;
pub mod preset;
pub mod report;

pub use config::Config;
pub use error::{Error, Result};
