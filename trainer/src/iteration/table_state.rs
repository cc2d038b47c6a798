//! The tables as checkpoints see them: which tensors belong together, and which method reads and
//! writes their rows.
//!
//! A dense table is a `weight` with its states. A table of raw ids is its entries, rising by id,
//! wherever they are held. A table whose rows share storage has tensors of its own choosing: each
//! is a table of the layout, named `C3.quotient`, with the states that are named after it.

use crate::iteration::model::Model;
use crate::state::checkpoint::{Cause, RowState, TableLayout};
use headlong_embedding::checkpoint::{ID_FLOATS, id_from_floats};
use headlong_embedding::hybrid::{Owner, Place, TablePlacement};
use headlong_embedding::{EmbeddingTable, Grain, Keys, TensorSpec};
use std::sync::MutexGuard;

#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub layout: TableLayout,
    /// Which table of the model it is of.
    table: usize,
    /// Which of its tensors: the weights, then their states.
    tensors: Vec<usize>,
    access: Access,
}

#[derive(Debug, Clone)]
enum Access {
    /// By row index, wherever the row lies.
    Rows,
    /// Through the table itself, which lies in one piece.
    Whole,
    /// By raw id: those of the rows.
    Ids(Vec<u64>),
}

/// The tables of the layout of these ranks. With ranks in other processes it is an exchange, where
/// tables hold raw ids or rows that share storage.
pub(crate) fn find_groups(models: &[&Model], remote: bool) -> Vec<Group> {
    let specs = models[0].tables.specs().iter().enumerate();
    let groups = specs.flat_map(|(table, spec)| {
        let part = models.iter().find_map(|model| part_of(model, table));
        let mut own = part.filter(|part| part.plain_rows().is_none()).map(|part| part.tensors());
        if remote && spec.grain == Grain::Whole {
            own = tensors_of_any_rank(models[0], own);
        }
        let hidden = own.is_some();
        let tensors = own.unwrap_or_else(|| models[0].tables.tensors(table).to_vec());
        let in_one_piece = spec.grain == Grain::Whole || models[0].tables.is_single_rank();
        match spec.keys {
            Keys::RawIds => vec![entries(models, table, &tensors, remote)],
            Keys::RowIndices if hidden && in_one_piece => whole(table, &spec.name, &tensors),
            Keys::RowIndices => vec![Group {
                layout: layout(spec.name.clone(), &tensors[0], &tensors[1..]),
                table,
                tensors: (0..tensors.len()).collect(),
                access: Access::Rows,
            }],
        }
    });
    groups.collect()
}

/// What a rank holds of a table.
fn part_of(model: &Model, table: usize) -> Option<MutexGuard<'_, Box<dyn EmbeddingTable>>> {
    model.tables.local_table(table).or_else(|| model.tables.frequent_table(table))
}

fn layout(name: String, weights: &TensorSpec, states: &[TensorSpec]) -> TableLayout {
    let state = |tensor: &TensorSpec| RowState {
        name: tensor
            .name
            .strip_prefix(&format!("{}.", weights.name))
            .unwrap_or(&tensor.name)
            .to_owned(),
        width: tensor.cols as u64,
    };
    let (rows, dim) = (weights.rows, weights.cols as u64);
    TableLayout { name, rows, dim, states: states.iter().map(state).collect(), by_id: false }
}

/// The tensors of a table in one piece: `quotient` and behind it `quotient.accumulator`, or
/// `weight` and behind it its states.
fn whole(table: usize, name: &str, tensors: &[TensorSpec]) -> Vec<Group> {
    let mut groups = Vec::new();
    let mut next = 0;
    while let Some(weights) = tensors.get(next) {
        let belongs = |tensor: &&TensorSpec| {
            let named_after = tensor.name.starts_with(&format!("{}.", weights.name));
            tensor.rows == weights.rows && (named_after || weights.name == "weight")
        };
        let states = tensors[next + 1..].iter().take_while(belongs).count();
        let range = next..next + 1 + states;
        let full_name = if weights.name == "weight" {
            name.to_owned()
        } else {
            format!("{name}.{}", weights.name)
        };
        groups.push(Group {
            layout: layout(full_name, weights, &tensors[next + 1..range.end]),
            table,
            tensors: range.clone().collect(),
            access: Access::Whole,
        });
        next = range.end;
    }
    groups
}

fn entries(models: &[&Model], table: usize, tensors: &[TensorSpec], remote: bool) -> Group {
    let held = |model: &&Model| {
        let part = part_of(model, table);
        part.and_then(|part| Some(part.entries()?.ids())).unwrap_or_default()
    };
    let mut ids: Vec<u64> = models.iter().flat_map(held).collect();
    if remote {
        ids = gather_lists(models[0], &ids).concat();
    }
    ids.sort_unstable();
    let name = models[0].tables.specs()[table].name.clone();
    let mut layout = layout(name, &tensors[0], &tensors[1..]);
    (layout.rows, layout.by_id) = (ids.len() as u64, true);
    Group { layout, table, tensors: (0..tensors.len()).collect(), access: Access::Ids(ids) }
}

/// The tensors of a table of its author's own, which only ranks know that hold it: as the first of
/// these says.
fn tensors_of_any_rank(model: &Model, own: Option<Vec<TensorSpec>>) -> Option<Vec<TensorSpec>> {
    let to_fields = |tensor: TensorSpec| (tensor.name, tensor.rows, tensor.cols);
    let from_fields = |(name, rows, cols)| TensorSpec { name, rows, cols };
    let fields: Option<Vec<_>> = own.map(|own| own.into_iter().map(to_fields).collect());
    let text = serde_json::to_vec(&fields).expect("names and numbers have a JSON form");
    let bytes: Vec<u64> = text.into_iter().map(u64::from).collect();
    let mut ranks = gather_lists(model, &bytes).into_iter();
    ranks.find_map(|bytes| {
        let text: Vec<u8> = bytes.iter().map(|&byte| byte as u8).collect();
        let fields: Option<Vec<(String, u64, usize)>> = serde_json::from_slice(&text).ok()?;
        Some(fields?.into_iter().map(from_fields).collect())
    })
}

/// The list of every process, in the order of the ranks. A rank that is gone ends the next exchange
/// as well, which can say so: here there is this process's list alone.
fn gather_lists(model: &Model, mine: &[u64]) -> Vec<Vec<u64>> {
    let communicator = &model.communicator;
    let alone = || vec![mine.to_vec()];
    let mut counts = vec![0_u64; communicator.num_ranks()];
    if communicator.all_gather(&[mine.len() as u64], &mut counts).is_err() {
        return alone();
    }
    let longest = counts.iter().copied().max().unwrap_or(0) as usize;
    let (mut padded, mut all) = (mine.to_vec(), vec![0; longest * counts.len()]);
    padded.resize(longest, 0);
    if longest == 0 || communicator.all_gather(&padded, &mut all).is_err() {
        return alone();
    }
    let parts = all.chunks(longest).zip(&counts);
    parts.map(|(part, &count)| part[..count as usize].to_vec()).collect()
}

impl Group {
    /// Which table of the model it is of.
    pub fn table(&self) -> usize {
        self.table
    }

    /// Whether every rank holds the whole table.
    pub fn is_with_all(&self, model: &Model) -> bool {
        matches!(self.placement(model), Some(TablePlacement::DataParallel))
    }

    /// The rank that holds the whole table, where one does.
    pub fn holder(&self, model: &Model) -> Option<usize> {
        match self.placement(model) {
            Some(TablePlacement::TableWise(owner)) => Some(owner.0),
            _ => None,
        }
    }

    /// Whether its rows are taken in their order alone: the first tensor of raw ids says which rows
    /// those of the others are, and a table of its author's own may count on it.
    pub fn takes_in_order(&self) -> bool {
        !matches!(self.access, Access::Rows)
    }

    fn placement<'a>(&self, model: &'a Model) -> Option<&'a TablePlacement> {
        model.tables.partition().placements().nth(self.table)
    }

    /// Calls `body` with the number of each of `rows` rows and the rank that holds it; none where
    /// all do.
    pub fn each_holder(
        &self,
        model: &Model,
        (first_row, rows): (u64, u64),
        mut body: impl FnMut(usize, Option<usize>),
    ) {
        let partition = model.tables.partition();
        let body = |index, owner: Option<Owner>| body(index, owner.map(|owner| owner.0));
        match &self.access {
            Access::Ids(ids) => {
                let ids = ids[first_row as usize..].iter().take(rows as usize);
                partition.each_owner(self.table, ids.copied(), body);
            }
            Access::Rows | Access::Whole => {
                partition.each_owner(self.table, first_row..first_row + rows, body);
            }
        }
    }

    /// Fills those rows of a tensor that this rank holds.
    pub fn read(
        &self,
        model: &Model,
        state: Option<usize>,
        first_row: u64,
        out: &mut [f32],
    ) -> Result<(), Cause> {
        let number = self.tensors[state.map_or(0, |state| state + 1)];
        match &self.access {
            Access::Rows => model.tables.export_rows(self.table, number, first_row, out)?,
            Access::Whole => {
                if let Some(part) = part_of(model, self.table) {
                    part.read_rows(number, first_row, out)?;
                }
            }
            Access::Ids(ids) => {
                let ids = &ids[first_row as usize..][..out.len() / self.width(state)];
                if let Some(entries) =
                    part_of(model, self.table).as_ref().and_then(|part| part.entries())
                {
                    entries.read(number, ids, out);
                }
            }
        }
        Ok(())
    }

    /// Remembers the ids of entries that come: their other tensors follow in the same order.
    pub fn take_ids(&mut self, state: Option<usize>, first_row: u64, values: &[f32]) {
        let width = self.width(state);
        let (Access::Ids(ids), None) = (&mut self.access, state) else { return };
        ids.truncate(first_row as usize);
        let id = |entry: &[f32]| id_from_floats(&entry[..ID_FLOATS]).unwrap_or_default();
        ids.extend(values.chunks_exact(width).map(id));
    }

    /// Takes those rows of a tensor that this rank holds, or is to hold.
    pub fn write(
        &self,
        model: &Model,
        state: Option<usize>,
        first_row: u64,
        values: &[f32],
    ) -> Result<(), Cause> {
        let number = self.tensors[state.map_or(0, |state| state + 1)];
        match &self.access {
            Access::Rows => model.tables.import_rows(self.table, number, first_row, values)?,
            Access::Whole => {
                let (local, replica) =
                    (model.tables.local_table(self.table), model.tables.frequent_table(self.table));
                for mut part in local.into_iter().chain(replica) {
                    part.write_rows(number, first_row, values)?;
                }
            }
            Access::Ids(ids) => self.write_entries(
                model,
                (number, state, first_row == 0),
                &ids[first_row as usize..],
                values,
            )?,
        }
        Ok(())
    }

    fn write_entries(
        &self,
        model: &Model,
        (number, state, first): (usize, Option<usize>, bool),
        ids: &[u64],
        values: &[f32],
    ) -> Result<(), Cause> {
        let Some(mut part) = part_of(model, self.table) else { return Ok(()) };
        let Some(entries) = part.entries_mut() else {
            return Err(
                "the table has entries to save (`entries`), but none to load (`entries_mut`)"
                    .into(),
            );
        };
        if first && number == 0 {
            entries.clear();
        }
        let width = self.width(state);
        let owner = model.tables.owner();
        for (&id, row) in ids.iter().zip(values.chunks_exact(width)) {
            let place = model.tables.partition().classify(self.table, id);
            if matches!(place, Place::Infrequent { owner: there, .. } if there == owner) {
                entries.write(number, &[id], row)?;
            }
        }
        Ok(())
    }

    fn width(&self, state: Option<usize>) -> usize {
        state.map_or(self.layout.dim, |state| self.layout.states[state].width) as usize
    }
}
