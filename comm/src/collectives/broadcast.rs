//! One rank's data to all.

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
    /// `data` of rank `root` becomes everybody's. Small data goes from the root straight to
    /// everybody; of large data the root sends each rank a segment, and the ranks exchange their
    /// segments.
    ///
    /// # Panics
    /// When there is no rank `root`.
    pub fn broadcast<T: Element>(&self, root: Rank, data: &mut [T]) -> Result<()> {
        assert!(root.0 < self.num_ranks(), "there are {} ranks, no {root}", self.num_ranks());
        let shared = self.num_ranks() > 2 && size_of_val(data) > DIRECT_BYTES;
        let algorithm = if shared { Algorithm::TwoSteps } else { Algorithm::Direct };
        let mut call = self.call(Collective::Broadcast, T::CODE, algorithm, root.0);
        match shared {
            true => {
                scatter(&mut call, root, data.as_mut_bytes())?;
                share(&mut call, root, data.as_mut_bytes())
            }
            false => direct(&mut call, root, data.as_mut_bytes()),
        }
    }
}

fn direct(call: &mut Call<'_>, root: Rank, data: &mut [u8]) -> Result<()> {
    let (mut outgoing, mut incoming) = (call.lists().outgoing(), call.lists().incoming());
    if call.me() == root {
        let data = &*data;
        outgoing.extend(call.peers().map(|to| Outgoing { to, bytes: data }));
        call.exchange(outgoing, incoming)
    } else {
        incoming.push(Incoming { from: root, bytes: data });
        call.exchange(outgoing, incoming)
    }
}

/// Rank r gets segment r; the root keeps its own.
fn scatter(call: &mut Call<'_>, root: Rank, data: &mut [u8]) -> Result<()> {
    let (len, ranks, me) = (data.len(), call.topology().num_ranks(), call.me());
    let (mut outgoing, mut incoming) = (call.lists().outgoing(), call.lists().incoming());
    if me == root {
        let data = &*data;
        outgoing.extend(
            call.peers().map(|to| Outgoing { to, bytes: &data[segment(len, ranks, to.0)] }),
        );
    } else {
        incoming.push(Incoming { from: root, bytes: &mut data[segment(len, ranks, me.0)] });
    }
    call.exchange(outgoing, incoming)
}

/// Everybody sends his segment to everybody but the root, who has it.
fn share(call: &mut Call<'_>, root: Rank, data: &mut [u8]) -> Result<()> {
    let (len, ranks, me) = (data.len(), call.topology().num_ranks(), call.me());
    let (mut outgoing, mut incoming) = (call.lists().outgoing(), call.lists().incoming());
    let mut carver = Carver::new(data);
    let mut mine: &[u8] = &[];
    for from in call.topology().ranks() {
        let at = segment(len, ranks, from.0);
        let bytes = carver.take(at.start, at.len());
        match from == me {
            true => mine = bytes,
            false if me != root => incoming.push(Incoming { from, bytes }),
            false => {}
        }
    }
    outgoing.extend(call.peers().filter(|&to| to != root).map(|to| Outgoing { to, bytes: mine }));
    call.exchange(outgoing, incoming)
}
