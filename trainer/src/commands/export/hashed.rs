//! Tables of kind `hashed`, as exported files have them: what is held of each id, and of all others
//! what their initial values are made of.

use super::context;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::state::checkpoint::{
    Cause, Checkpoint, CheckpointSink, Layout, Section, Select, TensorId,
};
use headlong_embedding::checkpoint::{ID_FLOATS, id_from_floats};
use headlong_embedding::init::InitialValues;
use headlong_embedding::table::{Keys, TableSpec};
use headlong_embedding::tables::hashed::ENTRY_HEAD;

/// The kind that an exported file can say.
const KIND: &str = "hashed";

/// Ids, and a number of each: that of its row, or of its entry.
pub(super) type Numbered = Vec<(u64, u64)>;

/// A table of raw ids.
#[derive(Debug, Clone, Copy)]
pub(super) struct HashedTable {
    /// Numbers of an entry before its weights: id (3), whether it has a row (1), and more.
    pub head: usize,
    /// Of the stream of uniform numbers that each id has.
    pub seed: u64,
    /// They are between this and its opposite.
    pub bound: f32,
}

impl HashedTable {
    /// The table of `column` of a model under `seed`, where it is one; it has room for `rows` rows.
    pub fn of(config: &Config, column: usize, rows: u64, seed: u64) -> Option<Self> {
        let spec: TableSpec = config.table_spec(column, rows);
        (spec.kind == KIND && spec.keys == Keys::RawIds).then(|| {
            let (seed, bound) = InitialValues::new(&spec, seed, column as u64).of_ids();
            Self { head: ENTRY_HEAD, seed, bound }
        })
    }
}

/// Of each table, the ids that have a row, and the number of their entry; nothing of tables of
/// other kinds.
pub(super) fn held_ids(model: &Checkpoint) -> Result<Vec<Numbered>> {
    let layout = model.manifest().layout.weights_only();
    let mut held = Held { ids: vec![Vec::new(); layout.tables.len()], layout };
    if held.layout.tables.iter().any(|table| table.by_id) {
        let loaded = model.load(&mut held, Select::WeightsOnly);
        loaded.map_err(Error::failed(context(model)))?;
    }
    Ok(held.ids)
}

struct Held {
    layout: Layout,
    ids: Vec<Numbered>,
}

impl CheckpointSink for Held {
    fn layout(&self) -> Layout {
        self.layout.clone()
    }

    fn write(&mut self, tensor: TensorId, first_row: u64, values: &[f32]) -> Result<(), Cause> {
        if tensor.section == Section::Dense || !self.layout.tables[tensor.index].by_id {
            return Ok(());
        }
        let width = self.layout.tables[tensor.index].dim as usize;
        for (row, entry) in (first_row..).zip(values.chunks_exact(width)) {
            let id = id_from_floats(&entry[..ID_FLOATS]).ok_or("an entry without an id")?;
            if entry[ID_FLOATS] != 0.0 {
                self.ids[tensor.index].push((id, row));
            }
        }
        Ok(())
    }
}
