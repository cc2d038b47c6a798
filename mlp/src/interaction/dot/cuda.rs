//! Launches of `dot.cu`, which computes in f32, whatever the matrices hold.

use super::tensor::Tensor;
use super::{BackwardArgs, ForwardArgs};
use crate::cuda::blocks;
use crate::linear::Activation;
use crate::loss_scale::UnscaleArgs;
use headlong_device::cuda::{Build, CudaStream, Define, DevicePtr, Launch, Source};
use headlong_device::{DType, Mat, Stream};

pub static SOURCE: Source = Source {
    name: "mlp/dot",
    text: concat!(include_str!("../../loss_scale/unscale.cuh"), include_str!("dot.cu")),
};

/// Most shared memory of a block: two blocks and more fit a multiprocessor of any architecture that
/// is compiled for.
const MAX_SHARED_BYTES: usize = 72 << 10;

/// Samples of a block, at most.
const MAX_WARPS: usize = 4;

/// As in `dot.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct DotForwardArgs {
    pub(super) bottom: DevicePtr,
    pub(super) vectors: DevicePtr,
    pub(super) out: DevicePtr,
    pub(super) bottom_stride: u64,
    pub(super) vectors_stride: u64,
    pub(super) out_stride: u64,
    pub(super) samples: u64,
    pub(super) aligned: u32,
}

/// As in `dot.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct DotBackwardArgs {
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
    pub(super) relu: u32,
}

/// The compile-time constants for a shape, and the shared memory they lead to.
#[derive(Debug, Clone, Copy)]
struct Instance {
    vectors: usize,
    dim: usize,
    row_tile: usize,
    warps: usize,
    types: [DType; 2],
}

impl Instance {
    /// For results and vectors of these types.
    fn of(vectors: usize, dim: usize, types: [DType; 2]) -> Self {
        // A warp has enough gradient tiles for its lanes, each as tall as registers allow.
        let groups = (32 / dim.div_ceil(4)).max(1);
        let row_tile = (vectors + 1).div_ceil(groups).next_multiple_of(4).min(28);
        let mut instance = Self { vectors, dim, row_tile, warps: 1, types };
        let bytes = instance.forward_bytes().max(instance.backward_bytes());
        instance.warps = (MAX_SHARED_BYTES / bytes).clamp(1, MAX_WARPS);
        instance
    }

    fn rows(&self) -> usize {
        self.vectors + 1
    }

    fn stride(&self) -> usize {
        4 * (self.dim.div_ceil(4) | 1)
    }

    /// Shared memory of a block.
    fn forward_bytes(&self) -> usize {
        let pairs = (self.rows() * self.vectors / 2).next_multiple_of(4);
        4 * self.warps * (self.rows() * self.stride() + pairs)
    }

    /// Shared memory of a block.
    fn backward_bytes(&self) -> usize {
        4 * self.warps * self.rows() * (self.stride() + self.rows().next_multiple_of(self.row_tile))
    }

    fn defines(&self) -> [Define; 6] {
        let define = |name, value: usize| Define::new(name, value as i64);
        [
            define("NUM_VECTORS", self.vectors),
            define("DIM", self.dim),
            define("ROW_TILE", self.row_tile),
            define("WARPS", self.warps),
            Define::dtype("ELEMENT", self.types[0]),
            Define::dtype("VECTORS", self.types[1]),
        ]
    }

    /// A block takes as many samples at a time as it has warps; where one does not fit into its
    /// memory, one without it.
    fn run<A: Copy>(
        &self,
        stream: &CudaStream,
        names: [&'static str; 2],
        bytes: usize,
        samples: usize,
        args: &A,
    ) {
        let (entry, shape) = if bytes > MAX_SHARED_BYTES {
            (names[1], Launch::new(blocks(stream, samples), 128))
        } else {
            let shape =
                Launch::new(blocks(stream, samples.div_ceil(self.warps)), 32 * self.warps as u32);
            (names[0], shape.with_shared(bytes as u32))
        };
        stream.run(&SOURCE, &self.defines(), entry, shape, args);
    }
}

/// The instances for a number of vectors of `dim` elements: f32 throughout, and 16-bit results of
/// f32 and of 16-bit vectors.
pub fn builds(vectors: usize, dim: usize) -> Vec<Build> {
    let plain = |types| {
        let defines = Instance::of(vectors, dim, types).defines().to_vec();
        Build { source: &SOURCE, defines }
    };
    let mut all = vec![plain([DType::F32; 2])];
    for result in [DType::Bf16, DType::F16] {
        for types in [[result, DType::F32], [result; 2]] {
            all.push(
                Tensor::of(vectors, dim, types)
                    .map_or_else(|| plain(types), |tensor| tensor.build()),
            );
        }
    }
    all
}

pub fn forward(stream: &Stream, args: &ForwardArgs<'_>) {
    let (bottom, vectors, out) = (args.bottom, args.vectors, args.out);
    let (count, dim, types) =
        (vectors.cols() / bottom.cols(), bottom.cols(), [out.dtype(), vectors.dtype()]);
    if let Some(tensor) = Tensor::of(count, dim, types) {
        return tensor.forward(stream.cuda_body(), args);
    }
    let instance = Instance::of(count, dim, types);
    let launched = DotForwardArgs {
        bottom: bottom.device_ptr(),
        vectors: vectors.device_ptr(),
        out: out.device_ptr(),
        bottom_stride: bottom.stride() as u64,
        vectors_stride: vectors.stride() as u64,
        out_stride: out.stride() as u64,
        samples: bottom.rows() as u64,
        aligned: u32::from([bottom, vectors].into_iter().all(is_aligned)),
    };
    let names = ["dot_forward", "dot_forward_large"];
    instance.run(stream.cuda_body(), names, instance.forward_bytes(), bottom.rows(), &launched);
}

pub fn backward(stream: &Stream, args: &BackwardArgs<'_>) {
    let (bottom, vectors, d_out) = (args.bottom, args.vectors, args.d_out);
    let (d_bottom, d_vectors) = (args.d_bottom, args.d_vectors);
    let (count, dim, types) =
        (vectors.cols() / bottom.cols(), bottom.cols(), [d_out.dtype(), vectors.dtype()]);
    if let Some(tensor) = Tensor::of(count, dim, types) {
        return tensor.backward(stream.cuda_body(), args);
    }
    let instance = Instance::of(count, dim, types);
    let launched = DotBackwardArgs {
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
        aligned: u32::from([bottom, vectors, d_bottom, d_vectors].into_iter().all(is_aligned)),
        relu: u32::from(args.bottom_activation == Activation::Relu),
    };
    let names = ["dot_backward", "dot_backward_large"];
    instance.run(stream.cuda_body(), names, instance.backward_bytes(), bottom.rows(), &launched);
}

/// Whether all rows start at multiples of four elements.
fn is_aligned(mat: &Mat) -> bool {
    starts_at_multiples_of(4, mat)
}

/// Whether all rows start at multiples of `count` elements, or of 16 bytes, which is the widest
/// access.
pub fn starts_at_multiples_of(count: usize, mat: &Mat) -> bool {
    let bytes = (count * mat.dtype().bytes()).min(16) as u64;
    mat.device_ptr().0.is_multiple_of(bytes) && mat.stride().is_multiple_of(count)
}
