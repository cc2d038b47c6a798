//! Rows by their row index, wherever they lie: what checkpoints read and write.

use super::set::{HybridSet, Location};
use super::table::HybridTable;
use crate::error::{EmbeddingError, Result};
use crate::rows::{OpenRows, OpenRowsMut};
use crate::rows::{check_rows, read_rows, write_rows};
use crate::slot::TableSlot;
use crate::table::{EmbeddingTable, Grain, Keys};
use headlong_device::Mat;
use std::sync::MutexGuard;

impl HybridSet {
    /// Copies rows of tensor number `tensor` of [`Self::tensors`], from row `first_row` of the
    /// whole table on, to `out`: those that lie here, owned or as replicas. The others' places in
    /// `out` stay as they are. Tables that hide their rows are read, a run of rows at a
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
        if self.goes_by_runs(table) {
            let rows = (first_row, out.len() / cols);
            return self.each_run((table, tensor), rows, cols, |_, run, first, values| {
                for &(index, row) in run {
                    let from = &values[(row - first) as usize * cols..][..cols];
                    out[index * cols..][..cols].copy_from_slice(from);
                }
                Ok(())
            });
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
        if self.goes_by_runs(table) {
            let rows = (first_row, values.len() / cols);
            return self.each_run((table, tensor), rows, cols, |part, run, first, old| {
                // Rows between those of the run stay as they are.
                for &(index, row) in run {
                    old[(row - first) as usize * cols..][..cols]
                        .copy_from_slice(&values[index * cols..][..cols]);
                }
                part.write(first, old)
            });
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

    /// Whether the rows here are reached in runs: they lie on a device, or a table hides them.
    fn goes_by_runs(&self, table: usize) -> bool {
        let HybridTable { local, frequent, .. } = &self.tables[table];
        matches!(self.at, Location::Device(_))
            || [local, frequent].into_iter().flatten().any(|slot| slot.plain.is_none())
    }

    /// Calls `body` with each run of rows, of those from `first_row` on that lie here: the part
    /// that holds them, the run, its first row there, and what the rows from there to its last one
    /// hold.
    fn each_run(
        &self,
        (table, tensor): (usize, usize),
        (first_row, count): (u64, usize),
        cols: usize,
        mut body: impl FnMut(&mut Part<'_>, &Run, u64, &mut [f32]) -> Result<()>,
    ) -> Result<()> {
        let HybridTable { local, frequent, .. } = &self.tables[table];
        // Frequent rows, those placed here and those by formula: each kind lies in the order of
        // rows.
        let mut runs = [Run::new(), Run::new(), Run::new()];
        if self.specs[table].grain == Grain::Whole {
            // Its tensors have rows of their own, wherever the whole table lies.
            let whole = usize::from(frequent.is_none());
            runs[whole] = (0..count).map(|index| (index, first_row + index as u64)).collect();
        } else {
            let placed = self.partition.num_placed(table, self.owner);
            self.each_held(table, first_row, count, |index, place| match place {
                Held::Frequent(row) => runs[0].push((index, row as u64)),
                Held::Local(row) if (row as u64) < placed => runs[1].push((index, row as u64)),
                Held::Local(row) => runs[2].push((index, row as u64)),
            });
        }
        for (run, slot) in runs.iter().zip([frequent, local, local]) {
            let (Some(slot), Some((_, first)), Some((_, last))) = (slot, run.first(), run.last())
            else {
                continue;
            };
            let mut part = Part::of(slot, tensor);
            let mut values = vec![0.0; (last + 1 - first) as usize * cols];
            part.read(*first, &mut values)?;
            body(&mut part, run, *first, &mut values)?;
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
        self.partition.each_code(table, (first_row..).take(count), |index, code| {
            if code.is_frequent() {
                body(index, Held::Frequent(code.slot() as usize));
            } else if code.owner() == self.owner.0 {
                body(index, Held::Local(code.local_row() as usize));
            }
        });
    }
}

/// Rows of one part: number in the caller's list, row of the part; both rise.
type Run = Vec<(usize, u64)>;

/// One tensor of what lies here of a table.
enum Part<'a> {
    Shown(&'a Mat),
    Hidden(MutexGuard<'a, Box<dyn EmbeddingTable>>, usize),
}

impl<'a> Part<'a> {
    fn of(slot: &'a TableSlot, tensor: usize) -> Self {
        match slot.plain.as_ref().and_then(|rows| rows.tensor(tensor)) {
            Some(mat) => Part::Shown(mat),
            None => Part::Hidden(slot.lock(), tensor),
        }
    }

    fn read(&self, first: u64, out: &mut [f32]) -> Result<()> {
        match self {
            Part::Shown(mat) => read_rows(mat, first, out),
            Part::Hidden(table, tensor) => table.read_rows(*tensor, first, out),
        }
    }

    fn write(&mut self, first: u64, values: &[f32]) -> Result<()> {
        match self {
            Part::Shown(mat) => write_rows(mat, first, values),
            Part::Hidden(table, tensor) => table.write_rows(*tensor, first, values),
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
    [&table.local, &table.frequent].map(|slot| slot.as_ref()?.plain.as_ref()?.tensor(tensor))
}
