//! The sum to all, always with the same bits: each element is added up in the fixed tree over
//! ranks, wherever it is added.

use super::group::{Group, MANY};
use crate::communicator::{Call, Communicator};
use crate::element::{Element, Held};
use crate::error::Result;
use crate::operation::{Algorithm, Collective};
use crate::options::AllReduce;
use half::bf16;
use headlong_device::bf16 as codec;
use std::ops::Range;
use zerocopy::{FromBytes as _, IntoBytes as _};

/// Adds up one piece over ranks.
type Reduce<'a, T> = dyn FnMut(&mut Call<'_>, Algorithm, &mut [T]) -> Result<()> + 'a;

impl Communicator {
    /// `data` becomes the deterministic sum over ranks ([`crate::element`]), with the same bits on
    /// all ranks, for every transport, the algorithm and the length.
    ///
    /// Small data takes one step where ranks are not many (64 or fewer, or on nodes that do not
    /// allow levels): everybody sends everything to everybody, and all add alike. Of large data
    /// each rank adds up one segment and sends the sum to all; where there are several nodes, as
    /// [`CommOptions::all_reduce`](crate::CommOptions) says, first inside the node, then once
    /// across the network.
    pub fn all_reduce<T: Element>(&self, data: &mut [T]) -> Result<()> {
        self.all_reduce_chunks(data, usize::MAX, &mut |_, _| {})
    }

    /// As [`Communicator::all_reduce`], `chunk` elements at a time: `done` learns which part of
    /// `data` is final, in rising order and once for each element, and sees all of `data`: what
    /// began in a part before may end in this one. It may change what is final and must not call
    /// this communicator.
    ///
    /// # Panics
    /// When `chunk` is 0.
    pub fn all_reduce_chunks<T: Element>(
        &self,
        data: &mut [T],
        chunk: usize,
        done: &mut dyn FnMut(Range<usize>, &mut [T]),
    ) -> Result<()> {
        self.reduce_pieces::<T, T>(data, chunk, &mut reduce, done)
    }

    /// As [`Communicator::all_reduce_chunks`], and what travels are bf16: `data` is rounded to
    /// nearest, ties to even, and so is every sum of the tree, which is made in f32.
    pub fn all_reduce_chunks_as_bf16(
        &self,
        data: &mut [f32],
        chunk: usize,
        done: &mut dyn FnMut(Range<usize>, &mut [f32]),
    ) -> Result<()> {
        let mut reduce = |call: &mut Call<'_>, algorithm, part: &mut [f32]| {
            let mut memory = std::mem::take(&mut call.memory().narrow_send);
            let narrow: &mut [bf16] = memory.elements(part.len());
            codec::compress(part, narrow);
            reduce(call, algorithm, narrow)?;
            codec::expand(narrow, part);
            call.memory().narrow_send = memory;
            Ok(())
        };
        self.reduce_pieces::<bf16, f32>(data, chunk, &mut reduce, done)
    }

    /// `data` becomes the numbers that ranks hold, bit for bit. A rank that does not hold one has
    /// zero bits in its place; those that do have the same.
    pub fn put_together(&self, data: &mut [f32]) -> Result<()> {
        let held = <[Held]>::mut_from_bytes(data.as_mut_bytes());
        self.all_reduce(held.expect("both have four bytes"))
    }

    /// Adds up `data`, which travels as `W`, piece by piece by `reduce`.
    fn reduce_pieces<W: Element, T: Element>(
        &self,
        data: &mut [T],
        chunk: usize,
        reduce: &mut Reduce<'_, T>,
        done: &mut dyn FnMut(Range<usize>, &mut [T]),
    ) -> Result<()> {
        assert!(chunk > 0, "a chunk has at least one element");
        let algorithm = self.all_reduce_way::<W>(data.len().min(chunk));
        let mut call = self.call(Collective::AllReduce, W::CODE, algorithm, 0);
        let chunk = match algorithm {
            Algorithm::Direct => chunk,
            _ => chunk.min(self.all_reduce_piece::<W>(algorithm)),
        };
        for start in (0..data.len()).step_by(chunk) {
            let range = start..data.len().min(start.saturating_add(chunk));
            reduce(&mut call, algorithm, &mut data[range.clone()])?;
            done(range, data);
        }
        Ok(())
    }

    fn all_reduce_way<T: Element>(&self, elements: usize) -> Algorithm {
        let transport = self.transport().name();
        let one_step = self.options().one_step_bytes_of(transport, self.num_ranks());
        let has_levels = self.topology().aligned_node_size().is_some();
        let bytes = elements * size_of::<T>();
        let measured =
            self.measured_all_reduce(bytes).filter(|_| self.options().one_step_bytes.is_none());
        // What was measured or set for this job comes first.
        let goes_in_levels =
            has_levels && self.num_ranks() > MANY && self.options().one_step_bytes.is_none();
        match self.options().all_reduce {
            _ if measured == Some(Algorithm::Direct) => Algorithm::Direct,
            _ if measured == Some(Algorithm::TwoSteps) => Algorithm::TwoSteps,
            AllReduce::Auto if goes_in_levels => Algorithm::Hierarchical,
            _ if measured.is_none() && bytes <= one_step => Algorithm::Direct,
            AllReduce::Auto if has_levels => Algorithm::Hierarchical,
            _ => Algorithm::TwoSteps,
        }
    }

    /// Elements of large all-reduces that are done at a time: what a rank adds up of them is shown
    /// where it lies, and the memory for the rest is bounded.
    fn all_reduce_piece<T: Element>(&self, algorithm: Algorithm) -> usize {
        let group = match algorithm {
            Algorithm::Hierarchical => self.topology().aligned_node_size().unwrap_or(1),
            _ => self.num_ranks(),
        };
        let bounded = self.options().chunk_bytes / size_of::<T>();
        // Segments are whole cache lines: a piece of whole segments has none that is longer than
        // what can be shown.
        let longest = self.transport().in_place_bytes().unwrap_or(usize::MAX);
        let shown = (longest / size_of::<T>() / 32 * 32).saturating_mul(group);
        bounded.min(shown).max(1)
    }
}

fn reduce<T: Element>(call: &mut Call<'_>, algorithm: Algorithm, data: &mut [T]) -> Result<()> {
    match algorithm {
        _ if call.topology().num_ranks() == 1 => Ok(()),
        Algorithm::Direct => Group::all(call.topology(), call.me()).reduce_in_one_step(call, data),
        Algorithm::Hierarchical => {
            let node_size = call.topology().aligned_node_size().expect("the way was chosen so");
            reduce_in_levels(call, data, node_size)
        }
        _ => reduce_in_two_steps(call, data),
    }
}

fn reduce_in_two_steps<T: Element>(call: &mut Call<'_>, data: &mut [T]) -> Result<()> {
    let all = Group::all(call.topology(), call.me());
    all.reduce_segments(call, data)?;
    all.share_segments(call, data)
}

/// Inside the node, once across, inside the node: the sums of nodes are subtrees of the tree over
/// ranks, so the bits stay.
fn reduce_in_levels<T: Element>(
    call: &mut Call<'_>,
    data: &mut [T],
    node_size: usize,
) -> Result<()> {
    let (node, rail) =
        (Group::node(call.me(), node_size), Group::rail(call.topology(), call.me(), node_size));
    node.reduce_segments(call, data)?;
    let own = node.own_segment(data.len());
    let own = &mut data[own];
    rail.reduce_segments(call, own)?;
    rail.share_segments(call, own)?;
    node.share_segments(call, data)
}
