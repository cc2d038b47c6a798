//! Everybody's data to all.

use crate::communicator::{Call, Communicator};
use crate::element::Element;
use crate::error::Result;
use crate::operation::{Algorithm, Collective};
use crate::transport::{Incoming, Outgoing};
use zerocopy::IntoBytes;

impl Communicator {
    /// `all` becomes the data of all ranks, one after the other.
    ///
    /// # Panics
    /// When `all` is not as long as ranks × `mine`.
    pub fn all_gather<T: Element>(&self, mine: &[T], all: &mut [T]) -> Result<()> {
        assert_eq!(all.len(), self.num_ranks() * mine.len(), "all_gather: one part for each rank");
        let mut call = self.call(Collective::AllGather, T::CODE, Algorithm::Direct, 0);
        if mine.is_empty() {
            return Ok(());
        }
        gather(
            &mut call,
            mine.as_bytes(),
            all.chunks_exact_mut(mine.len()).map(<[T]>::as_mut_bytes),
        )
    }
}

/// Sends `mine` to all and fills the parts of all ranks, in the order of ranks.
pub(super) fn gather<'a>(
    call: &mut Call<'_>,
    mine: &'a [u8],
    parts: impl Iterator<Item = &'a mut [u8]>,
) -> Result<()> {
    let (mut outgoing, mut incoming) = (call.lists().outgoing(), call.lists().incoming());
    outgoing.extend(call.peers().map(|to| Outgoing { to, bytes: mine }));
    for (from, bytes) in call.topology().ranks().zip(parts) {
        match from == call.me() {
            true => bytes.copy_from_slice(mine),
            false => incoming.push(Incoming { from, bytes }),
        }
    }
    call.exchange(outgoing, incoming)
}
