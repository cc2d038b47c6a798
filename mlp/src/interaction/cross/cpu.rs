//! The CPU bodies: one pass over the rows each; products are those of [`crate::linear`].

use super::{BackwardArgs, ForwardArgs, Place};
use crate::simd::{for_each_row, for_each_row_of_two};
use headlong_device::{Stream, vectorized};

/// Samples of a task.
const TILE_ROWS: usize = 16;

pub fn forward(stream: &Stream, args: &ForwardArgs<'_>) {
    if let Some(rounding) = args.rounding {
        rounding.round(stream, args.h);
    }
    let [x0, h, x] = [args.x0, args.h, args.x].map(|mat| mat.read::<f32>());
    let mut y = args.y.write::<f32>();
    for_each_row(stream.pool(), y.view(), TILE_ROWS, |sample, y| {
        cross(y, x0.row(sample), h.row(sample), x.row(sample));
        args.rounding.iter().for_each(|rounding| rounding.round_all(y));
    });
}

pub fn backward(stream: &Stream, args: &BackwardArgs<'_>) {
    let [x0, h, d_y] = [args.x0, args.h, args.d_y].map(|mat| mat.read::<f32>());
    let (mut d_h, mut d_x0) = (args.d_h.write::<f32>(), args.d_x0.write::<f32>());
    let (written, Place { is_last, is_first }) = ((d_h.view(), d_x0.view()), args.place);
    for_each_row_of_two(stream.pool(), written, TILE_ROWS, |sample, d_h, d_x0| {
        scale(d_h, d_y.row(sample), x0.row(sample));
        if is_last {
            d_x0.fill(0.0);
        }
        add_products(d_x0, d_y.row(sample), h.row(sample));
        if is_first {
            add(d_x0, d_y.row(sample));
        }
        if let Some(rounding) = args.rounding {
            rounding.round_all(d_h);
            rounding.round_all(d_x0);
        }
    });
}

vectorized! {
    fn cross(y: &mut [f32], x0: &[f32], h: &[f32], x: &[f32]) {
        for (((y, x0), h), x) in y.iter_mut().zip(x0).zip(h).zip(x) {
            *y = x0.mul_add(*h, *x);
        }
    }

    fn scale(into: &mut [f32], left: &[f32], right: &[f32]) {
        for ((into, left), right) in into.iter_mut().zip(left).zip(right) {
            *into = left * right;
        }
    }

    fn add_products(into: &mut [f32], left: &[f32], right: &[f32]) {
        for ((into, left), right) in into.iter_mut().zip(left).zip(right) {
            *into = left.mul_add(*right, *into);
        }
    }

    fn add(into: &mut [f32], from: &[f32]) {
        for (into, from) in into.iter_mut().zip(from) {
            *into += from;
        }
    }
}
