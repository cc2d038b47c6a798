//! Launches of `tensor.cu`: results in 16 bits, products on tensor cores.

use super::args::{DotBackwardArgs, DotForwardArgs, MAX_SHARED_BYTES, MAX_WARPS};
use super::{BackwardArgs, ForwardArgs};
use crate::cuda::blocks;
use headlong_device::DType;
use headlong_device::cuda::{Build, CudaStream, Define, Launch, Source};

pub static SOURCE: Source = Source {
    name: "mlp/dot-tensor",
    text: concat!(
        include_str!("../../loss_scale/unscale.cuh"),
        "#ifndef ELEMENT\n#define ELEMENT 2\n#endif\n",
        include_str!("dot.cuh"),
        include_str!("tensor.cu")
    ),
};

/// Rows of F, at most: their products are kept in registers.
const MAX_ROWS: usize = 64;

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
    fn run<A: Copy>(
        &self,
        stream: &CudaStream,
        entry: &'static str,
        bytes: usize,
        samples: usize,
        args: &A,
    ) {
        let grid = blocks(stream, samples.div_ceil(self.warps));
        let shape = Launch::new(grid, 32 * self.warps as u32).with_shared(bytes as u32);
        stream.run(&SOURCE, &self.defines(), entry, shape, args);
    }

    pub fn forward(&self, stream: &CudaStream, args: &ForwardArgs<'_>) {
        let launched = DotForwardArgs::new(args, 8, self.line());
        let bytes = self.forward_bytes();
        self.run(stream, "tensor_forward", bytes, args.bottom.rows(), &launched);
    }

    pub fn backward(&self, stream: &CudaStream, args: &BackwardArgs<'_>) {
        let launched = DotBackwardArgs::new(args, 8, self.line());
        let bytes = self.backward_bytes();
        self.run(stream, "tensor_backward", bytes, args.bottom.rows(), &launched);
    }
}
