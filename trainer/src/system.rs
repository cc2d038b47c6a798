//! This machine and this process: processor and memory, signals, the command line, small files.

pub mod command_line;
pub(crate) mod elastic;
pub(crate) mod input;
pub mod machine;
pub mod peak;
pub(crate) mod places;
pub mod processor;
pub mod signals;
