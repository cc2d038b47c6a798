//! Operations of one step: everybody to everybody, or one to one. Many ranks take two steps.

use super::group::{Group, Levels};
use crate::communicator::Communicator;
use crate::element::Element;
use crate::error::Result;
use crate::operation::{Algorithm, Collective};
use crate::topology::Rank;
use crate::transport::{Incoming, Outgoing};
use headlong_device::copy::copy;
use zerocopy::IntoBytes;

impl Communicator {
    /// Returns once every rank has called it.
    pub fn barrier(&self) -> Result<()> {
        let levels = Group::levels(self.topology(), self.rank());
        let mut call = self.call(Collective::Barrier, 0, levels.algorithm(), 0);
        match levels {
            Levels::One(all) => all.meet(&mut call),
            Levels::Two { node, rail } => {
                node.meet(&mut call)?;
                rail.meet(&mut call)
            }
        }
    }

    /// `all` becomes the data of all ranks, one after the other.
    ///
    /// # Panics
    /// When `all` is not as long as ranks × `mine`.
    pub fn all_gather<T: Element>(&self, mine: &[T], all: &mut [T]) -> Result<()> {
        let (ranks, me, len) = (self.num_ranks(), self.rank(), mine.len());
        assert_eq!(all.len(), ranks * len, "all_gather: one part for each rank");
        let levels = Group::levels(self.topology(), me);
        let mut call = self.call(Collective::AllGather, T::CODE, levels.algorithm(), 0);
        if mine.is_empty() {
            return Ok(());
        }
        let part = |Rank(rank)| rank * len..(rank + 1) * len;
        copy(mine, &mut all[part(me)]);
        match levels {
            Levels::One(group) => {
                group.share_parts(&mut call, all, &|place| part(group.rank(place)))
            }
            Levels::Two { node, rail } => {
                node.share_parts(&mut call, all, &|place| part(node.rank(place)))?;
                let block = node.len * len;
                rail.share_parts(&mut call, all, &|place| place * block..(place + 1) * block)
            }
        }
    }

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
        copy(part(me.0), mine);
        let length = size_of_val(mine);
        call.exchange_reading(outgoing, length, &mut |parts| T::add_in_tree(mine, me.0, parts))
    }

    /// Sends `send` to rank `to` while `recv` is filled by rank `from`. All ranks call it, each
    /// receiving what it is sent; none: this rank sends or receives nothing. To and from oneself it
    /// is a copy.
    ///
    /// # Panics
    /// When a rank sends to itself and receives from another, or the other way round.
    pub fn send_receive<T: Element>(
        &self,
        send: Option<(Rank, &[T])>,
        recv: Option<(Rank, &mut [T])>,
    ) -> Result<()> {
        let me = self.rank();
        let mut call = self.call(Collective::SendReceive, T::CODE, Algorithm::Direct, 0);
        match (send, recv) {
            (Some((to, send)), Some((from, recv))) if to == me && from == me => {
                copy(send, recv);
                Ok(())
            }
            (send, recv) => {
                let (mut outgoing, mut incoming) =
                    (call.lists().outgoing(), call.lists().incoming());
                let send = send.map(|(to, data)| Outgoing { to, bytes: data.as_bytes() });
                let recv = recv.map(|(from, data)| Incoming { from, bytes: data.as_mut_bytes() });
                let with_itself = send.as_ref().is_some_and(|message| message.to == me)
                    || recv.as_ref().is_some_and(|message| message.from == me);
                assert!(!with_itself, "a rank that sends to itself also receives from itself");
                outgoing.extend(send);
                incoming.extend(recv);
                call.exchange(outgoing, incoming)
            }
        }
    }
}
