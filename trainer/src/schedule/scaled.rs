//! The stages of a step whose loss is scaled: in f16.

use super::Call;
use crate::build::Model;
use crate::data::failed;
use crate::error::Result;
use headlong_device::Stream;

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
