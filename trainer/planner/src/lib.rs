//! Plans for clusters that are not here: what a step would cost on a described cluster, before a
//! cent is spent.
//!
//! ```text
//! description (nodes, devices, links)  ─┐
//! workload (tables, frequencies, batch) ┼─► placement ─► work of each stage ─► simulator ─► forecast
//! practice (how a program does it)     ─┘                    ─► search, sensitivity, report
//! ```
//!
//! Everything is a pure function of its inputs; no device is touched. The stages of a step, and
//! what it takes of memory, come from the program that trains ([`workload::Program`]), so that a
//! plan simulates the list that is walked and refuses what training would refuse. What it will
//! never do: read a configuration or a file, or print.
//!
//! Where constants come from, and how far predictions are from what was published, is written in
//! `docs/scaling.md`.

#![expect(missing_docs, reason = "what a name and its unit say needs no sentence")]
#![forbid(unsafe_code)]

pub mod bags;
pub mod choices;
pub mod count;
pub mod description;
pub mod error;
mod evaluation;
pub mod forecast;
pub mod frequencies;
pub mod ledger;
pub mod memory;
mod operations;
pub mod placement;
pub mod practice;
pub mod published;
pub mod report;
pub mod schedule;
pub mod search;
mod sensitivity;
pub mod simulator;
mod strips;
pub mod tables;
pub mod terabyte;
pub mod traffic;
pub mod work;
pub mod workload;
