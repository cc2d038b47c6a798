//! The sum to all, always with the same bits: each element is added up in the fixed tree over
//! ranks, wherever it is added.

use super::group::Group;
use crate::communicator::{Call, Communicator};
use crate::element::Element;
use crate::error::Result;
use crate::operation::{Algorithm, Collective};
use crate::options::AllReduce;
use std::ops::Range;

impl Communicator {
    /// `data` becomes the deterministic sum over ranks ([`crate::element`]), with the same bits on
    /// all ranks, for every transport, the algorithm and the length.
    ///
    /// Small data takes one step: everybody sends everything to everybody, and all add alike. Of
    /// large data each rank adds up one segment and sends the sum to all; where there are several
    /// nodes, as [`CommOptions::all_reduce`](crate::CommOptions) says, first inside the node, then
    /// once across the network.
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
        assert!(chunk > 0, "a chunk has at least one element");
        let algorithm = self.all_reduce_way::<T>(data.len().min(chunk));
        let mut call = self.call(Collective::AllReduce, T::CODE, algorithm, 0);
        let chunk = match algorithm {
            Algorithm::Direct => chunk,
            _ => chunk.min(self.all_reduce_piece::<T>(algorithm)),
        };
        for start in (0..data.len()).step_by(chunk) {
            let range = start..data.len().min(start.saturating_add(chunk));
            let part = &mut data[range.clone()];
            match algorithm {
                _ if self.num_ranks() == 1 => {}
                Algorithm::Direct => Group::all(&call).reduce_in_one_step(&mut call, part)?,
                Algorithm::Hierarchical => {
                    let node_size =
                        self.topology().aligned_node_size().expect("the way was chosen so");
                    reduce_in_levels(&mut call, part, node_size)?;
                }
                _ => reduce_in_two_steps(&mut call, part)?,
            }
            done(range, data);
        }
        Ok(())
    }

    fn all_reduce_way<T: Element>(&self, elements: usize) -> Algorithm {
        let transport = self.transport().name();
        let one_step = self.options().one_step_bytes_of(transport, self.num_ranks());
        // A sum over a node's ranks must be an exact part of the whole: f16 and bf16 would be
        // rounded on the way.
        let has_levels = T::IS_ITS_SUM && self.topology().aligned_node_size().is_some();
        let bytes = elements * size_of::<T>();
        let measured =
            self.measured_all_reduce(bytes).filter(|_| self.options().one_step_bytes.is_none());
        match self.options().all_reduce {
            _ if measured == Some(Algorithm::Direct) => Algorithm::Direct,
            _ if measured == Some(Algorithm::TwoSteps) => Algorithm::TwoSteps,
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

fn reduce_in_two_steps<T: Element>(call: &mut Call<'_>, data: &mut [T]) -> Result<()> {
    let all = Group::all(call);
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
    let (node, rail) = (Group::node(call, node_size), Group::rail(call, node_size));
    node.reduce_segments(call, data)?;
    let own = node.own_segment(data.len());
    let own = &mut data[own];
    rail.reduce_segments(call, own)?;
    rail.share_segments(call, own)?;
    node.share_segments(call, data)
}
