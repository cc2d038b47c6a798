//! Pooling: a slice's vectors, from the replica and from what owners sent.
//!
//! As [`crate::lookup`], bit for bit. Bags of only frequent rows need nothing from other ranks, so
//! they are pooled while vectors travel; all others once those have arrived, and so are all bags of
//! a table without frequent rows.

use super::route::{HybridRoute, Sources};
use super::set::{HybridSet, Location};
use super::simd::{PoolTile, Pooled, pool};
use super::table::HybridTable;
use crate::error::{EmbeddingError, Result};
use crate::ids::{Bags, Ids, bags_of, num_samples};
use crate::lookup::simd::{Gather, gather};
use crate::rows::{OpenRows, RowsRef};
use crate::slot::staged;
use crate::table::Rows;
use headlong_device::pool::SharedMut;
use headlong_device::{Mat, Stream};

const TILE_SAMPLES: usize = 256;

impl HybridTable {
    /// What the origins of frequent rows count from.
    fn replica(&self) -> Option<&Mat> {
        let slot = self.frequent.as_ref()?;
        slot.plain.as_ref().map(|rows| &rows.weights).or(slot.staging.as_ref())
    }
}

impl HybridSet {
    /// Writes the vectors of all bags that hold only frequent rows, and of empty ones of tables
    /// that have frequent rows, to `vectors` (`samples of the slice × `[`Self::width`]). Together
    /// with [`Self::pool`], which comes second, it writes every element. Nothing on a single rank
    /// and on a device, where `pool` does all.
    ///
    /// # Errors
    /// Ids of another shape than those routed, and errors of tables of other authors.
    ///
    /// # Panics
    /// When `vectors` has another shape or is in use, or the route is another set's.
    pub fn lookup_replicated<I: Ids + ?Sized>(
        &self,
        stream: &Stream,
        ids: &I,
        route: &HybridRoute,
        vectors: &Mat,
    ) -> Result<()> {
        let Location::Host = self.at else { return Ok(()) };
        self.check_route(route);
        for (table, part) in self.tables.iter().zip(&route.tables) {
            if let (Some((slot, staging)), Some(rows)) =
                (staged(&table.frequent), &part.frequent_rows)
            {
                let staging = staging.first_rows(rows.len());
                slot.lock().lookup(stream, Rows::new(rows), staging.write::<f32>().view())?;
            }
        }
        self.pool_bags(stream, ids, route, None, vectors)
    }

    /// Writes the vectors of all other bags. `recv_rows` is what owners sent, packed by owner: as
    /// many elements as [`HybridRoute::vector_exchange`] says; on a device, the slots of vectors.
    /// A single rank reads nothing of it.
    ///
    /// # Panics
    /// When `recv_rows` is too short, and as [`Self::lookup_replicated`].
    pub fn pool<I: Ids + ?Sized>(
        &self,
        stream: &Stream,
        ids: &I,
        route: &HybridRoute,
        recv_rows: &Mat,
        vectors: &Mat,
    ) -> Result<()> {
        match &self.at {
            Location::Local(set) => {
                set.lookup_routed(stream, ids, route.local(), vectors)?;
                if stream.as_cuda().is_none() {
                    self.sum_whole_bags(stream, set, ids, vectors);
                }
                Ok(())
            }
            Location::Host => {
                self.check_route(route);
                let recv_rows = recv_rows.read::<f32>();
                let recv_rows = &recv_rows.data()[..route.requests.num_elements()];
                self.pool_bags(stream, ids, route, Some(recv_rows), vectors)
            }
            Location::Device(device) => {
                self.check_vectors(vectors, route);
                device.pool(stream.cuda_body(), route.device(), recv_rows, vectors);
                Ok(())
            }
        }
    }

    /// Pools bags of frequent rows where nothing has arrived, else all others.
    fn pool_bags<I: Ids + ?Sized>(
        &self,
        stream: &Stream,
        ids: &I,
        route: &HybridRoute,
        recv_rows: Option<&[f32]>,
        vectors: &Mat,
    ) -> Result<()> {
        self.check_vectors(vectors, route);
        self.check_ids(ids, route)?;
        let tiles = route.num_samples.div_ceil(TILE_SAMPLES);
        let stride = vectors.stride();
        let mut vectors = vectors.write::<f32>();
        let out = SharedMut::new(vectors.data_mut());
        if let Some(recv_rows) = recv_rows {
            self.add_owners_parts(stream, route, recv_rows, (out, stride));
        }
        stream.pool().run(self.tables.len() * tiles, &|task| {
            let (index, tile) = (task / tiles, task % tiles);
            let (table, part) = (&self.tables[index], &route.tables[index]);
            let bags = match (part.sources, recv_rows) {
                (Sources::Both, None) => Pooled::OnlyFrequent,
                (Sources::Both, Some(_)) => Pooled::Others,
                (Sources::Owners, Some(_)) | (Sources::Replica, None) => Pooled::All,
                _ => return,
            };
            let first = tile * TILE_SAMPLES;
            let last = route.num_samples.min(first + TILE_SAMPLES);
            let replica = table.replica().map(OpenRows::new);
            let Bags { ids, weights: factors } = bags_of(ids, index);
            let offsets = &ids.offsets[first..=last];
            let pooling = self.specs[index].pooling;
            let (out_first, out_stride) = (first * stride + table.first_column, stride);
            if let (Sources::Replica, Some(replica)) = (part.sources, &replica) {
                let (values, weights) = (ids.values, replica.view());
                let bags = Gather {
                    weights,
                    values,
                    offsets,
                    factors,
                    pooling,
                    out,
                    out_first,
                    out_stride,
                };
                assert!(bags.in_range(), "ids are those that were routed");
                return gather(self.narrow, &bags);
            }
            let tile = PoolTile {
                dim: table.dim,
                origins: &part.origins[..ids.values.len()],
                offsets,
                factors,
                pooling,
                recv_rows: recv_rows.unwrap_or(&[]),
                replica: replica.as_ref().map_or(RowsRef::none(), OpenRows::view),
                narrow: self.narrow,
                bags,
                out,
                out_first,
                out_stride,
            };
            pool(&tile);
        });
        Ok(())
    }

    /// The ids are those that were routed, as far as their number tells.
    fn check_ids<I: Ids + ?Sized>(&self, ids: &I, route: &HybridRoute) -> Result<()> {
        let found = num_samples(&self.specs, ids)?;
        for (table, spec) in self.specs.iter().enumerate() {
            let (routed, num_ids) = (route.tables[table].num_ids(), ids.table(table).values.len());
            if found != route.num_samples || num_ids != routed {
                let table = spec.name.clone();
                return Err(EmbeddingError::SampleCount {
                    table,
                    expected: route.num_samples,
                    found,
                });
            }
        }
        Ok(())
    }
}
