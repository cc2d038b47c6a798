//! Launches of `loss.cu`.

use super::{Loss, LossArgs};
use crate::cuda::{SCRATCH_BYTES, THREADS, blocks, scratch};
use headlong_device::Stream;
use headlong_device::cuda::{DevicePtr, Launch, Mats, Source, kernel_args};

pub static SOURCE: Source =
    Source { name: "mlp/loss", text: concat!(include_str!("../sum.cuh"), include_str!("loss.cu")) };

/// Fewest samples of a part of a block, where it has several, and most parts of a block: as in
/// `loss.cu`.
const PART: usize = 1024;
const MAX_PARTS: usize = 64;
const _: () = assert!(super::MAX_SUM_BLOCKS * MAX_PARTS * size_of::<f64>() <= SCRATCH_BYTES);

kernel_args! {
    pub struct LossKernelArgs(logits, labels, d_logits, sums) {
        parts, loss_scale: DevicePtr;
        samples, block_len, blocks, max_parts: u64;
        kind: u32;
        scale: f32;
    }
}

pub fn forward_backward(stream: &Stream, args: &LossArgs<'_>) {
    let stream = stream.cuda_body();
    let samples = args.logits.rows();
    let max_parts = (args.block_len.min(samples) / PART).clamp(1, MAX_PARTS);
    let Some(parts) = scratch(stream) else { return };
    let launched = LossKernelArgs {
        mats: Mats::new([args.logits, args.labels, args.d_logits, args.sums]),
        parts: parts.ptr(),
        loss_scale: args.loss_scale.map_or(DevicePtr::NULL, |scale| scale.state.device_ptr()),
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
