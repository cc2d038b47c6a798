//! Launches of `tensor.cu`: results in 16 bits, products on tensor cores.

use super::args::{DotBackwardArgs, DotForwardArgs, MAX_SHARED_BYTES, MAX_WARPS, Types};
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

/// Shared memory of a block, at most, where it has several warps: three blocks fit a multiprocessor
/// of 164 KiB (sm_80), four one of 228 KiB (sm_90a, sm_100), each of which keeps 1 KiB for a block.
const MAX_BLOCK_BYTES: usize = 53 << 10;

/// The compile-time constants for a shape.
#[derive(Debug, Clone, Copy)]
pub struct Tensor {
    vectors: usize,
    dim: usize,
    types: Types,
    warps: usize,
    buffers: usize,
}

impl Tensor {
    /// For matrices of these types, where tensor cores take them.
    pub fn of(vectors: usize, dim: usize, types: Types) -> Option<Self> {
        let mut tensor = Self { vectors, dim, types, warps: 1, buffers: 1 };
        let bytes = tensor.forward_bytes().max(tensor.backward_bytes());
        // Vectors that change their type on the way pass through registers: there is nothing to
        // wait for later.
        let copied = types.vectors != DType::F32;
        tensor.buffers = if copied && 2 * bytes <= MAX_SHARED_BYTES { 2 } else { 1 };
        tensor.warps = (MAX_BLOCK_BYTES / (tensor.buffers * bytes)).clamp(1, MAX_WARPS);
        let fits = dim.is_multiple_of(16) && vectors < MAX_ROWS && bytes <= MAX_SHARED_BYTES;
        (fits && types.result != DType::F32).then_some(tensor)
    }

    /// Elements of the result, filled up to 16 bytes.
    fn line(&self) -> usize {
        super::output_width(self.vectors, self.dim).next_multiple_of(8)
    }

    /// Elements of `rows` rows in shared memory.
    fn staged(&self, rows: usize) -> usize {
        rows * (self.dim + 8)
    }

    /// Shared memory of a block.
    fn forward_bytes(&self) -> usize {
        2 * self.warps * self.buffers * self.staged(self.vectors + 1).max(self.line())
    }

    /// Shared memory of a block: a row of zeros follows those of F where they fill no tile of 16.
    fn backward_bytes(&self) -> usize {
        let rows = self.vectors + 1;
        let rows = if rows.is_multiple_of(16) { rows } else { rows + 1 };
        2 * self.warps * self.buffers * (self.staged(rows) + self.line())
    }

    fn defines(&self) -> [Define; 7] {
        let define = |name, value: usize| Define::new(name, value as i64);
        let [element, vectors, d_vectors] = self.types.defines();
        [
            define("NUM_VECTORS", self.vectors),
            define("DIM", self.dim),
            define("WARPS", self.warps),
            define("BUFFERS", self.buffers),
            element,
            vectors,
            d_vectors,
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
