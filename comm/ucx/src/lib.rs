//! Messages between ranks over [UCX](https://openucx.org), opened at run time: for networks that
//! Headlong's own transports have never run on, the library that MPI uses there.
//!
//! What it will never do: choose between transports, or touch the memory of a device. It implements
//! one trait of `headlong-comm`: [`UcxNetwork`] is a
//! [`Network`](headlong_comm::transport::choose::Network) between processes, those of one node
//! included. UCX chooses its own way to each peer (shared memory, InfiniBand, RoCE, TCP, …).
//!
//! A message is one or two of UCX's, with tags: its head, which carries what is short, and the
//! rest, from the sender's bytes into the receiver's. One worker, called by one thread at a time.
//!
//! **A peer that is gone** is an error, by UCX (`UCP_ERR_HANDLING_MODE_PEER`) or by the control
//! plane, whichever is first; endpoints are closed without waiting for anyone. Where an exchange
//! fails, UCX is made to let go of its callers' bytes before they are given back
//! ([`Path::withdraw`](headlong_comm::transport::paths::Path::withdraw)).
//!
//! Nothing that UCX carries is encrypted; addresses of workers travel sealed.

mod connect;
mod doorbell;
mod hub;
mod introduction;
mod link;
mod network;
mod path;
mod slots;
mod sys;

#[doc(hidden)]
pub use introduction::introduction_again;
pub use network::{UcxNetwork, version};
