//! What one rank holds of one table.

use super::options::HybridOptions;
use super::shape::{RouteShape, staged_frequent, staged_rows};
use crate::checkpoint::TensorSpec;
use crate::error::Result;
use crate::kind::{Shard, TableEnv};
use crate::registry::Registry;
use crate::slot::{TableSlot, slot};
use crate::table::{Grain, Keys, TableSpec};
use headlong_device::Stream;
use headlong_device::optimizer::Optimizer;
use std::sync::Mutex;

/// One table and what this rank holds of it.
pub(super) struct HybridTable {
    pub(super) first_column: usize,
    pub(super) dim: usize,
    /// The rows that this rank owns.
    pub(super) local: Option<TableSlot>,
    /// The replica of the frequent rows.
    pub(super) frequent: Option<TableSlot>,
    /// Rows of a replica that hides them, of one update.
    pub(super) touched: Mutex<Vec<u64>>,
}

pub(super) fn build(
    registry: &Registry,
    stream: &Stream,
    (index, spec): (usize, &TableSpec),
    options: &HybridOptions,
    shape: &RouteShape,
    first_column: usize,
) -> Result<HybridTable> {
    let (partition, owner) = (&*options.partition, options.owner);
    let part = |rows: u64, staged: usize, row_of_local: &(dyn Fn(u64) -> u64 + Sync)| {
        if rows == 0 {
            return Ok(None);
        }
        let shard = Shard { table_rows: spec.rows, row_of_local };
        let env = TableEnv {
            stream,
            optimizer: &options.set.optimizer,
            seed: options.set.seed,
            table_index: index as u64,
            // A whole table has all its rows, wherever it is.
            shard: (spec.grain == Grain::Rows).then_some(shard),
        };
        let local = TableSpec { rows, ..spec.clone() };
        let table = registry.kind(&local)?.build(&local, &env)?;
        slot(stream, table, &local, (first_column, staged), &options.set.optimizer).map(Some)
    };
    let frequent = partition.num_frequent(index);
    let hides = !registry.kind(spec)?.shows_rows();
    let most_touched = if hides { staged_frequent(frequent, shape, index) } else { 0 };
    Ok(HybridTable {
        first_column,
        dim: spec.dim,
        touched: Mutex::new(Vec::with_capacity(most_touched)),
        local: part(shape.local_rows[index], staged_rows(shape, index), &|row| {
            partition.row_of_local(index, owner, row)
        })?,
        frequent: part(frequent, staged_frequent(frequent, shape, index), &|row| {
            partition.row_of_frequent(index, row)
        })?,
    })
}

/// The tensors of the whole table, told from the part that lies here.
pub(super) fn tensors_of(
    spec: &TableSpec,
    table: &HybridTable,
    optimizer: &Optimizer,
) -> Vec<TensorSpec> {
    let Some(part) = table.local.as_ref().or(table.frequent.as_ref()) else {
        return spec.dense_tensors(optimizer);
    };
    let tensors = part.lock().tensors();
    match (spec.grain, spec.keys) {
        (Grain::Rows, Keys::RowIndices) => {
            tensors.into_iter().map(|tensor| TensorSpec { rows: spec.rows, ..tensor }).collect()
        }
        _ => tensors,
    }
}
