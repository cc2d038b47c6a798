//! **The iteration.** One list of stages in program order, each with its lane and what it waits for: read it from top to
//! bottom and you know what one training step does, and what may run beside what.
//!
//! The step takes the batch of *now*, which is trained on, and the batch of *next*, which is copied and routed ahead.
//! Ids may run ahead of weights; weights never do: no stage of *next* reads a weight.
//!
//! Rooms never call each other. `embedding` decides which rows, `comm` moves bytes, `mlp` computes, and every line that joins
//! them stands here. A rank trains on its own share of the samples. Frequent rows are replicated: each rank has them all,
//! and their gradients travel with the dense ones, in one all-reduce. An infrequent row lies with its owner: ranks ask for it,
//! get its vector, and bring its gradient back. One rank owns every row and has nobody to exchange with: of the stages between
//! ranks ([`crate::lanes::Runs::AmongRanks`]) it runs none.
//!
//! ```text
//! copy                                          copy_batch*                                  (* of the next batch)
//! sparse  answer ─┐ lookup_frequent    pool ─┐  route*  accept*       reduce ─┐        update_infrequent
//! comm            └─ exchange_vectors ─┘     │   exchange_ids*                ├─ exchange_gradients ┘   all_reduce ─┐
//! dense   bottom_forward ────────────────────┴─ interaction … loss … backward ┴─ bottom_backward ──────┘   dense_optimizer
//! ```
//!
//! **The order of collectives is the order of these lines**, hence the same on all ranks.

mod by_node;
mod by_slot;
mod call;
mod interaction;
mod on_device;
mod scaled;

pub use call::Call;

use crate::build::{BatchIds, BatchSlot, Model};
use crate::config::IdsChoice;
use crate::crew::exchange_failed;
use crate::data::failed;
use crate::error::Result;
use crate::lanes::Lane::{Comm, Copy, Dense, Sparse};
use crate::lanes::Repeat::{MicroBatch, Step as Once};
use crate::lanes::Runs::{Always, AmongRanks, Crossed, OnDevice, Scaled};
use crate::lanes::Stage;
use headlong_device::Stream;
use headlong_embedding::Ids;
use headlong_embedding::hybrid::IdExchange;
use headlong_mlp::loss::LossArgs;
use headlong_mlp::mlp::MlpBackwardArgs;
use headlong_mlp::optim::{self, StepArgs};
use interaction::{cross_backward, cross_forward, interaction_backward, interaction_forward};
use on_device::{copy_learning_rates, fetch_losses, find_non_finite};
use scaled::{adjust_loss_scale, check_gradients};

/// One training step.
pub const TRAINING: &[Stage] = &[
    // The batch of now: its rows, from wherever they lie.
    stage("answer", Sparse, Once, AmongRanks, &["previous:accept", "previous:update_infrequent"], answer),
    stage("exchange_vectors", Comm, Once, AmongRanks, &["answer"], exchange_vectors),
    stage(
        "lookup_frequent",
        Sparse,
        Once,
        AmongRanks,
        &["previous:route", "previous:all_reduce_and_update_frequent", "previous:check_gradients"],
        lookup_frequent,
    ),
    stage(
        "pool",
        Sparse,
        Once,
        Always,
        &["exchange_vectors", "lookup_frequent", "previous:update_infrequent"],
        pool,
    ),
    // What the host has for this step besides its batch.
    stage("copy_learning_rates", Copy, Once, OnDevice, &[], copy_learning_rates),
    // The batch of next: no weight is read here.
    stage("copy_batch", Copy, Once, Always, &["previous:dense_optimizer"], copy_next),
    stage("route", Sparse, Once, Always, &["copy_batch"], route_next),
    stage("exchange_ids", Comm, Once, AmongRanks, &["route"], exchange_next_ids),
    stage("accept", Sparse, Once, AmongRanks, &["exchange_ids"], accept_next),
    // The dense network, forward and backward.
    stage(
        "bottom_forward",
        Dense,
        MicroBatch,
        Always,
        &["previous:copy_batch", "previous:dense_optimizer"],
        bottom_forward,
    ),
    stage("interaction_forward", Dense, MicroBatch, Always, &["pool", "bottom_forward"], interaction_forward),
    stage("cross_forward", Dense, MicroBatch, Crossed, &["interaction_forward"], cross_forward),
    stage("top_forward", Dense, MicroBatch, Always, &["interaction_forward", "cross_forward"], top_forward),
    stage("loss", Dense, MicroBatch, Always, &["top_forward"], loss),
    stage("top_backward", Dense, MicroBatch, Always, &["loss"], top_backward),
    stage("cross_backward", Dense, MicroBatch, Crossed, &["top_backward"], cross_backward),
    stage(
        "interaction_backward",
        Dense,
        MicroBatch,
        Always,
        &["top_backward", "cross_backward"],
        interaction_backward,
    ),
    stage("bottom_backward", Dense, MicroBatch, Always, &["interaction_backward"], bottom_backward),
    // Gradients of rows go to their owners, then all others are summed over the ranks at once.
    stage("reduce", Sparse, Once, AmongRanks, &["interaction_backward", "accept"], reduce),
    stage("exchange_gradients", Comm, Once, AmongRanks, &["reduce"], exchange_gradients),
    stage(
        "all_reduce_and_update_frequent",
        Comm,
        Once,
        AmongRanks,
        &["reduce", "bottom_backward"],
        all_reduce_and_update_frequent,
    ),
    // In f16: one gradient that is not finite, of whatever rank, and nothing moves.
    stage(
        "check_gradients",
        Dense,
        Once,
        Scaled,
        &["bottom_backward", "all_reduce_and_update_frequent", "copy_learning_rates"],
        check_gradients,
    ),
    // All gradients of the step are there: the weights move.
    stage(
        "update_infrequent",
        Sparse,
        Once,
        Always,
        &["interaction_backward", "exchange_gradients", "copy_learning_rates", "check_gradients"],
        update_infrequent,
    ),
    stage(
        "dense_optimizer",
        Dense,
        Once,
        Always,
        &["bottom_backward", "all_reduce_and_update_frequent", "copy_learning_rates", "check_gradients"],
        dense_optimizer,
    ),
    stage(
        "adjust_loss_scale",
        Dense,
        Once,
        Scaled,
        &["update_infrequent", "dense_optimizer"],
        adjust_loss_scale,
    ),
    // What made the loss no number, as long as it is there.
    stage(
        "find_non_finite",
        Copy,
        Once,
        OnDevice,
        &["loss", "all_reduce_and_update_frequent"],
        find_non_finite,
    ),
    stage(
        "fetch_losses",
        Copy,
        Once,
        OnDevice,
        &["loss", "all_reduce_and_update_frequent", "adjust_loss_scale"],
        fetch_losses,
    ),
];

/// What must have run for the first batch before the first step: its own copy and route.
pub const PROLOGUE: &[Stage] = &[
    stage("first_copy_batch", Copy, Once, Always, &[], copy_next),
    stage("first_route", Sparse, Once, Always, &["first_copy_batch"], route_next),
    stage("first_exchange_ids", Comm, Once, AmongRanks, &["first_route"], exchange_next_ids),
    stage("first_accept", Sparse, Once, AmongRanks, &["first_exchange_ids"], accept_next),
];

/// Predictions for the batch of now, each rank's own. It changes nothing but activations.
pub const EVALUATION: &[Stage] = &[
    stage("eval_copy_batch", Copy, Once, Always, &[], |model, stream, call| {
        copy_batch(model, stream, call, call.now)
    }),
    stage("eval_route", Sparse, Once, AmongRanks, &["eval_copy_batch"], |model, stream, call| {
        route(model, stream, call, call.now)
    }),
    stage("eval_exchange_ids", Comm, Once, AmongRanks, &["eval_route"], |model, stream, call| {
        exchange_ids(model, stream, call.now)
    }),
    stage("eval_accept", Sparse, Once, AmongRanks, &["eval_exchange_ids"], |model, stream, call| {
        accept(model, stream, call.now)
    }),
    stage("eval_answer", Sparse, Once, AmongRanks, &["eval_accept"], answer),
    stage("eval_exchange_vectors", Comm, Once, AmongRanks, &["eval_answer"], exchange_vectors),
    stage("eval_lookup_frequent", Sparse, Once, AmongRanks, &["eval_route"], lookup_frequent),
    stage("eval_pool", Sparse, Once, Always, &["eval_exchange_vectors", "eval_copy_batch"], pool),
    stage("eval_bottom_forward", Dense, MicroBatch, Always, &["eval_copy_batch"], bottom_forward),
    stage(
        "eval_interaction_forward",
        Dense,
        MicroBatch,
        Always,
        &["eval_pool", "eval_bottom_forward"],
        interaction_forward,
    ),
    stage("eval_cross_forward", Dense, MicroBatch, Crossed, &["eval_interaction_forward"], cross_forward),
    stage(
        "eval_top_forward",
        Dense,
        MicroBatch,
        Always,
        &["eval_interaction_forward", "eval_cross_forward"],
        top_forward,
    ),
];

/// Behind [`EVALUATION`], where predictions are wanted in the order of the samples: metrics need no rank to have them all.
pub const GATHER: &[Stage] = &[stage("eval_gather", Comm, Once, AmongRanks, &[], gather_logits)];

/// A line of a list.
const fn stage(
    name: &'static str,
    lane: crate::lanes::Lane,
    repeat: crate::lanes::Repeat,
    runs: crate::lanes::Runs,
    waits: &'static [&'static str],
    run: fn(&Model, &Stream, &Call<'_>) -> Result<()>,
) -> Stage {
    Stage { name, lane, repeat, runs, waits, run }
}

/// Gathers the infrequent rows that the ranks have asked this one for.
fn answer(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let route = call.now.route();
    if model.runs_ahead() {
        model.tables.answer_on_device(stream, &route, &model.asked);
        return Ok(());
    }
    let (answers, _) = route.vector_exchange();
    let mut asked = model.asked.write::<f32>();
    let answered = model.tables.answer(stream, &route, first_mut(asked.data_mut(), answers));
    answered.map_err(|error| failed("the rows of a batch cannot be looked up", error))
}

/// Vectors of infrequent rows go from their owners to whoever asked.
fn exchange_vectors(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    if let Some(devices) = model.devices() {
        return by_slot::exchange_vectors(model, devices, stream, call.now);
    }
    if let Some(mut proxy) = call.now.proxy() {
        return by_node::exchange_vectors(model, stream, call.now, &mut proxy);
    }
    let route = call.now.route();
    let (answers, requests) = route.vector_exchange();
    let (from, mut to) = (model.asked.read::<f32>(), model.requested.write::<f32>());
    let (from, to) = (first(from.data(), answers), first_mut(to.data_mut(), requests));
    model.communicator.all_to_all_v(from, answers, to, requests).map_err(exchange_failed("the vectors"))
}

/// The frequent rows, from this rank's replica. Bags that hold infrequent rows as well wait for [`pool`].
fn lookup_frequent(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let vectors = model.vectors.first_rows(call.num_samples);
    let route = call.now.route();
    if model.runs_ahead() {
        model.tables.lookup_frequent_on_device(stream, &route, &vectors);
        return Ok(());
    }
    let found = model.tables.lookup_frequent(stream, &BatchIds(&call.now.batch()), &route, &vectors);
    found.map_err(|error| failed("the vectors of a batch cannot be looked up", error))
}

/// Pools what was received and what is here into one vector per sample and table.
fn pool(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let vectors = model.vectors.first_rows(call.num_samples);
    let batch = call.now.batch();
    let pooled = if model.is_alone() {
        model.tables.lookup_alone(stream, &BatchIds(&batch), &call.now.route(), &vectors)
    } else if model.runs_ahead() {
        model.tables.pool_on_device(stream, &call.now.route(), &model.requested, &vectors);
        Ok(())
    } else {
        let (route, received) = (call.now.route(), model.requested.read::<f32>());
        let (_, requests) = route.vector_exchange();
        model.tables.pool(stream, &BatchIds(&batch), &route, first(received.data(), requests), &vectors)
    };
    pooled.map_err(|error| failed("the vectors of a batch cannot be looked up", error))
}

fn copy_next(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    call.next.map_or(Ok(()), |next| copy_batch(model, stream, call, next))
}

fn route_next(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    call.next.map_or(Ok(()), |next| route(model, stream, call, next))
}

fn exchange_next_ids(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    call.next.map_or(Ok(()), |next| exchange_ids(model, stream, next))
}

fn accept_next(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    call.next.map_or(Ok(()), |next| accept(model, stream, next))
}

/// This rank's share of the batch that has come in.
fn copy_batch(model: &Model, stream: &Stream, call: &Call<'_>, slot: &BatchSlot) -> Result<()> {
    if model.runs_ahead() {
        // The host has taken the share already: what is captured must not look at it.
        model.copy_staged(stream, slot);
        return Ok(());
    }
    call.incoming.map_or(Ok(()), |incoming| model.copy_batch(slot, incoming))
}

/// Sorts the ids of a batch into the rows it touches, and the infrequent rows by owner.
fn route(model: &Model, stream: &Stream, _: &Call<'_>, slot: &BatchSlot) -> Result<()> {
    let (batch, mut route) = (slot.batch(), slot.route_mut());
    let ids = BatchIds(&batch);
    let routed = if model.is_alone() {
        model.tables.route_alone(stream, &ids, &mut route)
    } else if model.runs_ahead() {
        model.tables.route_on_device(stream, &mut route);
        Ok(())
    } else {
        model.tables.route(stream, &ids, model.block_len_of_step(slot), &mut route)
    };
    routed.map_err(|error| failed(UNROUTABLE, error))
}

/// Ranks ask owners for rows. Where every rank holds the ids of the whole batch, nobody needs to ask.
fn exchange_ids(model: &Model, stream: &Stream, slot: &BatchSlot) -> Result<()> {
    if let Some(devices) = model.devices() {
        return by_slot::exchange_ids(devices, stream, slot);
    }
    if model.ids == IdsChoice::Known {
        return Ok(());
    }
    if let Some(mut proxy) = slot.proxy() {
        return by_node::exchange_ids(model, stream, slot, &mut proxy);
    }
    let mut route = slot.route_mut();
    let communicator = &model.communicator;
    let (request_counts, asked_counts) = route.count_exchange();
    communicator.all_to_all(request_counts, asked_counts).map_err(exchange_failed("the numbers of ids"))?;
    let exchange = route.id_exchange().map_err(|error| failed("ranks ask for too much", error))?;
    let IdExchange { requests, request_counts, asked, asked_counts } = exchange;
    communicator
        .all_to_all_v(requests, request_counts, asked, asked_counts)
        .map_err(exchange_failed("the ids"))
}

/// Owners sort what they were asked for.
fn accept(model: &Model, stream: &Stream, slot: &BatchSlot) -> Result<()> {
    let mut route = slot.route_mut();
    if model.runs_ahead() {
        model.tables.accept_on_device(stream, &mut route);
        return Ok(());
    }
    let accepted = if model.ids == IdsChoice::Known {
        let shares = slot.shares();
        let ids: Vec<_> = shares.iter().map(BatchIds).collect();
        let ids: Vec<&dyn Ids> = ids.iter().map(|ids| ids as &dyn Ids).collect();
        model.tables.accept_known(stream, &mut route, &ids)
    } else {
        model.tables.accept(stream, &mut route)
    };
    accepted.map_err(|error| failed("the rows that ranks ask for cannot be found", error))
}

/// Room for the ids of a batch is what the configuration says.
const UNROUTABLE: &str =
    "the ids of a batch cannot be routed: room is planned by tables.max_ids_per_sample and data.hotness";

fn bottom_forward(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    if model.bottom.layers().is_empty() {
        return Ok(());
    }
    let (first, count) = call.samples();
    model.bottom.forward(
        stream,
        &call.now.dense.rows_range(first, count),
        &model.bottom_out.first_rows(count),
    );
    Ok(())
}

fn top_forward(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let (first, count) = call.samples();
    model.top.forward(stream, &model.top_in.first_rows(count), &model.logits.rows_range(first, count));
    Ok(())
}

/// The loss of a micro-batch and its gradient; the mean is taken over the batch of all ranks. The sums of other ranks' blocks
/// are zeros here until the all-reduce brings them.
fn loss(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let (first, count) = call.samples();
    if call.micro_batch == 0 && !model.is_alone() {
        model.clear_loss_sums(stream);
    }
    let blocks = model.share.blocks();
    let args = LossArgs {
        loss: model.loss(),
        logits: &model.logits.rows_range(first, count),
        labels: &call.now.labels.rows_range(first, count),
        d_logits: &model.d_logits.rows_range(first, count),
        sums: &model
            .loss_sums
            .rows_range(call.micro_batch * model.share.sum_blocks() + blocks.start, blocks.len()),
        block_len: call.block_len(),
        scale: 1.0 / call.num_samples_of_all as f32,
        loss_scale: model.loss_scale.as_ref(),
    };
    headlong_mlp::loss::forward_backward(stream, &args);
    Ok(())
}

fn top_backward(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let (first, count) = call.samples();
    let args = MlpBackwardArgs {
        x: &model.top_in.first_rows(count),
        d_z: &model.d_logits.rows_range(first, count),
        d_x: Some(&model.d_top_in.first_rows(count)),
        accumulate: call.micro_batch > 0,
        block_len: call.block_len(),
    };
    model.top.backward(stream, &args);
    Ok(())
}

fn bottom_backward(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    if model.bottom.layers().is_empty() {
        return Ok(());
    }
    let (first, count) = call.samples();
    let args = MlpBackwardArgs {
        x: &call.now.dense.rows_range(first, count),
        d_z: &model.d_bottom_out.first_rows(count),
        d_x: None,
        accumulate: call.micro_batch > 0,
        block_len: call.block_len(),
    };
    model.bottom.backward(stream, &args);
    Ok(())
}

/// Sums the gradients of each row over this rank's samples: infrequent rows for their owners, frequent ones for the all-reduce.
fn reduce(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let d_vectors = model.d_vectors.first_rows(call.num_samples);
    if model.runs_ahead() {
        let (to_owners, frequent) = (&model.requested, &model.frequent);
        model.tables.reduce_on_device(stream, &call.now.route(), &d_vectors, to_owners, frequent);
        return Ok(());
    }
    let (mut to_owners, mut frequent) = (model.requested.write::<f32>(), model.frequent.write::<f32>());
    let route = call.now.route();
    let (_, requests) = route.vector_exchange();
    let (to_owners, frequent) = (first_mut(to_owners.data_mut(), requests), frequent.data_mut());
    model.tables.reduce(stream, &route, &d_vectors, to_owners, frequent);
    Ok(())
}

/// Gradients of infrequent rows go the way back that their vectors came.
fn exchange_gradients(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    if let Some(devices) = model.devices() {
        return by_slot::exchange_gradients(model, devices, stream, call.now);
    }
    if let Some(mut proxy) = call.now.proxy() {
        return by_node::exchange_gradients(model, stream, call.now, &mut proxy);
    }
    let route = call.now.route();
    let (answers, requests) = route.vector_exchange();
    let (from, mut to) = (model.requested.read::<f32>(), model.asked.write::<f32>());
    let (from, to) = (first(from.data(), requests), first_mut(to.data_mut(), answers));
    model
        .communicator
        .all_to_all_v(from, requests, to, answers)
        .map_err(exchange_failed("the gradients of rows"))
}

/// The one all-reduce of a step: gradients of frequent rows, loss sums, dense gradients, in this order in one memory. Frequent
/// rows are updated as soon as their piece of the sum is final; a transport that moves bytes by itself goes on meanwhile.
fn all_reduce_and_update_frequent(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    if let Some(devices) = model.devices() {
        return by_slot::all_reduce_and_update_frequent(model, devices, stream);
    }
    let (mut failure, frequent_len) = (Ok(()), model.tables.frequent_len());
    let mut gradients = model.reduced.write_all::<f32>();
    let reduced =
        model.communicator.all_reduce_chunks(&mut gradients, model.chunk_len, &mut |ready, gradients| {
            let ready = ready.start.min(frequent_len)..ready.end.min(frequent_len);
            if failure.is_ok() && model.loss_scale.is_none() {
                failure = model.tables.update_frequent(
                    stream,
                    &gradients[..frequent_len],
                    ready,
                    &call.sparse_step,
                );
            }
        });
    reduced.map_err(exchange_failed("the gradients"))?;
    failure.map_err(|error| failed("the frequent rows cannot be updated", error))
}

/// Moves each row once: on one rank all rows, with several the infrequent ones that this rank owns.
fn update_infrequent(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    if model.skips() {
        return Ok(());
    }
    let route = call.now.route();
    let updated = if model.is_alone() {
        let d_vectors = model.d_vectors.first_rows(call.num_samples);
        model.tables.update_alone(stream, &route, &d_vectors, &call.sparse_step)
    } else if model.runs_ahead() {
        model.tables.update_infrequent_on_device(stream, &route, &model.asked);
        Ok(())
    } else {
        let (answers, _) = route.vector_exchange();
        let asked = model.asked.read::<f32>();
        model.tables.update_infrequent(stream, &route, first(asked.data(), answers), &call.sparse_step)
    };
    updated.map_err(|error| failed("the tables cannot be updated", error))
}

/// Moves all dense parameters in one pass, and packs or rounds them for the next step's products.
fn dense_optimizer(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let args = StepArgs {
        weights: &model.weights,
        gradients: &model.gradients,
        first: model.dense_states.first(),
        second: model.dense_states.get(1),
        optimizer: &model.dense_optimizer,
        step: &call.dense_step,
        device_step: model.dense_step_on_device(),
        clip: model.config.train.clip_norm.map(|norm| norm as f32),
        stacks: &model.stacks(),
        loss_scale: model.loss_scale.as_ref(),
    };
    optim::step(stream, &args);
    Ok(())
}

/// The logits of all ranks, in the order of the samples. The last shares may be short: what lies behind them is not looked at.
fn gather_logits(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    if let Some(devices) = model.devices() {
        return by_slot::gather_logits(model, devices, stream, call);
    }
    let share_len = call.num_samples_of_all.div_ceil(model.communicator.num_ranks());
    let (mine, mut all) = (model.logits.read::<f32>(), model.all_logits.write::<f32>());
    let (mine, all) = (&mine.data()[..share_len], all.data_mut());
    let all = &mut all[..share_len * model.communicator.num_ranks()];
    model.communicator.all_gather(mine, all).map_err(exchange_failed("the predictions"))
}

fn first<'a>(values: &'a [f32], counts: &[usize]) -> &'a [f32] {
    &values[..counts.iter().sum()]
}

fn first_mut<'a>(values: &'a mut [f32], counts: &[usize]) -> &'a mut [f32] {
    &mut values[..counts.iter().sum()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait must name a stage that has run: an earlier line of this list, or any line of the step before.
    #[test]
    fn every_wait_names_a_stage_that_comes_before() {
        for list in [TRAINING, PROLOGUE, EVALUATION, GATHER] {
            for (position, stage) in list.iter().enumerate() {
                for wait in stage.waits {
                    let (name, candidates) = match wait.strip_prefix("previous:") {
                        Some(name) => (name, list),
                        None => (*wait, &list[..position]),
                    };
                    assert!(
                        candidates.iter().any(|other| other.name == name),
                        "{} waits for {wait}",
                        stage.name
                    );
                }
            }
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> =
            [TRAINING, PROLOGUE, EVALUATION, GATHER].into_iter().flatten().map(|stage| stage.name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
