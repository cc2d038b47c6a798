//! Concatenation: the bottom output and the vectors side by side, no products.
//!
//! # What it computes
//! Forward `out = [bottom, vectors]`; backward the two parts of the gradient, the bottom's masked
//! by its ReLU where asked.
//!
//! # Shapes
//! bottom B × D, vectors B × V, out B × (D + V); types as in [`super::dot`], rows may be strided.
//! On the CPU the result, which is then rounded, and its gradient may be bf16.
//!
//! # Work
//! On the CPU it blocks until done and allocates nothing; on a device it enqueues one or two
//! kernels. Errors: none; wrong shapes panic.
//!
//! # Source
//! `--arch-interaction-op=cat` of facebookresearch/dlrm.

mod cpu;
mod cuda;
#[cfg(test)]
mod tests;

pub(crate) use cuda::builds;

pub use super::dot::{BackwardArgs, ForwardArgs};
use headlong_device::{DType, Device, Mat, Stream};

/// Copies both inputs side by side. [`ForwardArgs::out`] is B × (D + V) here.
pub fn forward(stream: &Stream, args: &ForwardArgs<'_>) {
    check(stream, [args.bottom, args.vectors, args.out]);
    match stream.device() {
        Device::Cpu => cpu::forward(stream, args),
        Device::Cuda(_) => cuda::forward(stream, args),
    }
}

/// Cuts the gradient apart again.
pub fn backward(stream: &Stream, args: &BackwardArgs<'_>) {
    check(stream, [args.d_bottom, args.d_vectors, args.d_out]);
    check(stream, [args.bottom, args.d_vectors, args.d_out]);
    match stream.device() {
        Device::Cpu => {
            cpu::backward(stream, args);
            args.loss_scale.into_iter().for_each(|scale| scale.unscale(stream, args.d_vectors));
        }
        Device::Cuda(_) => cuda::backward(stream, args),
    }
}

fn check(stream: &Stream, [bottom, vectors, out]: [&Mat; 3]) {
    let shape = (bottom.rows(), bottom.cols() + vectors.cols());
    assert_eq!(vectors.rows(), bottom.rows(), "slot `{}`: rows", vectors.name());
    assert_eq!((out.rows(), out.cols()), shape, "slot `{}`: rows × columns", out.name());
    let [of_bottom, of_vectors, of_out] = [bottom, vectors, out].map(Mat::dtype);
    let fits = match stream.device() {
        Device::Cpu => of_bottom == DType::F32 && of_vectors == DType::F32,
        Device::Cuda(_) => of_bottom == of_out && [DType::F32, of_out].contains(&of_vectors),
    };
    assert!(fits, "slot `{}`: {of_bottom:?} and {of_vectors:?} as {of_out:?}", out.name());
}
