//! What the stages do: each hands memory to the crate that computes, moves or finds.

use super::Resource::*;
use super::at::Access::{Read, Write};
use super::at::At;
use super::exchange;
use crate::error::Result;
use headlong_mlp::interaction::cross::CrossBackwardArgs;
use headlong_mlp::loss::LossArgs;
use headlong_mlp::loss_scale::CheckArgs;
use headlong_mlp::mlp::MlpBackwardArgs;
use headlong_mlp::optim::{self, StepArgs};

/// Vectors go from their owners to the ranks that asked.
pub(super) fn exchange_vectors(at: &At<'_>) -> Result<()> {
    at.model().exchange.vectors(at)
}

/// Learning rates and number of the step, to where the device's optimisers read them.
pub(super) fn copy_learning_rates(at: &At<'_>) -> Result<()> {
    at.declared(LearningRates, Write).copy_rates(at.stream, at.call.slot);
    Ok(())
}

/// This rank's share of the batch that has come in.
pub(super) fn copy_batch(at: &At<'_>) -> Result<()> {
    // For a device the ids go where they are routed.
    at.declared(Route, Write);
    at.model().bring_batch(at.stream, at.slot_to_fill(), at.call.incoming)
}

/// Ranks ask owners for rows.
pub(super) fn exchange_ids(at: &At<'_>) -> Result<()> {
    at.model().exchange.ids(at)
}

/// Owners sort what they were asked for.
pub(super) fn receive_requests(at: &At<'_>) -> Result<()> {
    at.model().exchange.receive_requests(at)
}

pub(super) fn bottom_forward(at: &At<'_>) -> Result<()> {
    at.declared(DenseWeights, Read);
    let (bottom, out) = at.bottom(Write);
    bottom.forward(at.stream, &at.dense(), &out);
    Ok(())
}

/// Products of all pairs to the top network; or all vectors side by side, to the cross network
/// where there is one.
pub(super) fn interaction_forward(at: &At<'_>) -> Result<()> {
    let out = at.cross_input().unwrap_or_else(|| at.top_in(Write));
    at.model().interaction.forward(at.stream, &at.bottom(Read).1, &at.micro_vectors(Write), &out);
    Ok(())
}

pub(super) fn cross_forward(at: &At<'_>) -> Result<()> {
    at.declared(DenseWeights, Read);
    at.cross(Write).iter().for_each(|cross| cross.forward(at.stream, &at.top_in(Write)));
    Ok(())
}

pub(super) fn top_forward(at: &At<'_>) -> Result<()> {
    at.declared(DenseWeights, Read);
    at.top(Write).forward(at.stream, &at.top_in(Read), &at.logits(Write));
    Ok(())
}

/// The loss of a micro-batch and its gradient; the mean is taken over the batch of all ranks. The
/// sums of other ranks' blocks are zeros here until the all-reduce brings them.
pub(super) fn loss(at: &At<'_>) -> Result<()> {
    let (model, call) = (at.model(), at.call);
    if call.micro_batch == 0 {
        at.declared(LossSums, Write).clear_sums_of_others(at.stream);
    }
    let blocks = model.share.blocks();
    let first = call.micro_batch * model.share.sum_blocks() + blocks.start;
    let args = LossArgs {
        loss: model.loss(),
        logits: &at.logits(Read),
        labels: &at.labels(),
        d_logits: &at.d_logits(Write),
        sums: &at.loss_sums(Write).rows_range(first, blocks.len()),
        block_len: call.block_len(),
        scale: 1.0 / call.num_samples_of_all as f32,
        loss_scale: at.loss_scale(Read),
    };
    headlong_mlp::loss::forward_backward(at.stream, &args);
    Ok(())
}

pub(super) fn top_backward(at: &At<'_>) -> Result<()> {
    at.declared(DenseWeights, Read);
    at.dense_gradients(Write);
    let args = MlpBackwardArgs {
        x: &at.top_in(Read),
        d_z: &at.d_logits(Read),
        d_x: Some(&at.d_top_in(Write)),
        accumulate: at.call.micro_batch > 0,
        block_len: at.call.block_len(),
    };
    at.top(Read).backward(at.stream, &args);
    Ok(())
}

pub(super) fn cross_backward(at: &At<'_>) -> Result<()> {
    at.declared(DenseWeights, Read);
    at.dense_gradients(Write);
    let d_y = &at.d_top_in(Write);
    let (accumulate, block_len) = (at.call.micro_batch > 0, at.call.block_len());
    let args = CrossBackwardArgs { d_y, accumulate, block_len };
    at.cross(Write).iter().for_each(|cross| cross.backward(at.stream, &args));
    Ok(())
}

pub(super) fn interaction_backward(at: &At<'_>) -> Result<()> {
    let d_out = at.d_cross_input().unwrap_or_else(|| at.d_top_in(Read));
    let (bottom, vectors) = (at.bottom(Read).1, at.micro_vectors(Read));
    let to = (&at.d_bottom(Write), &at.micro_d_vectors());
    at.declared(Overflow, Write);
    at.model().interaction.backward(
        at.stream,
        (&bottom, &vectors, &d_out),
        to,
        at.loss_scale(Read),
    );
    Ok(())
}

pub(super) fn bottom_backward(at: &At<'_>) -> Result<()> {
    at.declared(DenseWeights, Read);
    at.dense_gradients(Write);
    let args = MlpBackwardArgs {
        x: &at.dense(),
        d_z: &at.d_bottom(Read),
        d_x: None,
        accumulate: at.call.micro_batch > 0,
        block_len: at.call.block_len(),
    };
    at.bottom(Read).0.backward(at.stream, &args);
    Ok(())
}

/// Gradients of rows go the way back that their vectors came.
pub(super) fn exchange_gradients(at: &At<'_>) -> Result<()> {
    at.model().exchange.gradients(at)
}

/// The one all-reduce of hosts: gradients of replicated rows, loss sums, dense gradients, in this
/// order in one memory. Replicated rows are updated as soon as their piece of the sum is final; a
/// transport that moves bytes by itself continues meanwhile.
pub(super) fn all_reduce_and_update_replicated(at: &At<'_>) -> Result<()> {
    exchange::all_reduce_and_update_replicated(at)
}

/// Of devices of one node: gradients of replicated rows, and loss sums with them.
pub(super) fn all_reduce_replicated(at: &At<'_>) -> Result<()> {
    at.devices().all_reduce_replicated(at)
}

/// Then all else: dense gradients.
pub(super) fn all_reduce_dense(at: &At<'_>) -> Result<()> {
    at.devices().all_reduce_dense(at)
}

/// Of devices of several nodes: all at once.
pub(super) fn all_reduce(at: &At<'_>) -> Result<()> {
    at.devices().all_reduce(at)
}

/// Looks for gradients that are not finite, of all ranks.
pub(super) fn check_gradients(at: &At<'_>) -> Result<()> {
    at.declared(Overflow, Read);
    let args = CheckArgs {
        gradients: at.dense_gradients(Read),
        elements: at.model().summed_gradients(),
        summed: at.dense_sums(Read),
        steps: at.declared(LearningRates, Read).steps_on_device(),
    };
    at.loss_scale(Write).iter().for_each(|scale| scale.check(at.stream, &args));
    Ok(())
}

/// The sums of this rank's part of the norms; LAMB's directions with them.
pub(super) fn measure_part(at: &At<'_>) -> Result<()> {
    let norms = at.part(Write);
    with_optimizer(at, &|args| {
        norms.iter().for_each(|part| optim::measure(at.stream, args, part));
    });
    Ok(())
}

/// The sums of all ranks' parts.
pub(super) fn add_up_norms(at: &At<'_>) -> Result<()> {
    at.divided().add_up_norms(at)
}

/// Moves all dense parameters in one pass, and packs or rounds them for the next step's products;
/// or those of this rank's part.
pub(super) fn dense_optimizer(at: &At<'_>) -> Result<()> {
    with_optimizer(at, &|args| optim::step(at.stream, args));
    Ok(())
}

fn with_optimizer(at: &At<'_>, work: &dyn Fn(&StepArgs<'_>)) {
    let model = at.declared(DenseWeights, Write);
    work(&StepArgs {
        weights: &model.weights,
        gradients: at.dense_gradients(Write),
        summed: at.dense_sums(Read),
        first: model.dense_states.first(),
        second: model.dense_states.get(1),
        optimizer: &model.dense_optimizer,
        step: &at.call.dense_step,
        device_step: at.declared(LearningRates, Read).dense_step_on_device(),
        clip: model.config.train.clip_norm.map(|norm| norm as f32),
        stacks: &model.stacks(),
        loss_scale: at.loss_scale(Read),
        part: at.part(Read),
    });
}

/// The parts that other ranks have moved.
pub(super) fn gather_dense_weights(at: &At<'_>) -> Result<()> {
    at.divided().gather_weights(at)
}

/// Packs them all for the next step's products.
pub(super) fn pack_dense_weights(at: &At<'_>) -> Result<()> {
    at.declared(DenseWeights, Write).refresh(at.stream);
    Ok(())
}

pub(super) fn adjust_loss_scale(at: &At<'_>) -> Result<()> {
    at.declared(Overflow, Write);
    at.loss_scale(Write).iter().for_each(|scale| scale.adjust(at.stream));
    Ok(())
}

/// Where a loss that is not finite began, to where the device keeps it.
pub(super) fn find_non_finite(at: &At<'_>) -> Result<()> {
    let looked_at =
        [Inputs, Bottom, Vectors, Crossing, TopInput, Top, Logits, LossSums, LearningRates];
    looked_at.into_iter().for_each(|resource| _ = at.declared(resource, Read));
    at.declared(NonFinite, Write).find_non_finite(at.stream, at.call);
    Ok(())
}

/// The loss sums of the step, to where the host will read them.
pub(super) fn fetch_losses(at: &At<'_>) -> Result<()> {
    [LossSums, NonFinite, LossScale]
        .into_iter()
        .for_each(|resource| _ = at.declared(resource, Read));
    at.declared(Results, Write).fetch_sums(at.stream, at.call.slot);
    Ok(())
}

/// The logits of all ranks, in the order of the samples.
pub(super) fn gather(at: &At<'_>) -> Result<()> {
    at.model().exchange.gather_logits(at)
}
