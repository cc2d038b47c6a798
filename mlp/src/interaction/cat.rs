//! Concatenation: the bottom output and the vectors side by side, no products.
//!
//! # What it computes
//! Forward `out = [bottom, vectors]`; backward the two parts of the gradient, the bottom's masked
//! by its ReLU where asked.
//!
//! # Shapes
//! bottom B × D, vectors B × V, out B × (D + V); types as in [`super::dot`], rows may be strided.
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

use super::dot::check;
pub use super::dot::{BackwardArgs, ForwardArgs};
use headlong_device::{Device, Mat, Stream};

/// Copies both inputs side by side. [`ForwardArgs::out`] is B × (D + V) here.
pub fn forward(stream: &Stream, args: &ForwardArgs<'_>) {
    shapes(args.bottom, args.vectors, args.out);
    match stream.device() {
        Device::Cpu => cpu::forward(stream, args),
        Device::Cuda(_) => cuda::forward(stream, args),
    }
}

/// Cuts the gradient apart again.
pub fn backward(stream: &Stream, args: &BackwardArgs<'_>) {
    shapes(args.d_bottom, args.d_vectors, args.d_out);
    shapes(args.bottom, args.d_vectors, args.d_out);
    match stream.device() {
        Device::Cpu => {
            cpu::backward(stream, args);
            args.loss_scale.into_iter().for_each(|scale| scale.unscale(stream, args.d_vectors));
        }
        Device::Cuda(_) => cuda::backward(stream, args),
    }
}

fn shapes(bottom: &Mat, vectors: &Mat, out: &Mat) {
    check(bottom, vectors, out, bottom.cols() + vectors.cols());
}
