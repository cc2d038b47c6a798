//! What both kinds of kernels take.

use super::{BackwardArgs, ForwardArgs, vector_gradient_type};
use crate::linear::Activation;
use crate::loss_scale::UnscaleArgs;
use headlong_device::cuda::{Define, Mats, kernel_args};
use headlong_device::{DType, Mat};

/// Most shared memory of a block: two blocks and more fit a multiprocessor of any architecture that
/// is compiled for.
pub const MAX_SHARED_BYTES: usize = 72 << 10;

/// Samples of a block, at most.
pub const MAX_WARPS: usize = 4;

/// Element types that kernels are compiled for.
#[derive(Debug, Clone, Copy)]
pub struct Types {
    /// Of the bottom output, the result and their gradients.
    pub result: DType,
    pub vectors: DType,
    pub d_vectors: DType,
}

impl Types {
    pub const fn new(result: DType, vectors: DType, d_vectors: DType) -> Self {
        Self { result, vectors, d_vectors }
    }

    /// With gradients as training stores them.
    pub const fn of_training(result: DType, vectors: DType) -> Self {
        Self::new(result, vectors, vector_gradient_type(vectors))
    }

    /// The forward pass has no gradients: it takes the instance of training.
    pub fn of_forward(args: &ForwardArgs<'_>) -> Self {
        Self::of_training(args.out.dtype(), args.vectors.dtype())
    }

    pub fn of_backward(args: &BackwardArgs<'_>) -> Self {
        Self::new(args.d_out.dtype(), args.vectors.dtype(), args.d_vectors.dtype())
    }

    pub fn defines(self) -> [Define; 3] {
        [
            Define::dtype("ELEMENT", self.result),
            Define::dtype("VECTORS", self.vectors),
            Define::dtype("VECTOR_GRADIENTS", self.d_vectors),
        ]
    }
}

kernel_args! {
    pub struct DotForwardArgs(bottom, vectors, out) {
        samples: u64;
        aligned, out_aligned: u32;
    }

    pub struct DotBackwardArgs(bottom, vectors, d_out, d_bottom, d_vectors) {
        unscale: UnscaleArgs;
        samples: u64;
        aligned, out_aligned, relu: u32;
    }
}

impl DotForwardArgs {
    /// For a kernel that takes `count` elements of a row at a time, `line` or more of the result.
    pub fn new(args: &ForwardArgs<'_>, count: usize, line: usize) -> Self {
        let mats = [args.bottom, args.vectors, args.out];
        Self {
            mats: Mats::new(mats),
            samples: args.bottom.rows() as u64,
            aligned: u32::from(mats[..2].iter().all(|mat| starts_at_multiples_of(count, mat))),
            out_aligned: is_whole(args.out, count, line),
        }
    }
}

impl DotBackwardArgs {
    /// As [`DotForwardArgs::new`], of the result's gradient.
    pub fn new(args: &BackwardArgs<'_>, count: usize, line: usize) -> Self {
        let BackwardArgs { bottom, vectors, d_out, d_bottom, d_vectors, .. } = *args;
        let all = [bottom, vectors, d_bottom, d_vectors];
        Self {
            mats: Mats::new([bottom, vectors, d_out, d_bottom, d_vectors]),
            unscale: UnscaleArgs::new(args.loss_scale),
            samples: bottom.rows() as u64,
            aligned: u32::from(all.iter().all(|mat| starts_at_multiples_of(count, mat))),
            out_aligned: is_whole(d_out, count, line),
            relu: u32::from(args.bottom_activation == Activation::Relu),
        }
    }
}

/// Whether all rows start at multiples of `count` elements, or of 16 bytes, which is the widest
/// access.
fn starts_at_multiples_of(count: usize, mat: &Mat) -> bool {
    let bytes = (count * mat.dtype().bytes()).min(16) as u64;
    mat.device_ptr().0.is_multiple_of(bytes) && mat.stride().is_multiple_of(count)
}

/// Whether a result's rows may be read and written as lines of `line` elements.
fn is_whole(result: &Mat, count: usize, line: usize) -> u32 {
    u32::from(starts_at_multiples_of(count, result) && result.stride() >= line)
}
