//! The files of `headlong-comm` once more, over a simulated system.
//!
//! What it is for: rendezvous, TCP transport, its control channel and the paths run as they are,
//! with the clock, the threads, the locks and the connections of [`system`]: one seed is one
//! history, with delays, parts of messages, resets, pauses, deaths and jumps of the clock.
//!
//! What it will never do: be used outside of tests.
//!
//! `build.rs` copies `comm/src/`, leaves out `system.rs`, and makes the places of
//! [`mistakes`] switchable.

#![allow(warnings, clippy::all, reason = "the files are checked where they are from")]

#[warn(clippy::all, unused)]
pub mod histories;
#[warn(clippy::all, unused, missing_docs)]
pub mod mistakes;
#[warn(clippy::all, unused)]
pub mod system;

include!(concat!(env!("OUT_DIR"), "/src/lib.rs"));
