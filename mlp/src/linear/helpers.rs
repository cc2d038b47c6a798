//! Launches of `linear.cu`: what is done apart from the products.

use super::Partials;
use crate::cuda::{SCRATCH_BYTES, THREADS, blocks as grid, scratch};
use headlong_device::cuda::{
    Build, CudaStream, Define, DevicePtr, Launch, Mats, Source, kernel_args,
};
use headlong_device::{DType, DeviceError, Mat};

pub static SOURCE: Source = Source { name: "mlp/linear", text: include_str!("linear.cu") };

kernel_args! {
    pub struct BiasArgs { values, bias: DevicePtr; stride, rows, cols, relu: u64; }

    pub struct MaskAndSumArgs {
        gradient, output, bits, sums: DevicePtr;
        gradient_stride, output_stride, bits_stride, rows, cols, padded_cols, block_len,
        blocks, parts: u64;
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
    grid(stream, rows.div_ceil(rows_at_once))
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
#[derive(Debug)]
pub enum Passed {
    /// What it has put out: whatever is above zero.
    Output(Mat),
    /// One bit an element, as cuBLASLt's epilogue leaves them.
    Bits(Mat),
}

impl Passed {
    fn rows_range(&self, first: usize, count: usize) -> Self {
        match self {
            Self::Output(mat) => Self::Output(mat.rows_range(first, count)),
            Self::Bits(mat) => Self::Bits(mat.rows_range(first, count)),
        }
    }
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

impl<'a> ColumnSums<'a> {
    /// Of a layer's `rows` of gradients: its bias gradient, or those of blocks, which are added up
    /// later. A short batch's block has the parts of a long one's, on any number of ranks.
    pub fn of_bias(
        d_b: &'a Mat,
        partials: Option<&'a Partials>,
        (rows, block_len): (usize, usize),
        accumulate: bool,
    ) -> Self {
        match partials {
            None => Self { sums: d_b, block_len: block_len.max(rows), accumulate },
            Some(partials) => Self { sums: &partials.bias, block_len, accumulate: false },
        }
    }
}

/// Rows of a part, at least, when columns are summed in parts.
const PART_ROWS: usize = 128;

/// Columns of a block of threads that adds up parts: as in `linear.cu`.
const SUMMED_COLS: usize = 8;

/// Blocks of rows, and the parts that each is cut into.
struct Blocks {
    count: usize,
    len: usize,
    parts: usize,
}

/// Zeros in the gradient where the ReLU let nothing pass, and the sums of its columns: one pass.
///
/// How a block's rows are cut into parts does not depend on how many blocks there are, so that one
/// rank adds up as several do; those whose parts find no room in the scratch memory come later.
pub fn mask_and_sum(
    stream: &CudaStream,
    gradient: &Mat,
    passed: Option<Passed>,
    sums: Option<&ColumnSums<'_>>,
) {
    let (rows, cols) = (gradient.rows(), gradient.cols());
    if cols == 0 {
        return;
    }
    let Some(ColumnSums { sums, block_len, accumulate }) = sums else {
        let all = Blocks { count: 1, len: rows, parts: (rows / PART_ROWS).max(1) };
        return launch_pass(stream, gradient, passed.as_ref(), &all, DevicePtr::NULL);
    };
    assert!(sums.rows() * block_len >= rows, "{} blocks of {block_len} for {rows}", sums.rows());
    let bytes_of_part = size_of::<f32>() * cols;
    if bytes_of_part > SCRATCH_BYTES {
        let (what, most) = ("a bias gradient".to_owned(), SCRATCH_BYTES / size_of::<f32>());
        let reason = format!("{cols} columns, more than {most}");
        return stream.fail(DeviceError::Misuse { what, reason });
    }
    let Some(scratch) = scratch(stream) else { return };
    let parts = (block_len / PART_ROWS).min(SCRATCH_BYTES / bytes_of_part).max(1);
    let at_once = SCRATCH_BYTES / (bytes_of_part * parts);
    for first in (0..sums.rows()).step_by(at_once) {
        let blocks = Blocks { count: at_once.min(sums.rows() - first), len: *block_len, parts };
        let start = (first * block_len).min(rows);
        let len = (blocks.count * block_len).min(rows - start);
        let passed = passed.as_ref().map(|passed| passed.rows_range(start, len));
        let gradient = gradient.rows_range(start, len);
        launch_pass(stream, &gradient, passed.as_ref(), &blocks, scratch.ptr());
        let launched = SumPartsArgs {
            sums: scratch.ptr(),
            d_bias: sums.rows_range(first, blocks.count).device_ptr(),
            stride: sums.stride() as u64,
            cols: cols as u64,
            blocks: blocks.count as u64,
            parts: parts as u64,
            accumulate: u64::from(*accumulate),
        };
        let items = cols.div_ceil(SUMMED_COLS) * blocks.count;
        let shape = Launch::new(grid(stream, items), THREADS);
        stream.run(&SOURCE, &defines(gradient.dtype()), "sum_parts", shape, &launched);
    }
}

/// The pass over blocks of rows; `sums` may be none.
fn launch_pass(
    stream: &CudaStream,
    gradient: &Mat,
    passed: Option<&Passed>,
    blocks: &Blocks,
    sums: DevicePtr,
) {
    let (output, bits) = match passed {
        Some(Passed::Output(output)) => (Some(output), None),
        Some(Passed::Bits(bits)) => (None, Some(bits)),
        None => (None, None),
    };
    let ptr = |mat: Option<&Mat>| mat.map_or(DevicePtr::NULL, Mat::device_ptr);
    let stride = |mat: Option<&Mat>| mat.map_or(0, Mat::stride) as u64;
    let padded_cols = if passed.is_some() { filled_up(gradient) } else { gradient.cols() };
    let launched = MaskAndSumArgs {
        gradient: gradient.device_ptr(),
        output: ptr(output),
        bits: ptr(bits),
        sums,
        gradient_stride: gradient.stride() as u64,
        output_stride: stride(output),
        bits_stride: stride(bits) * size_of::<u32>() as u64,
        rows: gradient.rows() as u64,
        cols: gradient.cols() as u64,
        padded_cols: padded_cols as u64,
        block_len: blocks.len as u64,
        blocks: blocks.count as u64,
        parts: blocks.parts as u64,
    };
    let is_aligned = [Some(gradient), output].into_iter().flatten().all(|mat| {
        assert_eq!(mat.dtype(), gradient.dtype(), "slot `{}`", mat.name());
        let row_bytes = mat.stride() * mat.dtype().bytes();
        row_bytes.is_multiple_of(16) && mat.device_ptr().0.is_multiple_of(16)
    });
    // A piece that is stored is all of the gradient's: what follows its columns may be another's.
    let whole = 16 / gradient.dtype().bytes();
    let is_whole = passed.is_none() || padded_cols.is_multiple_of(whole);
    let (entry, in_piece) = match is_aligned && is_whole {
        true => ("mask_and_sum", whole),
        false => ("mask_and_sum_singles", 1),
    };
    let items = padded_cols.div_ceil(32 * in_piece) * blocks.parts * blocks.count;
    let shape = Launch::new(grid(stream, items), THREADS);
    stream.run(&SOURCE, &defines(gradient.dtype()), entry, shape, &launched);
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
