//! Rows by their row index, wherever they lie: what checkpoints read and write.

use super::partition::Code;
use super::set::{HybridSet, HybridTable};
use crate::error::{EmbeddingError, Result};
use headlong_device::Mat;

/// Rows looked at together: their codes lie on the stack.
const ROWS_AT_ONCE: usize = 256;

impl HybridSet {
    /// Copies rows of tensor number `tensor` of [`Self::tensors`], from row `first_row` of the whole table on, to `out`: those that
    /// lie here, owned or as replicas. The others' places in `out` stay as they are.
    ///
    /// # Errors
    /// [`EmbeddingError::RowRange`]; [`EmbeddingError::UnknownTensor`] where there is none, or where the table hides its rows (see
    /// [`Self::local_table`]).
    pub fn export_rows(&self, table: usize, tensor: usize, first_row: u64, out: &mut [f32]) -> Result<()> {
        if let Some(alone) = self.alone() {
            return alone.read_rows(table, tensor, first_row, out);
        }
        let cols = self.check_rows(table, tensor, first_row, out.len())?;
        let mats = mats_of(&self.tables[table], tensor);
        let [local, frequent] = mats.map(|mat| mat.map(Mat::read::<f32>));
        self.each_held(table, first_row, out.len() / cols, |index, place| {
            let source = match place {
                Held::Frequent(row) => frequent.as_ref().map(|mat| mat.row(row)),
                Held::Local(row) => local.as_ref().map(|mat| mat.row(row)),
            };
            if let Some(row) = source {
                out[index * cols..][..cols].copy_from_slice(row);
            }
        });
        Ok(())
    }

    /// Overwrites rows of tensor number `tensor`, from row `first_row` of the whole table on, with `values`: those that lie here,
    /// owned or as replicas. The others are passed over.
    ///
    /// # Errors
    /// As [`Self::export_rows`].
    pub fn import_rows(&self, table: usize, tensor: usize, first_row: u64, values: &[f32]) -> Result<()> {
        if let Some(alone) = self.alone() {
            return alone.write_rows(table, tensor, first_row, values);
        }
        let cols = self.check_rows(table, tensor, first_row, values.len())?;
        let mats = mats_of(&self.tables[table], tensor);
        let [mut local, mut frequent] = mats.map(|mat| mat.map(Mat::write::<f32>));
        self.each_held(table, first_row, values.len() / cols, |index, place| {
            let target = match place {
                Held::Frequent(row) => frequent.as_mut().map(|mat| mat.row_mut(row)),
                Held::Local(row) => local.as_mut().map(|mat| mat.row_mut(row)),
            };
            if let Some(row) = target {
                row.copy_from_slice(&values[index * cols..][..cols]);
            }
        });
        Ok(())
    }

    /// Columns of the tensor, if the rows exist and can be had singly.
    fn check_rows(&self, table: usize, tensor: usize, first_row: u64, len: usize) -> Result<usize> {
        let (spec, tensors) = (&self.specs[table], &self.tensors[table]);
        let HybridTable { local, frequent, .. } = &self.tables[table];
        let hidden = [local, frequent].into_iter().flatten().any(|slot| slot.plain.is_none());
        let Some(tensor) = tensors.get(tensor).filter(|_| !hidden) else {
            let names: Vec<_> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
            let known = if hidden { "no rows that can be read singly".to_owned() } else { names.join(", ") };
            let tensor = format!("number {tensor}");
            return Err(EmbeddingError::UnknownTensor { table: spec.name.clone(), tensor, known });
        };
        assert_eq!(len % tensor.cols, 0, "rows of `{}` have {} elements", tensor.name, tensor.cols);
        let count = (len / tensor.cols) as u64;
        if first_row.checked_add(count).is_none_or(|end| end > tensor.rows) {
            let (table, tensor, rows) = (spec.name.clone(), tensor.name.clone(), tensor.rows);
            return Err(EmbeddingError::RowRange { table, tensor, first_row, count, rows });
        }
        Ok(tensor.cols)
    }

    /// Calls `body` with the number, counted from `first_row`, and the place of each of `count` rows that lies here.
    fn each_held(&self, table: usize, first_row: u64, count: usize, mut body: impl FnMut(usize, Held)) {
        let mut rows = [0; ROWS_AT_ONCE];
        let mut codes = [Code::default(); ROWS_AT_ONCE];
        for done in (0..count).step_by(ROWS_AT_ONCE) {
            let len = ROWS_AT_ONCE.min(count - done);
            let first = first_row + done as u64;
            rows[..len].iter_mut().zip(first..).for_each(|(to, row)| *to = row);
            self.partition.classify_rows(table, &rows[..len], &mut codes[..len]);
            for (index, code) in codes[..len].iter().enumerate() {
                if code.is_frequent() {
                    body(done + index, Held::Frequent(code.slot() as usize));
                } else if code.owner() == self.owner.0 {
                    body(done + index, Held::Local(code.local_row() as usize));
                }
            }
        }
    }
}

/// A row that lies here.
enum Held {
    Frequent(usize),
    Local(usize),
}

/// The matrices of a tensor: local rows, and frequent ones.
fn mats_of(table: &HybridTable, tensor: usize) -> [Option<&Mat>; 2] {
    [table.local.as_ref(), table.frequent.as_ref()].map(|slot| {
        let rows = slot?.plain.as_ref()?;
        if tensor == 0 { Some(&rows.weights) } else { rows.states.get(tensor - 1) }
    })
}
