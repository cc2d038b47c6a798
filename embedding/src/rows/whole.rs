//! Whole rows of a matrix, read and overwritten as f32, wherever it lies.

use super::{OpenRows, OpenRowsMut};
use crate::checkpoint::TensorSpec;
use crate::error::{EmbeddingError, Result};
use crate::table::{PlainRows, TableSpec};
use half::{bf16, f16};
use headlong_device::dtype::Element;
use headlong_device::{DType, Mat};

/// Copies whole rows of a matrix, wherever it lies, as f32.
pub(crate) fn read_rows(mat: &Mat, first_row: u64, out: &mut [f32]) -> Result<()> {
    fn widened<T: Element + Into<f32>>(rows: &Mat, out: &mut [f32]) -> Result<()> {
        let rows = rows.to_vec::<T>()?;
        out.iter_mut().zip(rows).for_each(|(to, from)| *to = from.into());
        Ok(())
    }
    if !mat.is_on_device() {
        OpenRows::new(mat).copy(first_row as usize * mat.cols(), out);
        return Ok(());
    }
    let rows = mat.rows_range(first_row as usize, out.len() / mat.cols());
    match mat.dtype() {
        DType::F16 => widened::<f16>(&rows, out),
        DType::Bf16 => widened::<bf16>(&rows, out),
        _ => widened::<f32>(&rows, out),
    }
}

/// Overwrites whole rows of a matrix, wherever it lies; narrow elements are rounded to nearest.
pub(crate) fn write_rows(mat: &Mat, first_row: u64, values: &[f32]) -> Result<()> {
    if !mat.is_on_device() {
        OpenRowsMut::new(mat).overwrite(first_row as usize * mat.cols(), values);
        return Ok(());
    }
    let rows = mat.rows_range(first_row as usize, values.len() / mat.cols());
    let values = values.iter();
    Ok(match mat.dtype() {
        DType::F16 => rows.copy_from(&values.map(|&x| f16::from_f32(x)).collect::<Vec<_>>()),
        DType::Bf16 => rows.copy_from(&values.map(|&x| bf16::from_f32(x)).collect::<Vec<_>>()),
        _ => rows.copy_from(values.as_slice()),
    }?)
}

impl PlainRows {
    /// The matrix of tensor number `tensor`: the weights, then the states.
    pub(crate) fn tensor(&self, tensor: usize) -> Option<&Mat> {
        if tensor == 0 { Some(&self.weights) } else { self.states.get(tensor - 1) }
    }
}

/// Checks that `len` elements from row `first_row` on are whole rows of tensor number `tensor` of
/// `tensors`, and returns the columns of a row.
pub(crate) fn check_rows(
    spec: &TableSpec,
    tensors: &[TensorSpec],
    tensor: usize,
    first_row: u64,
    len: usize,
) -> Result<usize> {
    let table = || spec.name.clone();
    let Some(tensor) = tensors.get(tensor) else {
        let (tensor, known) = (format!("number {tensor}"), names(tensors));
        return Err(EmbeddingError::UnknownTensor { table: table(), tensor, known });
    };
    assert_eq!(len % tensor.cols, 0, "rows of `{}` have {} elements", tensor.name, tensor.cols);
    let count = (len / tensor.cols) as u64;
    if first_row.checked_add(count).is_none_or(|end| end > tensor.rows) {
        let (table, tensor, rows) = (table(), tensor.name.clone(), tensor.rows);
        return Err(EmbeddingError::RowRange { table, tensor, first_row, count, rows });
    }
    Ok(tensor.cols)
}

fn names(tensors: &[TensorSpec]) -> String {
    tensors.iter().map(|tensor| tensor.name.as_str()).collect::<Vec<_>>().join(", ")
}
