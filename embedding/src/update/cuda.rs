//! Update on a device: chunks of rows, then the rows of several chunks.

use crate::cuda::layout::{BLOCK, WARPS};
use crate::cuda::{CudaStep, Instance, UPDATE_TEXT};
use crate::route::cuda::Sorted;
use headlong_device::cuda::{
    CudaStream, Define, DevicePtr, DeviceStep, Launch, OptimizerConstants, Source, kernel_args,
};
use headlong_device::optimizer::Optimizer;
use headlong_device::{DType, Mat};

/// Segmented sums and optimiser steps.
pub(crate) static UPDATE: Source = Source { name: "embedding/update", text: UPDATE_TEXT };

kernel_args! {
    #[derive(Default)]
    struct UpdateArgs {
        tables, tile_tables, staged, chunk_starts, chunk_ends, long_firsts, long_ends, totals, keys,
        values, samples, gradients, partials, row_numbers, destinations, to_owners, frequent,
        device_step: DevicePtr;
        stride, partial_stride: u64;
        step: DeviceStep;
        constants: OptimizerConstants;
        seed: u64;
        num_tables, num_frequent, slot_elements, source_ranks, rounds_sums: u32;
    }
}

/// Where the gradients of entries lie.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Gradients<'a> {
    /// Those of pooled vectors, and the staged batch.
    OfVectors(&'a Mat, DevicePtr),
    /// Rows of this type, at the elements that entries' values say: slots of so many elements, each
    /// of a source that stands for so many ranks. `rounds`: so are sums over ranks, as they travel.
    Packed {
        first: DevicePtr,
        dtype: DType,
        slot_elements: usize,
        source_ranks: usize,
        rounds: bool,
    },
}

/// What becomes of a row's summed gradient.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sink {
    /// A step of the optimiser, and the seed of rounding.
    Step { step: CudaStep, seed: u64 },
    /// It is written to its owner's slot or to the block of frequent rows.
    Write {
        destinations: DevicePtr,
        to_owners: DevicePtr,
        slots: DType,
        frequent: (DevicePtr, DType),
    },
}

/// What an update works on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Update<'a> {
    pub(crate) tables: DevicePtr,
    pub(crate) tile_tables: DevicePtr,
    pub(crate) sorted: &'a Sorted,
    pub(crate) gradients: Gradients<'a>,
    pub(crate) sink: Sink,
    /// Room for partial sums, and the elements of one.
    pub(crate) partials: (DevicePtr, usize),
}

/// What becomes of sums, as an instance is compiled for it: a step, or a gradient of this type in
/// the slot of its owner.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Into<'a> {
    Step(&'a Optimizer),
    Slots(DType),
}

/// The constants of an instance, with the type of the block of frequent gradients where it is used.
pub(crate) fn defines(
    instance: Instance,
    gradients: DType,
    packed: bool,
    into: Into<'_>,
    frequent: DType,
) -> [Define; 8] {
    let [dim, row_type] = instance.defines();
    let (optimizer, slots) = match into {
        Into::Step(optimizer) => (Some(optimizer), DType::F32),
        Into::Slots(slots) => (None, slots),
    };
    [
        dim,
        row_type,
        Define::dtype("VECTOR_TYPE", gradients),
        Define::new("SOURCE", i64::from(packed)),
        Define::new("SINK", i64::from(optimizer.is_none())),
        Define::dtype("SLOT_TYPE", slots),
        OptimizerConstants::define(optimizer.unwrap_or(&Optimizer::Sgd)),
        Define::dtype("FREQUENT_TYPE", frequent),
    ]
}

impl Update<'_> {
    fn args(&self) -> UpdateArgs {
        let found = &self.sorted.at;
        let (gradients, stride, staged) = match self.gradients {
            Gradients::OfVectors(mat, staged) => (mat.device_ptr(), mat.stride() as u64, staged),
            Gradients::Packed { first, .. } => (first, 0, DevicePtr::NULL),
        };
        let (slot_elements, source_ranks, rounds_sums) = match self.gradients {
            Gradients::OfVectors(..) => (0, 0, 0),
            Gradients::Packed { slot_elements, source_ranks, rounds, .. } => {
                (slot_elements as u32, source_ranks as u32, rounds.into())
            }
        };
        let none = DeviceStep::default();
        let (step, device_step, seed, constants) = match &self.sink {
            Sink::Step { step, seed } => (step.host, step.device, *seed, step.constants),
            Sink::Write { .. } => (none, DevicePtr::NULL, 0, OptimizerConstants::default()),
        };
        let (destinations, to_owners, frequent) = match self.sink {
            Sink::Write { destinations, to_owners, frequent, .. } => {
                (destinations, to_owners, frequent.0)
            }
            Sink::Step { .. } => Default::default(),
        };
        UpdateArgs {
            tables: self.tables,
            tile_tables: self.tile_tables,
            staged,
            chunk_starts: found.chunk_starts,
            chunk_ends: found.chunk_ends,
            long_firsts: found.long_firsts,
            long_ends: found.long_ends,
            totals: found.num_found,
            keys: found.keys,
            values: found.values,
            samples: found.samples,
            gradients,
            partials: self.partials.0,
            row_numbers: found.row_numbers,
            destinations,
            to_owners,
            frequent,
            device_step,
            stride,
            partial_stride: self.partials.1 as u64,
            step,
            constants,
            seed,
            slot_elements,
            source_ranks,
            rounds_sums,
            ..UpdateArgs::default()
        }
    }
}

/// Enqueues the sums and what becomes of them.
pub(crate) fn update(stream: &CudaStream, instance: Instance, update: &Update) {
    let (instance, dtype, packed) = match update.gradients {
        Gradients::OfVectors(mat, _) => (instance.for_matrix(mat), mat.dtype(), false),
        Gradients::Packed { dtype, .. } => (instance, dtype, true),
    };
    let (into, frequent) = match &update.sink {
        Sink::Step { step, .. } => (Into::Step(&step.optimizer), DType::F32),
        Sink::Write { slots, frequent, .. } => (Into::Slots(*slots), frequent.1),
    };
    let defines = defines(instance, dtype, packed, into, frequent);
    let (args, (most_chunks, most_longs)) = (update.args(), update.sorted.most());
    // A warp takes eight chunks at a time, a block one long row.
    let chunks = Launch::new(most_chunks.div_ceil(8 * WARPS) as u32, BLOCK);
    stream.run_resident(&UPDATE, &defines, "update_chunks", chunks, &args);
    if most_longs > 0 {
        let longs = Launch::new(most_longs as u32, BLOCK);
        stream.run_resident(&UPDATE, &defines, "update_longs", longs, &args);
    }
}

/// Enqueues the steps of frequent rows, from the block that all ranks have added up; `shape` is
/// tables and rows of all replicas. `slots` is the type of other gradients, with whose update it is
/// compiled.
pub(crate) fn update_frequent(
    stream: &CudaStream,
    instance: Instance,
    tables: DevicePtr,
    shape: (usize, usize),
    slots: DType,
    (frequent, frequent_type): (DevicePtr, DType),
    sink: Sink,
) {
    let Sink::Step { step, seed } = sink else { return };
    if shape.1 == 0 {
        return;
    }
    let args = UpdateArgs {
        tables,
        frequent,
        step: step.host,
        device_step: step.device,
        constants: step.constants,
        seed,
        num_tables: shape.0 as u32,
        num_frequent: shape.1 as u32,
        ..UpdateArgs::default()
    };
    let into = Into::Step(&step.optimizer);
    let defines = defines(instance, slots, true, into, frequent_type);
    let shape = Launch::new(shape.1.div_ceil(WARPS) as u32, BLOCK);
    stream.run_resident(&UPDATE, &defines, "update_frequent", shape, &args);
}

#[cfg(test)]
mod cuda_tests {
    use super::*;
    use headlong_device::cuda::testing::layout_test;

    #[test]
    fn arguments_lie_as_kernels_read_them() {
        layout_test!(UpdateArgs, &UPDATE, &[]);
    }
}
