//! Owner lookup: the owner gathers the rows it was asked for, in the order asked.

use super::route::HybridRoute;
use super::set::{HybridSet, Location};
use super::simd::{Copy, copy_rows};
use crate::error::Result;
use crate::rows::OpenRows;
use crate::table::Rows;
use headlong_device::pool::SharedMut;
use headlong_device::{Mat, Stream};

/// Rows of one tile.
const TILE_ROWS: usize = 256;

impl HybridSet {
    /// Writes the vectors that sources asked for to `send`, packed by source in the order asked: as
    /// many elements as [`HybridRoute::vector_exchange`] says this owner sends; on a device, the
    /// slots of vectors. Nothing on a single rank.
    ///
    /// # Panics
    /// When `send` is too short, or the route is another set's.
    pub fn owner_lookup(&self, stream: &Stream, route: &HybridRoute, send: &Mat) -> Result<()> {
        match &self.at {
            Location::Local(_) => return Ok(()),
            Location::Device(device) => {
                device.owner_lookup(stream.cuda_body(), &self.tables, route.device(), send);
                return Ok(());
            }
            Location::Host => self.check_route(route),
        }
        let asked = &route.asked;
        let mut send = send.write::<f32>();
        let out = &mut send.data_mut()[..asked.num_elements()];
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
        self.lookup_staged(stream, route, out)
    }

    /// Tables without plain rows: their own lookup of unique rows into the staging matrix, then a
    /// copy to each asker.
    fn lookup_staged(&self, stream: &Stream, route: &HybridRoute, out: &mut [f32]) -> Result<()> {
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
