//! The sum to all, always with the same bits: each element is added up in the fixed tree over
//! ranks, whoever adds it.

use super::group::Group;
use super::segment;
use crate::communicator::{Call, Communicator, What};
use crate::element::Element;
use crate::error::Result;
use crate::operation::{Algorithm, Collective};
use crate::options::AllReduce;
use crate::scratch::Scratch;
use crate::topology::Rank;
use crate::transport::{Incoming, Outgoing};
use std::ops::Range;
use zerocopy::IntoBytes;

impl Communicator {
    /// `data` becomes the ordered sum over ranks ([`crate::element`]), with the same bits on all
    /// ranks, whatever the transport, the algorithm and the length.
    ///
    /// Small data takes one step: everybody sends everything to everybody, and all add alike. Of
    /// large data each rank adds up one segment and sends the sum to all; where there are several
    /// nodes, as [`CommOptions::all_reduce`](crate::CommOptions) says, first inside the node, then
    /// once across the network.
    ///
    /// # Errors
    /// The job's first error.
    pub fn all_reduce<T: Element>(&self, data: &mut [T]) -> Result<()> {
        self.all_reduce_chunks(data, usize::MAX, &mut |_, _| {})
    }

    /// As [`Communicator::all_reduce`], `chunk` elements at a time: `done` is told which part of
    /// `data` is final, in rising order and once for each element, and sees all of `data`: what
    /// began in a part before may end in this one. It may change what is final and must not call
    /// this communicator.
    ///
    /// # Errors
    /// The job's first error.
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
        let mut call = self.call(What::new(Collective::AllReduce, T::CODE, algorithm));
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

    /// How chunks of so many elements are summed: the same on all ranks.
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
        let shown =
            (self.transport().in_place_bytes() / size_of::<T>() / 32 * 32).saturating_mul(group);
        bounded.min(shown).max(1)
    }

    /// The sum over ranks, from [`CommOptions::ring_bytes`](crate::CommOptions) on around the ring:
    /// the fewest bytes for each rank, but the order of addition depends on the place in `data`,
    /// and f16 and bf16 are rounded after each addition. The bits are the same on all ranks.
    /// Shorter data are summed as by [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// The job's first error.
    pub fn all_reduce_ring<T: Element>(&self, data: &mut [T]) -> Result<()> {
        if self.num_ranks() <= 2 || size_of_val(data) < self.options().ring_bytes.max(1) {
            return self.all_reduce(data);
        }
        let mut call = self.call(What::new(Collective::AllReduce, T::CODE, Algorithm::Ring));
        let mut room = std::mem::take(&mut call.memory().received);
        reduce_around_the_ring(&mut call, data, &mut room)?;
        call.memory().received = room;
        Ok(())
    }
}

/// Each rank adds up one segment and sends the sum to all.
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

/// N−1 steps in which segments travel once around, collecting, and N−1 steps in which the sums
/// travel on.
fn reduce_around_the_ring<T: Element>(
    call: &mut Call<'_>,
    data: &mut [T],
    room: &mut Scratch,
) -> Result<()> {
    let (len, ranks, me) = (data.len(), call.topology().num_ranks(), call.me().0);
    let (next, previous) = (Rank((me + 1) % ranks), Rank((me + ranks - 1) % ranks));
    for step in 0..2 * (ranks - 1) {
        let (sent, received) =
            ((me + 2 * ranks - step) % ranks, (me + 2 * ranks - step - 1) % ranks);
        let room: &mut [T] = room.elements(segment(len, ranks, received).len());
        let (mut outgoing, mut incoming) = (call.lists().outgoing(), call.lists().incoming());
        outgoing.push(Outgoing { to: next, bytes: data[segment(len, ranks, sent)].as_bytes() });
        incoming.push(Incoming { from: previous, bytes: room.as_mut_bytes() });
        call.exchange(outgoing, incoming)?;
        let into = &mut data[segment(len, ranks, received)];
        match step < ranks - 1 {
            true => T::accumulate(into, room),
            false => into.copy_from_slice(room),
        }
    }
    Ok(())
}
