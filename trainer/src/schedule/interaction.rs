//! The stages between the two stacks: how the bottom output and the vectors meet.

use super::Call;
use crate::build::Model;
use crate::config::Interaction;
use crate::error::Result;
use headlong_device::Stream;
use headlong_mlp::interaction::cross::CrossBackwardArgs;
use headlong_mlp::interaction::{cat, dot};
use headlong_mlp::linear::Activation;

/// Products of all pairs to the top network; or all vectors side by side, to the cross network where there is one.
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
