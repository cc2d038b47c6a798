//! Owner lookup: the owner gathers the rows that sources request, in their order.

use super::options::PoolAt;
use super::route::HybridRoute;
use super::set::{HybridSet, Location};
use super::simd::{Copy, copy_rows};
use crate::error::Result;
use crate::rows::OpenRows;
use crate::slot::staged;
use crate::table::Rows;
use headlong_device::pool::SharedMut;
use headlong_device::{Mat, Stream};

const TILE_ROWS: usize = 256;

impl HybridSet {
    /// Writes the vectors that sources request, of rows or of this owner's parts of bags, to
    /// `send_rows`, packed by source in their order: as many elements as
    /// [`HybridRoute::vector_exchange`] says this owner sends; on a device, the slots of vectors.
    /// Nothing on a single rank.
    ///
    /// # Panics
    /// When `send_rows` is too short, or the route is another set's.
    pub fn owner_lookup(
        &self,
        stream: &Stream,
        route: &HybridRoute,
        send_rows: &Mat,
    ) -> Result<()> {
        match &self.at {
            Location::Local(_) => return Ok(()),
            Location::Device(device) => {
                device.owner_lookup(stream.cuda_body(), &self.tables, route.device(), send_rows);
                return Ok(());
            }
            Location::Host => self.check_route(route),
        }
        let received = &route.received;
        let mut send_rows = send_rows.write::<f32>();
        let out = &mut send_rows.data_mut()[..received.num_elements()];
        let shared = SharedMut::new(out);
        let num_tables = self.tables.len();
        let tiles = received.longest().div_ceil(TILE_ROWS);
        stream.pool().run(received.counts.len() * tiles, &|task| {
            let (list, tile) = (task / tiles, task % tiles);
            let (source, table) = (list / num_tables, list % num_tables);
            let rows = received.list(source, table);
            let first = tile * TILE_ROWS;
            if self.pool_at[table] == PoolAt::Owner {
                return;
            }
            let plain = self.tables[table].local.as_ref().and_then(|slot| slot.plain.as_ref());
            let Some(plain) = plain.filter(|_| first < rows.len()) else { return };
            let weights = OpenRows::new(&plain.weights);
            copy_rows(&Copy {
                weights: weights.view(),
                rows: &rows[first..rows.len().min(first + TILE_ROWS)],
                out: shared,
                out_first: received.first_element(source, table) + first * plain.weights.cols(),
            });
        });
        self.sum_owned_bags(stream, route, shared);
        self.lookup_staged(stream, route, out)
    }

    /// Tables without plain rows: their own lookup of unique rows into the staging matrix, then a
    /// copy to each source.
    fn lookup_staged(&self, stream: &Stream, route: &HybridRoute, out: &mut [f32]) -> Result<()> {
        for (table, merge) in self.tables.iter().zip(&route.merges) {
            let Some((slot, staging)) = staged(&table.local) else { continue };
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
