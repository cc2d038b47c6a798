//! The sum, one part to each.

use crate::communicator::Communicator;
use crate::element::Element;
use crate::error::Result;
use crate::operation::{Algorithm, Collective};
use crate::transport::Outgoing;
use zerocopy::IntoBytes;

impl Communicator {
    /// `data` is a part for each rank, one after the other; `mine` becomes the deterministic sum
    /// over ranks ([`crate::element`]) of the parts for this rank.
    ///
    /// # Panics
    /// When `data` is not as long as ranks × `mine`.
    pub fn reduce_scatter<T: Element>(&self, data: &[T], mine: &mut [T]) -> Result<()> {
        assert_eq!(
            data.len(),
            self.num_ranks() * mine.len(),
            "reduce_scatter: one part for each rank"
        );
        let (len, me) = (mine.len(), self.rank());
        let mut call = self.call(Collective::ReduceScatter, T::CODE, Algorithm::Direct, 0);
        let part = |rank: usize| &data[rank * len..][..len];
        let mut outgoing = call.lists().outgoing();
        outgoing.extend(call.peers().map(|to| Outgoing { to, bytes: part(to.0).as_bytes() }));
        mine.copy_from_slice(part(me.0));
        let length = size_of_val(mine);
        call.exchange_reading(outgoing, length, &mut |parts| T::add_in_tree(mine, me.0, parts))
    }
}
