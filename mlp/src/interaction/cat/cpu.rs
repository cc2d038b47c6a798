//! The CPU bodies: copies of rows.

use super::{BackwardArgs, ForwardArgs};
use crate::linear::Activation;
use crate::simd::{for_each_row, for_each_row_of_two};
use headlong_device::Stream;

/// Samples of a task.
const TILE_ROWS: usize = 64;

pub fn forward(stream: &Stream, args: &ForwardArgs<'_>) {
    let (bottom, vectors) = (args.bottom.read::<f32>(), args.vectors.read::<f32>());
    let mut out = args.out.write::<f32>();
    for_each_row(stream.pool(), out.view(), TILE_ROWS, |sample, out| {
        let (left, right) = out.split_at_mut(args.bottom.cols());
        left.copy_from_slice(bottom.row(sample));
        right.copy_from_slice(vectors.row(sample));
    });
}

pub fn backward(stream: &Stream, args: &BackwardArgs<'_>) {
    let (bottom, d_out) = (args.bottom.read::<f32>(), args.d_out.read::<f32>());
    let (mut d_bottom, mut d_vectors) =
        (args.d_bottom.write::<f32>(), args.d_vectors.write::<f32>());
    let relu = args.bottom_activation == Activation::Relu;
    let written = (d_bottom.view(), d_vectors.view());
    for_each_row_of_two(stream.pool(), written, TILE_ROWS, |sample, d_bottom, d_vectors| {
        let (left, right) = d_out.row(sample).split_at(args.bottom.cols());
        d_vectors.copy_from_slice(right);
        for ((to, from), output) in d_bottom.iter_mut().zip(left).zip(bottom.row(sample)) {
            *to = if !relu || *output > 0.0 { *from } else { 0.0 };
        }
    });
}
