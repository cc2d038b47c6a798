//! What the author of a table writes for a CUDA device.

use crate::error::Result;
use headlong_device::cuda::{CudaStream, DevicePtr, DeviceStep, OptimizerConstants};
use headlong_device::optimizer::Optimizer;

/// Rows of one table, in device memory. How many there are is known only there: kernels are
/// launched for the capacity, or with a fixed grid, and read the count.
#[derive(Debug, Clone, Copy)]
pub struct DeviceRows {
    /// Row indices, `u32`.
    pub rows: DevicePtr,
    /// Their number, one `u32`.
    pub count: DevicePtr,
    /// Most of them.
    pub capacity: usize,
}

/// What an update brings to kernels.
#[derive(Debug, Clone, Copy)]
pub struct CudaStep {
    /// The formula; kernels are instances of it (`HL_OPTIMIZER`).
    pub optimizer: Optimizer,
    /// Its constants.
    pub constants: OptimizerConstants,
    /// Where learning rate and step number lie, a [`DeviceStep`]; null: they are `host`.
    pub device: DevicePtr,
    /// Learning rate and step number, where none lie in device memory.
    pub host: DeviceStep,
}

/// The CUDA body of a table of one's own: what [`crate::EmbeddingTable::cuda`] returns.
///
/// Both methods enqueue and return. They may be captured into a graph: no allocation, no waiting,
/// no module that was not loaded by a first eager call, and nothing of the host that changes from
/// step to step. Vectors and gradients are f32, `dim` elements each, one after the other.
pub trait CudaTable {
    /// Writes one vector per entry of `rows`, which may repeat. Changes nothing else.
    ///
    /// # Errors
    /// The author's own; failures of launches are kept by the stream.
    fn lookup(&self, stream: &CudaStream, rows: DeviceRows, vectors: DevicePtr) -> Result<()>;

    /// Applies one step: `rows` are unique and rise, gradient `i` is the summed one of entry `i`.
    fn apply(
        &self,
        stream: &CudaStream,
        rows: DeviceRows,
        gradients: DevicePtr,
        step: &CudaStep,
    ) -> Result<()>;
}
