//! What the stages do.

use super::{Call, by_node, by_slot};
use crate::build::{BatchIds, Model};
use crate::config::{IdsChoice, Interaction};
use crate::crew::exchange_failed;
use crate::data::failed;
use crate::error::Result;
use headlong_device::Stream;
use headlong_embedding::Ids;
use headlong_embedding::hybrid::IdExchange;
use headlong_mlp::interaction::cross::CrossBackwardArgs;
use headlong_mlp::interaction::{cat, dot};
use headlong_mlp::linear::Activation;
use headlong_mlp::loss::LossArgs;
use headlong_mlp::mlp::MlpBackwardArgs;
use headlong_mlp::optim::{self, StepArgs};

/// Gathers the infrequent rows that the ranks have asked this one for.
pub(super) fn owner_lookup(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
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
pub(super) fn exchange_vectors(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
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
    model
        .communicator
        .all_to_all_v(from, answers, to, requests)
        .map_err(exchange_failed("the vectors"))
}

/// The frequent rows, from this rank's replica. Bags that hold infrequent rows as well wait for
/// [`pool`].
pub(super) fn lookup_replicated(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let vectors = model.vectors.first_rows(call.num_samples);
    let route = call.now.route();
    if model.runs_ahead() {
        model.tables.lookup_frequent_on_device(stream, &route, &vectors);
        return Ok(());
    }
    let found =
        model.tables.lookup_frequent(stream, &BatchIds(&call.now.batch()), &route, &vectors);
    found.map_err(|error| failed("the vectors of a batch cannot be looked up", error))
}

/// Pools what was received and what is here into one vector per sample and table.
pub(super) fn pool(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
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
        model.tables.pool(
            stream,
            &BatchIds(&batch),
            &route,
            first(received.data(), requests),
            &vectors,
        )
    };
    pooled.map_err(|error| failed("the vectors of a batch cannot be looked up", error))
}

/// This rank's share of the batch that has come in.
pub(super) fn copy_batch(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    if model.runs_ahead() {
        // The host has taken the share already: what is captured must not look at it.
        model.copy_staged(stream, call.slot);
        return Ok(());
    }
    call.incoming.map_or(Ok(()), |incoming| model.copy_batch(call.slot, incoming))
}

/// Sorts the ids of a batch into the rows it touches, and the infrequent rows by owner.
pub(super) fn route(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let (batch, mut route) = (call.slot.batch(), call.slot.route_mut());
    let ids = BatchIds(&batch);
    let routed = if model.is_alone() {
        model.tables.route_alone(stream, &ids, &mut route)
    } else if model.runs_ahead() {
        model.tables.route_on_device(stream, &mut route);
        Ok(())
    } else {
        model.tables.route(stream, &ids, model.block_len_of_step(call.slot), &mut route)
    };
    routed.map_err(|error| failed(UNROUTABLE, error))
}

/// Ranks ask owners for rows. Where every rank holds the ids of the whole batch, nobody needs to
/// ask.
pub(super) fn exchange_ids(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    if let Some(devices) = model.devices() {
        return by_slot::exchange_ids(devices, stream, call.slot);
    }
    if model.ids == IdsChoice::Known {
        return Ok(());
    }
    if let Some(mut proxy) = call.slot.proxy() {
        return by_node::exchange_ids(model, stream, call.slot, &mut proxy);
    }
    let mut route = call.slot.route_mut();
    let communicator = &model.communicator;
    let (request_counts, asked_counts) = route.count_exchange();
    communicator
        .all_to_all(request_counts, asked_counts)
        .map_err(exchange_failed("the numbers of ids"))?;
    let exchange = route.id_exchange().map_err(|error| failed("ranks ask for too much", error))?;
    let IdExchange { requests, request_counts, asked, asked_counts } = exchange;
    communicator
        .all_to_all_v(requests, request_counts, asked, asked_counts)
        .map_err(exchange_failed("the ids"))
}

/// Owners sort what they were asked for.
pub(super) fn receive_requests(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let mut route = call.slot.route_mut();
    if model.runs_ahead() {
        model.tables.accept_on_device(stream, &mut route);
        return Ok(());
    }
    let accepted = if model.ids == IdsChoice::Known {
        let shares = call.slot.shares();
        let ids: Vec<_> = shares.iter().map(BatchIds).collect();
        let ids: Vec<&dyn Ids> = ids.iter().map(|ids| ids as &dyn Ids).collect();
        model.tables.accept_known(stream, &mut route, &ids)
    } else {
        model.tables.accept(stream, &mut route)
    };
    accepted.map_err(|error| failed("the rows that ranks ask for cannot be found", error))
}

/// Room for the ids of a batch is what the configuration says.
const UNROUTABLE: &str = "the ids of a batch cannot be routed: room is planned by tables.max_ids_per_sample and data.hotness";

pub(super) fn bottom_forward(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
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

pub(super) fn top_forward(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let (first, count) = call.samples();
    model.top.forward(
        stream,
        &model.top_in.first_rows(count),
        &model.logits.rows_range(first, count),
    );
    Ok(())
}

/// The loss of a micro-batch and its gradient; the mean is taken over the batch of all ranks. The
/// sums of other ranks' blocks are zeros here until the all-reduce brings them.
pub(super) fn loss(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
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

pub(super) fn top_backward(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
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

pub(super) fn bottom_backward(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
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

/// Sums the gradients of each row over this rank's samples: infrequent rows for their owners,
/// frequent ones for the all-reduce.
pub(super) fn reduce_rows(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let d_vectors = model.d_vectors.first_rows(call.num_samples);
    if model.runs_ahead() {
        let (to_owners, frequent) = (&model.requested, &model.frequent);
        model.tables.reduce_on_device(stream, &call.now.route(), &d_vectors, to_owners, frequent);
        return Ok(());
    }
    let (mut to_owners, mut frequent) =
        (model.requested.write::<f32>(), model.frequent.write::<f32>());
    let route = call.now.route();
    let (_, requests) = route.vector_exchange();
    let (to_owners, frequent) = (first_mut(to_owners.data_mut(), requests), frequent.data_mut());
    model.tables.reduce(stream, &route, &d_vectors, to_owners, frequent);
    Ok(())
}

/// Gradients of infrequent rows go the way back that their vectors came.
pub(super) fn exchange_gradients(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
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

/// The one all-reduce of a step: gradients of frequent rows, loss sums, dense gradients, in this
/// order in one memory. Frequent rows are updated as soon as their piece of the sum is final; a
/// transport that moves bytes by itself goes on meanwhile.
pub(super) fn all_reduce_and_update_replicated(
    model: &Model,
    stream: &Stream,
    call: &Call<'_>,
) -> Result<()> {
    if let Some(devices) = model.devices() {
        return by_slot::all_reduce_and_update_replicated(model, devices, stream);
    }
    let (mut failure, frequent_len) = (Ok(()), model.tables.frequent_len());
    let mut gradients = model.reduced.write_all::<f32>();
    let reduced = model.communicator.all_reduce_chunks(
        &mut gradients,
        model.chunk_len,
        &mut |ready, gradients| {
            let ready = ready.start.min(frequent_len)..ready.end.min(frequent_len);
            if failure.is_ok() && model.loss_scale.is_none() {
                failure = model.tables.update_frequent(
                    stream,
                    &gradients[..frequent_len],
                    ready,
                    &call.sparse_step,
                );
            }
        },
    );
    reduced.map_err(exchange_failed("the gradients"))?;
    failure.map_err(|error| failed("the frequent rows cannot be updated", error))
}

/// Moves each row once: on one rank all rows, with several the infrequent ones that this rank owns.
pub(super) fn update_owned(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
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
        model.tables.update_infrequent(
            stream,
            &route,
            first(asked.data(), answers),
            &call.sparse_step,
        )
    };
    updated.map_err(|error| failed("the tables cannot be updated", error))
}

/// Moves all dense parameters in one pass, and packs or rounds them for the next step's products.
pub(super) fn dense_optimizer(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
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

/// The logits of all ranks, in the order of the samples. The last shares may be short: what lies
/// behind them is not looked at.
pub(super) fn gather(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    if let Some(devices) = model.devices() {
        return by_slot::gather_logits(model, devices, stream, call);
    }
    let share_len = call.num_samples_of_all.div_ceil(model.communicator.num_ranks());
    let (mine, mut all) = (model.logits.read::<f32>(), model.all_logits.write::<f32>());
    let (mine, all) = (&mine.data()[..share_len], all.data_mut());
    let all = &mut all[..share_len * model.communicator.num_ranks()];
    model.communicator.all_gather(mine, all).map_err(exchange_failed("the predictions"))
}

pub(super) fn first<'a>(values: &'a [f32], counts: &[usize]) -> &'a [f32] {
    &values[..counts.iter().sum()]
}

pub(super) fn first_mut<'a>(values: &'a mut [f32], counts: &[usize]) -> &'a mut [f32] {
    &mut values[..counts.iter().sum()]
}

/// Products of all pairs to the top network; or all vectors side by side, to the cross network
/// where there is one.
pub(super) fn interaction_forward(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let (first, count) = call.samples();
    if let Some(rounding) = model.rounding {
        rounding.round(stream, &model.vectors.rows_range(first, count));
    }
    let out = model.cross.as_ref().map_or(&model.top_in, |cross| cross.input());
    let args = dot::ForwardArgs {
        bottom: &model.bottom_out.first_rows(count),
        vectors: &model.vectors.rows_range(first, count),
        out: &out.first_rows(count),
    };
    match model.config.model.interaction {
        Interaction::Dot => dot::forward(stream, &args),
        Interaction::Cat | Interaction::Cross => cat::forward(stream, &args),
    }
    Ok(())
}

pub(super) fn cross_forward(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let (_, count) = call.samples();
    model.cross.iter().for_each(|cross| cross.forward(stream, &model.top_in.first_rows(count)));
    Ok(())
}

pub(super) fn cross_backward(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let (_, count) = call.samples();
    let d_y = &model.d_top_in.first_rows(count);
    let (accumulate, block_len) = (call.micro_batch > 0, call.block_len());
    let args = CrossBackwardArgs { d_y, accumulate, block_len };
    model.cross.iter().for_each(|cross| cross.backward(stream, &args));
    Ok(())
}

pub(super) fn interaction_backward(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let (first, count) = call.samples();
    let d_out = model.cross.as_ref().map_or(&model.d_top_in, |cross| cross.d_input());
    let args = dot::BackwardArgs {
        bottom: &model.bottom_out.first_rows(count),
        vectors: &model.vectors.rows_range(first, count),
        d_out: &d_out.first_rows(count),
        d_bottom: &model.d_bottom_out.first_rows(count),
        d_vectors: &model.d_vectors.rows_range(first, count),
        bottom_activation: Activation::Relu,
        loss_scale: model.loss_scale.as_ref(),
    };
    match model.config.model.interaction {
        Interaction::Dot => dot::backward(stream, &args),
        Interaction::Cat | Interaction::Cross => cat::backward(stream, &args),
    }
    Ok(())
}

/// Learning rates and number of the step, to where the device's optimisers read them.
pub(super) fn copy_learning_rates(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    model.copy_rates(stream, call.now);
    Ok(())
}

/// The loss sums of the step, to where the host will read them.
pub(super) fn fetch_losses(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    model.fetch_sums(stream, call.now);
    Ok(())
}

/// Where a loss that is no number began, to where the device keeps it.
pub(super) fn find_non_finite(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    model.find_non_finite(stream, call);
    Ok(())
}

/// Looks for gradients that are not finite, of all ranks. The frequent rows have waited for that.
pub(super) fn check_gradients(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let Some(scale) = &model.loss_scale else { return Ok(()) };
    scale.check(stream, &model.gradients, model.steps_on_device());
    if model.is_alone() || model.skips() {
        return Ok(());
    }
    if model.runs_ahead() {
        model.tables.update_frequent_on_device(stream, &model.frequent);
        return Ok(());
    }
    let (gradients, len) = (model.frequent.read::<f32>(), model.tables.frequent_len());
    let updated = model.tables.update_frequent(stream, gradients.data(), 0..len, &call.sparse_step);
    updated.map_err(|error| failed("the frequent rows cannot be updated", error))
}

/// The next step's loss scale.
pub(super) fn adjust_loss_scale(model: &Model, stream: &Stream, _: &Call<'_>) -> Result<()> {
    model.loss_scale.iter().for_each(|scale| scale.adjust(stream));
    Ok(())
}
