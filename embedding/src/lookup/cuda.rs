//! Lookup on a device: one launch for all tables.

use crate::cuda::layout::{BLOCK, WARPS, blocks};
use crate::cuda::{Instance, LOOKUP_TEXT};
use headlong_device::cuda::{CudaStream, Define, DevicePtr, Launch, Source, kernel_args};
use headlong_device::{DType, Mat};

/// Gather and pooling.
pub(crate) static LOOKUP: Source = Source { name: "embedding/lookup", text: LOOKUP_TEXT };

kernel_args! {
    struct LookupArgs {
        tables, staged, origins, recv_rows, vectors: DevicePtr;
        stride: u64;
        num_tables, max_samples: u32;
    }
}

/// Where vectors come from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct From {
    /// Descriptions of the tables whose rows are read.
    pub(crate) tables: DevicePtr,
    pub(crate) num_tables: usize,
    pub(crate) staged: DevicePtr,
    /// Per entry, where its vector lies, and what owners sent: among several ranks.
    pub(crate) origins: Option<(DevicePtr, DevicePtr)>,
}

/// The constants of an instance.
pub(crate) fn defines(instance: Instance, vectors: DType, with_origins: bool) -> [Define; 4] {
    let [dim, row_type] = instance.defines();
    [
        dim,
        row_type,
        Define::dtype("VECTOR_TYPE", vectors),
        Define::new("SOURCE", i64::from(with_origins)),
    ]
}

/// Enqueues the pooled vectors of the staged samples, `vectors.rows()` at most.
pub(crate) fn lookup(stream: &CudaStream, instance: Instance, from: &From, vectors: &Mat) {
    let (origins, recv_rows) = from.origins.unwrap_or_default();
    let args = LookupArgs {
        tables: from.tables,
        staged: from.staged,
        origins,
        recv_rows,
        vectors: vectors.device_ptr(),
        stride: vectors.stride() as u64,
        num_tables: from.num_tables as u32,
        max_samples: vectors.rows() as u32,
    };
    let warps = from.num_tables * vectors.rows().div_ceil(32);
    let grid = blocks(warps.div_ceil(WARPS), stream.device().multiprocessors(), 16);
    let instance = instance.for_matrix(vectors);
    let defines = defines(instance, vectors.dtype(), from.origins.is_some());
    stream.run(&LOOKUP, &defines, "lookup", Launch::new(grid, BLOCK), &args);
}

#[cfg(test)]
mod cuda_tests {
    use super::*;
    use headlong_device::cuda::testing::layout_test;

    #[test]
    fn arguments_lie_as_kernels_read_them() {
        layout_test!(LookupArgs, &LOOKUP, &[]);
    }
}
