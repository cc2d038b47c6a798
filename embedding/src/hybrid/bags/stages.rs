//! The stages of a step, for tables whose bags are pooled at the owner.

use super::received::BagParts;
use super::simd::{
    GradientsTile, OwnedTile, PartsTile, Vectors, WholeTile, add_parts, hand_out, sum_owned,
    sum_whole,
};
use crate::error::{EmbeddingError, Result};
use crate::hybrid::options::PoolAt;
use crate::hybrid::route::HybridRoute;
use crate::hybrid::set::HybridSet;
use crate::ids::{Bags, Ids, bags_of};
use crate::rows::OpenRows;
use crate::set::EmbeddingSet;
use crate::table::TableSpec;
use crate::update::simd::UpdateTile;
use headlong_device::pool::SharedMut;
use headlong_device::{Mat, MatRef, Stream, vectorized};
use std::ops::Range;

const TILE_BAGS: usize = 64;
const TILE_SAMPLES: usize = 64;

impl HybridSet {
    /// Finds out which rows of which bags sources ask for, and lays their vectors out.
    pub(in crate::hybrid) fn receive_bags(
        &self,
        stream: &Stream,
        route: &mut HybridRoute,
    ) -> Result<()> {
        if !self.pools_at_owner() {
            return Ok(());
        }
        let HybridRoute { received, received_bags, block_len, .. } = route;
        let (lists, block_len) = (&*received, *block_len);
        stream.pool().chunks_mut(received_bags, 1, |table, bags| {
            let Some(bags) = &mut bags[0] else { return };
            let leaf = |local_row| {
                let row = self.partition.row_of_local(table, self.owner, local_row);
                self.sum_parts.leaf(table, row)
            };
            let leaf: Option<&dyn Fn(u64) -> u32> =
                if self.has_leaves(table) { Some(&leaf) } else { None };
            bags.fill(block_len, |source| lists.list(source, table), leaf);
        });
        let refused = received_bags.iter().enumerate().find_map(|(table, bags)| {
            let bags = bags.as_ref()?;
            let (source_index, row) = bags.refused()?;
            Some(EmbeddingError::RowNotOwned {
                table: self.specs[table].name.clone(),
                source_index,
                row,
                rows: bags.local_rows(),
            })
        });
        if let Some(error) = refused {
            route.clear_received();
            return Err(error);
        }
        route.lay_out_sent_vectors();
        let HybridRoute { received, received_bags, .. } = route;
        for (table, bags) in received_bags.iter_mut().enumerate() {
            if let Some(bags) = bags {
                bags.place(self.specs[table].dim, |source| received.first_element(source, table));
            }
        }
        Ok(())
    }

    /// Writes this owner's part of each bag that sources ask for.
    pub(in crate::hybrid) fn sum_owned_bags(
        &self,
        stream: &Stream,
        route: &HybridRoute,
        out: SharedMut<f32>,
    ) {
        let most = route.received_bags.iter().flatten().map(|bags| bags.bags.len()).max();
        let tiles = most.unwrap_or(0).div_ceil(TILE_BAGS);
        stream.pool().run(self.tables.len() * tiles, &|task| {
            let (table, tile) = (task / tiles, task % tiles);
            let Some(bags) = &route.received_bags[table] else { return };
            let Some(own) = bags.bags.chunks(TILE_BAGS).nth(tile) else { return };
            let slot = self.tables[table].local.as_ref().and_then(|slot| slot.plain.as_ref());
            let Some(plain) = slot else { return };
            let weights = OpenRows::new(&plain.weights);
            sum_owned(&OwnedTile {
                weights: weights.view(),
                words: bags.words(),
                leaves: bags.leaves(),
                bags: own,
                out,
            });
        });
    }

    /// Writes the vectors of all bags that owners have pooled: the sums of their parts.
    pub(in crate::hybrid) fn add_owners_parts(
        &self,
        stream: &Stream,
        route: &HybridRoute,
        recv_rows: &[f32],
        (out, stride): (SharedMut<f32>, usize),
    ) {
        self.sample_tiles(stream, route.num_samples, |table, samples| {
            let Some(sent) = &route.tables[table].bags else { return };
            let vectors = self.vectors_of(table, out, stride);
            add_parts(&PartsTile { sent, samples, recv_rows, vectors });
        });
    }

    /// Hands each owner the gradients of the bags that it has rows of.
    pub(in crate::hybrid) fn send_bag_gradients(
        &self,
        stream: &Stream,
        route: &HybridRoute,
        d_vectors: MatRef<'_>,
        to_owners: SharedMut<f32>,
    ) {
        self.sample_tiles(stream, route.num_samples, |table, samples| {
            let Some(sent) = &route.tables[table].bags else { return };
            let (own, pooling) = (&self.tables[table], self.specs[table].pooling);
            let gradients = d_vectors.columns(own.first_column, own.dim);
            hand_out(&GradientsTile { sent, samples, gradients, pooling, to_owners });
        });
    }

    /// Writes the vectors of all bags of tables that pool at the owner, where this rank has all of
    /// their rows: with the sums that several ranks would have.
    pub(in crate::hybrid) fn sum_whole_bags<I: Ids + ?Sized>(
        &self,
        stream: &Stream,
        local: &EmbeddingSet,
        ids: &I,
        vectors: &Mat,
    ) {
        if !self.pools_at_owner() || self.sum_parts.is_one() {
            return;
        }
        let (num_samples, stride) = (vectors.rows(), vectors.stride());
        let mut vectors = vectors.write::<f32>();
        let out = SharedMut::new(vectors.data_mut());
        self.sample_tiles(stream, num_samples, |table, samples| {
            let Some(plain) = &local.table_slot(table).plain else { return };
            if self.pool_at[table] == PoolAt::Rank {
                return;
            }
            let weights = OpenRows::new(&plain.weights);
            let Bags { ids, weights: factors } = bags_of(ids, table);
            sum_whole(&WholeTile {
                weights: weights.view(),
                table,
                sum: &self.sum_parts,
                ids,
                factors,
                samples,
                vectors: self.vectors_of(table, out, stride),
            });
        });
    }

    /// Where the vectors of table `table` lie in the matrix of all.
    fn vectors_of(&self, table: usize, out: SharedMut<f32>, stride: usize) -> Vectors {
        let TableSpec { dim, pooling, .. } = self.specs[table];
        let first_column = self.specs[..table].iter().map(|spec| spec.dim).sum();
        Vectors { out, first_column, stride, dim, pooling }
    }

    /// Calls `body` with every table and tile of samples.
    fn sample_tiles(
        &self,
        stream: &Stream,
        num_samples: usize,
        body: impl Fn(usize, Range<usize>) + Sync,
    ) {
        let tiles = num_samples.div_ceil(TILE_SAMPLES);
        stream.pool().run(self.specs.len() * tiles, &|task| {
            let (table, first) = (task / tiles, task % tiles * TILE_SAMPLES);
            body(table, first..num_samples.min(first + TILE_SAMPLES));
        });
    }
}

vectorized! {
    /// Sums the gradients of this owner's rows over the bags that they are in, and updates them.
    pub(in crate::hybrid) fn update_rows_of_bags(tile: &UpdateTile<'_, BagParts<'_>>) {
        tile.run();
    }
}
