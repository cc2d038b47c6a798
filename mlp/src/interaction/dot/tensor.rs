//! Launches of `tensor.cu`: results in 16 bits, products on tensor cores.

use super::cuda::starts_at_multiples_of;
use super::{BackwardArgs, ForwardArgs};
use crate::cuda::blocks;
use crate::linear::Activation;
use crate::loss_scale::UnscaleArgs;
use headlong_device::cuda::{Build, CudaStream, Define, DevicePtr, Launch, Source};
use headlong_device::{DType, Mat};

pub static SOURCE: Source = Source {
    name: "mlp/dot-tensor",
    text: concat!(include_str!("../../loss_scale/unscale.cuh"), include_str!("tensor.cu")),
};

/// Most shared memory of a block.
const MAX_SHARED_BYTES: usize = 72 << 10;

/// Samples of a block, at most.
const MAX_WARPS: usize = 4;

/// Rows of F, at most: their products are kept in registers.
const MAX_ROWS: usize = 64;

/// As in `tensor.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct TensorForwardArgs {
    pub(super) bottom: DevicePtr,
    pub(super) vectors: DevicePtr,
    pub(super) out: DevicePtr,
    pub(super) bottom_stride: u64,
    pub(super) vectors_stride: u64,
    pub(super) out_stride: u64,
    pub(super) samples: u64,
    pub(super) aligned: u32,
    pub(super) out_aligned: u32,
}

/// As in `tensor.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct TensorBackwardArgs {
    pub(super) bottom: DevicePtr,
    pub(super) vectors: DevicePtr,
    pub(super) d_out: DevicePtr,
    pub(super) d_bottom: DevicePtr,
    pub(super) d_vectors: DevicePtr,
    pub(super) unscale: UnscaleArgs,
    pub(super) bottom_stride: u64,
    pub(super) vectors_stride: u64,
    pub(super) d_out_stride: u64,
    pub(super) d_bottom_stride: u64,
    pub(super) d_vectors_stride: u64,
    pub(super) samples: u64,
    pub(super) aligned: u32,
    pub(super) out_aligned: u32,
    pub(super) relu: u32,
}

/// The compile-time constants for a shape.
#[derive(Debug, Clone, Copy)]
pub struct Tensor {
    vectors: usize,
    dim: usize,
    types: [DType; 2],
    warps: usize,
}

impl Tensor {
    /// For results and vectors of these types, where tensor cores take them.
    pub fn of(vectors: usize, dim: usize, types: [DType; 2]) -> Option<Self> {
        let mut tensor = Self { vectors, dim, types, warps: 1 };
        let bytes = tensor.forward_bytes().max(tensor.backward_bytes());
        tensor.warps = (MAX_SHARED_BYTES / bytes).min(MAX_WARPS);
        let fits = dim.is_multiple_of(16) && vectors < MAX_ROWS && tensor.warps > 0;
        (fits && types[0] != DType::F32).then_some(tensor)
    }

    /// Rows of F, filled up.
    fn rows(&self) -> usize {
        (self.vectors + 1).next_multiple_of(16)
    }

    /// Elements of the result, filled up to 16 bytes.
    fn line(&self) -> usize {
        super::output_width(self.vectors, self.dim).next_multiple_of(8)
    }

    /// Shared memory of a block.
    fn forward_bytes(&self) -> usize {
        2 * self.warps * (self.rows() * (self.dim + 8) + self.line())
    }

    /// Shared memory of a block.
    fn backward_bytes(&self) -> usize {
        2 * self.warps * (self.rows() * (self.dim + 8 + self.rows() + 8) + self.line())
    }

    fn defines(&self) -> [Define; 5] {
        let define = |name, value: usize| Define::new(name, value as i64);
        [
            define("NUM_VECTORS", self.vectors),
            define("DIM", self.dim),
            define("WARPS", self.warps),
            Define::dtype("ELEMENT", self.types[0]),
            Define::dtype("VECTORS", self.types[1]),
        ]
    }

    /// The instance.
    pub fn build(&self) -> Build {
        Build { source: &SOURCE, defines: self.defines().to_vec() }
    }

    /// A block takes as many samples at a time as it has warps.
    fn shape(&self, stream: &CudaStream, samples: usize, bytes: usize) -> Launch {
        let shape =
            Launch::new(blocks(stream, samples.div_ceil(self.warps)), 32 * self.warps as u32);
        shape.with_shared(bytes as u32)
    }

    /// Whether a result's rows may be read and written as filled-up lines.
    fn is_whole(&self, result: &Mat) -> u32 {
        u32::from(starts_at_multiples_of(8, result) && result.stride() >= self.line())
    }

    pub fn forward(&self, stream: &CudaStream, args: &ForwardArgs<'_>) {
        let (bottom, vectors, out) = (args.bottom, args.vectors, args.out);
        let launched = TensorForwardArgs {
            bottom: bottom.device_ptr(),
            vectors: vectors.device_ptr(),
            out: out.device_ptr(),
            bottom_stride: bottom.stride() as u64,
            vectors_stride: vectors.stride() as u64,
            out_stride: out.stride() as u64,
            samples: bottom.rows() as u64,
            aligned: u32::from([bottom, vectors].iter().all(|mat| starts_at_multiples_of(8, mat))),
            out_aligned: self.is_whole(out),
        };
        let shape = self.shape(stream, bottom.rows(), self.forward_bytes());
        stream.run(&SOURCE, &self.defines(), "tensor_forward", shape, &launched);
    }

    pub fn backward(&self, stream: &CudaStream, args: &BackwardArgs<'_>) {
        let (bottom, vectors, d_out) = (args.bottom, args.vectors, args.d_out);
        let (d_bottom, d_vectors) = (args.d_bottom, args.d_vectors);
        let all = [bottom, vectors, d_bottom, d_vectors];
        let launched = TensorBackwardArgs {
            bottom: bottom.device_ptr(),
            vectors: vectors.device_ptr(),
            d_out: d_out.device_ptr(),
            d_bottom: d_bottom.device_ptr(),
            d_vectors: d_vectors.device_ptr(),
            unscale: UnscaleArgs::new(args.loss_scale),
            bottom_stride: bottom.stride() as u64,
            vectors_stride: vectors.stride() as u64,
            d_out_stride: d_out.stride() as u64,
            d_bottom_stride: d_bottom.stride() as u64,
            d_vectors_stride: d_vectors.stride() as u64,
            samples: bottom.rows() as u64,
            aligned: u32::from(all.iter().all(|mat| starts_at_multiples_of(8, mat))),
            out_aligned: self.is_whole(d_out),
            relu: u32::from(args.bottom_activation == Activation::Relu),
        };
        let shape = self.shape(stream, bottom.rows(), self.backward_bytes());
        stream.run(&SOURCE, &self.defines(), "tensor_backward", shape, &launched);
    }
}
