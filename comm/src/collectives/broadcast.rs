//! One rank's data to all.

use super::group::{Group, Levels};
use super::segment;
use crate::communicator::{Call, Communicator};
use crate::element::Element;
use crate::error::Result;
use crate::operation::{Algorithm, Collective};
use crate::scratch::Carver;
use crate::topology::Rank;
use crate::transport::{Incoming, Outgoing};
use zerocopy::IntoBytes;

/// Above this many bytes the root sends each byte once and the others share.
const DIRECT_BYTES: usize = 64 << 10;

impl Communicator {
    /// `data` of rank `root` becomes everybody's: of all ranks at once, or, where they are many, of
    /// the root's rail first and then on every node. Small data goes from the root straight to
    /// all; of large data it sends each a segment, and they exchange their segments.
    ///
    /// # Panics
    /// When there is no rank `root`.
    pub fn broadcast<T: Element>(&self, root: Rank, data: &mut [T]) -> Result<()> {
        assert!(root.0 < self.num_ranks(), "there are {} ranks, no {root}", self.num_ranks());
        let levels = Group::levels(self.topology(), self.rank());
        let is_shared = self.num_ranks() > 2 && size_of_val(data) > DIRECT_BYTES;
        let algorithm = match levels {
            Levels::One(_) if is_shared => Algorithm::TwoSteps,
            levels => levels.algorithm(),
        };
        let mut call = self.call(Collective::Broadcast, T::CODE, algorithm, root.0);
        let data = data.as_mut_bytes();
        match levels {
            Levels::One(all) => spread(&mut call, all, root.0, data),
            Levels::Two { node, rail } => {
                let (root_node, local) = (root.0 / node.len, root.0 % node.len);
                if node.me == local {
                    spread(&mut call, rail, root_node, data)?;
                } else {
                    call.pass_steps(steps(rail, data));
                }
                spread(&mut call, node, local, data)
            }
        }
    }
}

/// Steps that [`spread`] takes.
fn steps(group: Group, data: &[u8]) -> u32 {
    if group.len > 2 && data.len() > DIRECT_BYTES { 2 } else { 1 }
}

/// `data` of the rank at place `root` of a group becomes everybody's of the group.
fn spread(call: &mut Call<'_>, group: Group, root: usize, data: &mut [u8]) -> Result<()> {
    if steps(group, data) == 1 {
        return direct(call, group, root, data);
    }
    scatter(call, group, root, data)?;
    share(call, group, root, data)
}

fn direct(call: &mut Call<'_>, group: Group, root: usize, data: &mut [u8]) -> Result<()> {
    let (mut outgoing, mut incoming) = (call.lists().outgoing(), call.lists().incoming());
    if group.me == root {
        let data = &*data;
        outgoing.extend(group.peers().map(|(_, to)| Outgoing { to, bytes: data }));
    } else {
        incoming.push(Incoming { from: group.rank(root), bytes: data });
    }
    call.exchange(outgoing, incoming)
}

/// Each rank gets its segment; the root keeps its own.
fn scatter(call: &mut Call<'_>, group: Group, root: usize, data: &mut [u8]) -> Result<()> {
    let (len, ranks) = (data.len(), group.len);
    let (mut outgoing, mut incoming) = (call.lists().outgoing(), call.lists().incoming());
    if group.me == root {
        let data = &*data;
        let bytes = |place| &data[segment(len, ranks, place)];
        outgoing.extend(group.peers().map(|(place, to)| Outgoing { to, bytes: bytes(place) }));
    } else {
        let bytes = &mut data[group.own_segment(len)];
        incoming.push(Incoming { from: group.rank(root), bytes });
    }
    call.exchange(outgoing, incoming)
}

/// Everybody sends his segment to everybody but the root, who has it.
fn share(call: &mut Call<'_>, group: Group, root: usize, data: &mut [u8]) -> Result<()> {
    let len = data.len();
    let (mut outgoing, mut incoming) = (call.lists().outgoing(), call.lists().incoming());
    let mut carver = Carver::new(data);
    let mut mine: &[u8] = &[];
    for place in 0..group.len {
        let at = segment(len, group.len, place);
        let bytes = carver.take(at.start, at.len());
        match place == group.me {
            true => mine = bytes,
            false if group.me != root => {
                incoming.push(Incoming { from: group.rank(place), bytes });
            }
            false => {}
        }
    }
    let others = group.peers().filter(|&(place, _)| place != root);
    outgoing.extend(others.map(|(_, to)| Outgoing { to, bytes: mine }));
    call.exchange(outgoing, incoming)
}
