//! Rows on their way to and from a checkpoint: tensors by name, runs of rows, never a whole table
//! at once.

use crate::error::{EmbeddingError, Result};

/// One tensor of a table: `rows × cols`, f32, row-major.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// `weight`, or the name of an optimiser state.
    pub name: String,
    /// Number of rows.
    pub rows: u64,
    /// Elements of a row; 1 for states kept per row.
    pub cols: usize,
}

/// Takes rows of one table.
pub trait RowSink {
    /// Takes the rows of `tensor` from `first_row` on: `values` is a whole number of rows,
    /// row-major.
    ///
    /// Each tensor comes whole and in rising order of rows, one tensor after the other.
    fn rows(&mut self, tensor: &TensorSpec, first_row: u64, values: &[f32]) -> Result<()>;
}

/// Gives rows of one table.
pub trait RowSource {
    /// Fills `out`, a whole number of rows, with the rows of `tensor` from `first_row` on.
    fn rows(&mut self, tensor: &TensorSpec, first_row: u64, out: &mut [f32]) -> Result<()>;

    /// Rows of `tensor` that there are: of a table keyed by raw ids, as many as were
    /// saved.
    fn num_rows(&mut self, tensor: &TensorSpec) -> u64 {
        tensor.rows
    }
}

/// Floats that hold a raw id: whole numbers below 2²², the lowest first. Every reader of floats
/// gets them right, which bit patterns are not sure of.
pub const ID_FLOATS: usize = 3;

/// A number as [`ID_FLOATS`] floats.
pub fn id_to_floats(id: u64) -> [f32; ID_FLOATS] {
    std::array::from_fn(|part| ((id >> (22 * part)) & 0x3f_ffff) as f32)
}

/// The number that `floats` are; `None` where they are not what [`id_to_floats`] gives.
pub fn id_from_floats(floats: &[f32]) -> Option<u64> {
    let id = floats.iter().rev().fold(0_u64, |id, &part| (id << 22) | part as u64);
    (id_to_floats(id)[..] == *floats).then_some(id)
}

/// Rows that travel at once: about a mebibyte.
pub(crate) fn rows_at_once(cols: usize) -> u64 {
    ((1 << 18) / cols.max(1)).max(1) as u64
}

/// Saved rows in memory: what tests save to and load from, and the plainest example of both traits.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SavedRows {
    tensors: std::collections::BTreeMap<String, Vec<f32>>,
}

impl SavedRows {
    /// The values of tensor `name`, row-major, if it was saved.
    pub fn tensor(&self, name: &str) -> Option<&[f32]> {
        self.tensors.get(name).map(Vec::as_slice)
    }

    /// Overwrites saved rows.
    pub(crate) fn overwrite(
        &mut self,
        tensor: &TensorSpec,
        first_row: u64,
        values: &[f32],
    ) -> Result<()> {
        let first = first_row as usize * tensor.cols;
        let saved = self
            .tensors
            .get_mut(&tensor.name)
            .and_then(|saved| saved.get_mut(first..first + values.len()));
        let Some(saved) = saved else {
            return Err(storage(
                tensor,
                format!("{} elements from row {first_row} on do not exist", values.len()),
            ));
        };
        saved.copy_from_slice(values);
        Ok(())
    }

    /// The saved tensors' names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }
}

fn storage(tensor: &TensorSpec, what: String) -> EmbeddingError {
    // Note: a sink does not know the table's name; files name it by their path.
    EmbeddingError::Storage {
        table: "in memory".to_owned(),
        tensor: tensor.name.clone(),
        source: what.into(),
    }
}

impl RowSink for SavedRows {
    fn rows(&mut self, tensor: &TensorSpec, first_row: u64, values: &[f32]) -> Result<()> {
        let saved = self.tensors.entry(tensor.name.clone()).or_default();
        let expected = first_row as usize * tensor.cols;
        if saved.len() != expected {
            return Err(storage(
                tensor,
                format!("row {first_row} came when element {} was due", saved.len()),
            ));
        }
        saved.extend_from_slice(values);
        Ok(())
    }
}

impl RowSource for SavedRows {
    fn rows(&mut self, tensor: &TensorSpec, first_row: u64, out: &mut [f32]) -> Result<()> {
        let first = first_row as usize * tensor.cols;
        let saved =
            self.tensors.get(&tensor.name).and_then(|saved| saved.get(first..first + out.len()));
        let Some(saved) = saved else {
            return Err(storage(
                tensor,
                format!("{} elements from row {first_row} on were not saved", out.len()),
            ));
        };
        out.copy_from_slice(saved);
        Ok(())
    }

    fn num_rows(&mut self, tensor: &TensorSpec) -> u64 {
        self.tensors.get(&tensor.name).map_or(0, |saved| (saved.len() / tensor.cols.max(1)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_whole_numbers_and_come_back() {
        for id in [0, 1, (1 << 22) - 1, 1 << 22, 0x1234_5678_9abc_def0, u64::MAX] {
            let floats = id_to_floats(id);
            assert!(floats.iter().all(|part| part.fract() == 0.0 && *part < (1 << 22) as f32));
            assert_eq!(id_from_floats(&floats), Some(id));
        }
        for damaged in [[0.5, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 5e6, 0.0], [f32::NAN, 0.0, 0.0]] {
            assert_eq!(id_from_floats(&damaged), None, "{damaged:?}");
        }
    }
}
