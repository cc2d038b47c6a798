//! Products of cuBLASLt with what fits into their epilogues, and launches of `linear.cu` for what does not.

use super::{
    Activation, BackwardActivationArgs, BackwardDataArgs, BackwardWeightsArgs, ForwardArgs, Partials,
};
use crate::cuda::{SCRATCH_BYTES, THREADS, blocks, product, scratch};
use crate::sum::block;
use headlong_device::cuda::blas::{Epilogue, Math, MatmulArgs, MatmulSpec, Operand};
use headlong_device::cuda::{CudaStream, DevicePtr, Launch, Source};
use headlong_device::{DeviceError, Mat, Stream};

pub static SOURCE: Source = Source { name: "mlp/linear", text: include_str!("linear.cu") };

/// As in `linear.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct MaskArgs {
    pub(super) output: DevicePtr,
    pub(super) gradient: DevicePtr,
    pub(super) output_stride: u64,
    pub(super) gradient_stride: u64,
    pub(super) rows: u64,
    pub(super) cols: u64,
}

/// As in `linear.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BiasArgs {
    pub(super) values: DevicePtr,
    pub(super) bias: DevicePtr,
    pub(super) stride: u64,
    pub(super) rows: u64,
    pub(super) cols: u64,
    pub(super) relu: u64,
}

/// As in `linear.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BiasGradientArgs {
    pub(super) gradient: DevicePtr,
    pub(super) d_bias: DevicePtr,
    pub(super) sums: DevicePtr,
    pub(super) stride: u64,
    pub(super) rows: u64,
    pub(super) cols: u64,
    pub(super) parts: u64,
    pub(super) accumulate: u64,
}

/// As in `linear.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct TreeArgs {
    pub(super) blocks: DevicePtr,
    pub(super) total: DevicePtr,
    pub(super) blocks_stride: u64,
    pub(super) total_stride: u64,
    pub(super) rows: u64,
    pub(super) cols: u64,
    pub(super) count: u64,
    pub(super) accumulate: u64,
}

/// A thread an element.
fn elementwise<A: Copy>(stream: &CudaStream, entry: &'static str, elements: usize, args: &A) {
    let shape = Launch::new(blocks(stream, elements.div_ceil(THREADS as usize)), THREADS);
    stream.run(&SOURCE, &[], entry, shape, args);
}

/// Runs a product: with the first of the epilogues that the library has for it, which comes back. None after a failure.
fn run_with_first(
    stream: &CudaStream,
    spec: MatmulSpec,
    epilogues: &[Epilogue],
    args: &MatmulArgs,
) -> Option<Epilogue> {
    for &epilogue in epilogues {
        if let Some(plan) = product(stream, MatmulSpec { epilogue, ..spec }) {
            plan.run(stream, args);
            return Some(epilogue);
        }
    }
    let MatmulSpec { m, n, k, .. } = spec;
    let what = format!("a product of {m} × {k} and {k} × {n}");
    stream.fail(DeviceError::Misuse { what, reason: "cuBLASLt has no algorithm for it".to_owned() });
    None
}

fn plain(mat: &Mat) -> Operand {
    Operand::plain(mat.dtype(), mat.stride())
}

fn transposed(mat: &Mat) -> Operand {
    Operand::transposed(mat.dtype(), mat.stride())
}

/// A product that overwrites.
fn addresses(a: &Mat, b: &Mat, d: &Mat) -> MatmulArgs {
    MatmulArgs {
        alpha: 1.0,
        beta: 0.0,
        a: a.device_ptr(),
        b: b.device_ptr(),
        c: d.device_ptr(),
        d: d.device_ptr(),
        bias: DevicePtr::NULL,
        aux: DevicePtr::NULL,
    }
}

pub fn forward(stream: &Stream, args: &ForwardArgs<'_>) {
    let stream = stream.cuda_body();
    let (x, w, y) = (args.x, &args.w.values, args.y);
    if x.rows() == 0 {
        return;
    }
    let relu = args.activation == Activation::Relu;
    let fused = if relu { Epilogue::ReluBias } else { Epilogue::Bias };
    let spec = MatmulSpec {
        m: x.rows(),
        n: y.cols(),
        k: x.cols(),
        a: plain(x),
        b: transposed(w),
        d: plain(y),
        math: Math::Full,
        epilogue: fused,
        bias_dtype: args.b.dtype(),
    };
    let run = MatmulArgs { bias: args.b.device_ptr(), ..addresses(x, w, y) };
    if run_with_first(stream, spec, &[fused, Epilogue::None], &run) == Some(Epilogue::None) {
        let launched = BiasArgs {
            values: y.device_ptr(),
            bias: args.b.device_ptr(),
            stride: y.stride() as u64,
            rows: y.rows() as u64,
            cols: y.cols() as u64,
            relu: u64::from(relu),
        };
        elementwise(stream, "add_bias", y.rows() * y.cols(), &launched);
    }
}

pub fn backward_data(stream: &Stream, args: &BackwardDataArgs<'_>) {
    let stream = stream.cuda_body();
    let (d_z, w, d_x) = (args.d_z, &args.w.values, args.d_x);
    if d_z.rows() == 0 {
        return;
    }
    let spec = MatmulSpec {
        m: d_z.rows(),
        n: d_x.cols(),
        k: d_z.cols(),
        a: plain(d_z),
        b: plain(w),
        d: plain(d_x),
        math: Math::Full,
        epilogue: Epilogue::None,
        bias_dtype: d_x.dtype(),
    };
    let done = run_with_first(stream, spec, &[Epilogue::None], &addresses(d_z, w, d_x));
    if let (Some(mask), Some(_)) = (args.mask, done) {
        mask_gradient(stream, mask, d_x);
    }
}

fn mask_gradient(stream: &CudaStream, output: &Mat, gradient: &Mat) {
    let launched = MaskArgs {
        output: output.device_ptr(),
        gradient: gradient.device_ptr(),
        output_stride: output.stride() as u64,
        gradient_stride: gradient.stride() as u64,
        rows: gradient.rows() as u64,
        cols: gradient.cols() as u64,
    };
    elementwise(stream, "mask_gradient", gradient.rows() * gradient.cols(), &launched);
}

pub fn backward_weights(stream: &Stream, args: &BackwardWeightsArgs<'_>) {
    let stream = stream.cuda_body();
    match args.partials {
        None => sum_block(stream, (args.x, args.d_z), (args.d_w, args.d_b), args.accumulate),
        Some(partials) => {
            sum_all_blocks(stream, args, partials);
            let count = partials.sum_blocks;
            add_blocks(stream, &partials.weight, args.d_w, count, args.accumulate);
            add_blocks(stream, &partials.bias, args.d_b, count, args.accumulate);
        }
    }
}

fn sum_all_blocks(stream: &CudaStream, args: &BackwardWeightsArgs<'_>, partials: &Partials) {
    let outputs = args.d_z.cols();
    for index in 0..partials.sum_blocks {
        let samples = block(args.x.rows(), args.block_len, index);
        let of = |mat: &Mat| mat.rows_range(samples.start, samples.len());
        let sums =
            (&partials.weight.rows_range(index * outputs, outputs), &partials.bias.rows_range(index, 1));
        sum_block(stream, (&of(args.x), &of(args.d_z)), sums, false);
    }
}

/// `d_w = d_zᵀ·x` and `d_b = Σ d_z` of one block of samples.
fn sum_block(stream: &CudaStream, (x, d_z): (&Mat, &Mat), (d_w, d_b): (&Mat, &Mat), accumulate: bool) {
    if x.rows() == 0 {
        for mat in [d_w, d_b].into_iter().filter(|_| !accumulate) {
            stream.fill_bytes(mat.device_ptr(), 0, mat.rows() * mat.stride() * mat.dtype().bytes());
        }
        return;
    }
    let spec = MatmulSpec {
        m: d_z.cols(),
        n: x.cols(),
        k: x.rows(),
        a: transposed(d_z),
        b: plain(x),
        d: plain(d_w),
        math: Math::Full,
        epilogue: Epilogue::None,
        bias_dtype: d_b.dtype(),
    };
    let run = MatmulArgs {
        beta: if accumulate { 1.0 } else { 0.0 },
        bias: d_b.device_ptr(),
        ..addresses(d_z, x, d_w)
    };
    // The epilogue overwrites the bias gradient.
    let epilogues = if accumulate { &[Epilogue::None][..] } else { &[Epilogue::BgradA, Epilogue::None] };
    if run_with_first(stream, spec, epilogues, &run) == Some(Epilogue::None) {
        bias_gradient(stream, d_z, d_b, accumulate);
    }
}

/// Rows of a part, at least, when a bias gradient is summed in parts.
const PART_ROWS: usize = 512;

/// Parts, at most.
const MAX_PARTS: usize = 64;

fn bias_gradient(stream: &CudaStream, d_z: &Mat, d_b: &Mat, accumulate: bool) {
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
    stream.run(&SOURCE, &[], "bias_gradient_parts", Launch::new(blocks(stream, items), THREADS), &launched);
    if parts > 1 {
        elementwise(stream, "bias_gradient_total", d_z.cols(), &launched);
    }
}

fn add_blocks(stream: &CudaStream, blocks: &Mat, total: &Mat, count: usize, accumulate: bool) {
    let launched = TreeArgs {
        blocks: blocks.device_ptr(),
        total: total.device_ptr(),
        blocks_stride: blocks.stride() as u64,
        total_stride: total.stride() as u64,
        rows: total.rows() as u64,
        cols: total.cols() as u64,
        count: count as u64,
        accumulate: u64::from(accumulate),
    };
    elementwise(stream, "add_blocks", total.rows() * total.cols(), &launched);
}

pub fn backward_activation(stream: &Stream, args: &BackwardActivationArgs<'_>) {
    if args.activation == Activation::Relu {
        mask_gradient(stream.cuda_body(), args.y, args.d_y);
    }
}
