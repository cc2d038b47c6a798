//! One table of a set, and where its rows and vectors lie.

use crate::error::Result;
use crate::route::Route;
use crate::table::{EmbeddingTable, Keys, PlainRows, TableSpec};
use headlong_device::optimizer::{Optimizer, StateWidth};
use headlong_device::{ArenaPlan, DType, Mat, Stream};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One table and where its columns lie in the matrix of vectors.
pub(crate) struct TableSlot {
    pub(crate) first_column: usize,
    pub(crate) dim: usize,
    /// Where the rows lie, if the table says so: then the fused paths run and the trait's do not.
    pub(crate) plain: Option<PlainRows>,
    /// One row per entry, for tables without plain rows.
    pub(crate) staging: Option<Mat>,
    table: Mutex<Box<dyn EmbeddingTable>>,
}

impl TableSlot {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Box<dyn EmbeddingTable>> {
        // A table that panicked has ended the step already.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A table that hides its rows, and where its vectors and gradients are staged.
pub(crate) fn staged(slot: &Option<TableSlot>) -> Option<(&TableSlot, &Mat)> {
    let slot = slot.as_ref()?;
    Some((slot, slot.staging.as_ref()?))
}

/// The kernels address vectors and their gradients by this shape.
pub(crate) fn check_vectors(mat: &Mat, width: usize, num_samples: usize) {
    assert_eq!(mat.cols(), width, "`{}` is as wide as all tables together", mat.name());
    assert_eq!(mat.rows(), num_samples, "`{}` has the route's samples", mat.name());
}

/// Whether the table can be built and routed.
pub(crate) fn check(spec: &TableSpec, max_samples: usize, max_ids: usize) -> Result<()> {
    spec.check()?;
    if Route::fits(spec, max_samples, max_ids) {
        return Ok(());
    }
    let most = max_samples.max(max_ids);
    let reason = format!("{} rows and {most} samples or ids do not fit one 64-bit key", spec.rows);
    Err(spec.refused(reason))
}

pub(crate) fn slot(
    stream: &Stream,
    table: Box<dyn EmbeddingTable>,
    spec: &TableSpec,
    (first_column, max_ids): (usize, usize),
    optimizer: &Optimizer,
) -> Result<TableSlot> {
    // Raw ids are no rows: the fused paths, which go by row, are not for them.
    let plain = table.plain_rows().filter(|_| spec.keys == Keys::RowIndices);
    let staging = match &plain {
        Some(rows) => {
            check_plain_rows(rows, spec, optimizer);
            None
        }
        None if stream.as_cuda().is_some()
            && (table.cuda().is_none() || spec.keys == Keys::RawIds) =>
        {
            return Err(spec.refused("it shows neither rows nor a CUDA body on a CUDA device"));
        }
        None => {
            let mut plan = ArenaPlan::new(&format!("staging of table {}", spec.name));
            let slot = plan.matrix("staging", DType::F32, max_ids, spec.dim);
            Some(plan.freeze_on(stream)?.mat(slot))
        }
    };
    Ok(TableSlot { first_column, dim: spec.dim, plain, staging, table: Mutex::new(table) })
}

/// The kernels address plain rows by these shapes.
fn check_plain_rows(rows: &PlainRows, spec: &TableSpec, optimizer: &Optimizer) {
    let shape = |mat: &Mat| (mat.rows() as u64, mat.cols(), mat.stride());
    let states = optimizer.states();
    assert_eq!(
        rows.states.len(),
        states.len(),
        "table `{}` shows one matrix per optimiser state",
        spec.name
    );
    assert_eq!(
        shape(&rows.weights),
        (spec.rows, spec.dim, spec.dim),
        "plain weights of table `{}`",
        spec.name
    );
    for (mat, state) in rows.states.iter().zip(states) {
        let cols = if state.width == StateWidth::PerRow { 1 } else { spec.dim };
        assert_eq!(
            shape(mat),
            (spec.rows, cols, cols),
            "plain state `{}` of table `{}`",
            state.name,
            spec.name
        );
    }
}
