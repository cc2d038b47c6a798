//! The tables of this crate.

pub mod dense;
pub mod hashed;
