//! Launches of `loss_scale.cu`, and what interactions hand to `unscale.cuh`.

use super::{CheckArgs, LossScale};
use crate::cuda::{THREADS, blocks};
use headlong_device::cuda::{Build, Define, DevicePtr, DeviceStep, Launch, Source, kernel_args};
use headlong_device::{DType, Mat, Stream};

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
    pub struct CheckLaunch {
        gradients, overflow, state, skip_dense, skip_sparse: DevicePtr;
        quads, first: u64;
    }

    pub struct AdjustArgs { state, overflow: DevicePtr; growth_interval: u32; }
}

/// The instances: of gradients, and of sums of them in bf16.
pub fn builds() -> [Build; 2] {
    [DType::F32, DType::Bf16].map(|summed| Build { source: &SOURCE, defines: vec![define(summed)] })
}

fn define(summed: DType) -> Define {
    Define::dtype("SUMMED", summed)
}

pub fn check(stream: &Stream, scale: &LossScale, args: &CheckArgs<'_>) {
    let steps = args.steps.expect("a device reads steps from its memory");
    let [skip_dense, skip_sparse] = steps.map(|step| step.offset(DeviceStep::SKIP_OFFSET));
    let launched = CheckLaunch { skip_dense, skip_sparse, ..CheckLaunch::new(scale, args) };
    launched.launch(stream, "check_gradients", args);
}

pub fn raise(stream: &Stream, scale: &LossScale, args: &CheckArgs<'_>) {
    CheckLaunch::new(scale, args).launch(stream, "raise_overflow", args);
}

impl CheckLaunch {
    /// Of a part, which begins and ends where cache lines do; nothing is skipped.
    fn new(
        scale: &LossScale,
        CheckArgs { gradients, elements, summed, .. }: &CheckArgs<'_>,
    ) -> Self {
        let (all, dtype) = summed
            .map_or((gradients.device_ptr(), DType::F32), |sums| (sums.device_ptr(), sums.dtype()));
        Self {
            gradients: all.offset(elements.start * dtype.bytes()),
            overflow: scale.overflow.device_ptr(),
            state: scale.state.device_ptr(),
            skip_dense: DevicePtr::NULL,
            skip_sparse: DevicePtr::NULL,
            quads: elements.len() as u64 / 4,
            first: elements.start as u64 / 4,
        }
    }

    fn launch(&self, stream: &Stream, kernel: &'static str, args: &CheckArgs<'_>) {
        let (stream, quads) = (stream.cuda_body(), self.quads as usize);
        // One block at least: the overflow counts where there is no dense parameter, too.
        let shape = Launch::new(blocks(stream, quads.div_ceil(THREADS as usize).max(1)), THREADS);
        let define = define(args.summed.map_or(DType::F32, Mat::dtype));
        stream.run(&SOURCE, &[define], kernel, shape, self);
    }
}

pub fn adjust(stream: &Stream, scale: &LossScale) {
    let launched = AdjustArgs {
        state: scale.state.device_ptr(),
        overflow: scale.overflow.device_ptr(),
        growth_interval: scale.growth_interval,
    };
    let define = define(DType::F32);
    stream.cuda_body().run(&SOURCE, &[define], "adjust_scale", Launch::new(1, 1), &launched);
}
