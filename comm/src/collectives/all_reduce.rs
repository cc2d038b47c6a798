//! The sum to all, always with the same bits: each element is added up in the fixed tree over ranks, whoever adds it.

use super::segment;
use crate::communicator::{Call, Communicator, What};
use crate::element::Element;
use crate::error::Result;
use crate::operation::{Algorithm, Collective};
use crate::scratch::{Carver, Scratch};
use crate::topology::Rank;
use crate::transport::{Incoming, Outgoing};
use std::ops::Range;
use zerocopy::IntoBytes;

impl Communicator {
    /// `data` becomes the ordered sum over ranks ([`crate::element`]), with the same bits on all ranks, whatever the
    /// transport, the algorithm and the length.
    ///
    /// Small data takes one step: everybody sends everything to everybody, and all add alike. Of large data each rank adds
    /// up one segment and sends the sum to all.
    ///
    /// # Errors
    /// The job's first error.
    pub fn all_reduce<T: Element>(&self, data: &mut [T]) -> Result<()> {
        self.all_reduce_chunks(data, usize::MAX, &mut |_, _| {})
    }

    /// As [`Communicator::all_reduce`], `chunk` elements at a time: `done` is told which part of `data` is final, in rising
    /// order and once for each element. It may change that part and must not call this communicator.
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
        let one_step = data.len() <= self.one_step_elements::<T>().min(chunk);
        let algorithm = if one_step { Algorithm::Direct } else { Algorithm::TwoSteps };
        let mut call = self.call(What::new(Collective::AllReduce, T::CODE, algorithm));
        if one_step {
            if self.num_ranks() > 1 && !data.is_empty() {
                reduce_in_one_step(&mut call, data)?;
            }
            done(0..data.len(), data);
            return Ok(());
        }
        let chunk = chunk.min((self.options().chunk_bytes / size_of::<T>()).max(1));
        for start in (0..data.len()).step_by(chunk) {
            let range = start..data.len().min(start + chunk);
            let part = &mut data[range.clone()];
            if self.num_ranks() > 1 {
                reduce_in_two_steps(&mut call, part)?;
            }
            done(range, part);
        }
        Ok(())
    }

    /// The sum over ranks, from [`CommOptions::ring_bytes`](crate::CommOptions) on around the ring: the fewest bytes for each
    /// rank, but the order of addition depends on the place in `data`, and f16 and bf16 are rounded after each addition. The
    /// bits are the same on all ranks. Shorter data are summed as by [`Communicator::all_reduce`].
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

    /// Up to this many elements one step is faster: everybody reads everything, but waits only once.
    fn one_step_elements<T: Element>(&self) -> usize {
        let measured = match (self.transport().name(), self.num_ranks()) {
            ("local", 2) => 64 << 10,
            ("local", _) => 16 << 10,
            (_, 2) => 64 << 10,
            (_, ranks) => (128 << 10) / ranks,
        };
        self.options().one_step_bytes.unwrap_or(measured) / size_of::<T>()
    }
}

fn reduce_in_one_step<T: Element>(call: &mut Call<'_>, data: &mut [T]) -> Result<()> {
    let mut memory = std::mem::take(&mut call.memory().own);
    // The peers read a copy, so that the sum can take the place of this rank's own part at once.
    let own: &mut [T] = memory.elements(data.len());
    own.copy_from_slice(data);
    let bytes = own.as_bytes();
    let mut outgoing = call.lists().outgoing();
    outgoing.extend(call.peers().map(|to| Outgoing { to, bytes }));
    let me = call.me();
    call.exchange_reading(outgoing, bytes.len(), &mut |parts| T::add_in_tree(data, me.0, parts))?;
    call.memory().own = memory;
    Ok(())
}

fn reduce_in_two_steps<T: Element>(call: &mut Call<'_>, data: &mut [T]) -> Result<()> {
    let (len, ranks, me) = (data.len(), call.topology().num_ranks(), call.me());
    let bytes_of = |rank: usize| {
        let elements = segment(len, ranks, rank);
        elements.start * size_of::<T>()..elements.end * size_of::<T>()
    };
    let mut outgoing = call.lists().outgoing();
    let (before, rest) = data.split_at_mut(segment(len, ranks, me.0).start);
    let (own, after) = rest.split_at_mut(segment(len, ranks, me.0).len());
    let after_start = before.len() + own.len();
    outgoing.extend(call.peers().map(|to| {
        let elements = segment(len, ranks, to.0);
        let bytes = match to < me {
            true => before[elements].as_bytes(),
            false => after[elements.start - after_start..elements.end - after_start].as_bytes(),
        };
        Outgoing { to, bytes }
    }));
    let length = size_of_val(own);
    call.exchange_reading(outgoing, length, &mut |parts| T::add_in_tree(own, me.0, parts))?;
    share_segments(call, data.as_mut_bytes(), bytes_of)
}

/// Every rank's own segment of `data` goes to all.
fn share_segments(
    call: &mut Call<'_>,
    data: &mut [u8],
    segment_of: impl Fn(usize) -> Range<usize>,
) -> Result<()> {
    let me = call.me();
    let (mut outgoing, mut incoming) = (call.lists().outgoing(), call.lists().incoming());
    let mut carver = Carver::new(data);
    let mut own: &[u8] = &[];
    for from in call.topology().ranks() {
        let at = segment_of(from.0);
        let bytes = carver.take(at.start, at.len());
        match from == me {
            true => own = bytes,
            false => incoming.push(Incoming { from, bytes }),
        }
    }
    outgoing.extend(call.peers().map(|to| Outgoing { to, bytes: own }));
    call.exchange(outgoing, incoming)
}

/// N−1 steps in which segments travel once around, collecting, and N−1 steps in which the sums travel on.
fn reduce_around_the_ring<T: Element>(call: &mut Call<'_>, data: &mut [T], room: &mut Scratch) -> Result<()> {
    let (len, ranks, me) = (data.len(), call.topology().num_ranks(), call.me().0);
    let (next, previous) = (Rank((me + 1) % ranks), Rank((me + ranks - 1) % ranks));
    for step in 0..2 * (ranks - 1) {
        let (sent, received) = ((me + 2 * ranks - step) % ranks, (me + 2 * ranks - step - 1) % ranks);
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
