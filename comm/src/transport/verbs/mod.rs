//! One-sided messages over InfiniBand verbs: reliable connections, memory registered once, fixed slots that a peer writes into.
//!
//! [`nic`] says what a network card can do, in this room's words. Whoever provides cards implements it: libibverbs opened at
//! run time, or a fabric of this process with a seed.

pub mod fake;
pub mod nic;
pub mod sys;
