//! Launches of `dot.cu`, which computes in f32 from matrices of any type.

use super::args::{DotBackwardArgs, DotForwardArgs, MAX_SHARED_BYTES, MAX_WARPS, Types};
use super::tensor::Tensor;
use super::{BackwardArgs, ForwardArgs};
use crate::cuda::blocks;
use headlong_device::cuda::{Build, CudaStream, Define, Launch, Source};
use headlong_device::{DType, Stream};

pub static SOURCE: Source = Source {
    name: "mlp/dot",
    text: concat!(
        include_str!("../../loss_scale/unscale.cuh"),
        include_str!("dot.cuh"),
        include_str!("dot.cu")
    ),
};

/// The compile-time constants for a shape, and the shared memory they lead to.
#[derive(Debug, Clone, Copy)]
struct Instance {
    vectors: usize,
    dim: usize,
    row_tile: usize,
    warps: usize,
    types: Types,
}

impl Instance {
    /// For matrices of these types.
    fn of(vectors: usize, dim: usize, types: Types) -> Self {
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

    fn defines(&self) -> [Define; 7] {
        let define = |name, value: usize| Define::new(name, value as i64);
        let [element, vectors, d_vectors] = self.types.defines();
        [
            define("NUM_VECTORS", self.vectors),
            define("DIM", self.dim),
            define("ROW_TILE", self.row_tile),
            define("WARPS", self.warps),
            element,
            vectors,
            d_vectors,
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
/// vectors of [`super::vector_type`], with gradients as training stores them.
pub fn builds(vectors: usize, dim: usize) -> Vec<Build> {
    let build = |types| match Tensor::of(vectors, dim, types) {
        Some(tensor) => tensor.build(),
        None => {
            let defines = Instance::of(vectors, dim, types).defines().to_vec();
            Build { source: &SOURCE, defines }
        }
    };
    let types = [DType::F32, DType::Bf16, DType::F16]
        .map(|result| Types::of_training(result, super::vector_type(vectors, dim, result)));
    types.into_iter().map(build).collect()
}

pub fn forward(stream: &Stream, args: &ForwardArgs<'_>) {
    let (stream, samples, dim) = (stream.cuda_body(), args.bottom.rows(), args.bottom.cols());
    let (count, types) = (args.vectors.cols() / dim, Types::of_forward(args));
    if let Some(tensor) = Tensor::of(count, dim, types) {
        return tensor.forward(stream, args);
    }
    let instance = Instance::of(count, dim, types);
    let (names, bytes) = (["dot_forward", "dot_forward_large"], instance.forward_bytes());
    instance.run(stream, names, bytes, samples, &DotForwardArgs::new(args, 4, 0));
}

pub fn backward(stream: &Stream, args: &BackwardArgs<'_>) {
    let (stream, samples, dim) = (stream.cuda_body(), args.bottom.rows(), args.bottom.cols());
    let (count, types) = (args.vectors.cols() / dim, Types::of_backward(args));
    if let Some(tensor) = Tensor::of(count, dim, types) {
        return tensor.backward(stream, args);
    }
    let instance = Instance::of(count, dim, types);
    let (names, bytes) = (["dot_backward", "dot_backward_large"], instance.backward_bytes());
    instance.run(stream, names, bytes, samples, &DotBackwardArgs::new(args, 4, 0));
}
