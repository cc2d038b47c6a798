//! The stages between ranks whose models lie on devices. Counts stay on the devices, so what
//! travels are slots of a fixed size, one for each pair of ranks: a kernel writes how much of it is
//! used, and flags what would not fit. Between nodes only what is used travels, where the network
//! can be told so by the device.

use crate::build::{BatchSlot, Model};
use crate::crew::exchange_failed;
use crate::error::Result;
use crate::schedule::Call;
use headlong_comm::{Blocks, DeviceCollectives};
use headlong_device::cuda::DevicePtr;
use headlong_device::{Mat, Stream};

/// Bytes of an element of vectors and gradients.
const ELEMENT_BYTES: usize = size_of::<f32>();

type Collectives<'a> = &'a dyn DeviceCollectives;

/// Ranks ask owners for rows.
pub(super) fn exchange_ids(
    ranks: Collectives<'_>,
    stream: &Stream,
    slot: &BatchSlot,
) -> Result<()> {
    let slots = slot.route().id_slots();
    let blocks = Blocks {
        from: slots.from,
        to: slots.to,
        bytes_per_peer: slots.bytes_per_peer,
        lengths: slots.lengths,
    };
    ranks.all_to_all_v(stream, blocks).map_err(exchange_failed("the ids"))
}

/// Vectors of infrequent rows go from their owners to whoever asked.
pub(super) fn exchange_vectors(
    model: &Model,
    ranks: Collectives<'_>,
    stream: &Stream,
    slot: &BatchSlot,
) -> Result<()> {
    let lengths = slot.route().vector_lengths();
    exchange(model, ranks, stream, (&model.asked, &model.requested), lengths)
        .map_err(exchange_failed("the vectors"))
}

/// Gradients of infrequent rows go the way back that their vectors came.
pub(super) fn exchange_gradients(
    model: &Model,
    ranks: Collectives<'_>,
    stream: &Stream,
    slot: &BatchSlot,
) -> Result<()> {
    let [answers, gradients] = slot.route().vector_lengths();
    exchange(model, ranks, stream, (&model.requested, &model.asked), [gradients, answers])
        .map_err(exchange_failed("the gradients of rows"))
}

fn exchange(
    model: &Model,
    ranks: Collectives<'_>,
    stream: &Stream,
    (from, to): (&Mat, &Mat),
    [lengths, arriving]: [DevicePtr; 2],
) -> headlong_comm::Result<()> {
    let bytes_per_peer = model.tables.slot_elements() * ELEMENT_BYTES;
    let (from, to) = (from.device_ptr(), to.device_ptr());
    let blocks = Blocks { from, to, bytes_per_peer, lengths };
    match model.narrow() {
        Some(narrow) => narrow.all_to_all_v(ranks, stream, blocks, arriving),
        None => ranks.all_to_all_v(stream, blocks),
    }
}

/// The one all-reduce of a step, and the frequent rows behind it.
pub(super) fn all_reduce_and_update_replicated(
    model: &Model,
    ranks: Collectives<'_>,
    stream: &Stream,
) -> Result<()> {
    let (data, len) = (model.reduced.device_ptr(), model.reduced.bytes() / ELEMENT_BYTES);
    ranks.all_reduce_f32(stream, data, len).map_err(exchange_failed("the gradients"))?;
    // Where the loss is scaled, they wait until all gradients have been looked at.
    if model.loss_scale.is_none() {
        model.tables.update_frequent_on_device(stream, &model.frequent);
    }
    Ok(())
}

/// The logits of all ranks, in the order of the samples.
pub(super) fn gather_logits(
    model: &Model,
    ranks: Collectives<'_>,
    stream: &Stream,
    call: &Call<'_>,
) -> Result<()> {
    let share_len = call.num_samples_of_all.div_ceil(ranks.num_ranks());
    let (mine, all) = (model.logits.device_ptr(), model.all_logits.device_ptr());
    ranks
        .all_gather(stream, mine, all, share_len * ELEMENT_BYTES)
        .map_err(exchange_failed("the predictions"))
}
