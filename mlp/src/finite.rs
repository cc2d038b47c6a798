//! Where a step stopped being numbers: the first matrix of the forward pass with a value that is
//! not finite, found on the device in the step itself. The host hears of the loss two steps later,
//! when nothing of that step is there any more.
//!
//! # What it computes
//! Where one of `sums` is not finite, the least [`Found`] of this step, by matrix in the order
//! given and then by sample, is kept if none was found before. Where all are finite, nothing is
//! read but them.
//!
//! # Shapes
//! Matrices of f32, f16 or bf16; the record is 1 × 1 u64, [`NONE`] at first.
//!
//! # Work
//! Only for a device: it enqueues one kernel. Errors: none.

mod cuda;
#[cfg(test)]
mod tests;

pub(crate) use cuda::SOURCE;

use headlong_device::cuda::DevicePtr;
use headlong_device::{Mat, Stream};

/// What a record holds where nothing was found.
pub const NONE: u64 = u64::MAX;

/// Matrices, at most.
pub const MAX_MATRICES: usize = 48;

/// Bits of a record's place and sample.
const PLACE_BITS: u32 = 12;
const SAMPLE_BITS: u32 = 24;

/// A matrix to look at.
#[derive(Debug, Clone, Copy)]
pub struct Looked<'a> {
    /// Samples × anything.
    pub mat: &'a Mat,
    /// Columns that are one place: all of them, or those of a table.
    pub group: usize,
    /// Number of the first of its places.
    pub place: usize,
}

/// The first value that is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The step's number, as far as 28 bits tell.
    pub step: u64,
    /// Of what is looked at, the number.
    pub place: usize,
    /// Row of its matrix.
    pub sample: usize,
}

impl Found {
    /// From a record.
    pub fn of(record: u64) -> Option<Self> {
        let below = |bits: u32| (1_u64 << bits) - 1;
        (record != NONE).then_some(Self {
            step: record >> (PLACE_BITS + SAMPLE_BITS),
            place: (record >> SAMPLE_BITS & below(PLACE_BITS)) as usize,
            sample: (record & below(SAMPLE_BITS)) as usize,
        })
    }
}

/// Arguments of [`find`].
#[derive(Debug)]
pub struct FindArgs<'a> {
    /// What is looked at, where a sum is not finite; the first [`MAX_MATRICES`].
    pub matrices: &'a [Looked<'a>],
    /// Sums of the loss: f32.
    pub sums: &'a Mat,
    /// The step's [`headlong_device::cuda::DeviceStep`], for its number.
    pub device_step: DevicePtr,
    /// 1 × 1 u64.
    pub record: &'a Mat,
}

/// Looks for what is not finite, where the loss is not.
///
/// # Panics
/// On the CPU, whose steps end before the host continues: it looks at the matrices itself.
pub fn find(stream: &Stream, args: &FindArgs<'_>) {
    cuda::find(stream, args);
}
