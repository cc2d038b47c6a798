//! One-sided messages between ranks over InfiniBand verbs: reliable connections, memory registered
//! once, fixed slots that a peer writes into.
//!
//! What it will never do: choose between transports, or name a stage of the iteration. It
//! implements two traits of `headlong-comm`: [`VerbsNetwork`] is a
//! [`Network`](headlong_comm::transport::choose::Network) between processes, [`VerbsRails`] is what
//! carries strips between the devices of several nodes
//! ([`Rails`](headlong_comm::device::rail::Rails)).
//!
//! [`nic`] says what a NIC can do. It is implemented by libibverbs, opened at run time ([`sys`]),
//! and by a fabric of this process with a seed ([`fake`]). [`connect()`] makes a path to each peer
//! over it; the slot protocol is in `link.rs`, and the rules of ordering that it keeps are those
//! that a [`fake::Fault`] breaks.
//!
//! It has run over Soft-RoCE in an emulated machine (`cargo xtask rxe`), never on a NIC.

mod arena;
mod bus;
mod chains;
mod choose;
mod connect;
mod doorbell;
mod endpoint_info;
pub mod fake;
mod flow;
mod header;
mod hub;
mod layout;
mod link;
mod memory_node;
mod network;
pub mod nic;
mod path;
pub mod pingpong;
mod probe;
mod rails;
mod settings;
pub mod sys;
#[cfg(test)]
mod tests;
mod watch;

pub use choose::{Choice, choose};
use connect::queue_pair_settings;
pub use connect::{Connected, available, connect};
#[doc(hidden)]
pub use endpoint_info::info_again;
#[doc(hidden)]
pub use header::header_again;
pub use memory_node::memory_node;
pub use network::VerbsNetwork;
pub use rails::{NUM_SLOTS as SLOTS_OF_RAILS, VerbsRails, keeps_a_core, kernels};
pub use settings::{Signal, VerbsSettings};
