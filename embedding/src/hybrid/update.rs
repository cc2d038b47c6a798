//! Update: owners sum what sources sent for each of their rows and take one optimiser step on it;
//! replicas take the same step on every rank, from the same sums.

use super::bags::update_rows_of_bags;
use super::route::HybridRoute;
use super::set::{HybridSet, Location};
use super::simd::{FrequentTile, sum_merged_rows, update_frequent_tile, update_merged_tile};
use crate::error::Result;
use crate::rows::Rounding;
use crate::slot::staged;
use crate::table::{Rows, SparseStep};
use crate::update::cpu::{TILE_ENTRIES, for_each_tile, rows_of_tile};
use crate::update::simd::{RowRounding, SegmentSum, UpdateTile};
use headlong_device::optimizer::Step;
use headlong_device::pool::SharedMut;
use headlong_device::{Mat, Stream};
use std::ops::Range;
use std::sync::PoisonError;

/// Rows of a replica that one task updates.
const TILE_ROWS: usize = 256;

impl HybridSet {
    /// Sums the gradients that sources sent, in the tree over sources, and takes one optimiser step
    /// on each row of this owner that was requested. `from_sources` is packed as the vectors were
    /// that this owner sent. On a single rank the gradients are those of the vectors, `d_vectors`.
    /// Does nothing in a frozen set.
    ///
    /// # Panics
    /// When `from_sources` is too short, or the route is another set's.
    pub fn update_owned(
        &self,
        stream: &Stream,
        route: &HybridRoute,
        d_vectors: &Mat,
        from_sources: &Mat,
        step: &Step,
    ) -> Result<()> {
        if self.frozen {
            return Ok(());
        }
        match &self.at {
            Location::Local(set) => return set.update(stream, route.local(), d_vectors, step),
            Location::Device(device) => {
                device.update_owned(stream.cuda_body(), &self.tables, route.device(), from_sources);
                return Ok(());
            }
            Location::Host => self.check_route(route),
        }
        let from_sources = from_sources.read::<f32>();
        let from_sources = &from_sources.data()[..route.received.num_elements()];
        let step = self.sparse_step(step);
        let merges = &route.merges;
        for_each_tile(
            stream,
            self.tables.len(),
            |table| self.tables[table].local.as_ref(),
            |table| match &route.received_bags[table] {
                Some(bags) => bags.num_entries().div_ceil(TILE_ENTRIES),
                None => merges[table].num_parts().div_ceil(TILE_ENTRIES),
            },
            |table, tile, memory| {
                let row_of_local = |row| self.partition.row_of_local(table, self.owner, row);
                let rounding = RowRounding {
                    rounding: Rounding::new(self.seed, step.step, table),
                    row_of_local: &row_of_local,
                };
                if let Some(bags) = &route.received_bags[table] {
                    let range = rows_of_tile(bags.starts(), tile);
                    let parts = bags.view();
                    let sum = SegmentSum::of_sources(parts, from_sources, false);
                    let rows = bags.rows();
                    return update_rows_of_bags(&UpdateTile {
                        sum,
                        rows,
                        range,
                        memory,
                        step,
                        rounding,
                    });
                }
                let merge = &merges[table];
                let range = rows_of_tile(merge.starts(), tile);
                if !range.is_empty() {
                    let parts = merge.view();
                    let tile = UpdateTile {
                        sum: SegmentSum::of_sources(parts, from_sources, self.narrow.is_some()),
                        rows: merge.rows(),
                        range,
                        memory,
                        step,
                        rounding,
                    };
                    update_merged_tile(&tile);
                }
            },
        );
        self.update_staged(stream, route, from_sources, &step)
    }

    fn update_staged(
        &self,
        stream: &Stream,
        route: &HybridRoute,
        from_sources: &[f32],
        step: &SparseStep,
    ) -> Result<()> {
        for (table, merge) in self.tables.iter().zip(&route.merges) {
            let Some((slot, staging)) = staged(&table.local) else { continue };
            if merge.rows().is_empty() {
                continue;
            }
            let staging = staging.first_rows(merge.rows().len());
            {
                let sum = SegmentSum::of_sources(merge.view(), from_sources, self.narrow.is_some());
                let mut gradients = staging.write::<f32>();
                let out = SharedMut::new(gradients.data_mut());
                stream.pool().run(merge.num_parts().div_ceil(TILE_ENTRIES), &|tile| {
                    let rows = rows_of_tile(merge.starts(), tile);
                    sum_merged_rows(&sum, out, 0, table.dim, rows);
                });
            }
            let gradients = staging.read::<f32>();
            slot.lock().apply(stream, Rows::new(merge.rows()), gradients.view(), step)?;
        }
        Ok(())
    }

    /// Takes one optimiser step on the frequent rows that occurred on any rank, from the block that
    /// all ranks have added up. Does nothing on a single rank and in a frozen set.
    ///
    /// # Panics
    /// When `frequent` is too short.
    pub fn update_replicated(&self, stream: &Stream, frequent: &Mat, step: &Step) -> Result<()> {
        match &self.at {
            Location::Local(_) => Ok(()),
            Location::Host => {
                let (frequent, len) = (frequent.read::<f32>(), self.frequent.len);
                self.update_replicated_range(stream, &frequent.data()[..len], 0..len, step)
            }
            Location::Device(device) => {
                if !self.frozen {
                    device.update_replicated(stream.cuda_body(), frequent);
                }
                Ok(())
            }
        }
    }

    /// As [`Self::update_replicated`], in the memory of the host, as soon as a range is final.
    ///
    /// `ready` are the elements of the block that became final since the last call: ranges that
    /// rise and, over one step, cover the block. A row is updated with the range that holds the end
    /// of its gradient; a table that hides its rows, with the one that holds the end of all of its
    /// gradients.
    ///
    /// # Panics
    /// When `frequent` has another length or `ready` ends after it.
    pub fn update_replicated_range(
        &self,
        stream: &Stream,
        frequent: &[f32],
        ready: Range<usize>,
        step: &Step,
    ) -> Result<()> {
        assert_eq!(frequent.len(), self.frequent.len, "the block holds all frequent rows");
        assert!(ready.end <= frequent.len(), "ready elements {ready:?} of {}", frequent.len());
        if self.frozen || ready.is_empty() {
            return Ok(());
        }
        let step = self.sparse_step(step);
        self.update_replicas(stream, frequent, &ready, step);
        self.update_hidden_replicas(stream, frequent, &ready, &step)
    }

    /// The rows of replica `table` whose gradients end in `ready`.
    fn ready_rows(&self, table: usize, ready: &Range<usize>) -> Range<usize> {
        let (place, dim) = (self.frequent.tables[table], self.tables[table].dim);
        let rows_before =
            |element: usize| (element.saturating_sub(place.first_gradient) / dim).min(place.rows);
        rows_before(ready.start)..rows_before(ready.end)
    }

    fn update_replicas(
        &self,
        stream: &Stream,
        frequent: &[f32],
        ready: &Range<usize>,
        step: SparseStep,
    ) {
        for_each_tile(
            stream,
            self.tables.len(),
            |table| self.tables[table].frequent.as_ref(),
            |table| self.ready_rows(table, ready).len().div_ceil(TILE_ROWS),
            |table, tile, memory| {
                let rows = self.ready_rows(table, ready);
                let first = rows.start + tile * TILE_ROWS;
                let rows = first..rows.end.min(first + TILE_ROWS);
                if rows.is_empty() {
                    return;
                }
                let (place, dim) = (self.frequent.tables[table], self.tables[table].dim);
                update_frequent_tile(&FrequentTile {
                    rows,
                    touched: &frequent[place.first_touched..][..place.rows],
                    gradients: &frequent[place.first_gradient..][..place.rows * dim],
                    memory,
                    step,
                    rounding: RowRounding {
                        rounding: Rounding::new(self.seed, step.step, table),
                        row_of_local: &|row| self.partition.row_of_frequent(table, row),
                    },
                });
            },
        );
    }

    /// Replicas that hide their rows: the touched rows' gradients into the staging matrix, then the
    /// table's own `apply`.
    fn update_hidden_replicas(
        &self,
        stream: &Stream,
        frequent: &[f32],
        ready: &Range<usize>,
        step: &SparseStep,
    ) -> Result<()> {
        for (index, table) in self.tables.iter().enumerate() {
            let Some((slot, staging)) = staged(&table.frequent) else { continue };
            let place = self.frequent.tables[index];
            if self.ready_rows(index, ready).end < place.rows
                || ready.start >= place.first_gradient + place.rows * table.dim
            {
                continue;
            }
            let touched = &frequent[place.first_touched..][..place.rows];
            let mut rows = table.touched.lock().unwrap_or_else(PoisonError::into_inner);
            rows.clear();
            rows.extend((0..).zip(touched).filter(|(_, count)| **count != 0.0).map(|(row, _)| row));
            let staging = staging.first_rows(rows.len());
            {
                let mut gradients = staging.write::<f32>();
                for (entry, &row) in rows.iter().enumerate() {
                    let from = place.first_gradient + row as usize * table.dim;
                    gradients.row_mut(entry).copy_from_slice(&frequent[from..from + table.dim]);
                }
            }
            let gradients = staging.read::<f32>();
            slot.lock().apply(stream, Rows::new(&rows), gradients.view(), step)?;
        }
        Ok(())
    }
}
