//! Ranks joined over verbs: threads of this process, with the NICs of its own fabric.

#![cfg(test)]

mod collectives;
mod doorbells;
mod failures;
#[path = "../../tests/tcp_support/mod.rs"]
mod tcp_support;
mod verbs_support;
