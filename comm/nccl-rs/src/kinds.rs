//! Types of elements and ways to combine them: NCCL's numbers, so that one of a newer library is no
//! undefined behaviour.

use std::ffi::c_int;

/// A type of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataType {
    pub(crate) number: c_int,
    pub(crate) bytes: usize,
}

impl DataType {
    /// Bytes.
    pub const U8: Self = Self { number: 1, bytes: 1 };
    /// IEEE single precision.
    pub const F32: Self = Self { number: 7, bytes: 4 };
}

/// How elements of several ranks become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReduceOp(pub(crate) c_int);

impl ReduceOp {
    /// Their sum.
    pub const SUM: Self = Self(0);
}
