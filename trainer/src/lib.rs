//! Training of deep-learning recommendation models, from the command line and as a library.
//!
//! The way of a run: [`config`] (what the user asked for) → [`plan`] (what it means on this machine) → `build` →
//! `session`, which calls `schedule` once a step.

// A stream that cannot be written must not change what a command does: `output::say`, `output::print`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod arithmetic;
pub mod atomic_file;
pub mod bench;
pub mod checkpoint;
pub mod checkpoint_command;
pub mod cli;
pub mod config;
pub mod config_command;
pub mod convert_command;
pub mod crew;
pub mod data_command;
pub mod described;
pub mod dictionary;
pub mod digest;
pub mod doctor;
pub mod error;
pub mod evaluation;
pub mod export;
pub mod kernels_command;
pub mod launch;
pub mod learning_rate;
pub mod machine;
pub mod metrics;
pub mod mllog;
mod model_state;
pub mod output;
pub mod plan;
pub mod plan_command;
pub mod predict;
pub mod preset;
pub mod recipe;
pub mod report;

pub mod build;
pub mod data;
pub mod drift;
pub mod engine;
pub mod inference;
pub mod job;
pub mod lanes;
pub mod placement;
pub mod schedule;
pub mod session;
pub mod share;
pub mod signals;
pub mod slow;
pub mod statistics;
pub mod table;
mod table_state;
pub mod trace;
pub mod train;
pub mod verify_command;
pub use cli::main_with;
pub use config::Config;
pub use error::{Error, Result};
pub use headlong_embedding::Registry;
