//! Dot interaction: the products of all pairs of vectors of a sample.
//!
//! # What it computes
//! With `F` the rows `[bottom; vector 0; …; vector T-1]` of a sample (`T + 1` rows of D), the
//! output is `[bottom, F₁·F₀, F₂·F₀, F₂·F₁, F₃·F₀, …]`: the strict lower triangle of `F·Fᵀ` in row
//! order. Backwards, with `G` the gradients of the products as a symmetric matrix of zero diagonal,
//! `dF = G·F`, and the gradient of the copied bottom output is added to its row. With
//! [`BackwardArgs::bottom_activation`] the bottom gradient is masked in the same pass.
//!
//! # Shapes
//! bottom B × D, vectors B × (T·D), output B × [`output_width`]; f32, rows may be strided. On a
//! device the bottom, the output and their gradients may together be bf16 or f16, and vectors as
//! well as their gradients f32 or that type: then products are of that type on tensor cores where
//! D is a multiple of 16, and rows of the output that have room are filled up with zeros to a
//! multiple of eight. Sums are f32.
//!
//! # Sums
//! The product of vectors of up to 64 elements is one fused chain in their order. That of longer
//! ones is summed in sixteen lanes (lane l takes elements l, l + 16, …, fused), then lanes l and
//! l + 8, l and l + 4, l and l + 2, l and l + 1. A gradient is one fused chain over the rows of `F`
//! in order; the bottom's starts from the gradient of the copy. So results depend only on the
//! sample: not on threads, place in the batch or instruction set. On a device every product is one
//! fused chain, and gradients are the CPU's bits; tensor cores have an order of their own.
//!
//! # Bytes
//! The CPU reads the vectors once in each pass. Of 27 rows at D = 128 the forward pass reads 13 KiB
//! a sample for 90 kFLOP; the backward pass reads and writes 13 KiB each for 187 kFLOP. A core
//! takes about as long for the one as for the other, so gradients that do not fit its caches are
//! written past them, without being read before.
//!
//! # Work
//! On the CPU it blocks until done and allocates nothing; on a device it enqueues one or two
//! kernels. Errors: none; wrong shapes panic.
//!
//! # Source
//! Naumov et al., "Deep Learning Recommendation Model", 2019, §2.1.3; `interact_features` of
//! facebookresearch/dlrm.

mod args;
mod cpu;
mod cuda;
mod simd;
mod tensor;
#[cfg(test)]
mod tests;

pub(crate) use cuda::builds;

use crate::linear::Activation;
use crate::loss_scale::LossScale;
use crate::rounding::Rounding;
use headlong_device::{DType, Device, Mat, Stream};

/// Columns of the output: `dim + T(T + 1) / 2` for T vectors of `dim` elements.
pub const fn output_width(num_vectors: usize, dim: usize) -> usize {
    dim + num_vectors * (num_vectors + 1) / 2
}

/// The type in which vectors may be stored on a device where results are `result`: that type where
/// tensor cores take the shape, because they round vectors of f32 to the same numbers; else f32.
pub fn vector_type(num_vectors: usize, dim: usize, result: DType) -> DType {
    let types = args::Types::new(result, result, DType::F32);
    if tensor::Tensor::of(num_vectors, dim, types).is_some() { result } else { DType::F32 }
}

/// The type in which gradients of vectors of type `vectors` are stored on a device. Those of f16
/// are f32: without the loss scale, by which they are divided as they are written, they may be
/// smaller than any number of f16.
pub const fn vector_gradient_type(vectors: DType) -> DType {
    match vectors {
        DType::Bf16 => DType::Bf16,
        _ => DType::F32,
    }
}

/// Arguments of [`forward`].
#[derive(Debug)]
pub struct ForwardArgs<'a> {
    /// Output of the bottom MLP, B × D.
    pub bottom: &'a Mat,
    /// Pooled vectors, table after table, B × (T·D).
    pub vectors: &'a Mat,
    /// Input of the top MLP, B × [`output_width`].
    pub out: &'a Mat,
}

/// The bottom output and the products of all pairs. The CPU rounds vectors as `rounding` says
/// before they meet, as tensor cores do; those of f16, and many to a sample, in their slot.
pub fn forward(stream: &Stream, args: &ForwardArgs<'_>, rounding: Option<Rounding>) {
    shapes(args.bottom, args.vectors, args.out);
    match stream.device() {
        Device::Cpu => cpu::forward(stream, args, rounding),
        Device::Cuda(_) => cuda::forward(stream, args),
    }
}

/// Arguments of [`backward`].
#[derive(Debug)]
pub struct BackwardArgs<'a> {
    /// Output of the bottom MLP, B × D.
    pub bottom: &'a Mat,
    /// Pooled vectors, B × (T·D).
    pub vectors: &'a Mat,
    /// Gradient of the output, B × [`output_width`].
    pub d_out: &'a Mat,
    /// Gradient of the bottom output, B × D; overwritten.
    pub d_bottom: &'a Mat,
    /// Gradient of the vectors, B × (T·D); overwritten.
    pub d_vectors: &'a Mat,
    /// Activation that made the bottom output: with ReLU, `d_bottom` is the gradient before it.
    pub bottom_activation: Activation,
    /// How the loss is scaled: `d_vectors` are divided by the scale and looked through for what is
    /// not finite; `d_bottom` stays scaled.
    pub loss_scale: Option<&'a LossScale>,
}

/// The gradients of the bottom output and of the vectors, after [`forward`] with the same
/// `rounding`.
pub fn backward(stream: &Stream, args: &BackwardArgs<'_>, rounding: Option<Rounding>) {
    shapes(args.bottom, args.vectors, args.d_out);
    shapes(args.d_bottom, args.d_vectors, args.d_out);
    match stream.device() {
        Device::Cpu => {
            cpu::backward(stream, args, rounding);
            args.loss_scale.into_iter().for_each(|scale| scale.unscale(stream, args.d_vectors));
        }
        Device::Cuda(_) => cuda::backward(stream, args),
    }
}

fn shapes(bottom: &Mat, vectors: &Mat, out: &Mat) {
    let dim = bottom.cols();
    let fits = dim > 0 && vectors.cols().is_multiple_of(dim);
    assert!(fits, "slot `{}`: vectors of {dim}", vectors.name());
    let width = output_width(vectors.cols() / dim, dim);
    let samples = bottom.rows();
    assert_eq!(vectors.rows(), samples, "slot `{}`: rows", vectors.name());
    assert_eq!((out.rows(), out.cols()), (samples, width), "slot `{}`: rows × columns", out.name());
    assert_eq!(bottom.dtype(), out.dtype(), "slot `{}`: element type", bottom.name());
    let (name, of, with) = (vectors.name(), vectors.dtype(), out.dtype());
    assert!(of == DType::F32 || of == with, "slot `{name}`: element type {of:?} with {with:?}");
}
