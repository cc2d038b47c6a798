//! Rows on their way to and from a checkpoint: tensors by name, runs of rows, never a whole table at once.

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
    /// Takes the rows of `tensor` from `first_row` on: `values` is a whole number of rows, row-major.
    ///
    /// Each tensor comes whole and in rising order of rows, one tensor after the other.
    ///
    /// # Errors
    /// What the sink meets: [`crate::EmbeddingError::Storage`].
    fn rows(&mut self, tensor: &TensorSpec, first_row: u64, values: &[f32]) -> Result<()>;
}

/// Gives rows of one table.
pub trait RowSource {
    /// Fills `out`, a whole number of rows, with the rows of `tensor` from `first_row` on.
    ///
    /// # Errors
    /// What the source meets: [`crate::EmbeddingError::Storage`].
    fn rows(&mut self, tensor: &TensorSpec, first_row: u64, out: &mut [f32]) -> Result<()>;
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
        let saved = self.tensors.get(&tensor.name).and_then(|saved| saved.get(first..first + out.len()));
        let Some(saved) = saved else {
            return Err(storage(
                tensor,
                format!("{} elements from row {first_row} on were not saved", out.len()),
            ));
        };
        out.copy_from_slice(saved);
        Ok(())
    }
}
