//! Launches of `finite.cu`.

use super::{FindArgs, MAX_MATRICES};
use crate::cuda::THREADS;
use headlong_device::cuda::{DevicePtr, Launch, Source, kernel_args};
use headlong_device::{DType, Stream};

pub static SOURCE: Source = Source { name: "mlp/finite", text: include_str!("finite.cu") };

/// Blocks: few, because in all steps but the last they only look at sums.
const BLOCKS: u32 = 8;

kernel_args! {
    #[derive(Default)]
    pub struct Matrix { data: DevicePtr; stride: u64; rows, cols, group, place, kind, unused: u32; }

    pub struct FindKernelArgs {
        sums, step, record: DevicePtr;
        num_sums, num_matrices: u32;
        matrices: [Matrix; MAX_MATRICES];
    }
}

pub fn find(stream: &Stream, args: &FindArgs<'_>) {
    let (mut matrices, mut num_matrices) = ([Matrix::default(); MAX_MATRICES], 0);
    for (matrix, looked) in matrices.iter_mut().zip(args.matrices) {
        *matrix = Matrix {
            data: looked.mat.device_ptr(),
            stride: looked.mat.stride() as u64,
            rows: looked.mat.rows() as u32,
            cols: looked.mat.cols() as u32,
            group: looked.group.max(1) as u32,
            place: looked.place as u32,
            kind: match looked.mat.dtype() {
                DType::F16 => 1,
                DType::Bf16 => 2,
                _ => 0,
            },
            unused: 0,
        };
        num_matrices += 1;
    }
    let launched = FindKernelArgs {
        sums: args.sums.device_ptr(),
        step: args.device_step,
        record: args.record.device_ptr(),
        num_sums: (args.sums.rows() * args.sums.stride()) as u32,
        num_matrices,
        matrices,
    };
    stream.cuda_body().run(
        &SOURCE,
        &[],
        "find_non_finite",
        Launch::new(BLOCKS, THREADS),
        &launched,
    );
}
