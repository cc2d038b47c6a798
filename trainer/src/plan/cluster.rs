//! Plans for clusters that are not here: what a step would cost on a described cluster, before a
//! cent is spent.
//!
//! ```text
//! description (nodes, devices, links)  ─┐
//! workload (tables, frequencies, batch) ┼─► placement ─► work of each stage ─► simulator ─► forecast
//! practice (how a program does it)     ─┘                    ─► search, sensitivity, pictures
//! ```
//!
//! Everything is a pure function of its inputs; no device is touched. Where constants come from,
//! and how far predictions are from what was published, stands in `docs/scaling.md`.

pub mod choices;
pub mod description;
pub mod evaluation;
pub mod forecast;
pub mod frequencies;
pub mod picture;
pub mod placement;
pub mod practice;
pub mod published;
pub mod report;
pub mod search;
pub mod sensitivity;
pub mod simulator;
pub mod tables;
pub mod terabyte;
mod text;
pub mod work;
pub mod workload;

#[cfg(test)]
mod tests;
