//! Reduce: a rank's own gradients, summed per row: those of infrequent rows in the order in which
//! they were requested, those of frequent rows in one dense block that all ranks add up.
//!
//! The sum over a rank's samples is the subtree of [`crate::update`]'s that its blocks stand in;
//! the tree continues over ranks, at the row's owner or in the all-reduce.

use super::route::HybridRoute;
use super::set::{HybridSet, Location};
use super::simd::{ReduceTile, reduce_tile};
use crate::update::cpu::{TILE_ENTRIES, rows_of_tile};
use crate::update::simd::{SampleParts, SegmentSum};
use headlong_device::pool::SharedMut;
use headlong_device::{Mat, Stream};

/// Elements that one task sets to zero.
const ZERO_CHUNK: usize = 1 << 16;

impl HybridSet {
    /// Elements of the block of frequent gradients: the touched counts of all tables, padded to a
    /// multiple of 16, then `rows × dim` of each table's replica. Zero where nothing is frequent,
    /// and on a single rank.
    pub fn frequent_len(&self) -> usize {
        self.frequent.len
    }

    /// Sums the gradients of this rank's slice per row. `d_vectors` is
    /// `samples of the slice × `[`Self::width`]; `to_owners` gets one row of gradients per row
    /// requested, in the order of the requests (on a device, in the slots of vectors); `frequent`,
    /// which has [`Self::frequent_len`] elements, is set to zero and gets those of the frequent
    /// rows, on a device also as bf16. Nothing on a single rank.
    ///
    /// # Panics
    /// When a matrix is too small, or the route is another set's.
    pub fn reduce_rows(
        &self,
        stream: &Stream,
        route: &HybridRoute,
        d_vectors: &Mat,
        to_owners: &Mat,
        frequent: &Mat,
    ) {
        match &self.at {
            Location::Local(_) => return,
            Location::Device(device) => {
                self.check_vectors(d_vectors, route);
                let (stream, route) = (stream.cuda_body(), route.device());
                return device.reduce_rows(stream, route, d_vectors, [to_owners, frequent]);
            }
            Location::Host => self.check_route(route),
        }
        self.check_vectors(d_vectors, route);
        let (mut to_owners, mut frequent) = (to_owners.write::<f32>(), frequent.write::<f32>());
        let to_owners = &mut to_owners.data_mut()[..route.requests.num_elements()];
        let frequent = &mut frequent.data_mut()[..self.frequent.len];
        stream.pool().chunks_mut(frequent, ZERO_CHUNK, |_, chunk| chunk.fill(0.0));
        let (to_owners, frequent) = (SharedMut::new(to_owners), SharedMut::new(frequent));
        let most_ids = route.tables.iter().map(|part| part.route.num_ids).max().unwrap_or(0);
        let tiles = most_ids.div_ceil(TILE_ENTRIES);
        let d_vectors = d_vectors.read::<f32>();
        self.send_bag_gradients(stream, route, d_vectors.view(), to_owners);
        stream.pool().run(self.tables.len() * tiles, &|task| {
            let (index, tile) = (task / tiles, task % tiles);
            let (table, part) = (&self.tables[index], &route.tables[index]);
            let range = rows_of_tile(part.route.starts(), tile);
            if range.is_empty() {
                return;
            }
            let gradients = d_vectors.view().columns(table.first_column, table.dim);
            let stride = gradients.stride();
            let place = self.frequent.tables[index];
            let (destinations, mark) = part.destinations();
            let tile = ReduceTile {
                sum: SegmentSum {
                    parts: SampleParts {
                        route: &part.route,
                        stride,
                        block_len: route.block_len as u32,
                    },
                    data: gradients.data(),
                    one_block: route.block_len >= route.num_samples,
                    narrow: self.narrow.is_some(),
                },
                range,
                destinations,
                mark,
                dim: table.dim,
                to_owners,
                frequent,
                first_touched: place.first_touched,
                first_gradient: place.first_gradient,
            };
            reduce_tile(&tile);
        });
    }
}
