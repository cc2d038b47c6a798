//! Initial values on a device: made there, so that nothing but row numbers is copied.

use super::InitialValues;
use crate::cuda::layout::BLOCK;
use crate::cuda::tables::write_words;
use crate::error::Result;
use crate::kind::TableEnv;
use headlong_device::cuda::{
    CudaStream, Define, DeviceMemory, DevicePtr, Launch, Source, kernel_args,
};
use headlong_device::{DType, Mat};

/// Initial values of rows and states.
pub(crate) static INIT: Source = Source { name: "embedding/init", text: include_str!("init.cu") };

/// Rows of a shard whose numbers lie on the device at a time: 256 KiB.
const ROWS_AT_ONCE: usize = 1 << 16;

kernel_args! {
    struct InitArgs {
        rows, row_numbers: DevicePtr;
        seed, stream, num_rows: u64;
        low, width: f32;
        dim, unused: u32;
    }

    struct FillArgs { to: DevicePtr; count: u64; value: f32; unused: u32; }
}

/// The constants of an instance.
pub(crate) fn defines(rows: DType) -> [Define; 1] {
    [Define::dtype("ROW_TYPE", rows)]
}

/// Fills the rows of `weights`, and waits for it.
pub(super) fn initialise(
    stream: &CudaStream,
    env: &TableEnv,
    values: &InitialValues,
    weights: &Mat,
) -> Result<()> {
    if env.shard.is_none() {
        launch(stream, values, weights, DevicePtr::NULL);
        return Ok(stream.synchronize()?);
    }
    let rows = weights.rows();
    let memory = DeviceMemory::new(stream.device(), "numbers of rows", 4 * ROWS_AT_ONCE.min(rows))?;
    for first in (0..rows).step_by(ROWS_AT_ONCE) {
        let part = weights.rows_range(first, ROWS_AT_ONCE.min(rows - first));
        // Waits for the kernel that reads the numbers before these.
        write_words(&memory, 0, &row_numbers(env, first, part.rows()))?;
        launch(stream, values, &part, memory.ptr());
    }
    Ok(stream.synchronize()?)
}

/// Rows of the model's table of `count` local rows from `first` on. On a device tables have fewer
/// than 2³¹ rows.
fn row_numbers(env: &TableEnv, first: usize, count: usize) -> Vec<u32> {
    (first..first + count).map(|row| env.row_of_local(row as u64) as u32).collect()
}

fn launch(stream: &CudaStream, values: &InitialValues, rows: &Mat, row_numbers: DevicePtr) {
    let dim = rows.cols();
    assert_eq!(rows.stride(), dim, "rows of `{}` stand without gaps", rows.name());
    let args = InitArgs {
        rows: rows.device_ptr(),
        row_numbers,
        seed: values.rng.seed(),
        stream: values.rng.stream(),
        num_rows: rows.rows() as u64,
        low: -values.bound,
        width: values.bound - -values.bound,
        dim: dim as u32,
        unused: 0,
    };
    let threads = if dim.is_multiple_of(4) { dim / 4 } else { dim } * rows.rows();
    stream.run_resident(&INIT, &defines(rows.dtype()), "initial_rows", shape(threads), &args);
}

/// Sets every element of `state` to `value`, and waits for it.
pub(super) fn fill(stream: &CudaStream, state: &Mat, value: f32) -> Result<()> {
    assert_eq!(state.dtype(), DType::F32, "states are f32");
    assert_eq!(state.stride(), state.cols(), "rows of `{}` stand without gaps", state.name());
    let count = state.rows() * state.cols();
    let args = FillArgs { to: state.device_ptr(), count: count as u64, value, unused: 0 };
    stream.run_resident(&INIT, &defines(DType::F32), "fill_state", shape(count), &args);
    Ok(stream.synchronize()?)
}

fn shape(threads: usize) -> Launch {
    Launch::new(u32::try_from(threads.div_ceil(BLOCK as usize)).unwrap_or(u32::MAX), BLOCK)
}

#[cfg(test)]
mod cuda_tests {
    use super::*;
    use headlong_device::cuda::testing::layout_test;

    #[test]
    fn arguments_lie_as_kernels_read_them() {
        layout_test!(InitArgs, &INIT, &[]);
        layout_test!(FillArgs, &INIT, &[]);
    }
}
