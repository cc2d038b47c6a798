//! Launches of `cat.cu`.

use super::{BackwardArgs, ForwardArgs};
use crate::cuda::{THREADS, blocks};
use crate::linear::Activation;
use crate::loss_scale::UnscaleArgs;
use headlong_device::cuda::{Build, Define, Launch, Mats, Source, kernel_args};
use headlong_device::{DType, Stream};

pub static SOURCE: Source = Source {
    name: "mlp/cat",
    text: concat!(include_str!("../../loss_scale/unscale.cuh"), include_str!("cat.cu")),
};

kernel_args! {
    pub struct CatForwardArgs(bottom, vectors, out) { samples, bottom_cols, vectors_cols: u64; }

    pub struct CatBackwardArgs(bottom, d_out, d_bottom, d_vectors) {
        unscale: UnscaleArgs;
        samples, bottom_cols, vectors_cols, relu: u64;
    }
}

pub fn forward(stream: &Stream, args: &ForwardArgs<'_>) {
    let launched = CatForwardArgs {
        mats: Mats::new([args.bottom, args.vectors, args.out]),
        samples: args.bottom.rows() as u64,
        bottom_cols: args.bottom.cols() as u64,
        vectors_cols: args.vectors.cols() as u64,
    };
    let types = [args.out.dtype(), args.vectors.dtype()];
    run(stream, types, "cat_forward", args.bottom.rows(), &launched);
}

pub fn backward(stream: &Stream, args: &BackwardArgs<'_>) {
    let launched = CatBackwardArgs {
        mats: Mats::new([args.bottom, args.d_out, args.d_bottom, args.d_vectors]),
        unscale: UnscaleArgs::new(args.loss_scale),
        samples: args.bottom.rows() as u64,
        bottom_cols: args.bottom.cols() as u64,
        vectors_cols: args.d_vectors.cols() as u64,
        relu: u64::from(args.bottom_activation == Activation::Relu),
    };
    let types = [args.d_out.dtype(), args.d_vectors.dtype()];
    run(stream, types, "cat_backward", args.bottom.rows(), &launched);
}

/// The instances: f32 throughout, and 16-bit results of f32 and of 16-bit vectors.
pub fn builds() -> Vec<Build> {
    let (f32, bf16, f16) = (DType::F32, DType::Bf16, DType::F16);
    let types = [[f32, f32], [bf16, f32], [bf16, bf16], [f16, f32], [f16, f16]];
    types.iter().map(|&types| Build { source: &SOURCE, defines: defines(types).to_vec() }).collect()
}

fn defines([result, vectors]: [DType; 2]) -> [Define; 2] {
    [Define::dtype("ELEMENT", result), Define::dtype("VECTORS", vectors)]
}

/// A warp a sample.
fn run<A: Copy>(stream: &Stream, types: [DType; 2], entry: &'static str, samples: usize, args: &A) {
    let stream = stream.cuda_body();
    let shape = Launch::new(blocks(stream, samples.div_ceil(THREADS as usize / 32)), THREADS);
    stream.run(&SOURCE, &defines(types), entry, shape, args);
}
