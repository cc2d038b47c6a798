//! Launches of `linear.cu`: what is done apart from the products.

use crate::cuda::{SCRATCH_BYTES, THREADS, blocks, scratch};
use headlong_device::cuda::{
    Build, CudaStream, Define, DevicePtr, Launch, Mats, Source, kernel_args,
};
use headlong_device::{DType, Mat};

pub static SOURCE: Source = Source { name: "mlp/linear", text: include_str!("linear.cu") };

kernel_args! {
    pub struct BiasArgs { values, bias: DevicePtr; stride, rows, cols, relu: u64; }

    pub struct MaskAndSumArgs {
        gradient, output, bits, sums: DevicePtr;
        gradient_stride, output_stride, bits_stride, rows, cols, block_len, blocks, parts: u64;
    }

    pub struct SumPartsArgs {
        sums, d_bias: DevicePtr;
        stride, cols, blocks, parts, accumulate: u64;
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

/// What a ReLU let pass.
#[derive(Debug, Clone, Copy)]
pub enum Passed<'a> {
    /// What it has put out: whatever is above zero.
    Output(&'a Mat),
    /// One bit an element, as cuBLASLt's epilogue leaves them.
    Bits(&'a Mat),
}

/// Where sums of columns go: a row for each block of so many rows.
#[derive(Debug)]
pub(crate) struct ColumnSums<'a> {
    /// Blocks × columns.
    pub sums: &'a Mat,
    /// Rows of a block.
    pub block_len: usize,
    /// Adds to what is there.
    pub accumulate: bool,
}

/// Rows of a part, at least, when columns are summed in parts.
const PART_ROWS: usize = 128;

/// Columns of a block of threads that adds up parts: as in `linear.cu`.
const SUMMED_COLS: usize = 8;

/// Zeros in the gradient where the ReLU let nothing pass, and the sums of its columns: one pass.
pub fn mask_and_sum(
    stream: &CudaStream,
    gradient: &Mat,
    passed: Option<Passed<'_>>,
    sums: Option<&ColumnSums<'_>>,
) {
    let (rows, cols) = (gradient.rows(), gradient.cols());
    let Some(scratch) = scratch(stream) else { return };
    let (blocks_of_rows, block_len) = sums.map_or((1, rows), |to| (to.sums.rows(), to.block_len));
    let fitting = SCRATCH_BYTES / (size_of::<f32>() * cols * blocks_of_rows);
    let parts = (block_len / PART_ROWS).min(fitting).max(1);
    let (output, bits) = match passed {
        Some(Passed::Output(output)) => (Some(output), None),
        Some(Passed::Bits(bits)) => (None, Some(bits)),
        None => (None, None),
    };
    let ptr = |mat: Option<&Mat>| mat.map_or(DevicePtr::NULL, Mat::device_ptr);
    let stride = |mat: Option<&Mat>| mat.map_or(0, Mat::stride) as u64;
    let launched = MaskAndSumArgs {
        gradient: gradient.device_ptr(),
        output: ptr(output),
        bits: ptr(bits),
        sums: if sums.is_some() { scratch.ptr() } else { DevicePtr::NULL },
        gradient_stride: gradient.stride() as u64,
        output_stride: stride(output),
        bits_stride: stride(bits) * size_of::<u32>() as u64,
        rows: rows as u64,
        cols: cols as u64,
        block_len: block_len as u64,
        blocks: blocks_of_rows as u64,
        parts: parts as u64,
    };
    let is_wide = [Some(gradient), output].into_iter().flatten().all(|mat| {
        let row_bytes = mat.stride() * mat.dtype().bytes();
        row_bytes.is_multiple_of(16) && mat.device_ptr().0.is_multiple_of(16)
    });
    let (entry, in_piece) = match is_wide {
        true => ("mask_and_sum", 16 / gradient.dtype().bytes()),
        false => ("mask_and_sum_singles", 1),
    };
    let items = cols.div_ceil(32 * in_piece) * parts * blocks_of_rows;
    let shape = |items| Launch::new(blocks(stream, items), THREADS);
    stream.run(&SOURCE, &defines(gradient.dtype()), entry, shape(items), &launched);
    let Some(ColumnSums { sums, accumulate, .. }) = sums else { return };
    let launched = SumPartsArgs {
        sums: scratch.ptr(),
        d_bias: sums.device_ptr(),
        stride: sums.stride() as u64,
        cols: cols as u64,
        blocks: blocks_of_rows as u64,
        parts: parts as u64,
        accumulate: u64::from(*accumulate),
    };
    let shape = shape(cols.div_ceil(SUMMED_COLS) * blocks_of_rows);
    stream.run(&SOURCE, &defines(gradient.dtype()), "sum_parts", shape, &launched);
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
