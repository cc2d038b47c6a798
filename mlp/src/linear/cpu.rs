//! The CPU bodies: one product each, with everything elementwise in its epilogue.

use super::{Activation, BackwardDataArgs, BackwardWeightsArgs, ForwardArgs, Partials};
use crate::gemm::{self, Epilogue, FactorType, Lhs, Product, Rhs};
use crate::sum::{add_blocks, block};
use headlong_device::pool::Pool;
use headlong_device::{MatMut, MatRef, Stream};

pub fn forward(stream: &Stream, args: &ForwardArgs<'_>) {
    let (x, bias) = (args.x.read::<f32>(), args.b.map(|bias| bias.read::<f32>()));
    let panels = args.w.panels().0.read::<f32>();
    let (dtype, relu) = (args.w.compute().factor_type(), args.activation == Activation::Relu);
    let product = Product {
        dtype,
        lhs: Lhs::Rows(x.view()),
        rhs: Rhs::Panels(args.w.as_forward(panels.data())),
        epilogue: Epilogue {
            bias: bias.as_ref().map(|bias| bias.data()),
            relu,
            mask: None,
            // Where no ReLU follows, it may be logits.
            round: relu && dtype.is_bf16(),
        },
        accumulate: false,
    };
    gemm::run(stream.pool(), &product, args.y.write::<f32>().view());
}

pub fn backward_data(stream: &Stream, args: &BackwardDataArgs<'_>) {
    let d_z = args.d_z.read::<f32>();
    let panels = args.w.panels().1.read::<f32>();
    let mask = args.mask.map(|mask| mask.read::<f32>());
    let dtype = args.w.compute().factor_type();
    let product = Product {
        dtype,
        lhs: Lhs::Rows(d_z.view()),
        rhs: Rhs::Panels(args.w.as_backward(panels.data())),
        epilogue: Epilogue {
            mask: mask.as_ref().map(|mask| mask.view()),
            round: dtype.is_bf16(),
            ..Epilogue::default()
        },
        accumulate: args.accumulate,
    };
    gemm::run(stream.pool(), &product, args.d_x.write::<f32>().view());
}

/// The factors of a weight gradient.
#[derive(Clone, Copy)]
struct Factors<'a> {
    dtype: FactorType,
    x: MatRef<'a>,
    d_z: MatRef<'a>,
}

impl Factors<'_> {
    fn samples(&self, first: usize, count: usize) -> Self {
        Self { x: self.x.rows_range(first, count), d_z: self.d_z.rows_range(first, count), ..*self }
    }
}

pub fn backward_weights(stream: &Stream, args: &BackwardWeightsArgs<'_>) {
    let dtype = args.compute.factor_type();
    let (x, d_z) = (args.x.read::<f32>(), args.d_z.read::<f32>());
    let factors = Factors { dtype, x: x.view(), d_z: d_z.view() };
    let (mut d_w, mut d_b) = (args.d_w.write::<f32>(), args.d_b.map(|d_b| d_b.write::<f32>()));
    let pool = stream.pool();
    match args.partials {
        None => {
            let sums = (d_w.view(), d_b.as_mut().map(|d_b| d_b.view()));
            sum_block(pool, factors, sums, args.accumulate);
        }
        Some(partials) => {
            sum_all_blocks(pool, factors, partials, args.block_len, d_b.is_some());
            let (count, how) = (partials.sum_blocks, (args.accumulate, partials.narrow));
            add_blocks(
                pool,
                &mut partials.weight.write::<f32>().view(),
                count,
                &mut d_w.view(),
                how,
            );
            if let Some(d_b) = &mut d_b {
                add_blocks(
                    pool,
                    &mut partials.bias.write::<f32>().view(),
                    count,
                    &mut d_b.view(),
                    how,
                );
            }
        }
    }
}

fn sum_all_blocks(
    pool: &Pool,
    factors: Factors<'_>,
    partials: &Partials,
    block_len: usize,
    has_bias: bool,
) {
    let (mut weight, mut bias) = (partials.weight.write::<f32>(), partials.bias.write::<f32>());
    let (mut weight, mut bias) = (weight.view(), bias.view());
    for index in 0..partials.sum_blocks {
        let samples = block(factors.x.rows(), block_len, index);
        let outputs = factors.d_z.cols();
        let bias = has_bias.then(|| bias.rows_range_mut(index, 1));
        let sums = (weight.rows_range_mut(index * outputs, outputs), bias);
        sum_block(pool, factors.samples(samples.start, samples.len()), sums, false);
    }
}

/// One block of samples, in sample order.
fn sum_block(
    pool: &Pool,
    Factors { dtype, x, d_z }: Factors<'_>,
    (d_w, d_b): (MatMut<'_>, Option<MatMut<'_>>),
    accumulate: bool,
) {
    let epilogue = Epilogue::default();
    let product =
        Product { dtype, lhs: Lhs::Columns(d_z), rhs: Rhs::Rows(x), epilogue, accumulate };
    match d_b {
        Some(mut d_b) => gemm::run_with_row_sums(pool, &product, d_w, d_b.row_mut(0)),
        None => gemm::run(pool, &product, d_w),
    }
}
