//! Dense layer: `Y = act(X·Wᵀ + b)`, and its gradients in two separate ops, so that the schedule
//! can put each on a lane.
//!
//! # What it computes
//! * [`forward`]: `Y = act(X·Wᵀ + b)`, or without `b`.
//! * [`backward_data`]: `dX = dZ·W`, where `dZ` is the gradient before the activation. Given the
//!   layer's input as [`BackwardDataArgs::mask`], it is masked by the ReLU of the layer below in
//!   the same pass: then `dX` is that layer's `dZ`.
//! * [`backward_weights`]: `dW = dZᵀ·X` and `db = Σ dZ`, over samples in their order.
//!
//! # Shapes
//! `X` samples × in, `W` out × in (PyTorch's layout), `b` 1 × out, `Y` and `dZ` samples × out; f32,
//! rows may be strided.
//!
//! # Sums
//! Every element is one chain of fused multiply-adds in a fixed order ([`crate::gemm`]); `dW` and
//! `db` are summed per block of samples in sample order, then over blocks in one binary tree
//! ([`crate::sum`]).
//!
//! # Work
//! On the CPU each op blocks until its tiles are done, and allocates nothing. On a device each
//! enqueues a product of cuBLASLt, whose order of addition is the library's, the same for the same
//! shape; where no epilogue adds the bias, a kernel; and for gradients one that applies the ReLU
//! below and sums the columns, parts of the rows in order, then the parts. Errors: those of the
//! stream; wrong shapes panic.
//!
//! # Source
//! Naumov et al., "Deep Learning Recommendation Model", 2019, §2; PyTorch `nn.Linear`.

mod compute;
mod cpu;
mod cuda;
mod helpers;
#[cfg(test)]
mod tests;
mod weights;

pub use compute::Compute;
pub(crate) use helpers::{ColumnSums, build, copy_rounded};
pub(crate) use weights::copy_into;
pub use weights::{Weights, WeightsPlan};

use headlong_device::{Device, Mat, Stream};

/// What a layer does to its sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// Nothing: logits.
    None,
    /// `max(0, z)`.
    Relu,
}

/// Arguments of [`forward`].
#[derive(Debug)]
pub struct ForwardArgs<'a> {
    /// Input, samples × in.
    pub x: &'a Mat,
    /// Weights; [`Weights::refresh`] has run since they last changed.
    pub w: &'a Weights,
    /// Bias, 1 × out, where the layer has one.
    pub b: Option<&'a Mat>,
    /// Output, samples × out.
    pub y: &'a Mat,
    /// What follows the sums.
    pub activation: Activation,
}

/// `Y = act(X·Wᵀ + b)`.
pub fn forward(stream: &Stream, args: &ForwardArgs<'_>) {
    forward_with_mask(stream, args, None);
}

/// As [`forward`]; a device whose products can leaves in `mask`, one bit an element, where the ReLU
/// let its input pass.
pub(crate) fn forward_with_mask(stream: &Stream, args: &ForwardArgs<'_>, mask: Option<&Mat>) {
    let (samples, inputs, outputs) = (args.x.rows(), args.w.inputs(), args.w.outputs());
    shape("input", args.x, samples, inputs);
    if let Some(b) = args.b {
        shape("bias", b, 1, outputs);
    }
    shape("output", args.y, samples, outputs);
    match stream.device() {
        Device::Cpu => cpu::forward(stream, args),
        Device::Cuda(_) => cuda::forward(stream, args, mask),
    }
}

/// Arguments of [`backward_data`].
#[derive(Debug)]
pub struct BackwardDataArgs<'a> {
    /// Gradient before the activation, samples × out.
    pub d_z: &'a Mat,
    /// Weights; [`Weights::refresh`] has run since they last changed.
    pub w: &'a Weights,
    /// Gradient with respect to the input, samples × in.
    pub d_x: &'a Mat,
    /// The input where a ReLU made it: the gradient becomes zero where it is not above zero.
    pub mask: Option<&'a Mat>,
    /// Adds to what the gradient holds instead of overwriting it: the input is also used after
    /// the layer.
    pub accumulate: bool,
}

/// `dX = dZ·W`, masked by the ReLU below.
pub fn backward_data(stream: &Stream, args: &BackwardDataArgs<'_>) {
    backward_data_with_mask(stream, args, None);
}

/// What a device does of the layer below when it applies its ReLU to the data gradient.
#[derive(Debug, Default)]
pub(crate) struct Below<'a> {
    /// The mask that [`forward_with_mask`] left there, if it did.
    pub mask: Option<&'a Mat>,
    /// Where its bias gradient goes, or those of blocks of samples.
    pub sums: Option<ColumnSums<'a>>,
}

/// Whether [`forward_with_mask`] leaves a mask with these arguments.
pub(crate) fn keeps_mask(stream: &Stream, args: &ForwardArgs<'_>) -> bool {
    matches!(stream.device(), Device::Cuda(_)) && cuda::keeps_mask(stream, args)
}

/// As [`backward_data`]; a device does what `below` wants.
pub(crate) fn backward_data_with_mask(
    stream: &Stream,
    args: &BackwardDataArgs<'_>,
    below: Option<&Below<'_>>,
) {
    let (samples, inputs, outputs) = (args.d_z.rows(), args.w.inputs(), args.w.outputs());
    shape("gradient of the output", args.d_z, samples, outputs);
    shape("gradient of the input", args.d_x, samples, inputs);
    if let Some(mask) = args.mask {
        shape("mask", mask, samples, inputs);
    }
    match stream.device() {
        Device::Cpu => cpu::backward_data(stream, args),
        Device::Cuda(_) => cuda::backward_data(stream, args, below),
    }
}

/// Arguments of [`backward_weights`].
#[derive(Debug)]
pub struct BackwardWeightsArgs<'a> {
    /// Input of the layer, samples × in.
    pub x: &'a Mat,
    /// Gradient before the activation, samples × out.
    pub d_z: &'a Mat,
    /// Gradient of the weights, out × in.
    pub d_w: &'a Mat,
    /// Gradient of the bias, 1 × out, where the layer has one.
    pub d_b: Option<&'a Mat>,
    /// Sums of the blocks of samples; none for one block.
    pub partials: Option<&'a Partials>,
    /// Samples of one block ([`crate::sum::block_len`]), where there are blocks; they hold all
    /// samples.
    pub block_len: usize,
    /// Adds to what the gradients hold instead of overwriting them.
    pub accumulate: bool,
    /// What the product is computed in, as that of the layer's weights.
    pub compute: Compute,
}

/// Where blocks of samples keep their sums before the tree adds them up.
#[derive(Debug, Clone)]
pub struct Partials {
    /// Number of blocks.
    pub sum_blocks: usize,
    /// Whether the CPU rounds blocks and their sums to bf16.
    pub narrow: bool,
    /// (blocks · out) × in.
    pub weight: Mat,
    /// blocks × out.
    pub bias: Mat,
}

/// `dW = dZᵀ·X` and `db = Σ dZ`.
pub fn backward_weights(stream: &Stream, args: &BackwardWeightsArgs<'_>) {
    backward_weights_with(stream, args, false);
}

/// As [`backward_weights`]; where a device `has_bias`, the sums of `d_z` are there already: the
/// bias gradient, or those of blocks.
pub(crate) fn backward_weights_with(
    stream: &Stream,
    args: &BackwardWeightsArgs<'_>,
    has_bias: bool,
) {
    let (samples, inputs, outputs) = (args.x.rows(), args.x.cols(), args.d_z.cols());
    shape("gradient of the output", args.d_z, samples, outputs);
    shape("gradient of the weights", args.d_w, outputs, inputs);
    if let Some(d_b) = args.d_b {
        shape("gradient of the bias", d_b, 1, outputs);
    }
    if let Some(partials) = args.partials {
        shape("block sums of the weights", &partials.weight, partials.sum_blocks * outputs, inputs);
        shape("block sums of the bias", &partials.bias, partials.sum_blocks, outputs);
    }
    match stream.device() {
        Device::Cpu => cpu::backward_weights(stream, args),
        Device::Cuda(_) => cuda::backward_weights(stream, args, has_bias),
    }
}

fn shape(what: &str, mat: &Mat, rows: usize, cols: usize) {
    let got = (mat.rows(), mat.cols());
    assert_eq!(got, (rows, cols), "{what}, slot `{}`: rows × columns", mat.name());
}
