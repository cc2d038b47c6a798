//! Types of elements and ways to combine them: NCCL's numbers, so that one of a newer library is no
//! undefined behaviour.

use crate::communicator::Comm;
use crate::error::Result;
use std::ffi::{c_int, c_void};

/// A type of elements.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataType(pub(crate) c_int);

impl DataType {
    /// Signed bytes.
    pub const I8: Self = Self(0);
    /// Bytes.
    pub const U8: Self = Self(1);
    /// 32-bit integers.
    pub const I32: Self = Self(2);
    /// 32-bit integers without sign.
    pub const U32: Self = Self(3);
    /// 64-bit integers.
    pub const I64: Self = Self(4);
    /// 64-bit integers without sign.
    pub const U64: Self = Self(5);
    /// IEEE half precision.
    pub const F16: Self = Self(6);
    /// IEEE single precision.
    pub const F32: Self = Self(7);
    /// IEEE double precision.
    pub const F64: Self = Self(8);
    /// bfloat16.
    pub const BF16: Self = Self(9);

    /// Bytes of one element; None for a number that this crate does not know.
    pub fn bytes(self) -> Option<usize> {
        [1, 1, 4, 4, 8, 8, 2, 4, 8, 2].get(usize::try_from(self.0).ok()?).copied()
    }
}

/// How elements of several ranks become one.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReduceOp(pub(crate) c_int);

impl ReduceOp {
    /// Their sum.
    pub const SUM: Self = Self(0);
    /// Their product.
    pub const PRODUCT: Self = Self(1);
    /// The largest.
    pub const MAX: Self = Self(2);
    /// The smallest.
    pub const MIN: Self = Self(3);
    /// Their mean. Registered memory is not used without a copy then: scale elsewhere, and sum.
    pub const MEAN: Self = Self(4);
}

/// The sum of what every rank's elements are when multiplied by a number of that rank. Dropped,
/// NCCL forgets it.
#[derive(Debug)]
pub struct ScaledSum<'a> {
    comm: &'a Comm,
    op: ReduceOp,
}

impl ScaledSum<'_> {
    /// For the operations of a group of the same communicator, of f32 elements.
    pub fn op(&self) -> ReduceOp {
        self.op
    }
}

impl Comm {
    /// A sum of f32 elements, each multiplied by `factor` before.
    ///
    /// # Errors
    /// [`Error::Call`](crate::Error::Call), [`Error::Aborted`](crate::Error::Aborted).
    pub fn scaled_sum_f32(&self, factor: f32) -> Result<ScaledSum<'_>> {
        const FUNCTION: &str = "ncclRedOpCreatePreMulSum";
        const ON_THE_HOST: c_int = 1;
        let mut op = 0;
        let library = self.library();
        let create = library.later(FUNCTION, library.functions.red_op_create)?;
        let kind = DataType::F32.0;
        self.turn(FUNCTION)?.finish(FUNCTION, |comm| {
            let scalar = (&raw const factor).cast::<c_void>();
            // SAFETY: the communicator is alive; NCCL reads the factor during the call, and writes
            // the number.
            unsafe { create(&mut op, scalar, kind, ON_THE_HOST, comm) }
        })?;
        Ok(ScaledSum { comm: self, op: ReduceOp(op) })
    }
}

impl Drop for ScaledSum<'_> {
    fn drop(&mut self) {
        let destroy = self.comm.library().functions.red_op_destroy;
        // An aborted communicator has forgotten everything.
        if let (Some(destroy), Ok(turn)) = (destroy, self.comm.last_turn("ncclRedOpDestroy")) {
            // SAFETY: the communicator is alive and the operation its own, given back once.
            let _ = turn.finish("ncclRedOpDestroy", |comm| unsafe { destroy(self.op.0, comm) });
        }
    }
}
