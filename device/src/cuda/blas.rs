//! Matrix products of cuBLASLt with their epilogues: planned once, then run without allocation or
//! search.
//!
//! All matrices are row-major, as everywhere in Headlong. cuBLASLt thinks in columns: a row-major
//! matrix is its own transpose there, so that `D = A·B` is asked for as `Dᵀ = Bᵀ·Aᵀ`, with no copy.

mod algorithms;
mod library;
mod plan;
mod trial;

pub use algorithms::{Algorithms, Alternative, Kept};
pub use library::library_version;
pub use plan::Matmul;
pub use trial::kernels;

use super::DevicePtr;
use crate::dtype::DType;

/// How products are computed; sums are always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Math {
    /// f32 operands, true f32 products. For f16 and bf16 operands: their exact products.
    Full,
    /// f32 operands rounded to TF32 (10 bits of mantissa) on tensor cores.
    Tf32,
}

/// What happens to the sums before they are stored. `D` is `m × n`.
///
/// The library has epilogues of backward passes, too; on an H100 they were kernels of their own,
/// slower than ours, which does what three of them do in one pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// Nothing.
    None,
    /// `bias[n]` is added to each row.
    Bias,
    /// `max(0, x + bias[n])`.
    ReluBias,
    /// The same, and `aux` keeps one bit per element: whether it passed. See [`aux_bytes`].
    ReluAuxBias,
}

/// A matrix as it is stored: rows start `stride` elements apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operand {
    /// Element type.
    pub dtype: DType,
    /// Elements from one row's start to the next.
    pub stride: usize,
    /// Whether the product takes its transpose: `A` is then stored `k × m`, `B` `n × k`. Not for
    /// `C` and `D`.
    pub transposed: bool,
}

impl Operand {
    /// A matrix taken as it is stored.
    pub const fn plain(dtype: DType, stride: usize) -> Self {
        Self { dtype, stride, transposed: false }
    }

    /// A matrix whose transpose is taken.
    pub const fn transposed(dtype: DType, stride: usize) -> Self {
        Self { dtype, stride, transposed: true }
    }
}

/// `D = alpha·op(A)·op(B) + beta·C`, then the epilogue; `C` has the type and the stride of `D`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatmulSpec {
    /// Rows of `D`.
    pub m: usize,
    /// Columns of `D`.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// `m × k` after `op`.
    pub a: Operand,
    /// `k × n` after `op`.
    pub b: Operand,
    /// `m × n`.
    pub d: Operand,
    /// Precision of products.
    pub math: Math,
    /// What happens to the sums.
    pub epilogue: Epilogue,
    /// Element type of `bias`.
    pub bias_dtype: DType,
}

/// Where the matrices of one run lie.
#[derive(Debug, Clone, Copy)]
pub struct MatmulArgs {
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of `C`; with 0 it is not read.
    pub beta: f32,
    /// First operand.
    pub a: DevicePtr,
    /// Second operand.
    pub b: DevicePtr,
    /// Added; may be `d`.
    pub c: DevicePtr,
    /// Result.
    pub d: DevicePtr,
    /// Bias that the epilogue reads; else null.
    pub bias: DevicePtr,
    /// Mask of the epilogue; else null.
    pub aux: DevicePtr,
}

/// Bits of mask from one row of `D` to the next: `n` rounded up to 128, as cuBLASLt demands.
pub const fn aux_stride_bits(n: usize) -> usize {
    n.next_multiple_of(128)
}

/// Bytes of the ReLU mask of an `m × n` result: bit `column` of row `row` is bit `column % 8` of
/// byte `row · aux_stride_bits(n) / 8 + column / 8`.
pub const fn aux_bytes(m: usize, n: usize) -> usize {
    m * aux_stride_bits(n) / 8
}
