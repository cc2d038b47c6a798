//! Lookup on a device: one launch for all tables, and one for those whose bags owners pool.

use crate::cuda::layout::{BLOCK, WARPS};
use crate::cuda::{Instance, LOOKUP_TEXT};
use headlong_device::cuda::{CudaStream, Define, DevicePtr, Launch, Source, kernel_args};
use headlong_device::{DType, Mat};

/// Gather and pooling.
pub(crate) static LOOKUP: Source = Source { name: "embedding/lookup", text: LOOKUP_TEXT };

kernel_args! {
    struct LookupArgs {
        tables, staged, origins, recv_rows, vectors, leaves: DevicePtr;
        stride: u64;
        num_tables, max_samples, num_parts: u32;
    }
}

/// Where vectors come from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct From {
    /// Descriptions of the tables whose rows are read.
    pub(crate) tables: DevicePtr,
    pub(crate) num_tables: usize,
    pub(crate) staged: DevicePtr,
    /// Where owners pool the bags of some tables: the leaf of each part, and how many there are;
    /// among several ranks the leaf of each owner, and the elements of an owner's slot.
    pub(crate) leaves: Option<(DevicePtr, usize)>,
    /// Among several ranks.
    pub(crate) received: Option<Received>,
}

/// What owners have sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received {
    /// Per entry, where its vector lies.
    pub(crate) origins: DevicePtr,
    pub(crate) rows: DevicePtr,
    pub(crate) dtype: DType,
}

/// The constants of an instance; `received` is the type of what owners send, if they do.
pub(crate) fn defines(instance: Instance, vectors: DType, received: Option<DType>) -> [Define; 5] {
    let [dim, row_type] = instance.defines();
    [
        dim,
        row_type,
        Define::dtype("VECTOR_TYPE", vectors),
        Define::new("SOURCE", i64::from(received.is_some())),
        Define::dtype("SLOT_TYPE", received.unwrap_or(DType::F32)),
    ]
}

/// Enqueues the pooled vectors of the staged samples, `vectors.rows()` at most.
pub(crate) fn lookup(stream: &CudaStream, instance: Instance, from: &From, vectors: &Mat) {
    let none = (DevicePtr::NULL, DevicePtr::NULL);
    let (origins, recv_rows) = from.received.map_or(none, |sent| (sent.origins, sent.rows));
    let leaves = from.leaves.unwrap_or((DevicePtr::NULL, 0));
    let args = LookupArgs {
        tables: from.tables,
        staged: from.staged,
        origins,
        recv_rows,
        vectors: vectors.device_ptr(),
        leaves: leaves.0,
        stride: vectors.stride() as u64,
        num_tables: from.num_tables as u32,
        max_samples: vectors.rows() as u32,
        num_parts: leaves.1 as u32,
    };
    let warps = from.num_tables * vectors.rows().div_ceil(32);
    let shape = Launch::new(warps.div_ceil(WARPS) as u32, BLOCK);
    let instance = instance.for_matrix(vectors);
    let defines = defines(instance, vectors.dtype(), from.received.map(|sent| sent.dtype));
    stream.run_resident(&LOOKUP, &defines, "lookup", shape, &args);
    if from.leaves.is_some() {
        stream.run_resident(&LOOKUP, &defines, "lookup_parts", shape, &args);
    }
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
