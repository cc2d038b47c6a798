//! The tables of one rank on a CUDA device: rows, batches and everything in between lie there.
//!
//! ```text
//! stage    host      ids, offsets and weights of a batch, packed in page-locked memory     [staging]
//! copy     enqueued  to the device
//! route    enqueued  keys, radix sort, rows and chunks of work                             [crate::route], sort.cu, route.cu
//! lookup   enqueued  one gather over all tables                                            [crate::lookup], lookup.cu
//! update   enqueued  sums in a fixed order, one optimiser step a row                       [crate::update], update.cu
//! ```
//!
//! Counts never leave the device: grids are fixed, trip counts are read there. No atomics on
//! numbers, so the same inputs give the same bits. Tiles of the sort learn from those before them
//! where they write.
//!
//! **Sums.** A row's gradients are added in entry order within chunks of 32 entries counted from
//! the row's first; the sums of chunks are added in eight runs of neighbours, then the runs in
//! order. `sum_blocks` has no part in it: results are equal to the CPU's where sums are exact, and
//! within rounding elsewhere.

mod kernels;
pub(crate) mod layout;
pub(crate) mod set;
pub(crate) mod staging;
pub(crate) mod table;
pub(crate) mod tables;

pub use kernels::{all_kernels, kernels};
pub use layout::{MAX_ENTRIES, num_entries};
pub(crate) use set::{CudaSet, DeviceRoute};
pub(crate) use tables::{DeviceLeaves, DeviceTables, FlagsMemory};

pub use crate::table::{CudaStep, CudaTable, DeviceRows};
pub use staging::StagedPart;

use crate::table::TableSpec;
use headlong_device::cuda::Define;
use headlong_device::{DType, Mat};

/// The text of [`crate::lookup`]'s kernel.
pub(crate) const LOOKUP_TEXT: &str = concat!(
    include_str!("cuda/tables.cuh"),
    include_str!("cuda/rows.cuh"),
    include_str!("cuda/parts.cuh"),
    include_str!("lookup/lookup.cu")
);

/// The text of [`crate::update`]'s kernels.
pub(crate) const UPDATE_TEXT: &str = concat!(
    include_str!("cuda/tables.cuh"),
    include_str!("cuda/rows.cuh"),
    include_str!("update/tree.cuh"),
    include_str!("update/update.cu")
);

/// Which instance of the kernels fits the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Instance {
    /// The dim of all tables, where accesses of 16 bytes fit it; else 0.
    dim: usize,
    dtype: DType,
}

impl Instance {
    /// For kernels that move no rows.
    pub(crate) const GENERIC: Self = Self { dim: 0, dtype: DType::F32 };

    /// For tables of these dims, all of this element type.
    pub(crate) fn new(dims: impl IntoIterator<Item = usize>, dtype: DType) -> Self {
        let mut dims = dims.into_iter();
        let first = dims.next().unwrap_or(0);
        let instance = Self { dim: first, dtype };
        let elements = instance.elements();
        let lanes = first / elements;
        let fits = first.is_multiple_of(16)
            && lanes > 0
            && (32 % lanes == 0 || (lanes.is_multiple_of(32) && lanes <= 128));
        if fits && dims.all(|dim| dim == first) { instance } else { Self { dim: 0, dtype } }
    }

    /// Elements of one access of 16 bytes to a row.
    fn elements(self) -> usize {
        if self.dtype == DType::F32 { 4 } else { 8 }
    }

    /// The instance for a matrix of vectors: where its rows do not start at multiples of an access,
    /// elements are accessed singly.
    pub(crate) fn for_matrix(self, mat: &Mat) -> Self {
        let bytes = 4 * mat.dtype().bytes();
        let aligned = mat.device_ptr().0.is_multiple_of(bytes.max(16) as u64)
            && mat.stride().is_multiple_of(self.elements());
        if aligned { self } else { Self { dim: 0, ..self } }
    }

    pub(crate) fn defines(self) -> [Define; 2] {
        [Define::new("DIM", self.dim as i64), Define::dtype("ROW_TYPE", self.dtype)]
    }
}

/// Elements of one partial sum: as wide as the widest row, and aligned.
pub(crate) fn partial_stride(specs: &[TableSpec]) -> usize {
    specs.iter().map(|spec| spec.dim).max().unwrap_or(1).next_multiple_of(4)
}
