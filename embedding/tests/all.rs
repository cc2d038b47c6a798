//! Every test on a processor that needs no program of its own. One program for all: each would hold
//! the whole library once more.

#![cfg(test)]

mod against_oracle;
mod common;
mod conformance;
mod conformance_whole;
mod hashed;
mod hybrid_bags;
mod hybrid_equals_single_rank;
mod hybrid_oracle;
mod hybrid_set;
mod hybrid_tables;
mod tables;
