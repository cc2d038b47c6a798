//! One-sided messages over InfiniBand verbs: reliable connections, memory registered once, fixed
//! slots that a peer writes into.
//!
//! [`nic`] says what a network card can do, in this room's words. Whoever provides cards implements
//! it: libibverbs opened at run time, or a fabric of this process with a seed ([`fake`]).
//! [`connect()`] makes a path to each peer over it; the slot protocol is in `link.rs`, and the
//! rules of ordering that it keeps are listed in [`mistake`].

mod arena;
mod bus;
mod calling_card;
mod chains;
mod choose;
mod connect;
pub mod fake;
mod flow;
mod header;
mod hub;
mod layout;
mod link;
mod memory_node;
pub mod mistake;
mod network;
pub mod nic;
mod path;
pub mod pingpong;
mod probe;
mod settings;
pub mod sys;
#[cfg(test)]
mod tests;

pub use choose::{Choice, choose};
pub(crate) use connect::queue_pair_settings;
pub use connect::{available, connect, connect_with_remarks};
pub use memory_node::memory_node;
pub use network::VerbsNetwork;
pub use settings::{Signal, VerbsSettings};
