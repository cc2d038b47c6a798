//! Launches of `cross.cu`.

use super::{BackwardArgs, ForwardArgs};
use crate::cuda::{THREADS, blocks};
use headlong_device::cuda::{Build, Define, DevicePtr, Launch, Source};
use headlong_device::{DType, Mat, Stream};

pub static SOURCE: Source = Source { name: "mlp/cross", text: include_str!("cross.cu") };

/// As in `cross.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CrossForwardArgs {
    pub(super) x0: DevicePtr,
    pub(super) h: DevicePtr,
    pub(super) x: DevicePtr,
    pub(super) y: DevicePtr,
    pub(super) x0_stride: u64,
    pub(super) h_stride: u64,
    pub(super) x_stride: u64,
    pub(super) y_stride: u64,
    pub(super) samples: u64,
    pub(super) cols: u64,
}

/// As in `cross.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CrossBackwardArgs {
    pub(super) x0: DevicePtr,
    pub(super) h: DevicePtr,
    pub(super) d_y: DevicePtr,
    pub(super) d_h: DevicePtr,
    pub(super) d_x0: DevicePtr,
    pub(super) x0_stride: u64,
    pub(super) h_stride: u64,
    pub(super) d_y_stride: u64,
    pub(super) d_h_stride: u64,
    pub(super) d_x0_stride: u64,
    pub(super) samples: u64,
    pub(super) cols: u64,
    pub(super) is_last: u64,
    pub(super) is_first: u64,
}

fn stride(mat: &Mat) -> u64 {
    mat.stride() as u64
}

pub fn forward(stream: &Stream, args: &ForwardArgs<'_>) {
    let launched = CrossForwardArgs {
        x0: args.x0.device_ptr(),
        h: args.h.device_ptr(),
        x: args.x.device_ptr(),
        y: args.y.device_ptr(),
        x0_stride: stride(args.x0),
        h_stride: stride(args.h),
        x_stride: stride(args.x),
        y_stride: stride(args.y),
        samples: args.y.rows() as u64,
        cols: args.y.cols() as u64,
    };
    run(stream, args.y, "cross_forward", &launched);
}

pub fn backward(stream: &Stream, args: &BackwardArgs<'_>) {
    let launched = CrossBackwardArgs {
        x0: args.x0.device_ptr(),
        h: args.h.device_ptr(),
        d_y: args.d_y.device_ptr(),
        d_h: args.d_h.device_ptr(),
        d_x0: args.d_x0.device_ptr(),
        x0_stride: stride(args.x0),
        h_stride: stride(args.h),
        d_y_stride: stride(args.d_y),
        d_h_stride: stride(args.d_h),
        d_x0_stride: stride(args.d_x0),
        samples: args.d_y.rows() as u64,
        cols: args.d_y.cols() as u64,
        is_last: u64::from(args.place.is_last),
        is_first: u64::from(args.place.is_first),
    };
    run(stream, args.d_y, "cross_backward", &launched);
}

/// The instances: one for each type that products take.
pub fn builds() -> impl Iterator<Item = Build> {
    [DType::F32, DType::Bf16, DType::F16]
        .into_iter()
        .map(|dtype| Build { source: &SOURCE, defines: defines(dtype).to_vec() })
}

fn defines(dtype: DType) -> [Define; 1] {
    [Define::dtype("ELEMENT", dtype)]
}

/// A warp a sample.
fn run<A: Copy>(stream: &Stream, mat: &Mat, entry: &'static str, args: &A) {
    if mat.rows() == 0 {
        return;
    }
    let stream = stream.cuda_body();
    let shape = Launch::new(blocks(stream, mat.rows().div_ceil(THREADS as usize / 32)), THREADS);
    stream.run(&SOURCE, &defines(mat.dtype()), entry, shape, args);
}
