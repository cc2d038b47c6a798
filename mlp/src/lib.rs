//! The dense part of the model: layers, interaction, loss, dense optimisers.
//!
//! ```text
//! dense ──► bottom MLP ──► bottom_out ─┐
//!                                      ├─► interaction ──► top MLP ──► logits ──► loss
//! pooled vectors (from elsewhere) ─────┘
//! ```
//!
//! * [`linear`]: `Y = act(X·Wᵀ + b)` and its gradients. * [`interaction`]: dot products of all
//!   pairs, concatenation, a cross network.
//! * [`loss`]: binary cross-entropy from logits, with its gradient. * [`loss_scale`]: what keeps
//!   gradients in f16. * [`optim`]: one pass over all parameters.
//! * [`mlp`]: a stack of layers and its memory. * [`init`]: initial values. * [`gemm`]: the matrix
//!   products underneath. * [`rounding`]: to 16 bits, on the processor.
//! * [`finite`]: where a step stopped being numbers. * [`oracle`]: every op written slowly and
//!   obviously in f64, which defines them.
//! * [`cuda`]: what the CUDA bodies share.
//!
//! This crate never knows ranks, ids or files, and no op of it allocates. Words: a gradient is
//! `d_…`; `z` stands before an activation and `y` after it; a *panel* is 32 packed columns of a
//! right factor.

pub mod cuda;
pub mod error;
pub mod finite;
pub mod gemm;
pub mod init;
pub mod interaction;
pub mod linear;
pub mod loss;
pub mod loss_scale;
pub mod mlp;
pub mod optim;
pub mod oracle;
pub mod rounding;
mod simd;
pub mod sum;
#[cfg(test)]
mod testing;

pub use error::{MlpError, Result};
