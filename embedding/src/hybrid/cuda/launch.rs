//! Launches of what only several ranks need: requests sent, and requests received.

use super::steps::keep;
use super::{DeviceHybridRoute, RankTables, SlotShape};
use crate::cuda::Instance;
use crate::cuda::layout::{BLOCK, blocks};
use crate::hybrid::table::HybridTable;
use headlong_device::cuda::{CudaStream, Define, DevicePtr, Launch, Source, kernel_args};
use headlong_device::{DType, Mat};

/// Slots of requests and of vectors.
pub(crate) static EXCHANGE: Source = Source {
    name: "embedding/exchange",
    text: concat!(
        include_str!("../../cuda/tables.cuh"),
        include_str!("../../cuda/rows.cuh"),
        include_str!("../../cuda/parts.cuh"),
        include_str!("../exchange.cu")
    ),
};

kernel_args! {
    pub(super) struct RequestArgs {
        tables, tile_tables, num_entries, staged, bases, keys, values, row_numbers, row_starts,
        firsts, places, ids, origins, destinations, lengths, flags: DevicePtr;
        num_tables, num_owners, num_tiles, slot_words, slot_rows, slot_elements, strip_words: u32;
    }

    pub(super) struct ReceivedArgs {
        tables, tile_tables, ids, places, num_entries, keys, values, vectors, lengths, staged,
        told, leaves, flags: DevicePtr;
        num_tables, num_sources, num_tiles, slot_words, slot_rows, slot_elements, num_parts,
        max_bags: u32;
    }
}

/// The constants of an instance whose slots of vectors are of `slots`.
pub(crate) fn defines(instance: Instance, slots: DType) -> [Define; 3] {
    let [dim, row_type] = instance.defines();
    [dim, row_type, Define::dtype("SLOT_TYPE", slots)]
}

impl RankTables {
    /// Fills the slots of requests and tells ids and rows where their vectors will lie.
    pub(super) fn write_requests(&self, stream: &CudaStream, route: &DeviceHybridRoute) {
        let sorted = &route.sorted;
        let SlotShape { words, rows, elements, peers, .. } = self.slots;
        let args = RequestArgs {
            tables: self.slice.tables(),
            tile_tables: self.slice.tile_tables(),
            num_entries: route.staging.num_entries(),
            staged: route.staging.ptr(),
            bases: self.bases.ptr(),
            keys: sorted.at.keys,
            values: sorted.at.values,
            row_numbers: sorted.at.row_numbers,
            row_starts: sorted.at.row_starts,
            firsts: route.at.firsts,
            places: route.at.request_places,
            ids: route.at.requests,
            origins: route.at.origins,
            destinations: route.at.destinations,
            lengths: route.at.request_lengths,
            flags: self.flags.ptr(),
            num_tables: self.specs.len() as u32,
            num_owners: peers as u32,
            num_tiles: self.slice_layout.num_tiles as u32,
            slot_words: words as u32,
            slot_rows: rows as u32,
            slot_elements: elements as u32,
            strip_words: route.strips.id_words as u32,
        };
        let defines = defines(Instance::GENERIC, self.slots.dtype);
        stream.run(&EXCHANGE, &defines, "request_bounds", Launch::new(1, BLOCK), &args);
        let tiles = blocks(self.slice_layout.num_tiles, stream.device().multiprocessors(), 8);
        stream.run(&EXCHANGE, &defines, "request_write", Launch::new(tiles, BLOCK), &args);
    }

    fn received_args(&self, route: &DeviceHybridRoute) -> ReceivedArgs {
        let SlotShape { words, rows, elements, peers, .. } = self.slots;
        ReceivedArgs {
            tables: self.owned.tables(),
            tile_tables: self.owned.tile_tables(),
            ids: route.at.recv_requests,
            places: route.at.received_places,
            num_entries: route.at.num_received,
            keys: route.received.at.passed_keys[0],
            values: route.received.at.passed_values[0],
            vectors: DevicePtr::NULL,
            lengths: route.at.row_lengths,
            staged: route.staging.ptr(),
            told: route.told.0.device_visible(),
            leaves: self.leaves.ptr(),
            flags: self.flags.ptr(),
            num_tables: self.specs.len() as u32,
            num_sources: peers as u32,
            num_tiles: self.owned_layout.num_tiles as u32,
            slot_words: words as u32,
            slot_rows: rows as u32,
            slot_elements: elements as u32,
            num_parts: self.leaves.num_parts() as u32,
            max_bags: self.slice_layout.max_samples as u32,
        }
    }

    /// Sorts what sources request into this owner's rows.
    pub(in crate::hybrid) fn receive_requests(
        &self,
        stream: &CudaStream,
        route: &DeviceHybridRoute,
    ) {
        let args = self.received_args(route);
        let defines = defines(Instance::GENERIC, self.slots.dtype);
        stream.run(&EXCHANGE, &defines, "received_bounds", Launch::new(1, BLOCK), &args);
        let lists =
            blocks(self.specs.len() * self.slots.peers, stream.device().multiprocessors(), 8);
        stream.run(&EXCHANGE, &defines, "received_keys", Launch::new(lists, BLOCK), &args);
        let num_entries = (args.num_entries, 1);
        route.received.sort(stream, &self.owned, num_entries, false);
        route.received.find_chunks(stream, &self.owned, num_entries);
    }

    /// Copies the requested rows into the slots of vectors.
    pub(in crate::hybrid) fn owner_lookup(
        &self,
        stream: &CudaStream,
        tables: &[HybridTable],
        route: &DeviceHybridRoute,
        vectors: &Mat,
    ) {
        self.check_slots(vectors);
        for table in self.hidden(tables) {
            let first = 4 * table.layout.first_entry();
            let count = route.at.num_received.offset(4 * table.table);
            let looked_up = table.lookup(stream, route.received.at.keys.offset(first), count);
            if looked_up.is_err() {
                return keep(stream, looked_up);
            }
        }
        let args = ReceivedArgs {
            keys: route.received.at.keys,
            values: route.received.at.values,
            vectors: vectors.device_ptr(),
            ..self.received_args(route)
        };
        let defines = defines(self.instance, self.slots.dtype);
        let tiles = blocks(self.owned_layout.num_tiles, stream.device().multiprocessors(), 16);
        stream.run(&EXCHANGE, &defines, "owner_lookup", Launch::new(tiles, BLOCK), &args);
        if self.pools.contains(&true) {
            // A block takes eight bags at least.
            let tasks = self.specs.len() * self.slots.peers * args.max_bags.div_ceil(8) as usize;
            let bags = blocks(tasks, stream.device().multiprocessors(), 16);
            stream.run(&EXCHANGE, &defines, "owner_pool", Launch::new(bags, BLOCK), &args);
        }
    }
}

#[cfg(test)]
mod cuda_tests {
    use super::*;
    use headlong_device::cuda::testing::layout_test;

    #[test]
    fn arguments_lie_as_kernels_read_them() {
        layout_test!(RequestArgs, &EXCHANGE, &[]);
        layout_test!(ReceivedArgs, &EXCHANGE, &[]);
    }
}
