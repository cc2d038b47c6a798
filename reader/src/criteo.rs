//! Criteo's click logs: tab-separated text with an optional label, integers and hexadecimal
//! categories.

mod assemble;
pub mod blocks;
pub mod detect;
pub mod parse;
#[cfg(test)]
pub(crate) mod testing;
pub mod text;

pub use blocks::{BlockOptions, BlockStream, Event, ParsedBlock};
pub use detect::has_label;
pub use parse::{BadRowPolicy, LineParser, RawBlock};
pub use text::{CriteoTextReader, TextOptions};
