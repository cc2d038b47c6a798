//! Ranks at equal distances: all of them, those of one node, or those of one rail.

use super::segment;
use crate::communicator::Call;
use crate::element::Element;
use crate::error::Result;
use crate::operation::Algorithm;
use crate::scratch::Carver;
use crate::topology::{Rank, Topology};
use crate::transport::{Incoming, Outgoing};
use headlong_device::copy::copy;
use std::ops::Range;
use zerocopy::IntoBytes;

/// More ranks than this exchange in levels what is small, too, where their nodes allow it.
pub(super) const MANY: usize = 64;

/// The ranks that exchange with each other at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Levels {
    One(Group),
    Two { node: Group, rail: Group },
}

impl Levels {
    /// The other ranks that this one exchanges with.
    pub(crate) fn peers(self) -> Vec<Rank> {
        let ranks = |group: Group| group.peers().map(|(_, rank)| rank);
        match self {
            Levels::One(all) => ranks(all).collect(),
            Levels::Two { node, rail } => ranks(node).chain(ranks(rail)).collect(),
        }
    }

    /// What all ranks must agree on.
    pub(super) fn algorithm(self) -> Algorithm {
        match self {
            Levels::One(_) => Algorithm::Direct,
            Levels::Two { .. } => Algorithm::Hierarchical,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    first: usize,
    stride: usize,
    pub(crate) len: usize,
    pub(crate) me: usize,
}

impl Group {
    /// What exchanges go through that bring everybody's data to all: all ranks at once, or, where
    /// they are many, first those of a node and then those of a rail, each of which has its node's
    /// data by then. So a rank of a large job has no message for each other rank.
    pub(crate) fn levels(topology: &Topology, me: Rank) -> Levels {
        match topology.aligned_node_size().filter(|_| topology.num_ranks() > MANY) {
            None => Levels::One(Self::all(topology, me)),
            Some(size) => {
                Levels::Two { node: Self::node(me, size), rail: Self::rail(topology, me, size) }
            }
        }
    }

    pub(crate) fn all(topology: &Topology, me: Rank) -> Self {
        Self { first: 0, stride: 1, len: topology.num_ranks(), me: me.0 }
    }

    pub(crate) fn node(me: Rank, node_size: usize) -> Self {
        let local = me.0 % node_size;
        Self { first: me.0 - local, stride: 1, len: node_size, me: local }
    }

    /// The ranks of all nodes with this rank's local index, where all nodes have `node_size`.
    pub(crate) fn rail(topology: &Topology, me: Rank, node_size: usize) -> Self {
        let len = topology.num_ranks() / node_size;
        Self { first: me.0 % node_size, stride: node_size, len, me: me.0 / node_size }
    }

    /// The others and their places, rising.
    pub(crate) fn peers(self) -> impl Iterator<Item = (usize, Rank)> {
        (0..self.len)
            .filter(move |&place| place != self.me)
            .map(move |place| (place, self.rank(place)))
    }

    /// The rank at a place.
    pub(crate) fn rank(self, place: usize) -> Rank {
        Rank(self.first + place * self.stride)
    }

    /// This rank's segment of `len` elements.
    pub(super) fn own_segment(self, len: usize) -> Range<usize> {
        segment(len, self.len, self.me)
    }

    /// Returns once all of the group have called it.
    pub(super) fn meet(self, call: &mut Call<'_>) -> Result<()> {
        let (mut outgoing, mut incoming) = (call.lists().outgoing(), call.lists().incoming());
        outgoing.extend(self.peers().map(|(_, to)| Outgoing { to, bytes: &[] }));
        incoming.extend(self.peers().map(|(_, from)| Incoming { from, bytes: &mut [] }));
        call.exchange(outgoing, incoming)
    }

    /// Everybody's `data` becomes the sum over the group; the peers read a copy, so that the sum
    /// can take the place of this rank's part at once.
    pub(super) fn reduce_in_one_step<T: Element>(
        self,
        call: &mut Call<'_>,
        data: &mut [T],
    ) -> Result<()> {
        let mut memory = std::mem::take(&mut call.memory().own);
        let own: &mut [T] = memory.elements(data.len());
        copy(data, own);
        let bytes = own.as_bytes();
        let mut outgoing = call.lists().outgoing();
        outgoing.extend(self.peers().map(|(_, to)| Outgoing { to, bytes }));
        call.exchange_reading(outgoing, bytes.len(), &mut |parts| {
            T::add_in_tree(data, self.me, parts)
        })?;
        call.memory().own = memory;
        Ok(())
    }

    /// Each rank's own segment of `data` becomes the sum over the group; the other segments stay as
    /// they are.
    pub(super) fn reduce_segments<T: Element>(
        self,
        call: &mut Call<'_>,
        data: &mut [T],
    ) -> Result<()> {
        let len = data.len();
        self.reduce_parts(call, data, &|place| segment(len, self.len, place))
    }

    /// The same where the part of the rank at `place` is `part(place)`; parts lie one after the
    /// other.
    pub(super) fn reduce_parts<T: Element>(
        self,
        call: &mut Call<'_>,
        data: &mut [T],
        part: &dyn Fn(usize) -> Range<usize>,
    ) -> Result<()> {
        let own = part(self.me);
        let mut outgoing = call.lists().outgoing();
        let (before, rest) = data.split_at_mut(own.start);
        let (mine, after) = rest.split_at_mut(own.len());
        outgoing.extend(self.peers().map(|(place, to)| {
            let elements = part(place);
            let bytes = match place < self.me {
                true => before[elements].as_bytes(),
                false => after[elements.start - own.end..elements.end - own.end].as_bytes(),
            };
            Outgoing { to, bytes }
        }));
        let length = size_of_val(mine);
        call.exchange_reading(outgoing, length, &mut |parts| T::add_in_tree(mine, self.me, parts))
    }

    pub(super) fn share_segments<T: Element>(
        self,
        call: &mut Call<'_>,
        data: &mut [T],
    ) -> Result<()> {
        let len = data.len();
        self.share_parts(call, data, &|place| segment(len, self.len, place))
    }

    /// Everybody's part goes to all others; as in [`Self::reduce_parts`].
    pub(super) fn share_parts<T: Element>(
        self,
        call: &mut Call<'_>,
        data: &mut [T],
        part: &dyn Fn(usize) -> Range<usize>,
    ) -> Result<()> {
        let (mut outgoing, mut incoming) = (call.lists().outgoing(), call.lists().incoming());
        let mut carver = Carver::new(data.as_mut_bytes());
        let mut own: &[u8] = &[];
        for place in 0..self.len {
            let at = part(place);
            let bytes = carver.take(at.start * size_of::<T>(), at.len() * size_of::<T>());
            match place == self.me {
                true => own = bytes,
                false => incoming.push(Incoming { from: self.rank(place), bytes }),
            }
        }
        outgoing.extend(self.peers().map(|(_, to)| Outgoing { to, bytes: own }));
        call.exchange(outgoing, incoming)
    }
}
