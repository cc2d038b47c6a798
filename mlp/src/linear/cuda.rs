//! Products of cuBLASLt with what fits into their epilogues; kernels do what does not.

use super::helpers::{ColumnSums, Passed, add_bias, add_blocks, filled_up, mask_and_sum};
use super::{Activation, BackwardDataArgs, BackwardWeightsArgs, Below, ForwardArgs, Partials};
use crate::cuda::{Alternatives, product};
use crate::sum::block;
use headlong_device::cuda::blas::{
    Alternative, Epilogue, Math, Matmul, MatmulArgs, MatmulSpec, Operand,
};
use headlong_device::cuda::{CudaStream, DevicePtr};
use headlong_device::{DeviceError, Mat, Stream};
use std::sync::Arc;

/// Runs a product with that of the epilogues that is done first, with what kernels then have to do;
/// it comes back. None after a failure.
///
/// Epilogues access biases 16 bytes at a time: one that starts elsewhere is left to a kernel.
fn run_with_fastest(
    stream: &CudaStream,
    spec: MatmulSpec,
    epilogues: &[Epilogue],
    args: &MatmulArgs,
) -> Option<Epilogue> {
    let fits = |epilogue: &Epilogue| !epilogue.has_bias() || args.bias.0.is_multiple_of(16);
    let alternative =
        |epilogue| Alternative { epilogue, bytes_left: bytes_left(&spec, epilogues[0], epilogue) };
    let mut alternatives: Alternatives =
        std::array::from_fn(|at| epilogues.get(at).copied().filter(fits).map(alternative));
    let mut reason = String::new();
    while alternatives.iter().any(Option::is_some) {
        match product(stream, spec, alternatives) {
            Ok(plan) => {
                let epilogue = plan.spec().epilogue;
                if plan.try_run(stream, args) {
                    return Some(epilogue);
                }
                reason = "cuBLASLt refuses all algorithms that it has proposed".to_owned();
                alternatives =
                    alternatives.map(|other| other.filter(|other| other.epilogue != epilogue));
            }
            Err(error) => {
                reason = error.to_string();
                break;
            }
        }
    }
    let MatmulSpec { m, n, k, .. } = spec;
    stream.fail(DeviceError::Misuse {
        what: format!("a product of {m} × {k} and {k} × {n}"),
        reason,
    });
    None
}

/// Bytes that kernels read and write where `wanted` is to be done and `epilogue` is.
fn bytes_left(spec: &MatmulSpec, wanted: Epilogue, epilogue: Epilogue) -> usize {
    if wanted == epilogue {
        return 0;
    }
    // The output is read and written, for the bias.
    2 * spec.m * spec.d.stride * spec.d.dtype.bytes()
}

fn plain(mat: &Mat) -> Operand {
    Operand::plain(mat.dtype(), mat.stride())
}

fn transposed(mat: &Mat) -> Operand {
    Operand::transposed(mat.dtype(), mat.stride())
}

/// A product that overwrites.
fn addresses(a: &Mat, b: &Mat, d: &Mat) -> MatmulArgs {
    MatmulArgs::new(a.device_ptr(), b.device_ptr(), d.device_ptr())
}

fn forward_spec(args: &ForwardArgs<'_>) -> MatmulSpec {
    MatmulSpec {
        m: args.x.rows(),
        n: args.y.cols(),
        k: filled_up(args.x).min(filled_up(args.w.operand())),
        a: plain(args.x),
        b: transposed(args.w.operand()),
        d: plain(args.y),
        math: args.w.compute().math(),
        epilogue: Epilogue::None,
        bias_dtype: bias(args).unwrap_or(args.y).dtype(),
    }
}

/// The bias in the type of the output, which products demand.
fn bias<'a>(args: &'a ForwardArgs<'_>) -> Option<&'a Mat> {
    let b = args.b?;
    match args.w.rounded() {
        Some((_, bias)) if args.y.dtype() == bias.dtype() => Some(bias),
        _ => Some(b),
    }
}

/// Whether [`forward`] leaves a mask where it is given room for one.
pub fn keeps_mask(stream: &Stream, args: &ForwardArgs<'_>) -> bool {
    let relu = args.activation == Activation::Relu && args.x.rows() > 0;
    relu && masking(stream.cuda_body(), args).is_some_and(|plan| !plan.is_refused())
}

/// The product that leaves a mask, where the library has it.
fn masking(stream: &CudaStream, args: &ForwardArgs<'_>) -> Option<Arc<Matmul>> {
    let only = Alternative { epilogue: Epilogue::ReluAuxBias, bytes_left: 0 };
    let is_aligned = bias(args).is_some_and(|bias| bias.device_ptr().0.is_multiple_of(16));
    is_aligned.then(|| product(stream, forward_spec(args), [Some(only), None]).ok()).flatten()
}

pub fn forward(stream: &Stream, args: &ForwardArgs<'_>, mask: Option<&Mat>) {
    let stream = stream.cuda_body();
    if args.x.rows() == 0 {
        return;
    }
    let relu = args.activation == Activation::Relu;
    assert!(!relu || args.b.is_some(), "a layer with a ReLU has a bias");
    let epilogues = match (relu, args.b) {
        (true, _) => &[Epilogue::ReluBias, Epilogue::None][..],
        (false, Some(_)) => &[Epilogue::Bias, Epilogue::None],
        (false, None) => &[Epilogue::None],
    };
    let (spec, bias) = (forward_spec(args), bias(args).map_or(DevicePtr::NULL, Mat::device_ptr));
    let run = MatmulArgs { bias, ..addresses(args.x, args.w.operand(), args.y) };
    // The backward pass counts on the mask.
    if let Some(mask) = mask.filter(|_| relu)
        && let Some(plan) = masking(stream, args)
        && plan.try_run(stream, &MatmulArgs { aux: mask.device_ptr(), ..run })
    {
        return;
    }
    let done = run_with_fastest(stream, spec, epilogues, &run);
    if let (Some(b), Some(Epilogue::None)) = (args.b, done) {
        add_bias(stream, args.y, b, relu);
    }
}

/// With `below`, its ReLU is applied, and its bias gradient summed, in one pass over the result.
pub fn backward_data(stream: &Stream, args: &BackwardDataArgs<'_>, below: Option<&Below<'_>>) {
    let stream = stream.cuda_body();
    let (d_z, w, d_x) = (args.d_z, args.w.operand(), args.d_x);
    if d_z.rows() > 0 {
        let spec = MatmulSpec {
            m: d_z.rows(),
            // The copies of weights have rows and columns of zeros for what fills rows of 16-bit
            // gradients up.
            n: filled_up(d_x).min(filled_up(w)),
            k: filled_up(d_z),
            a: plain(d_z),
            b: plain(w),
            d: plain(d_x),
            math: args.w.compute().math(),
            epilogue: Epilogue::None,
            bias_dtype: d_x.dtype(),
        };
        let beta = if args.accumulate { 1.0 } else { 0.0 };
        let run = MatmulArgs { beta, ..addresses(d_z, w, d_x) };
        run_with_fastest(stream, spec, &[Epilogue::None], &run);
    }
    let passed = args.mask.map(|output| match below.and_then(|below| below.mask) {
        Some(bits) => Passed::Bits(bits.clone()),
        None => Passed::Output(output.clone()),
    });
    let sums = below.and_then(|below| below.sums.as_ref());
    if passed.is_some() || sums.is_some() {
        mask_and_sum(stream, d_x, passed, sums);
    }
}

/// Without sums of `d_z` where they are there already.
pub fn backward_weights(stream: &Stream, args: &BackwardWeightsArgs<'_>, has_bias: bool) {
    let stream = stream.cuda_body();
    let math = args.compute.math();
    let accumulate = args.accumulate;
    if let Some(d_b) = args.d_b.filter(|_| !has_bias) {
        let samples = (args.d_z.rows(), args.block_len);
        let sums = ColumnSums::of_bias(d_b, args.partials, samples, accumulate);
        mask_and_sum(stream, args.d_z, None, Some(&sums));
    }
    match args.partials {
        None => sum_block(stream, math, (args.x, args.d_z), args.d_w, accumulate),
        Some(partials) => {
            sum_all_blocks(stream, math, args, partials);
            let count = partials.sum_blocks;
            add_blocks(stream, &partials.weight, args.d_w, count, accumulate);
            if let Some(d_b) = args.d_b {
                add_blocks(stream, &partials.bias, d_b, count, accumulate);
            }
        }
    }
}

fn sum_all_blocks(
    stream: &CudaStream,
    math: Math,
    args: &BackwardWeightsArgs<'_>,
    partials: &Partials,
) {
    let outputs = args.d_z.cols();
    for index in 0..partials.sum_blocks {
        let samples = block(args.x.rows(), args.block_len, index);
        let of = |mat: &Mat| mat.rows_range(samples.start, samples.len());
        let d_w = partials.weight.rows_range(index * outputs, outputs);
        sum_block(stream, math, (&of(args.x), &of(args.d_z)), &d_w, false);
    }
}

/// `d_w = d_zᵀ·x` of one block of samples.
fn sum_block(stream: &CudaStream, math: Math, (x, d_z): (&Mat, &Mat), d_w: &Mat, accumulate: bool) {
    if x.rows() == 0 {
        if !accumulate {
            let bytes = d_w.rows() * d_w.stride() * d_w.dtype().bytes();
            stream.fill_bytes(d_w.device_ptr(), 0, bytes);
        }
        return;
    }
    let spec = MatmulSpec {
        m: d_z.cols(),
        // Block sums of 16-bit products have room for what fills rows up.
        n: filled_up(x).min(d_w.stride()),
        k: x.rows(),
        a: transposed(d_z),
        b: plain(x),
        d: plain(d_w),
        math,
        epilogue: Epilogue::None,
        bias_dtype: d_w.dtype(),
    };
    let beta = if accumulate { 1.0 } else { 0.0 };
    let run = MatmulArgs { beta, ..addresses(d_z, x, d_w) };
    run_with_fastest(stream, spec, &[Epilogue::None], &run);
}
