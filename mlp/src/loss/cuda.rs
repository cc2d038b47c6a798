//! Launches of `loss.cu`.

use super::{Loss, LossArgs};
use crate::cuda::{SCRATCH_BYTES, THREADS, blocks, scratch};
use headlong_device::cuda::{DevicePtr, Launch, Source};
use headlong_device::{Mat, Stream};

pub static SOURCE: Source = Source { name: "mlp/loss", text: include_str!("loss.cu") };

/// Fewest samples of a part of a block, where it has several, and most parts of a block: as in
/// `loss.cu`.
const PART: usize = 1024;
const MAX_PARTS: usize = 64;
const _: () = assert!(super::MAX_SUM_BLOCKS * MAX_PARTS * size_of::<f64>() <= SCRATCH_BYTES);

/// As in `loss.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct LossKernelArgs {
    pub(super) logits: DevicePtr,
    pub(super) labels: DevicePtr,
    pub(super) d_logits: DevicePtr,
    pub(super) sums: DevicePtr,
    pub(super) parts: DevicePtr,
    pub(super) loss_scale: DevicePtr,
    pub(super) logits_stride: u64,
    pub(super) labels_stride: u64,
    pub(super) d_logits_stride: u64,
    pub(super) sums_stride: u64,
    pub(super) samples: u64,
    pub(super) block_len: u64,
    pub(super) blocks: u64,
    pub(super) max_parts: u64,
    pub(super) kind: u32,
    pub(super) scale: f32,
}

/// As in `loss.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ProbabilityArgs {
    pub(super) logits: DevicePtr,
    pub(super) probabilities: DevicePtr,
    pub(super) logits_stride: u64,
    pub(super) probabilities_stride: u64,
    pub(super) samples: u64,
}

pub fn forward_backward(stream: &Stream, args: &LossArgs<'_>) {
    let stream = stream.cuda_body();
    let samples = args.logits.rows();
    let max_parts = (args.block_len.min(samples) / PART).clamp(1, MAX_PARTS);
    let Some(parts) = scratch(stream) else { return };
    let launched = LossKernelArgs {
        logits: args.logits.device_ptr(),
        labels: args.labels.device_ptr(),
        d_logits: args.d_logits.device_ptr(),
        sums: args.sums.device_ptr(),
        parts: parts.ptr(),
        loss_scale: args.loss_scale.map_or(DevicePtr::NULL, |scale| scale.state.device_ptr()),
        logits_stride: args.logits.stride() as u64,
        labels_stride: args.labels.stride() as u64,
        d_logits_stride: args.d_logits.stride() as u64,
        sums_stride: args.sums.stride() as u64,
        samples: samples as u64,
        block_len: args.block_len as u64,
        blocks: args.sums.rows() as u64,
        max_parts: max_parts as u64,
        kind: match args.loss {
            Loss::BceWithLogits => 0,
            Loss::MseOfSigmoid => 1,
        },
        scale: args.scale,
    };
    let shape = |items| Launch::new(blocks(stream, items), THREADS);
    stream.run(&SOURCE, &[], "loss_parts", shape(args.sums.rows() * max_parts), &launched);
    if max_parts > 1 {
        stream.run(&SOURCE, &[], "loss_blocks", shape(args.sums.rows()), &launched);
    }
}

pub fn probabilities(stream: &Stream, logits: &Mat, probabilities: &Mat) {
    let stream = stream.cuda_body();
    let launched = ProbabilityArgs {
        logits: logits.device_ptr(),
        probabilities: probabilities.device_ptr(),
        logits_stride: logits.stride() as u64,
        probabilities_stride: probabilities.stride() as u64,
        samples: logits.rows() as u64,
    };
    let shape = Launch::new(blocks(stream, logits.rows().div_ceil(THREADS as usize)), THREADS);
    stream.run(&SOURCE, &[], "probabilities", shape, &launched);
}
