//! Answer: the owner gathers the rows it was asked for, in the order asked.

use super::route::HybridRoute;
use super::set::HybridSet;
use super::vector::{Copy, copy_rows};
use crate::error::Result;
use crate::rows::OpenRows;
use crate::table::Rows;
use headlong_device::Stream;
use headlong_device::pool::SharedMut;

/// Rows of one tile.
const TILE_ROWS: usize = 256;

impl HybridSet {
    /// Writes the vectors that sources asked for to `out`, packed by source in the order asked: as
    /// many elements as [`HybridRoute::vector_exchange`] says this owner sends.
    ///
    /// # Errors
    /// Those of tables of other authors.
    ///
    /// # Panics
    /// When `out` has another length, the set is alone, or the route is another set's.
    pub fn answer(&self, stream: &Stream, route: &HybridRoute, out: &mut [f32]) -> Result<()> {
        self.check_route(route);
        let asked = &route.asked;
        assert_eq!(out.len(), asked.num_elements(), "answers are as long as what was asked for");
        let shared = SharedMut::new(out);
        let num_tables = self.tables.len();
        let tiles = asked.longest().div_ceil(TILE_ROWS);
        stream.pool().run(asked.counts.len() * tiles, &|task| {
            let (list, tile) = (task / tiles, task % tiles);
            let (source, table) = (list / num_tables, list % num_tables);
            let rows = asked.list(source, table);
            let first = tile * TILE_ROWS;
            let plain = self.tables[table].local.as_ref().and_then(|slot| slot.plain.as_ref());
            let Some(plain) = plain.filter(|_| first < rows.len()) else { return };
            let weights = OpenRows::new(&plain.weights);
            copy_rows(&Copy {
                weights: weights.view(),
                rows: &rows[first..rows.len().min(first + TILE_ROWS)],
                out: shared,
                out_first: asked.first_element(source, table) + first * plain.weights.cols(),
            });
        });
        self.answer_staged(stream, route, out)
    }

    /// Tables without plain rows: their own lookup of unique rows into the staging matrix, then a
    /// copy to each asker.
    fn answer_staged(&self, stream: &Stream, route: &HybridRoute, out: &mut [f32]) -> Result<()> {
        for (table, merge) in self.tables.iter().zip(&route.merges) {
            let slot = table.local.as_ref();
            let Some((slot, staging)) = slot.and_then(|slot| Some((slot, slot.staging.as_ref()?)))
            else {
                continue;
            };
            let staging = staging.first_rows(merge.rows().len());
            slot.lock().lookup(stream, Rows::new(merge.rows()), staging.write::<f32>().view())?;
            let vectors = staging.read::<f32>();
            merge.for_each_part(|index, element| {
                out[element..element + table.dim].copy_from_slice(vectors.row(index));
            });
        }
        Ok(())
    }
}
