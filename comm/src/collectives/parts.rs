//! Data that is divided among the ranks: summed so that each has the sum of its part, and put
//! together again. Both together send what a large all-reduce sends.

use super::group::Group;
use crate::communicator::{Call, Communicator};
use crate::element::Element;
use crate::error::Result;
use crate::operation::{Algorithm, Collective};
use crate::options::AllReduce;
use half::bf16;
use headlong_device::bf16 as codec;
use std::ops::Range;

/// A piece of every rank's part.
#[derive(Clone, Copy)]
struct Piece<'a> {
    bounds: &'a [usize],
    /// Where it begins in each part, and how long it is at most.
    start: usize,
    len: usize,
}

impl Piece<'_> {
    /// Where it lies in the data.
    fn of(self, rank: usize) -> Range<usize> {
        let end = self.bounds[rank + 1];
        let start = (self.bounds[rank] + self.start).min(end);
        start..(start + self.len).min(end)
    }

    /// Where it lies once the pieces of all parts were put into one memory.
    fn packed(self, rank: usize) -> Range<usize> {
        let start = rank * self.len;
        start..start + self.of(rank).len()
    }
}

impl Communicator {
    /// The part of `data` that is this rank's becomes the deterministic sum over ranks
    /// ([`crate::element`]), with the bits of [`Communicator::all_reduce`]; the other parts hold
    /// anything afterwards. Part r is `bounds[r]..bounds[r + 1]`, the same on all ranks. Where
    /// there are several nodes, as [`CommOptions::all_reduce`](crate::CommOptions) says, sums are
    /// made inside the node first and cross the network once.
    ///
    /// # Panics
    /// When `bounds` do not divide all of `data` among the ranks.
    pub fn reduce_to_parts<T: Element>(&self, data: &mut [T], bounds: &[usize]) -> Result<()> {
        let (mut call, levels) = self.call_of::<T>(Collective::ReduceScatter, data.len(), bounds);
        for piece in self.pieces::<T>(bounds) {
            levels.reduce(&mut call, data, &|rank| piece.of(rank))?;
        }
        Ok(())
    }

    /// As [`Communicator::reduce_to_parts`], and what travels are bf16, as in
    /// [`Communicator::all_reduce_chunks_as_bf16`].
    ///
    /// # Panics
    /// As there.
    pub fn reduce_to_parts_as_bf16(&self, data: &mut [f32], bounds: &[usize]) -> Result<()> {
        let (mut call, levels) =
            self.call_of::<bf16>(Collective::ReduceScatter, data.len(), bounds);
        let (ranks, me) = (self.num_ranks(), self.rank().0);
        for piece in self.pieces::<bf16>(bounds) {
            let mut memory = std::mem::take(&mut call.memory().narrow_send);
            let narrow: &mut [bf16] = memory.elements(ranks * piece.len);
            for rank in 0..ranks {
                codec::compress(&data[piece.of(rank)], &mut narrow[piece.packed(rank)]);
            }
            levels.reduce(&mut call, narrow, &|rank| piece.packed(rank))?;
            codec::expand(&narrow[piece.packed(me)], &mut data[piece.of(me)]);
            call.memory().narrow_send = memory;
        }
        Ok(())
    }

    /// `data` becomes the parts of all ranks, each from the rank whose part it is.
    ///
    /// # Panics
    /// As [`Communicator::reduce_to_parts`].
    pub fn gather_parts<T: Element>(&self, data: &mut [T], bounds: &[usize]) -> Result<()> {
        let (mut call, levels) = self.call_of::<T>(Collective::AllGather, data.len(), bounds);
        levels.share(&mut call, data, &|rank| bounds[rank]..bounds[rank + 1])
    }

    fn call_of<T: Element>(
        &self,
        collective: Collective,
        len: usize,
        bounds: &[usize],
    ) -> (Call<'_>, Levels) {
        let ranks = self.num_ranks();
        let is_whole = bounds.len() == ranks + 1
            && bounds.is_sorted()
            && (bounds[0], bounds[ranks]) == (0, len);
        assert!(is_whole, "the bounds of parts divide all {len} elements among the ranks");
        let node_size = match self.options().all_reduce {
            AllReduce::Auto => self.topology().aligned_node_size(),
            AllReduce::Flat => None,
        };
        let algorithm = node_size.map_or(Algorithm::Direct, |_| Algorithm::Hierarchical);
        (self.call(collective, T::CODE, algorithm, 0), Levels { ranks, node_size })
    }

    /// Pieces that are summed at a time: what a rank adds up of one is shown where it lies, and the
    /// memory for the rest is bounded.
    fn pieces<'a, T: Element>(
        &self,
        bounds: &'a [usize],
    ) -> impl Iterator<Item = Piece<'a>> + use<'a, T> {
        let longest = bounds.windows(2).map(|part| part[1] - part[0]).max().unwrap_or(0);
        let bounded = self.options().chunk_bytes / size_of::<T>() / self.num_ranks();
        let shown = self.transport().in_place_bytes().unwrap_or(usize::MAX) / size_of::<T>();
        // Pieces end where cache lines do.
        let most = match bounded.min(shown) {
            lines if lines >= 32 => lines / 32 * 32,
            less => less.max(1),
        };
        let len = longest.min(most).max(1);
        (0..longest).step_by(len).map(move |start| Piece { bounds, start, len })
    }
}

/// What is done inside the node and what across.
#[derive(Clone, Copy)]
struct Levels {
    ranks: usize,
    /// Ranks of each node, where sums are made inside the node first.
    node_size: Option<usize>,
}

/// Where the part of a rank lies.
type PartOf<'a> = &'a dyn Fn(usize) -> Range<usize>;

impl Levels {
    /// The part of each rank becomes the sum. In levels: inside the node each rank adds up the
    /// parts of all ranks at its place, then across nodes its own. The sums of nodes are subtrees
    /// of the tree over ranks, so the bits stay.
    fn reduce<T: Element>(self, call: &mut Call<'_>, data: &mut [T], part: PartOf) -> Result<()> {
        let Some(node_size) = self.node_size else {
            let all = Group::all(call.topology(), call.me());
            return if self.ranks == 1 { Ok(()) } else { all.reduce_parts(call, data, part) };
        };
        let (node, rail) =
            (Group::node(call.me(), node_size), Group::rail(call.topology(), call.me(), node_size));
        for first in (0..self.ranks).step_by(node_size) {
            node.reduce_parts(call, data, &|place| part(first + place))?;
        }
        rail.reduce_parts(call, data, &|place| part(place * node_size + node.me))
    }

    /// The way back: across nodes each rank's own part, then inside the node those of all ranks at
    /// its place.
    fn share<T: Element>(self, call: &mut Call<'_>, data: &mut [T], part: PartOf) -> Result<()> {
        let Some(node_size) = self.node_size else {
            let all = Group::all(call.topology(), call.me());
            return if self.ranks == 1 { Ok(()) } else { all.share_parts(call, data, part) };
        };
        let (node, rail) =
            (Group::node(call.me(), node_size), Group::rail(call.topology(), call.me(), node_size));
        rail.share_parts(call, data, &|place| part(place * node_size + node.me))?;
        for first in (0..self.ranks).step_by(node_size) {
            node.share_parts(call, data, &|place| part(first + place))?;
        }
        Ok(())
    }
}
