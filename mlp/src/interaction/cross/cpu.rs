//! The CPU bodies: one pass over the rows each; products are those of [`crate::linear`].

use super::{BackwardArgs, ForwardArgs, Place};
use crate::simd::{for_each_row, for_each_row_of_two};
use half::bf16;
use headlong_device::bf16::{round, widen};
use headlong_device::{DType, Stream, vectorized};

/// Samples of a task.
const TILE_ROWS: usize = 16;

pub fn forward(stream: &Stream, args: &ForwardArgs<'_>) {
    if args.y.dtype() == DType::Bf16 {
        let [x0, h, x] = [args.x0, args.h, args.x].map(|mat| mat.read::<bf16>());
        return for_each_row(stream.pool(), args.y.write().view(), TILE_ROWS, |sample, y| {
            cross_bf16(y, x0.row(sample), h.row(sample), x.row(sample));
        });
    }
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
    if args.d_y.dtype() == DType::Bf16 {
        return backward_bf16(stream, args);
    }
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

fn backward_bf16(stream: &Stream, args: &BackwardArgs<'_>) {
    let [x0, h, d_y] = [args.x0, args.h, args.d_y].map(|mat| mat.read::<bf16>());
    let (mut d_h, mut d_x0) = (args.d_h.write(), args.d_x0.write());
    let (written, Place { is_last, is_first }) = ((d_h.view(), d_x0.view()), args.place);
    for_each_row_of_two(stream.pool(), written, TILE_ROWS, |sample, d_h, d_x0| {
        let from = [d_y.row(sample), x0.row(sample), h.row(sample)];
        match is_last {
            true => gradients_bf16::<true>(d_h, d_x0, from, is_first),
            false => gradients_bf16::<false>(d_h, d_x0, from, is_first),
        }
    });
}

vectorized! {
    fn cross(y: &mut [f32], x0: &[f32], h: &[f32], x: &[f32]) {
        for (((y, x0), h), x) in y.iter_mut().zip(x0).zip(h).zip(x) {
            *y = x0.mul_add(*h, *x);
        }
    }

    fn cross_bf16(y: &mut [bf16], x0: &[bf16], h: &[bf16], x: &[bf16]) {
        for (((y, x0), h), x) in y.iter_mut().zip(x0).zip(h).zip(x) {
            *y = round(widen(*x0).mul_add(widen(*h), widen(*x)));
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

    /// As the three above, of `dY`, `x₀` and `h`; `OVERWRITES` what `dX₀` holds, or adds to it.
    fn gradients_bf16<const OVERWRITES: bool>(
        d_h: &mut [bf16],
        d_x0: &mut [bf16],
        from: [&[bf16]; 3],
        is_first: bool,
    ) {
        let [d_y, x0, h] = from;
        for ((d_h, d_x0), ((d_y, x0), h)) in
            d_h.iter_mut().zip(d_x0).zip(d_y.iter().zip(x0).zip(h))
        {
            let d_y = widen(*d_y);
            let before = if OVERWRITES { 0.0 } else { widen(*d_x0) };
            // What changes no number stands for what is not added.
            let more = if is_first { d_y } else { -0.0 };
            *d_h = round(d_y * widen(*x0));
            *d_x0 = round(d_y.mul_add(widen(*h), before) + more);
        }
    }
}
