//! The CPU bodies: copies of rows.

use super::{BackwardArgs, ForwardArgs};
use crate::linear::Activation;
use crate::simd::{for_each_row, for_each_row_of_two};
use headlong_device::bf16::{compress, expand, widen};
use headlong_device::dtype::Element;
use headlong_device::{DType, Stream};

/// Samples of a task.
const TILE_ROWS: usize = 64;

pub fn forward(stream: &Stream, args: &ForwardArgs<'_>) {
    match args.out.dtype() {
        DType::Bf16 => forward_into(stream, args, compress),
        _ => forward_into(stream, args, |from, to: &mut [f32]| to.copy_from_slice(from)),
    }
}

fn forward_into<T: Element>(
    stream: &Stream,
    args: &ForwardArgs<'_>,
    copy: impl Fn(&[f32], &mut [T]) + Sync,
) {
    let (bottom, vectors) = (args.bottom.read::<f32>(), args.vectors.read::<f32>());
    let mut out = args.out.write::<T>();
    for_each_row(stream.pool(), out.view(), TILE_ROWS, |sample, out| {
        let (left, right) = out.split_at_mut(args.bottom.cols());
        copy(bottom.row(sample), left);
        copy(vectors.row(sample), right);
    });
}

pub fn backward(stream: &Stream, args: &BackwardArgs<'_>) {
    match args.d_out.dtype() {
        DType::Bf16 => backward_from(stream, args, (widen, expand)),
        _ => {
            backward_from(stream, args, (|from| from, |from: &[f32], to| to.copy_from_slice(from)))
        }
    }
}

fn backward_from<T: Element>(
    stream: &Stream,
    args: &BackwardArgs<'_>,
    (widened, copy): (impl Fn(T) -> f32 + Sync, impl Fn(&[T], &mut [f32]) + Sync),
) {
    let (bottom, d_out) = (args.bottom.read::<f32>(), args.d_out.read::<T>());
    let (mut d_bottom, mut d_vectors) =
        (args.d_bottom.write::<f32>(), args.d_vectors.write::<f32>());
    let relu = args.bottom_activation == Activation::Relu;
    let written = (d_bottom.view(), d_vectors.view());
    for_each_row_of_two(stream.pool(), written, TILE_ROWS, |sample, d_bottom, d_vectors| {
        let (left, right) = d_out.row(sample).split_at(args.bottom.cols());
        copy(right, d_vectors);
        for ((to, from), output) in d_bottom.iter_mut().zip(left).zip(bottom.row(sample)) {
            *to = if !relu || *output > 0.0 { widened(*from) } else { 0.0 };
        }
    });
}
