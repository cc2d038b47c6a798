//! Launches of `linear.cu`: what is done apart from the products.

use crate::cuda::{SCRATCH_BYTES, THREADS, blocks, scratch};
use headlong_device::cuda::{
    Build, CudaStream, Define, DevicePtr, Launch, Mats, Source, kernel_args,
};
use headlong_device::{DType, Mat};

pub static SOURCE: Source = Source { name: "mlp/linear", text: include_str!("linear.cu") };

kernel_args! {
    pub struct MaskArgs(output, gradient) { rows, cols: u64; }

    pub struct BiasArgs { values, bias: DevicePtr; stride, rows, cols, relu: u64; }

    pub struct BiasGradientArgs {
        gradient, d_bias, sums: DevicePtr;
        stride, rows, cols, parts, accumulate: u64;
    }

    pub struct TreeArgs(blocks, total) { rows, cols, count, accumulate: u64; }

    #[derive(Default)]
    pub struct CopyArgs(from, to) { rows, cols, padded_cols: u64; }
}

/// Copies of one launch: as in `linear.cu`.
const MAX_COPIES: usize = 16;

kernel_args! {
    #[derive(Default)]
    pub struct CopiesArgs { copies: [CopyArgs; MAX_COPIES]; }
}

/// The instance for activations of a type.
pub fn build(dtype: DType) -> Build {
    Build { source: &SOURCE, defines: defines(dtype).to_vec() }
}

fn defines(dtype: DType) -> [Define; 1] {
    [Define::dtype("ELEMENT", dtype)]
}

/// Blocks that pass over a matrix as `for_each_element` does.
fn blocks_over(stream: &CudaStream, rows: usize, cols: usize) -> u32 {
    let rows_at_once = (THREADS as usize / cols.next_power_of_two()).max(1);
    blocks(stream, rows.div_ceil(rows_at_once))
}

fn elementwise<A: Copy>(stream: &CudaStream, entry: &'static str, mat: &Mat, args: &A) {
    let shape = Launch::new(blocks_over(stream, mat.rows(), mat.cols()), THREADS);
    stream.run(&SOURCE, &defines(mat.dtype()), entry, shape, args);
}

/// Rounds matrices of f32 to the type of their copies, all of one type; a copy's rows are filled up
/// with zeros as far as products read them.
pub fn copy_rounded<'a>(stream: &CudaStream, pairs: impl Iterator<Item = (&'a Mat, &'a Mat)>) {
    let mut pairs = pairs.peekable();
    while let Some((_, first)) = pairs.peek() {
        let (dtype, mut largest, mut count) = (first.dtype(), 0, 0);
        let mut launched = CopiesArgs::default();
        for (copy, (from, to)) in launched.copies.iter_mut().zip(pairs.by_ref()) {
            *copy = CopyArgs {
                mats: Mats::new([from, to]),
                rows: from.rows() as u64,
                cols: from.cols() as u64,
                padded_cols: filled_up(to) as u64,
            };
            (largest, count) =
                (largest.max(blocks_over(stream, from.rows(), filled_up(to))), count + 1);
        }
        let shape = Launch::new((largest, count), THREADS);
        stream.run(&SOURCE, &defines(dtype), "copy_rounded", shape, &launched);
    }
}

/// Elements of a row that a product of 16-bit matrices takes: a multiple of 16 bytes, where there
/// is room for it.
pub fn filled_up(mat: &Mat) -> usize {
    let whole = mat.cols().next_multiple_of(8);
    if mat.dtype() == DType::F32 || whole > mat.stride() { mat.cols() } else { whole }
}

/// `values = act(values + bias)`, where no epilogue has done it.
pub fn add_bias(stream: &CudaStream, values: &Mat, bias: &Mat, relu: bool) {
    let launched = BiasArgs {
        values: values.device_ptr(),
        bias: bias.device_ptr(),
        stride: values.stride() as u64,
        rows: values.rows() as u64,
        cols: values.cols() as u64,
        relu: u64::from(relu),
    };
    elementwise(stream, "add_bias", values, &launched);
}

/// Zeros in the gradient where the output is not above zero.
pub fn mask_gradient(stream: &CudaStream, output: &Mat, gradient: &Mat) {
    let launched = MaskArgs {
        mats: Mats::new([output, gradient]),
        rows: gradient.rows() as u64,
        cols: gradient.cols() as u64,
    };
    elementwise(stream, "mask_gradient", gradient, &launched);
}

/// Rows of a part, at least, when a bias gradient is summed in parts.
const PART_ROWS: usize = 512;

/// Parts, at most.
const MAX_PARTS: usize = 64;

/// `d_b = Σ d_z`, where no epilogue has done it.
pub fn bias_gradient(stream: &CudaStream, d_z: &Mat, d_b: &Mat, accumulate: bool) {
    let fitting = SCRATCH_BYTES / (size_of::<f32>() * d_z.cols());
    let parts = (d_z.rows() / PART_ROWS).min(MAX_PARTS).min(fitting).max(1);
    let Some(sums) = scratch(stream) else { return };
    let launched = BiasGradientArgs {
        gradient: d_z.device_ptr(),
        d_bias: d_b.device_ptr(),
        sums: sums.ptr(),
        stride: d_z.stride() as u64,
        rows: d_z.rows() as u64,
        cols: d_z.cols() as u64,
        parts: parts as u64,
        accumulate: u64::from(accumulate),
    };
    let items = d_z.cols().div_ceil(32) * parts;
    stream.run(
        &SOURCE,
        &defines(d_z.dtype()),
        "bias_gradient_parts",
        Launch::new(blocks(stream, items), THREADS),
        &launched,
    );
    if parts > 1 {
        let shape = Launch::new(blocks(stream, d_z.cols().div_ceil(THREADS as usize)), THREADS);
        stream.run(&SOURCE, &defines(d_z.dtype()), "bias_gradient_total", shape, &launched);
    }
}

/// Adds up blocks in the tree of [`crate::sum`], and uses them up.
pub fn add_blocks(stream: &CudaStream, blocks: &Mat, total: &Mat, count: usize, accumulate: bool) {
    let launched = TreeArgs {
        mats: Mats::new([blocks, total]),
        rows: total.rows() as u64,
        cols: total.cols() as u64,
        count: count as u64,
        accumulate: u64::from(accumulate),
    };
    elementwise(stream, "add_blocks", total, &launched);
}
