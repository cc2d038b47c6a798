//! Launches of `cross.cu`.

use super::{BackwardArgs, ForwardArgs};
use crate::cuda::{THREADS, blocks};
use headlong_device::cuda::{Build, Define, Launch, Mats, Source, kernel_args};
use headlong_device::{DType, Mat, Stream};

pub static SOURCE: Source = Source { name: "mlp/cross", text: include_str!("cross.cu") };

kernel_args! {
    pub struct CrossForwardArgs(x0, h, x, y) { samples, cols: u64; }

    pub struct CrossBackwardArgs(x0, h, d_y, d_h, d_x0) { samples, cols, is_last, is_first: u64; }
}

pub fn forward(stream: &Stream, args: &ForwardArgs<'_>) {
    let launched = CrossForwardArgs {
        mats: Mats::new([args.x0, args.h, args.x, args.y]),
        samples: args.y.rows() as u64,
        cols: args.y.cols() as u64,
    };
    run(stream, args.y, "cross_forward", &launched);
}

pub fn backward(stream: &Stream, args: &BackwardArgs<'_>) {
    let launched = CrossBackwardArgs {
        mats: Mats::new([args.x0, args.h, args.d_y, args.d_h, args.d_x0]),
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
