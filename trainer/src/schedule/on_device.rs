//! The stages in which host and device hand each other numbers.

use super::Call;
use crate::build::Model;
use crate::error::Result;
use headlong_device::Stream;

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
