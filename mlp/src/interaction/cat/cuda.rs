//! Launches of `cat.cu`.

use super::{BackwardArgs, ForwardArgs};
use crate::cuda::{THREADS, blocks};
use crate::linear::Activation;
use crate::loss_scale::UnscaleArgs;
use headlong_device::cuda::{Build, Define, DevicePtr, Launch, Source};
use headlong_device::{DType, Stream};

pub static SOURCE: Source = Source {
    name: "mlp/cat",
    text: concat!(include_str!("../../loss_scale/unscale.cuh"), include_str!("cat.cu")),
};

/// As in `cat.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CatForwardArgs {
    pub(super) bottom: DevicePtr,
    pub(super) vectors: DevicePtr,
    pub(super) out: DevicePtr,
    pub(super) bottom_stride: u64,
    pub(super) vectors_stride: u64,
    pub(super) out_stride: u64,
    pub(super) samples: u64,
    pub(super) bottom_cols: u64,
    pub(super) vectors_cols: u64,
}

/// As in `cat.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CatBackwardArgs {
    pub(super) bottom: DevicePtr,
    pub(super) d_out: DevicePtr,
    pub(super) d_bottom: DevicePtr,
    pub(super) d_vectors: DevicePtr,
    pub(super) unscale: UnscaleArgs,
    pub(super) bottom_stride: u64,
    pub(super) d_out_stride: u64,
    pub(super) d_bottom_stride: u64,
    pub(super) d_vectors_stride: u64,
    pub(super) samples: u64,
    pub(super) bottom_cols: u64,
    pub(super) vectors_cols: u64,
    pub(super) relu: u64,
}

pub fn forward(stream: &Stream, args: &ForwardArgs<'_>) {
    let launched = CatForwardArgs {
        bottom: args.bottom.device_ptr(),
        vectors: args.vectors.device_ptr(),
        out: args.out.device_ptr(),
        bottom_stride: args.bottom.stride() as u64,
        vectors_stride: args.vectors.stride() as u64,
        out_stride: args.out.stride() as u64,
        samples: args.bottom.rows() as u64,
        bottom_cols: args.bottom.cols() as u64,
        vectors_cols: args.vectors.cols() as u64,
    };
    let types = [args.out.dtype(), args.vectors.dtype()];
    run(stream, types, "cat_forward", args.bottom.rows(), &launched);
}

pub fn backward(stream: &Stream, args: &BackwardArgs<'_>) {
    let launched = CatBackwardArgs {
        bottom: args.bottom.device_ptr(),
        d_out: args.d_out.device_ptr(),
        d_bottom: args.d_bottom.device_ptr(),
        d_vectors: args.d_vectors.device_ptr(),
        unscale: UnscaleArgs::new(args.loss_scale),
        bottom_stride: args.bottom.stride() as u64,
        d_out_stride: args.d_out.stride() as u64,
        d_bottom_stride: args.d_bottom.stride() as u64,
        d_vectors_stride: args.d_vectors.stride() as u64,
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
