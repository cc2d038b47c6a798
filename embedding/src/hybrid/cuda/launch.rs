//! Launches of what only several ranks need: requests sent, and requests received.

use super::{AskPlaces, DeviceHybridRoute, RankTables, ServePlaces, SlotShape};
use crate::cuda::layout::{BLOCK, Layout};
use crate::cuda::{DeviceTables, Instance};
use crate::error::Result;
use crate::hybrid::table::HybridTable;
use crate::route::cuda::{KeyLists, Sorted};
use headlong_device::cuda::{
    CudaStream, Define, DeviceMemory, DevicePtr, Launch, Source, kernel_args,
};
use headlong_device::{DType, DeviceError, Mat};

/// Slots of requests and of vectors.
pub(crate) static EXCHANGE: Source = Source {
    name: "embedding/exchange",
    text: concat!(
        include_str!("../../cuda/tables.cuh"),
        include_str!("../../cuda/rows.cuh"),
        include_str!("../../cuda/parts.cuh"),
        include_str!("../../route/digits.cuh"),
        include_str!("../exchange.cu")
    ),
};

kernel_args! {
    pub(super) struct RequestArgs {
        tables, tile_tables, num_entries, staged, bases, keys, values, row_numbers, row_starts,
        firsts, places, ids, origins, destinations, lengths, inside, flags: DevicePtr;
        num_tables, num_owners, num_tiles, slot_words, slot_rows, slot_elements, strip_words, head,
        entry_stride: u32;
    }

    pub(super) struct ReceivedArgs {
        tables, tile_tables, ids, places, num_entries, keys, values: DevicePtr;
        key_lists, value_lists: KeyLists;
        histograms, vectors, lengths, staged, told, inside, origins, sent, leaves,
        flags: DevicePtr;
        num_tables, num_sources, num_tiles, slot_words, slot_rows, slot_elements, num_parts,
        max_bags, head, num_passes: u32;
    }

    struct MostArgs {
        heads, most, staged, told: DevicePtr;
        count, stride: u32;
    }
}

/// What is asked: by a rank for its batch, or by a proxy for its node.
pub(super) struct Asking<'a> {
    pub(super) tables: &'a DeviceTables,
    pub(super) num_tiles: usize,
    pub(super) sorted: &'a Sorted,
    /// Per table, and from one to the next.
    pub(super) num_entries: (DevicePtr, u32),
    pub(super) bases: &'a DeviceMemory,
    pub(super) at: &'a AskPlaces,
    pub(super) slots: SlotShape,
    pub(super) strip_words: usize,
    /// Of a proxy, how long strips inside its node must be.
    pub(super) inside: DevicePtr,
}

/// What is asked of an owner, or of a proxy.
pub(super) struct Served<'a> {
    pub(super) tables: &'a DeviceTables,
    pub(super) layout: &'a Layout,
    pub(super) sorted: &'a Sorted,
    pub(super) at: &'a ServePlaces,
    pub(super) slots: SlotShape,
    /// Where the host hears how long strips must be, and where a proxy does.
    pub(super) told: DevicePtr,
    pub(super) inside: DevicePtr,
}

/// The constants of an instance whose slots of vectors are of `slots`.
pub(crate) fn defines(instance: Instance, slots: DType) -> [Define; 3] {
    let [dim, row_type] = instance.defines();
    [dim, row_type, Define::dtype("SLOT_TYPE", slots)]
}

impl RankTables {
    /// Fills the slots of requests and tells ids and rows where their vectors will lie.
    pub(super) fn write_requests(
        &self,
        stream: &CudaStream,
        route: &DeviceHybridRoute,
        asking: &Asking<'_>,
    ) {
        let Asking { tables, sorted, at, .. } = *asking;
        let SlotShape { words, head, rows, elements, peers, .. } = asking.slots;
        let args = RequestArgs {
            tables: tables.tables(),
            tile_tables: tables.tile_tables(),
            num_entries: asking.num_entries.0,
            staged: route.staging.ptr(),
            bases: asking.bases.ptr(),
            keys: sorted.at.keys,
            values: sorted.at.values,
            row_numbers: sorted.at.row_numbers,
            row_starts: sorted.at.row_starts,
            firsts: at.firsts,
            places: at.places,
            ids: at.ids,
            origins: at.origins,
            destinations: at.destinations,
            lengths: at.lengths,
            inside: asking.inside,
            flags: self.flags.ptr(),
            num_tables: self.specs.len() as u32,
            num_owners: peers as u32,
            num_tiles: asking.num_tiles as u32,
            slot_words: words as u32,
            slot_rows: rows as u32,
            slot_elements: elements as u32,
            strip_words: asking.strip_words as u32,
            head: head as u32,
            entry_stride: asking.num_entries.1,
        };
        let defines = defines(Instance::GENERIC, self.slots.dtype);
        stream.run(&EXCHANGE, &defines, "request_bounds", Launch::new(1, BLOCK), &args);
        let tiles = Launch::new(asking.num_tiles as u32, BLOCK);
        stream.run_resident(&EXCHANGE, &defines, "request_write", tiles, &args);
    }

    fn received_args(&self, route: &DeviceHybridRoute, served: &Served<'_>) -> ReceivedArgs {
        let SlotShape { words, head, rows, elements, peers, .. } = served.slots;
        let (key_lists, value_lists) = served.sorted.lists();
        ReceivedArgs {
            tables: served.tables.tables(),
            tile_tables: served.tables.tile_tables(),
            ids: served.at.ids,
            places: served.at.places,
            num_entries: served.at.num_entries,
            keys: served.sorted.at.keys,
            values: served.sorted.at.values,
            key_lists,
            value_lists,
            histograms: served.sorted.at.histograms,
            vectors: DevicePtr::NULL,
            lengths: served.at.lengths,
            staged: route.staging.ptr(),
            told: served.told,
            inside: served.inside,
            origins: DevicePtr::NULL,
            sent: DevicePtr::NULL,
            leaves: self.leaves.ptr(),
            flags: self.flags.ptr(),
            num_tables: self.specs.len() as u32,
            num_sources: peers as u32,
            num_tiles: served.layout.num_tiles as u32,
            slot_words: words as u32,
            slot_rows: rows as u32,
            slot_elements: elements as u32,
            num_parts: self.leaves.num_parts() as u32,
            max_bags: self.slice_layout.max_samples as u32,
            head: head as u32,
            num_passes: served.sorted.num_passes(),
        }
    }

    /// Sorts what sources request.
    pub(super) fn sort_received(
        &self,
        stream: &CudaStream,
        route: &DeviceHybridRoute,
        served: &Served<'_>,
    ) {
        served.sorted.clear(stream);
        let args = self.received_args(route, served);
        let defines = defines(Instance::GENERIC, self.slots.dtype);
        stream.run(&EXCHANGE, &defines, "received_bounds", Launch::new(1, BLOCK), &args);
        let lists = Launch::new((self.specs.len() * served.slots.peers) as u32, BLOCK);
        stream.run_resident(&EXCHANGE, &defines, "received_keys", lists, &args);
        let num_entries = (args.num_entries, 1);
        served.sorted.sort(stream, served.tables, num_entries, false);
        served.sorted.find_chunks(stream, served.tables, num_entries);
    }

    fn served_by_owner<'a>(&'a self, route: &'a DeviceHybridRoute) -> Served<'a> {
        // Where nodes merge, the host hears from all rails.
        let told = match self.proxy {
            Some(_) => DevicePtr::NULL,
            None => route.told.0.device_visible(),
        };
        Served {
            tables: &self.owned,
            layout: &self.owned_layout,
            sorted: &route.received,
            at: &route.serves,
            slots: self.served(),
            told,
            inside: DevicePtr::NULL,
        }
    }

    /// Sorts what sources request into this owner's rows.
    pub(in crate::hybrid) fn receive_requests(
        &self,
        stream: &CudaStream,
        route: &DeviceHybridRoute,
    ) {
        self.sort_received(stream, route, &self.served_by_owner(route));
    }

    /// The longest of the strips that `count` heads tell of, `stride` words apart.
    pub(super) fn longest_strips(
        &self,
        stream: &CudaStream,
        route: &DeviceHybridRoute,
        (heads, count, stride): (DevicePtr, usize, usize),
        most: DevicePtr,
        told: DevicePtr,
    ) {
        let (staged, count, stride) = (route.staging.ptr(), count as u32, stride as u32);
        let args = MostArgs { heads, most, staged, told, count, stride };
        let defines = defines(Instance::GENERIC, self.slots.dtype);
        stream.run(&EXCHANGE, &defines, "longest_strips", Launch::new(1, 32), &args);
    }

    /// Copies what owners have sent a proxy into the slots of vectors of its node's ranks.
    pub(super) fn send_rows_to_node(
        &self,
        stream: &CudaStream,
        route: &DeviceHybridRoute,
        served: &Served<'_>,
        [sent, vectors]: [&Mat; 2],
        origins: DevicePtr,
    ) {
        let args = ReceivedArgs {
            vectors: vectors.device_ptr(),
            origins,
            sent: sent.device_ptr(),
            ..self.received_args(route, served)
        };
        let defines = defines(self.instance, self.slots.dtype);
        let tiles = Launch::new(served.layout.num_tiles as u32, BLOCK);
        stream.run_resident(&EXCHANGE, &defines, "send_to_node", tiles, &args);
    }

    /// Copies the requested rows into the slots of vectors.
    pub(in crate::hybrid) fn owner_lookup(
        &self,
        stream: &CudaStream,
        tables: &[HybridTable],
        route: &DeviceHybridRoute,
        vectors: &Mat,
    ) {
        self.check_slots(vectors, self.served());
        for table in self.hidden(tables) {
            let first = 4 * table.layout.first_entry();
            let count = route.serves.num_entries.offset(4 * table.table);
            let looked_up = table.lookup(stream, route.received.at.keys.offset(first), count);
            if looked_up.is_err() {
                return keep(stream, looked_up);
            }
        }
        let args = ReceivedArgs {
            vectors: vectors.device_ptr(),
            ..self.received_args(route, &self.served_by_owner(route))
        };
        let defines = defines(self.instance, self.slots.dtype);
        let tiles = Launch::new(self.owned_layout.num_tiles as u32, BLOCK);
        stream.run_resident(&EXCHANGE, &defines, "owner_lookup", tiles, &args);
        if self.pools.contains(&true) {
            // A block takes eight bags at least.
            let tasks = self.specs.len() * self.served().peers * args.max_bags.div_ceil(8) as usize;
            let bags = Launch::new(u32::try_from(tasks).unwrap_or(u32::MAX), BLOCK);
            stream.run_resident(&EXCHANGE, &defines, "owner_pool", bags, &args);
        }
    }
}

/// An author's failure becomes the stream's.
pub(super) fn keep(stream: &CudaStream, result: Result<()>) {
    if let Err(error) = result {
        let (what, reason) = ("a table's CUDA body".to_owned(), error.to_string());
        stream.fail(DeviceError::Misuse { what, reason });
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
        layout_test!(MostArgs, &EXCHANGE, &[]);
    }
}
