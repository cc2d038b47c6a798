//! Between ranks whose models lie on devices. What they have for each other lies in slots of a
//! fixed size, one for each pair of ranks: a kernel writes how much of it is used, and flags what
//! would not fit. Of each slot a strip travels, whose length the host knows before the step
//! ([`crate::iteration::model::strips`]); of it only what is used, where the device can tell what
//! carries it.

use crate::error::{Result, exchange_failed};
use crate::iteration::model::{ByNode, Devices, Summed};
use crate::iteration::schedule::at::Access::{Read, Write};
use crate::iteration::schedule::{At, Resource};
use headlong_comm::device::narrow;
use headlong_comm::{Blocks, device};
use headlong_device::Mat;
use headlong_device::cuda::DevicePtr;
use headlong_embedding::hybrid::{DeviceSlots, StripSizes};

impl Devices {
    /// Ranks ask owners for rows.
    pub(super) fn ids(&self, at: &At<'_>) -> Result<()> {
        let sent = match &self.by_node {
            None => self.ranks.all_to_all_v(at.stream, blocks(at.route_mut().id_slots())),
            Some(_) => self.ids_by_node(at),
        };
        sent.map_err(exchange_failed("the ids"))
    }

    /// They ask a proxy of their node, which asks owners for all of it.
    fn ids_by_node(&self, at: &At<'_>) -> headlong_comm::Result<()> {
        let (halves, tables, route) = (self.halves(), &at.model().tables, at.route_mut());
        let [inside, across] = route.id_slots_by_node();
        halves.all_to_all_inside(at.stream, blocks(inside))?;
        tables.merge_in_node(at.stream, &route);
        halves.all_to_all_across(at.stream, blocks(across))?;
        if at.model().chooses_strips() {
            // Rails differ in what they need; the host hears of the most.
            tables.write_strip_sizes(at.stream, &route);
            let DeviceSlots { from, to, bytes_per_peer, .. } = route.size_slots();
            halves.all_gather_inside(at.stream, from, to, bytes_per_peer)?;
            tables.tell_strip_sizes(at.stream, &route);
        }
        Ok(())
    }

    /// Vectors go from their owners to the ranks that asked.
    pub(super) fn vectors(&self, at: &At<'_>) -> Result<()> {
        let (from, to) = (at.send_rows(Read), at.recv_rows(Write));
        let exchange = || match &self.by_node {
            None => {
                let [lengths, _] = at.route().vector_lengths();
                self.ranks.all_to_all_v(at.stream, of_vectors(at, from, to, lengths))
            }
            Some(ByNode { inside, across }) => {
                let (halves, route) = (self.halves(), at.route());
                let [[lengths_inside, _], [lengths_across, _]] = route.vector_lengths_by_node();
                let along_rail = of_vectors(at, from, across, lengths_across);
                halves.all_to_all_across(at.stream, along_rail)?;
                at.model().tables.send_to_node(at.stream, &route, across, inside);
                let in_node = of_vectors_inside(at, inside, to, lengths_inside);
                halves.all_to_all_inside(at.stream, in_node)
            }
        };
        exchange().map_err(exchange_failed("the vectors"))
    }

    /// Gradients go the way back that their vectors came.
    pub(super) fn gradients(&self, at: &At<'_>) -> Result<()> {
        let (from, to) = (at.recv_rows(Read), at.send_rows(Write));
        let exchange = || match &self.by_node {
            None => {
                let [_, lengths] = at.route().vector_lengths();
                self.ranks.all_to_all_v(at.stream, of_vectors(at, from, to, lengths))
            }
            Some(ByNode { inside, across }) => {
                let (halves, route) = (self.halves(), at.route());
                let [[_, lengths_inside], [_, lengths_across]] = route.vector_lengths_by_node();
                let in_node = of_vectors_inside(at, from, inside, lengths_inside);
                halves.all_to_all_inside(at.stream, in_node)?;
                at.model().tables.add_up_in_node(at.stream, &route, inside, across);
                halves.all_to_all_across(at.stream, of_vectors(at, across, to, lengths_across))
            }
        };
        exchange().map_err(exchange_failed("the gradients of rows"))
    }

    fn halves(&self) -> &dyn device::ByNode {
        self.ranks.by_node().expect("ranks that merge in nodes exchange inside these first")
    }

    /// Gradients of replicated rows become their sums, with all that lies before the dense
    /// gradients; where there are no such rows, that waits for these.
    pub(in crate::iteration::schedule) fn all_reduce_replicated(&self, at: &At<'_>) -> Result<()> {
        at.replicated_gradients(Write);
        at.loss_sums(Write);
        at.declared(Resource::Overflow, Write);
        self.sum(at, at.model().summed_first())
    }

    /// Dense gradients become their sums, with all that has not.
    pub(in crate::iteration::schedule) fn all_reduce_dense(&self, at: &At<'_>) -> Result<()> {
        at.loss_sums(Write);
        at.declared(Resource::Overflow, Write);
        reduce_dense(at)?;
        self.sum(at, at.model().summed_then())
    }

    /// All become their sums at once.
    pub(in crate::iteration::schedule) fn all_reduce(&self, at: &At<'_>) -> Result<()> {
        let at_once = Summed { at: at.reduced().device_ptr(), len: at.model().sum_len() };
        reduce_dense(at)?;
        self.sum(at, at_once)
    }

    fn sum(&self, at: &At<'_>, Summed { at: numbers, len }: Summed) -> Result<()> {
        if len.bytes() == 0 {
            return Ok(());
        }
        let summed = self.ranks.all_reduce(at.stream, numbers, len);
        summed.map_err(exchange_failed("the gradients"))
    }

    /// The logits of all ranks, in the order of the samples.
    pub(super) fn gather_logits(&self, at: &At<'_>, mine: &Mat, all: &Mat) -> Result<()> {
        let share_len = at.call.num_samples_of_all.div_ceil(self.ranks.num_ranks());
        let (mine, all) = (mine.device_ptr(), all.device_ptr());
        let gathered = self.ranks.all_gather(at.stream, mine, all, share_len * size_of::<f32>());
        gathered.map_err(exchange_failed("the predictions"))
    }
}

fn blocks(slots: DeviceSlots) -> Blocks {
    let DeviceSlots { from, to, stride, bytes_per_peer, lengths } = slots;
    Blocks { from, to, stride, bytes_per_peer, lengths }
}

/// Strips of slots of vectors, or of gradients, between owners and those who ask them.
fn of_vectors(at: &At<'_>, from: &Mat, to: &Mat, lengths: DevicePtr) -> Blocks {
    of_slots(at, |strips| strips.elements, from, to, lengths)
}

/// Those inside nodes that merge requests.
fn of_vectors_inside(at: &At<'_>, from: &Mat, to: &Mat, lengths: DevicePtr) -> Blocks {
    of_slots(at, |strips| strips.inside[1], from, to, lengths)
}

fn of_slots(
    at: &At<'_>,
    elements: impl Fn(StripSizes) -> usize,
    from: &Mat,
    to: &Mat,
    lengths: DevicePtr,
) -> Blocks {
    let bytes = |strips: Option<StripSizes>| strips.map_or(0, &elements) * from.dtype().bytes();
    let (stride, bytes_per_peer) = (bytes(at.model().tables.slots()), bytes(at.route().strips()));
    let (from, to) = (from.device_ptr(), to.device_ptr());
    Blocks { from, to, stride, bytes_per_peer, lengths }
}

/// Rounds dense gradients to what they travel as, where that is bf16; of those of which each rank
/// wants a part, it gets the sums. That comes before the other sums: what a rank finds in its part
/// is added up with them.
fn reduce_dense(at: &At<'_>) -> Result<()> {
    let gradients = at.dense_gradients(Write);
    if let Some(sums) = at.dense_sums(Write) {
        let (from, to) = (gradients.device_ptr(), sums.device_ptr());
        narrow::round(at.stream, from, to, gradients.bytes() / size_of::<f32>());
    }
    at.model().divided.as_ref().map_or(Ok(()), |divided| divided.reduce(at))
}
