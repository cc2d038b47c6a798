//! Launches of `loss_scale.cu`, and what interactions hand to `unscale.cuh`.

use super::LossScale;
use crate::cuda::{THREADS, blocks};
use headlong_device::cuda::{DevicePtr, DeviceStep, Launch, Source, kernel_args};
use headlong_device::{Arena, Stream};
use std::ops::Range;

pub static SOURCE: Source = Source { name: "mlp/loss-scale", text: include_str!("loss_scale.cu") };

kernel_args! {
    pub struct UnscaleArgs { state, overflow: DevicePtr; }
}

impl UnscaleArgs {
    /// For gradients of a loss that is scaled so, or not at all.
    pub fn new(scale: Option<&LossScale>) -> Self {
        let null = Self { state: DevicePtr::NULL, overflow: DevicePtr::NULL };
        scale.map_or(null, |scale| Self {
            state: scale.state.device_ptr(),
            overflow: scale.overflow.device_ptr(),
        })
    }
}

kernel_args! {
    pub struct CheckArgs {
        gradients, overflow, state, skip_dense, skip_sparse: DevicePtr;
        quads, first: u64;
    }

    pub struct AdjustArgs { state, overflow: DevicePtr; growth_interval: u32; }
}

pub fn check(
    stream: &Stream,
    scale: &LossScale,
    (gradients, elements): (&Arena, Range<usize>),
    steps: [DevicePtr; 2],
) {
    let [skip_dense, skip_sparse] = steps.map(|step| step.offset(DeviceStep::SKIP_OFFSET));
    let looked_at = CheckArgs::new(scale, gradients, elements);
    CheckArgs { skip_dense, skip_sparse, ..looked_at }.launch(stream, "check_gradients");
}

pub fn raise(stream: &Stream, scale: &LossScale, gradients: &Arena, elements: Range<usize>) {
    CheckArgs::new(scale, gradients, elements).launch(stream, "raise_overflow");
}

impl CheckArgs {
    /// For the gradients of a part, which begins and ends where cache lines do; nothing is skipped.
    fn new(scale: &LossScale, gradients: &Arena, elements: Range<usize>) -> Self {
        Self {
            gradients: gradients.device_ptr().offset(elements.start * size_of::<f32>()),
            overflow: scale.overflow.device_ptr(),
            state: scale.state.device_ptr(),
            skip_dense: DevicePtr::NULL,
            skip_sparse: DevicePtr::NULL,
            quads: elements.len() as u64 / 4,
            first: elements.start as u64 / 4,
        }
    }

    fn launch(&self, stream: &Stream, kernel: &'static str) {
        let (stream, quads) = (stream.cuda_body(), self.quads as usize);
        // One block at least: the overflow counts where there is no dense parameter, too.
        let shape = Launch::new(blocks(stream, quads.div_ceil(THREADS as usize).max(1)), THREADS);
        stream.run(&SOURCE, &[], kernel, shape, self);
    }
}

pub fn adjust(stream: &Stream, scale: &LossScale) {
    let launched = AdjustArgs {
        state: scale.state.device_ptr(),
        overflow: scale.overflow.device_ptr(),
        growth_interval: scale.growth_interval,
    };
    stream.cuda_body().run(&SOURCE, &[], "adjust_scale", Launch::new(1, 1), &launched);
}
