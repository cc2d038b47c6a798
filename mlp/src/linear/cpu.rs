//! The CPU bodies: one product each, with everything elementwise in its epilogue.

use super::{Activation, BackwardDataArgs, BackwardWeightsArgs, ForwardArgs, Partials};
use crate::gemm::{self, Epilogue, FactorType, Lhs, Numbers, Product, Rhs};
use crate::sum::{add_blocks, block};
use half::bf16;
use headlong_device::arena::Read;
use headlong_device::pool::Pool;
use headlong_device::{DType, Mat, MatMut, Stream};

/// A matrix of either type, opened.
enum Opened<'a> {
    F32(Read<'a, f32>),
    Bf16(Read<'a, bf16>),
}

impl<'a> Opened<'a> {
    fn new(mat: &'a Mat) -> Self {
        match mat.dtype() {
            DType::Bf16 => Self::Bf16(mat.read()),
            _ => Self::F32(mat.read()),
        }
    }

    fn numbers(&self) -> Numbers<'_> {
        match self {
            Self::F32(read) => Numbers::F32(read.view()),
            Self::Bf16(read) => Numbers::Bf16(read.view()),
        }
    }

    /// As the left factor of a product of panels.
    fn rows(&self) -> Lhs<'_> {
        match self {
            Self::F32(read) => Lhs::Rows(read.view()),
            Self::Bf16(read) => Lhs::Words(read.view()),
        }
    }
}

/// Of 16 bits with the zeros that fill up its rows to words.
fn in_words(mat: &Mat, dtype: FactorType) -> Mat {
    match mat.dtype() {
        DType::Bf16 => mat.filled_up(2 * dtype.words(mat.cols())),
        _ => mat.clone(),
    }
}

pub fn forward(stream: &Stream, args: &ForwardArgs<'_>) {
    let (dtype, relu) = (args.w.compute().factor_type(), args.activation == Activation::Relu);
    let (x, bias) = (in_words(args.x, dtype), args.b.map(|bias| bias.read::<f32>()));
    let (x, panels) = (Opened::new(&x), args.w.panels().0.read::<f32>());
    let bias = bias.as_ref().map(|bias| bias.data());
    let product = Product {
        dtype,
        lhs: x.rows(),
        rhs: Rhs::Panels(args.w.as_forward(panels.data())),
        epilogue: Epilogue::default(),
        accumulate: false,
    };
    match args.y.dtype() {
        DType::Bf16 => {
            let epilogue = Epilogue { bias, relu, ..Epilogue::default() };
            gemm::run_into_bf16(stream.pool(), &product, &epilogue, args.y.write().view());
        }
        _ => {
            // Where no ReLU follows, it may be logits.
            let round = relu && dtype.is_bf16();
            let epilogue = Epilogue { bias, relu, mask: None, round };
            let product = Product { epilogue, ..product };
            gemm::run(stream.pool(), &product, args.y.write().view());
        }
    }
}

pub fn backward_data(stream: &Stream, args: &BackwardDataArgs<'_>) {
    let dtype = args.w.compute().factor_type();
    let d_z = in_words(args.d_z, dtype);
    let (d_z, panels) = (Opened::new(&d_z), args.w.panels().1.read::<f32>());
    let product = Product {
        dtype,
        lhs: d_z.rows(),
        rhs: Rhs::Panels(args.w.as_backward(panels.data())),
        epilogue: Epilogue::default(),
        accumulate: args.accumulate,
    };
    match args.d_x.dtype() {
        DType::Bf16 => {
            let mask = args.mask.map(|mask| mask.read());
            let mask = mask.as_ref().map(|mask| mask.view());
            let epilogue = Epilogue { mask, ..Epilogue::default() };
            gemm::run_into_bf16(stream.pool(), &product, &epilogue, args.d_x.write().view());
        }
        _ => {
            let mask = args.mask.map(|mask| mask.read());
            let mask = mask.as_ref().map(|mask| mask.view());
            let epilogue = Epilogue { mask, round: dtype.is_bf16(), ..Epilogue::default() };
            let product = Product { epilogue, ..product };
            gemm::run(stream.pool(), &product, args.d_x.write().view());
        }
    }
}

/// The factors of a weight gradient.
#[derive(Clone, Copy)]
struct Factors<'a> {
    dtype: FactorType,
    x: Numbers<'a>,
    d_z: Numbers<'a>,
}

impl Factors<'_> {
    fn samples(&self, first: usize, count: usize) -> Self {
        Self { x: self.x.rows_range(first, count), d_z: self.d_z.rows_range(first, count), ..*self }
    }
}

pub fn backward_weights(stream: &Stream, args: &BackwardWeightsArgs<'_>) {
    let dtype = args.compute.factor_type();
    let (x, d_z) = (Opened::new(args.x), Opened::new(args.d_z));
    let factors = Factors { dtype, x: x.numbers(), d_z: d_z.numbers() };
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
