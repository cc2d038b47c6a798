//! The sub-commands of the program `headlong`, one file or folder each, and the command line
//! ([`cli`]) that chooses one.

pub mod bench;
pub mod called;
pub mod checkpoint;
mod choice;
pub mod cli;
pub mod config;
pub mod convert;
pub mod data;
pub mod described;
pub mod doctor;
pub mod export;
pub(crate) mod files;
pub mod inference;
pub mod kernels;
pub mod launch;
pub mod plan;
pub mod predictions;
pub(crate) mod remarks;
pub mod report;
mod slices;
pub mod train;
pub mod train_arguments;
pub mod tune;
pub mod verify;
