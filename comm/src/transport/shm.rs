//! Ranks that are processes of one machine share memory.
//!
//! The first rank of a node makes a nameless file in memory (memfd), of a size that no process can
//! change any more, and hands it through a Unix socket to the node's other ranks: to processes of
//! the same user, with the process numbers that the job's ranks have told each other, that prove
//! the job's secret for this coming-together. Nothing of it has a name in the file system: what is
//! left after `kill -9` is nothing.
//!
//! ```text
//! | what all must agree on | a doorbell for each rank | two counters for each ordered pair | a ring for each ordered pair |
//! ```
//!
//! A message is a header of 64 bytes and its payload, in the ring from its sender to its receiver.
//! Every ring is mapped twice, end to end, so that a message lies in one piece wherever it begins;
//! long ones pass in chunks, while they are being written. A rank that waits looks again for a
//! moment, then sleeps at its doorbell, which a peer rings only for those who listen.
//!
//! Whether a peer lives is the control plane's business: here no rank waits for another.

mod doorbell;
mod layout;
mod meet;
#[cfg(test)]
mod model;
mod path;
mod ring;
mod segment;

pub use meet::{Attachment, Host, Offer, Table, offer};

use super::paths::{Doorbell, Path};
use crate::topology::Rank;

/// What a rank has of its node: a path to each of the node's other ranks, and the doorbell that
/// they ring.
pub struct Neighbourhood {
    /// The other ranks of the node.
    pub paths: Vec<(Rank, Box<dyn Path>)>,
    /// This rank's doorbell.
    pub doorbell: Box<dyn Doorbell>,
}

/// The longest message that a rank of a node with so many shows where it lies.
pub fn in_place_bytes(num_local: usize) -> usize {
    layout::Layout::new(num_local).in_place_bytes()
}
