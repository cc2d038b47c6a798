//! One pass of the dense optimiser over the whole arena of parameters.
//!
//! # What it computes
//! With `n = ‖g‖₂` over all gradients and [`StepArgs::clip`] = c, `g ← g · min(1, c / (n + 1e-6))`;
//! then the formula of [`headlong_device::optimizer`] for every element. The gaps between slots
//! hold zeros in gradients, so they may be passed over like the rest.
//!
//! LAMB goes over each slot first, which is one of its tensors: gradients become directions r,
//! their moments change, and r is multiplied by the trust ratio ‖w‖ / ‖r‖, 1 where a norm is 0. The
//! pass over the arena is then SGD's, w ← w − η·r.
//!
//! # Shapes
//! Weights, gradients and states are arenas made from the same plan, so that element i of one
//! belongs to element i of the others. f32. Where the parameters are divided among ranks
//! ([`divided`]), a rank moves its part and has the states of that part only.
//!
//! # Sums
//! The norm is summed in f64, in 64 chunks of eight lanes each and a fixed tree: neither threads
//! nor instruction set change it; on a device in 128 chunks of another shape. LAMB's norms are
//! summed alike in 1,024 chunks a tensor, and have the same bits on a device.
//!
//! # Work
//! On the CPU it blocks until done and allocates nothing; on a device it enqueues one kernel, two
//! more where gradients are clipped and two more for each 32 tensors of LAMB; of a part, one more
//! for each of these, because [`measure`] has enqueued the other. [`check`] refuses
//! optimisers that have no dense form.
//!
//! # Source
//! PyTorch `SGD`, `Adagrad`, `Adam`; `torch.nn.utils.clip_grad_norm_`; You et al., ICLR 2020,
//! Algorithm 2.

mod cpu;
mod cuda;
pub mod divided;
#[cfg(test)]
mod tests;

pub(crate) use cuda::builds;

use crate::error::{MlpError, Result};
use crate::loss_scale::LossScale;
use crate::mlp::Mlp;
use headlong_device::cuda::DevicePtr;
use headlong_device::optimizer::{Optimizer, StateWidth, Step};
use headlong_device::{Arena, ArenaPlan, Device, Mat, Stream};
use std::ops::Range;

/// Chunks that a norm of LAMB is summed in, for any length.
const LAMB_CHUNKS: usize = 1024;

/// Arguments of [`step`].
#[derive(Debug)]
pub struct StepArgs<'a> {
    /// Parameters; changed.
    pub weights: &'a Arena,
    /// Gradients of the same layout; scaled where they are clipped, directions after LAMB.
    pub gradients: &'a Arena,
    /// What counts as gradients instead, where ranks have added them up in bf16: as many elements,
    /// laid out alike. Only on a device; never scaled.
    pub summed: Option<&'a Mat>,
    /// First state of the optimiser, where it has one.
    pub first: Option<&'a Arena>,
    /// Second state of the optimiser, where it has one.
    pub second: Option<&'a Arena>,
    /// The optimiser, as [`check`] passed it.
    pub optimizer: &'a Optimizer,
    /// Learning rate and number of the step.
    pub step: &'a Step,
    /// The same in the memory of a device ([`headlong_device::cuda::DeviceStep`]), which a device
    /// reads instead of `step`. The CPU ignores it.
    pub device_step: Option<DevicePtr>,
    /// Largest norm of the gradients, where they are clipped.
    pub clip: Option<f32>,
    /// Stacks over these weights: what their products read is packed again, in the same pass on a
    /// CPU and in 16 bits on a device.
    pub stacks: &'a [&'a [Mlp]],
    /// How the loss was scaled: gradients are divided by the scale, and a step that is skipped
    /// changes nothing.
    pub loss_scale: Option<&'a LossScale>,
    /// What this rank moves, where parameters are divided among ranks: `stacks` are packed later,
    /// when all weights are there.
    pub part: Option<&'a divided::Part>,
}

/// Applies one step to all dense parameters.
pub fn step(stream: &Stream, args: &StepArgs<'_>) {
    let states = [args.first, args.second];
    let kept = match args.optimizer {
        Optimizer::Sgd => 0,
        Optimizer::Adagrad { .. } => 1,
        _ => 2,
    };
    assert_eq!(
        states.iter().flatten().count(),
        kept,
        "states that {} keeps",
        args.optimizer.name()
    );
    let of_gradients = (args.gradients, args.weights.bytes());
    let of_states = args.part.map_or(args.weights.bytes(), |part| divided::state_bytes(part.len()));
    let of_states = states.iter().flatten().map(|&state| (state, of_states));
    for (arena, bytes) in of_states.chain([of_gradients]) {
        assert_eq!(arena.bytes(), bytes, "arenas of one plan are equally long");
    }
    let is_as_long = |summed: &Mat| args.gradients.bytes() == summed.cols() * size_of::<f32>();
    assert!(args.summed.is_none_or(is_as_long), "sums of all gradients in 16 bits");
    match (stream.device(), args.part) {
        (Device::Cpu, None) => cpu::step(stream, args),
        (Device::Cpu, Some(part)) => divided::step(stream, args, part),
        (Device::Cuda(_), _) => cuda::step(stream, args),
    }
}

/// Leaves this rank's sums of the norms of a step in [`divided::Part::sums`]; gradients of its part
/// become LAMB's directions, and their moments change. On the CPU it blocks until done and
/// allocates nothing; on a device it enqueues one kernel for clipping, or one for each 32 tensors
/// of LAMB.
pub fn measure(stream: &Stream, args: &StepArgs<'_>, part: &divided::Part) {
    match stream.device() {
        Device::Cpu => divided::measure(stream, args, part),
        Device::Cuda(_) => cuda::measure(stream, args, part),
    }
}

/// The formula of the pass over the whole arena.
fn last_pass(optimizer: &Optimizer) -> &Optimizer {
    match optimizer {
        Optimizer::Lamb { .. } => &Optimizer::Sgd,
        other => other,
    }
}

/// Where each of LAMB's tensors lies in the arena.
fn tensors(weights: &Arena) -> impl Iterator<Item = Range<usize>> + '_ {
    weights.mats().map(|mat| weights.elements_of(&mat)).filter(|range| !range.is_empty())
}

/// Elements of a chunk of a norm of LAMB.
fn lamb_chunk_len(tensor_len: usize) -> usize {
    tensor_len.div_ceil(LAMB_CHUNKS).next_multiple_of(16)
}

/// `‖g‖₂` over a whole arena of gradients.
pub fn norm(stream: &Stream, gradients: &Arena) -> f64 {
    match stream.device() {
        Device::Cpu => cpu::norm(stream, gradients),
        Device::Cuda(_) => cuda::norm(stream, gradients),
    }
}

/// Whether `optimizer` can train dense parameters.
///
/// # Errors
/// [`MlpError::NotDense`] for those that keep a state per row or are defined only for sparse rows.
pub fn check(optimizer: &Optimizer) -> Result<()> {
    let per_element = optimizer.states().iter().all(|state| state.width == StateWidth::PerElement);
    match optimizer {
        Optimizer::Sgd
        | Optimizer::Adagrad { .. }
        | Optimizer::Adam { .. }
        | Optimizer::Lamb { .. }
            if per_element =>
        {
            Ok(())
        }
        other => Err(MlpError::NotDense { optimizer: other.name() }),
    }
}

/// Freezes the states of `optimizer` for parameters of `plan` in the memory of the stream's device,
/// filled with what they hold before the first step.
///
/// # Errors
/// [`MlpError::NotDense`], and [`MlpError::Device`] when the device or the system refuses the
/// memory.
pub fn freeze_states_on(
    stream: &Stream,
    optimizer: &Optimizer,
    plan: &ArenaPlan,
) -> Result<Vec<Arena>> {
    check(optimizer)?;
    let states = optimizer.states();
    let frozen = states.iter().map(|state| {
        let arena = plan.clone().freeze_on(stream)?;
        arena.copy_from(&vec![state.initial; arena.bytes() / size_of::<f32>()])?;
        Ok(arena)
    });
    frozen.collect()
}
