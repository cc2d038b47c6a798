//! Rows by their row index, wherever they lie: what checkpoints read and write.

use super::partition::Code;
use super::set::{HybridSet, HybridTable, Location};
use crate::error::{EmbeddingError, Result};
use crate::rows::{OpenRows, OpenRowsMut};
use crate::set::{check_rows, read_rows, write_rows};
use crate::table::{EmbeddingTable, Grain, Keys};
use headlong_device::Mat;

/// Rows looked at together: their codes lie on the stack.
const ROWS_AT_ONCE: usize = 256;

impl HybridSet {
    /// Copies rows of tensor number `tensor` of [`Self::tensors`], from row `first_row` of the
    /// whole table on, to `out`: those that lie here, owned or as replicas. The others' places in
    /// `out` stay as they are. Tables that hide their rows are asked for them, a run of rows at a
    /// time.
    ///
    /// # Errors
    /// [`EmbeddingError::RowRange`]; [`EmbeddingError::UnknownTensor`] where there is none, or
    /// where rows go by raw ids (see [`Self::local_table`]); errors of tables of other authors.
    pub fn export_rows(
        &self,
        table: usize,
        tensor: usize,
        first_row: u64,
        out: &mut [f32],
    ) -> Result<()> {
        if let Some(set) = self.local() {
            return set.read_rows(table, tensor, first_row, out);
        }
        let Some(cols) = self.check_rows(table, tensor, first_row, out.len())? else {
            return Ok(());
        };
        if self.hides(table) {
            return self.each_hidden_run(table, first_row, out.len() / cols, |part, run| {
                run.copy_rows(part, tensor, cols, |index, row| {
                    out[index * cols..][..cols].copy_from_slice(row)
                })
            });
        }
        if let Location::Device(_) = self.at {
            return self.export_from_device(table, tensor, cols, first_row, out);
        }
        let mats = mats_of(&self.tables[table], tensor);
        let [local, frequent] = mats.map(|mat| mat.map(OpenRows::new));
        self.each_held(table, first_row, out.len() / cols, |index, place| {
            let (source, row) = match place {
                Held::Frequent(row) => (&frequent, row),
                Held::Local(row) => (&local, row),
            };
            if let Some(rows) = source {
                rows.copy(row * cols, &mut out[index * cols..][..cols]);
            }
        });
        Ok(())
    }

    /// Overwrites rows of tensor number `tensor`, from row `first_row` of the whole table on, with
    /// `values`: those that lie here, owned or as replicas. The others are passed over.
    ///
    /// # Errors
    /// As [`Self::export_rows`].
    pub fn import_rows(
        &self,
        table: usize,
        tensor: usize,
        first_row: u64,
        values: &[f32],
    ) -> Result<()> {
        if let Some(set) = self.local() {
            return set.write_rows(table, tensor, first_row, values);
        }
        let Some(cols) = self.check_rows(table, tensor, first_row, values.len())? else {
            return Ok(());
        };
        if self.hides(table) {
            return self.each_hidden_run(table, first_row, values.len() / cols, |part, run| {
                run.overwrite_rows(part, tensor, cols, values)
            });
        }
        if let Location::Device(_) = self.at {
            return self.import_to_device(table, tensor, cols, first_row, values);
        }
        let mats = mats_of(&self.tables[table], tensor);
        let [mut local, mut frequent] = mats.map(|mat| mat.map(OpenRowsMut::new));
        self.each_held(table, first_row, values.len() / cols, |index, place| {
            let (target, row) = match place {
                Held::Frequent(row) => (&mut frequent, row),
                Held::Local(row) => (&mut local, row),
            };
            if let Some(rows) = target {
                rows.overwrite(row * cols, &values[index * cols..][..cols]);
            }
        });
        Ok(())
    }

    /// The rows of a part that lies on a device, in runs that are copied together.
    fn each_run_on_device(
        &self,
        table: usize,
        tensor: usize,
        (first_row, count): (u64, usize),
        mut body: impl FnMut(&Mat, &Run) -> Result<()>,
    ) -> Result<()> {
        let mats = mats_of(&self.tables[table], tensor);
        let placed = self.partition.num_placed(table, self.owner);
        let mut runs = [Run::default(), Run::default(), Run::default()];
        self.each_held(table, first_row, count, |index, place| match place {
            Held::Frequent(row) => runs[0].rows.push((index, row as u64)),
            Held::Local(row) if (row as u64) < placed => runs[1].rows.push((index, row as u64)),
            Held::Local(row) => runs[2].rows.push((index, row as u64)),
        });
        for (run, mat) in runs.iter().zip([mats[1], mats[0], mats[0]]) {
            if let Some(mat) = mat.filter(|_| !run.rows.is_empty()) {
                body(mat, run)?;
            }
        }
        Ok(())
    }

    fn export_from_device(
        &self,
        table: usize,
        tensor: usize,
        cols: usize,
        first_row: u64,
        out: &mut [f32],
    ) -> Result<()> {
        let count = out.len() / cols;
        self.each_run_on_device(table, tensor, (first_row, count), |mat, run| {
            let (first, values) = run.read_from_device(mat)?;
            for &(index, row) in &run.rows {
                let from = (row - first) as usize * cols;
                out[index * cols..][..cols].copy_from_slice(&values[from..][..cols]);
            }
            Ok(())
        })
    }

    fn import_to_device(
        &self,
        table: usize,
        tensor: usize,
        cols: usize,
        first_row: u64,
        values: &[f32],
    ) -> Result<()> {
        let count = values.len() / cols;
        self.each_run_on_device(table, tensor, (first_row, count), |mat, run| {
            // Rows between those of the run stay as they are.
            let (first, mut rows) = run.read_from_device(mat)?;
            for &(index, row) in &run.rows {
                let to = (row - first) as usize * cols;
                rows[to..][..cols].copy_from_slice(&values[index * cols..][..cols]);
            }
            write_rows(mat, first, &rows)
        })
    }

    /// Whether the parts of the table that lie here hide their rows.
    fn hides(&self, table: usize) -> bool {
        let HybridTable { local, frequent, .. } = &self.tables[table];
        [local, frequent].into_iter().flatten().any(|slot| slot.plain.is_none())
    }

    /// Calls `body` with each run of rows, of those from `first_row` on that lie here, and the part
    /// that holds it.
    fn each_hidden_run(
        &self,
        table: usize,
        first_row: u64,
        count: usize,
        mut body: impl FnMut(&mut dyn EmbeddingTable, &Run) -> Result<()>,
    ) -> Result<()> {
        let HybridTable { local, frequent, .. } = &self.tables[table];
        // Frequent rows, those placed here and those by formula: each kind lies in the order of
        // rows.
        let mut runs = [Run::default(), Run::default(), Run::default()];
        if self.specs[table].grain == Grain::Whole {
            // Its tensors have rows of their own, wherever the whole table lies.
            let whole = usize::from(frequent.is_none());
            runs[whole].rows = (0..count).map(|index| (index, first_row + index as u64)).collect();
        } else {
            let placed = self.partition.num_placed(table, self.owner);
            self.each_held(table, first_row, count, |index, place| match place {
                Held::Frequent(row) => runs[0].rows.push((index, row as u64)),
                Held::Local(row) if (row as u64) < placed => runs[1].rows.push((index, row as u64)),
                Held::Local(row) => runs[2].rows.push((index, row as u64)),
            });
        }
        for (run, slot) in runs.iter().zip([frequent, local, local]) {
            if let Some(slot) = slot.as_ref().filter(|_| !run.rows.is_empty()) {
                body(&mut **slot.lock(), run)?;
            }
        }
        Ok(())
    }

    /// Columns of the tensor, if the rows exist and go by row index; none where nothing of the
    /// table lies here.
    fn check_rows(
        &self,
        table: usize,
        tensor: usize,
        first_row: u64,
        len: usize,
    ) -> Result<Option<usize>> {
        let spec = &self.specs[table];
        if spec.keys == Keys::RawIds {
            let (tensor, known) = (format!("number {tensor}"), "no rows but by raw id".to_owned());
            return Err(EmbeddingError::UnknownTensor { table: spec.name.clone(), tensor, known });
        }
        let HybridTable { local, frequent, .. } = &self.tables[table];
        if local.is_none() && frequent.is_none() {
            return Ok(None);
        }
        check_rows(spec, &self.tensors[table], tensor, first_row, len).map(Some)
    }

    /// Calls `body` with the number, counted from `first_row`, and the place of each of `count`
    /// rows that lies here.
    fn each_held(
        &self,
        table: usize,
        first_row: u64,
        count: usize,
        mut body: impl FnMut(usize, Held),
    ) {
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

/// Rows of one part that hides them: number in the caller's list, row of the part; both rise.
#[derive(Default)]
struct Run {
    rows: Vec<(usize, u64)>,
}

impl Run {
    /// First row of the run in `mat`, and the values of all rows from there to the last one.
    fn read_from_device(&self, mat: &Mat) -> Result<(u64, Vec<f32>)> {
        let first = self.rows.first().map_or(0, |(_, row)| *row);
        let last = self.rows.last().map_or(0, |(_, row)| *row);
        let mut values = vec![0.0; (last + 1 - first) as usize * mat.cols()];
        read_rows(mat, first, &mut values)?;
        Ok((first, values))
    }

    /// First row of the part, and the values of all rows from there to the last one.
    fn read(
        &self,
        part: &dyn EmbeddingTable,
        tensor: usize,
        cols: usize,
    ) -> Result<(u64, Vec<f32>)> {
        let first = self.rows.first().map_or(0, |(_, row)| *row);
        let last = self.rows.last().map_or(0, |(_, row)| *row);
        let mut values = vec![0.0; (last + 1 - first) as usize * cols];
        part.read_rows(tensor, first, &mut values)?;
        Ok((first, values))
    }

    fn copy_rows(
        &self,
        part: &dyn EmbeddingTable,
        tensor: usize,
        cols: usize,
        mut body: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        let (first, values) = self.read(part, tensor, cols)?;
        self.rows.iter().for_each(|&(index, row)| {
            body(index, &values[(row - first) as usize * cols..][..cols])
        });
        Ok(())
    }

    fn overwrite_rows(
        &self,
        part: &mut dyn EmbeddingTable,
        tensor: usize,
        cols: usize,
        from: &[f32],
    ) -> Result<()> {
        let (first, mut values) = self.read(part, tensor, cols)?;
        for &(index, row) in &self.rows {
            values[(row - first) as usize * cols..][..cols]
                .copy_from_slice(&from[index * cols..][..cols]);
        }
        part.write_rows(tensor, first, &values)
    }
}

/// A row that lies here.
enum Held {
    Frequent(usize),
    Local(usize),
}

/// The matrices of a tensor: local rows, and frequent ones.
fn mats_of(table: &HybridTable, tensor: usize) -> [Option<&Mat>; 2] {
    [&table.local, &table.frequent].map(|slot| slot.as_ref()?.plain.as_ref()?.tensor(tensor))
}
