//! The CPU bodies: bands of samples over the pool, one sample after the other.

use super::simd::{self, Features, MAX_ROUNDED, Rounded};
use super::{BackwardArgs, ForwardArgs};
use crate::linear::Activation;
use crate::rounding::Rounding;
use crate::simd::{for_each_row, for_each_row_of_two};
use headlong_device::{Mat, MatRef, Stream};

/// Samples of a task.
const TILE_ROWS: usize = 32;

/// Gradients of vectors from so many bytes on do not wait in a core's caches for the update.
const MAX_CACHED_BYTES: usize = 8 << 20;

/// Whether vectors are rounded on the stack. In their slot are those that find no room there, and
/// those of f16, of which the run names what is infinite afterwards.
fn is_on_stack(rounding: Option<Rounding>, vectors: &Mat) -> bool {
    rounding == Some(Rounding::Bf16) && vectors.cols() <= MAX_ROUNDED
}

pub fn forward(stream: &Stream, args: &ForwardArgs<'_>, rounding: Option<Rounding>) {
    let is_on_stack = is_on_stack(rounding, args.vectors);
    if let (Some(rounding), false) = (rounding, is_on_stack) {
        rounding.round(stream, args.vectors);
    }
    let (bottom, vectors) = (args.bottom.read::<f32>(), args.vectors.read::<f32>());
    let mut out = args.out.write::<f32>();
    for_each_row(stream.pool(), out.view(), TILE_ROWS, |sample, out| {
        let mut rounded = Rounded::new();
        let own = vectors.row(sample);
        let own = if is_on_stack { rounded.of(own) } else { own };
        let features = Features { bottom: bottom.row(sample), vectors: own };
        let (copy, products) = out.split_at_mut(features.bottom.len());
        copy.copy_from_slice(features.bottom);
        simd::products(&features, products, next(vectors.view(), sample));
    });
}

pub fn backward(stream: &Stream, args: &BackwardArgs<'_>, rounding: Option<Rounding>) {
    let is_on_stack = is_on_stack(rounding, args.vectors);
    let (bottom, vectors) = (args.bottom.read::<f32>(), args.vectors.read::<f32>());
    let d_out = args.d_out.read::<f32>();
    let (mut d_bottom, mut d_vectors) =
        (args.d_bottom.write::<f32>(), args.d_vectors.write::<f32>());
    let passes_caches = size_of_val(d_vectors.data_mut()) > MAX_CACHED_BYTES;
    let relu = args.bottom_activation == Activation::Relu;
    let written = (d_bottom.view(), d_vectors.view());
    for_each_row_of_two(stream.pool(), written, TILE_ROWS, |sample, d_bottom, d_vectors| {
        let mut rounded = Rounded::new();
        let own = vectors.row(sample);
        let own = if is_on_stack { rounded.of(own) } else { own };
        let features = Features { bottom: bottom.row(sample), vectors: own };
        let (copy, products) = d_out.row(sample).split_at(d_bottom.len());
        d_bottom.copy_from_slice(copy);
        let written = (&mut *d_bottom, d_vectors);
        let ahead = next(vectors.view(), sample);
        simd::gradients(&features, products, written, ahead, passes_caches);
        if relu {
            simd::mask(d_bottom, features.bottom);
        }
    });
}

/// What the sample after `row` will read, empty after the last.
fn next(vectors: MatRef<'_>, row: usize) -> &[f32] {
    if row + 1 < vectors.rows() { vectors.row(row + 1) } else { &[] }
}
