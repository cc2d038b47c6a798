//! Rows on their way to and from a checkpoint: tensors by name, runs of rows, never a whole table at once.

use crate::error::Result;

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
