//! The names and shapes of everything that is saved, and the two doors through which the values
//! pass.
//!
//! A [`Layout`] knows nothing of ranks, devices or arenas: dense parameters have logical names and
//! shapes, tables have global rows. Their owner implements [`CheckpointSource`] and
//! [`CheckpointSink`], and is asked for, or handed, a few rows at a time, so that no second copy of
//! a large table ever exists.

use super::error::{Cause, CheckpointError, Result};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// Names and shapes of all tensors of a checkpoint, in the order of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// Dense parameters, each with its optimiser's states.
    pub dense: Vec<DenseLayout>,
    /// Embedding tables, each with its optimiser's states.
    pub tables: Vec<TableLayout>,
}

/// A dense parameter and the optimiser states that belong to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseLayout {
    /// Logical name: `bottom.0.weight`, `top.2.bias`.
    pub name: String,
    /// Logical shape, row-major, without padding: `[outputs, inputs]` or `[outputs]`.
    pub shape: Vec<u64>,
    pub states: Vec<DenseState>,
}

/// One optimiser state of a dense parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseState {
    /// Name of the state: `accumulator`, `first_moment`.
    pub name: String,
    /// Shape: that of the parameter, or `[1]`.
    pub shape: Vec<u64>,
}

/// An embedding table and the optimiser states of its rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableLayout {
    pub name: String,
    /// Rows, over all ranks.
    pub rows: u64,
    /// Numbers per row.
    pub dim: u64,
    pub states: Vec<RowState>,
    /// Whether a row is what a table of raw ids holds of one id. There are as many as it holds:
    /// `rows` differ from save to save, and `dim` counts the id and its use besides the vector.
    #[serde(default, skip_serializing_if = "is_false")]
    pub by_id: bool,
}

// Note: serde hands references to such functions.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !*value
}

/// One optimiser state of the rows of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowState {
    /// Name of the state: `accumulator`, `first_moment`.
    pub name: String,
    /// Numbers per row: the table's dim, or 1 for a row-wise state.
    pub width: u64,
}

/// Which half of the layout a tensor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Section {
    /// [`Layout::dense`].
    Dense,
    /// [`Layout::tables`].
    Tables,
}

/// Which tensor of a [`Layout`] is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId {
    pub section: Section,
    pub index: usize,
    /// `None` for the weights, else the position of the optimiser state.
    pub state: Option<usize>,
}

/// A tensor seen as rows of equal width: the first axis of its shape against all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub id: TensorId,
    /// Full name, unique in the checkpoint: `dense.bottom.0.weight`,
    /// `dense.bottom.0.weight.accumulator`, `table.C1.weight`, `table.C1.accumulator`.
    pub name: String,
    /// Shape over all ranks.
    pub shape: Vec<u64>,
    /// First axis of the shape.
    pub rows: u64,
    /// Numbers per row: the product of the other axes.
    pub width: u64,
}

/// Gives the values that are saved. Several writers may ask at once.
pub trait CheckpointSource: Sync {
    /// Names and shapes of everything there is to save.
    fn layout(&self) -> Layout;

    /// Copies rows `first_row ..` of `tensor` to `out`, row-major, without padding. The length of
    /// `out` is a multiple of the tensor's width and never reaches beyond its last row.
    fn read(&self, tensor: TensorId, first_row: u64, out: &mut [f32]) -> Result<(), Cause>;

    /// The processes that the values lie with, where they are several: these save together.
    fn processes(&self) -> Option<&dyn Processes> {
        None
    }
}

/// The processes of a job, as each of them sees the others. All of them make the same calls in the
/// same order.
pub trait Peers: Sync {
    fn count(&self) -> usize;

    /// Which of them this one is.
    fn own(&self) -> usize;

    /// The machine of a process. Machines are numbered from 0, and each has a process.
    fn machine_of(&self, process: usize) -> usize;

    /// What each process says, by its number: process 0 hears it, the others nothing.
    fn gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, Cause>;

    /// `word` becomes that of process `from`, which is as long.
    fn tell(&self, from: usize, word: &mut [u8]) -> Result<(), Cause>;

    /// Whether all processes say yes: the same answer for all.
    fn all_say(&self, own: bool) -> Result<bool, Cause>;
}

/// Processes that save and load together. Each knows the same layout, and process 0 has the
/// directory of checkpoints.
pub trait Processes: Peers {
    /// The process that holds all rows of a table of the layout alone, where one does.
    fn holder_of(&self, table: usize) -> Option<usize>;

    /// Brings to each process the rows of `wanted` that are under its number: to this one, into
    /// `out`, which becomes as long as they are.
    fn bring(&self, wanted: &[Option<Portion>], out: &mut Vec<f32>) -> Result<(), Cause>;

    /// Whether the rows of a table have to come to each process all, and in their order.
    fn takes_in_order(&self, table: usize) -> bool;

    /// Brings to each process what others have read: each has read the rows that are under its
    /// number in `read`, this one `own`. Gives as many numbers as there are in `read`, portion by
    /// portion: those of rows that this process holds, and zeros for others.
    fn deliver(&self, read: &[Option<Portion>], own: &[f32]) -> Result<Vec<f32>, Cause>;
}

/// Some rows of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portion {
    pub tensor: TensorId,
    pub first_row: u64,
    pub rows: u64,
    /// Numbers per row.
    pub width: u64,
}

impl Portion {
    /// Numbers in all.
    pub fn len(&self) -> usize {
        (self.rows * self.width) as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

pub trait CheckpointSink {
    /// Names and shapes of everything there is to fill.
    fn layout(&self) -> Layout;

    /// Takes `values` as rows `first_row ..` of `tensor`, row-major, without padding. Each row
    /// comes exactly once.
    fn write(&mut self, tensor: TensorId, first_row: u64, values: &[f32]) -> Result<(), Cause>;

    /// The processes that the values are to lie with, where they are several: these load together.
    fn processes(&self) -> Option<&dyn Processes> {
        None
    }
}

impl Layout {
    /// The layout without optimiser states.
    pub fn weights_only(&self) -> Self {
        let mut layout = self.clone();
        layout.dense.iter_mut().for_each(|parameter| parameter.states.clear());
        layout.tables.iter_mut().for_each(|table| table.states.clear());
        layout
    }

    /// The layout with as many entries of raw ids as `other` has: how many there are is no property
    /// of a model.
    pub(crate) fn with_entries_of(mut self, other: &Self) -> Self {
        for (table, other) in self.tables.iter_mut().zip(&other.tables) {
            if table.by_id && other.by_id {
                table.rows = other.rows;
            }
        }
        self
    }

    /// All tensors: dense parameters and their states, then tables and theirs, in the layout's
    /// order.
    pub fn tensors(&self) -> Result<Vec<Tensor>> {
        let mut tensors = Vec::new();
        for index in 0..self.dense.len() {
            tensors.extend(self.tensors_of(Section::Dense, index)?);
        }
        for index in 0..self.tables.len() {
            tensors.extend(self.tensors_of(Section::Tables, index)?);
        }
        let mut names = HashSet::new();
        match tensors.iter().find(|tensor| !names.insert(tensor.name.as_str())) {
            Some(twice) => Err(refused(format!("the name `{}` is used twice", twice.name))),
            None => Ok(tensors),
        }
    }

    /// The weights and then the states of one dense parameter or table.
    pub(crate) fn tensors_of(&self, section: Section, index: usize) -> Result<Vec<Tensor>> {
        let named: Vec<(String, Vec<u64>)> = match section {
            Section::Dense => {
                let parameter = &self.dense[index];
                let weights = (format!("dense.{}", parameter.name), parameter.shape.clone());
                let states = parameter.states.iter();
                let states = states.map(|state| {
                    (format!("dense.{}.{}", parameter.name, state.name), state.shape.clone())
                });
                std::iter::once(weights).chain(states).collect()
            }
            Section::Tables => {
                let table = &self.tables[index];
                let what = if table.by_id { "entry" } else { "weight" };
                let weights = (format!("table.{}.{what}", table.name), vec![table.rows, table.dim]);
                let states = table.states.iter();
                let states = states.map(|state| {
                    (format!("table.{}.{}", table.name, state.name), vec![table.rows, state.width])
                });
                std::iter::once(weights).chain(states).collect()
            }
        };
        let number = |(position, (name, shape)): (usize, (String, Vec<u64>))| {
            let may_be_empty = section == Section::Tables && self.tables[index].by_id;
            tensor(
                TensorId { section, index, state: position.checked_sub(1) },
                name,
                shape,
                may_be_empty,
            )
        };
        named.into_iter().enumerate().map(number).collect()
    }
}

/// More numbers than this in one tensor are refused, so that sizes in bytes cannot overflow.
const MAX_NUMBERS: u64 = 1 << 60;

fn tensor(id: TensorId, name: String, shape: Vec<u64>, may_be_empty: bool) -> Result<Tensor> {
    let (rows, rest) = shape.split_first().map_or((1, &[][..]), |(rows, rest)| (*rows, rest));
    let width = rest.iter().try_fold(1_u64, |product, axis| product.checked_mul(*axis));
    let numbers = width.and_then(|width| width.checked_mul(rows));
    match (width, numbers) {
        (Some(width), Some(numbers))
            if (1..=MAX_NUMBERS).contains(&numbers) || (may_be_empty && rows == 0 && width > 0) =>
        {
            Ok(Tensor { id, name, shape, rows, width })
        }
        _ => Err(refused(format!(
            "`{name}` has the shape {shape:?}: every axis must be at least 1, and the product at \
             most 2^60"
        ))),
    }
}

fn refused(message: String) -> CheckpointError {
    CheckpointError::Layout { message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        Layout {
            dense: vec![DenseLayout {
                name: "bottom.0.weight".into(),
                shape: vec![4, 3],
                states: vec![DenseState { name: "steps".into(), shape: vec![1] }],
            }],
            tables: vec![TableLayout {
                name: "C1".into(),
                rows: 10,
                dim: 2,
                states: vec![RowState { name: "accumulator".into(), width: 1 }],
                by_id: false,
            }],
        }
    }

    #[test]
    fn tensors_are_named_and_seen_as_rows() {
        let tensors = layout().tensors().unwrap();
        let seen: Vec<_> = tensors.iter().map(|t| (t.name.as_str(), t.rows, t.width)).collect();
        let expected = [
            ("dense.bottom.0.weight", 4, 3),
            ("dense.bottom.0.weight.steps", 1, 1),
            ("table.C1.weight", 10, 2),
            ("table.C1.accumulator", 10, 1),
        ];
        assert_eq!(seen, expected);
        assert_eq!(layout().weights_only().tensors().unwrap().len(), 2);
    }

    #[test]
    fn bad_shapes_and_names_are_refused() {
        let mut twice = layout();
        twice.tables.push(twice.tables[0].clone());
        assert!(
            twice.tensors().unwrap_err().to_string().contains("`table.C1.weight` is used twice")
        );
        for shape in [vec![0, 3], vec![4, 0], vec![u64::MAX, 2], vec![1 << 31, 1 << 31]] {
            let mut bad = layout();
            bad.dense[0].shape = shape;
            assert!(bad.tensors().unwrap_err().to_string().contains("`dense.bottom.0.weight`"));
        }
    }
}
