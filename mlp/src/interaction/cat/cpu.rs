//! The CPU bodies: copies of rows.

use super::{BackwardArgs, ForwardArgs};
use crate::linear::Activation;
use crate::simd::{for_each_row_tile, for_each_row_tile_of_two};
use headlong_device::Stream;

/// Samples of a task.
const TILE_ROWS: usize = 64;

pub fn forward(stream: &Stream, args: &ForwardArgs<'_>) {
    let (bottom, vectors) = (args.bottom.read::<f32>(), args.vectors.read::<f32>());
    for_each_row_tile(
        stream.pool(),
        args.out.write::<f32>().view(),
        TILE_ROWS,
        &|first, mut out| {
            for row in 0..out.rows() {
                let (left, right) = out.row_mut(row).split_at_mut(args.bottom.cols());
                left.copy_from_slice(bottom.row(first + row));
                right.copy_from_slice(vectors.row(first + row));
            }
        },
    );
}

pub fn backward(stream: &Stream, args: &BackwardArgs<'_>) {
    let (bottom, d_out) = (args.bottom.read::<f32>(), args.d_out.read::<f32>());
    let (mut d_bottom, mut d_vectors) =
        (args.d_bottom.write::<f32>(), args.d_vectors.write::<f32>());
    let relu = args.bottom_activation == Activation::Relu;
    let written = (d_bottom.view(), d_vectors.view());
    for_each_row_tile_of_two(
        stream.pool(),
        written,
        TILE_ROWS,
        &|first, mut d_bottom, mut d_vectors| {
            for row in 0..d_bottom.rows() {
                let (left, right) = d_out.row(first + row).split_at(args.bottom.cols());
                d_vectors.row_mut(row).copy_from_slice(right);
                let outputs = bottom.row(first + row);
                for ((to, from), output) in d_bottom.row_mut(row).iter_mut().zip(left).zip(outputs)
                {
                    *to = if !relu || *output > 0.0 { *from } else { 0.0 };
                }
            }
        },
    );
}
