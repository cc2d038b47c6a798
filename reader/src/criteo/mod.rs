//! Criteo's click logs: tab-separated text with an optional label, integers and hexadecimal categories.

pub mod parse;
