//! The stages of a step among several ranks on a device, as a schedule drives them.

use super::launch::{Asking, keep};
use super::{DeviceHybridRoute, RankTables, SlotShape};
use crate::cuda::partial_stride;
use crate::cuda::table::{Hidden, apply_all, hidden};
use crate::hybrid::table::HybridTable;
use crate::lookup::cuda::{From, Received, lookup};
use crate::table::CudaStep;
use crate::update::cuda::{Gradients, Sink, Update, update, update_frequent};
use headlong_device::Mat;
use headlong_device::cuda::{CudaStream, DevicePtr, DeviceStep, OptimizerConstants};
use std::sync::atomic::Ordering;

impl RankTables {
    fn step(&self) -> CudaStep {
        let device = DevicePtr(self.device_step.load(Ordering::Relaxed));
        assert!(!device.is_null(), "`set_device_step` told where the step lies");
        let (optimizer, constants) = (self.optimizer, OptimizerConstants::new(&self.optimizer));
        CudaStep { optimizer, constants, device, host: DeviceStep::default() }
    }

    /// Tables of their authors' own that lie here.
    pub(super) fn hidden<'a>(
        &'a self,
        tables: &'a [HybridTable],
    ) -> impl Iterator<Item = Hidden<'a>> {
        hidden(tables.iter().map(|table| table.local.as_ref()), &self.owned_layout.tables)
    }

    pub(super) fn partials(&self) -> (DevicePtr, usize) {
        (self.partials.ptr(), partial_stride(&self.specs))
    }

    pub(super) fn check_slots(&self, slots: &Mat, shape: SlotShape) {
        let (found, needed) = (slots.rows() * slots.cols(), shape.elements * shape.peers);
        let name = slots.name();
        assert!(found >= needed, "`{name}` holds all slots: {needed} elements, got {found}");
        let (found, needed) = (slots.dtype(), self.slots.dtype);
        assert!(found == needed, "`{name}` is of {needed:?}, got {found:?}");
    }

    fn check_frequent(&self, frequent: &Mat) {
        let found = frequent.rows() * frequent.cols();
        assert!(found >= self.frequent_len, "`{}` holds all frequent rows", frequent.name());
    }

    /// Routes the ids that were staged and copied, and writes the requests.
    pub(in crate::hybrid) fn route(&self, stream: &CudaStream, route: &DeviceHybridRoute) {
        route.sorted.route(stream, &self.slice, &route.staging, &self.flags);
        let asking = Asking {
            tables: &self.slice,
            num_tiles: self.slice_layout.num_tiles,
            sorted: &route.sorted,
            num_entries: (route.staging.num_entries(), 2),
            bases: &self.bases,
            at: &route.asks,
            slots: self.slots,
            strip_words: match self.proxy {
                Some(_) => route.strips.inside[0],
                None => route.strips.id_words,
            },
            inside: DevicePtr::NULL,
        };
        self.write_requests(stream, route, &asking);
    }

    /// The vectors of all bags, from the slots that owners sent and the replica.
    pub(in crate::hybrid) fn pool(
        &self,
        stream: &CudaStream,
        route: &DeviceHybridRoute,
        recv_rows: &Mat,
        vectors: &Mat,
    ) {
        self.check_slots(recv_rows, self.slots);
        let from = From {
            tables: self.slice.tables(),
            num_tables: self.specs.len(),
            staged: route.staging.ptr(),
            leaves: self.pools.contains(&true).then(|| (self.leaves.ptr(), self.slots.elements)),
            received: Some(Received {
                origins: route.asks.origins,
                rows: recv_rows.device_ptr(),
                dtype: recv_rows.dtype(),
            }),
        };
        lookup(stream, self.instance, &from, vectors);
    }

    /// Writes the slots of gradients and the block of frequent gradients.
    pub(in crate::hybrid) fn reduce_rows(
        &self,
        stream: &CudaStream,
        route: &DeviceHybridRoute,
        d_vectors: &Mat,
        [to_owners, frequent]: [&Mat; 2],
    ) {
        self.check_slots(to_owners, self.slots);
        self.check_frequent(frequent);
        let (to_owners, slots) = (to_owners.device_ptr(), self.slots.gradients());
        let (frequent, dtype) = (frequent.device_ptr(), frequent.dtype());
        stream.fill_bytes(frequent, 0, dtype.bytes() * self.frequent_len);
        let frequent = (frequent, dtype);
        let work = Update {
            tables: self.slice.tables(),
            tile_tables: self.slice.tile_tables(),
            sorted: &route.sorted,
            gradients: Gradients::OfVectors(d_vectors, route.staging.ptr()),
            sink: Sink::Write { destinations: route.asks.destinations, to_owners, slots, frequent },
            partials: self.partials(),
        };
        update(stream, self.instance, &work);
    }

    /// Moves the owned rows, from the slots of gradients that sources sent.
    pub(in crate::hybrid) fn update_owned(
        &self,
        stream: &CudaStream,
        tables: &[HybridTable],
        route: &DeviceHybridRoute,
        from_sources: &Mat,
    ) {
        self.check_slots(from_sources, self.served());
        let step = self.step();
        let work = Update {
            tables: self.owned.tables(),
            tile_tables: self.owned.tile_tables(),
            sorted: &route.received,
            gradients: Gradients::Packed {
                first: from_sources.device_ptr(),
                dtype: self.slots.gradients(),
                slot_elements: self.served().elements,
                source_ranks: self.ranks_per_source,
                rounds: self.rounds_sums,
            },
            sink: Sink::Step { step, seed: self.seed },
            partials: self.partials(),
        };
        update(stream, self.instance, &work);
        let num_entries = (route.serves.num_entries, 1);
        let lists = (&route.received, &self.owned);
        keep(stream, apply_all(stream, self.hidden(tables), lists, num_entries, &step));
    }

    /// Moves the frequent rows, from the whole block.
    pub(in crate::hybrid) fn update_replicated(&self, stream: &CudaStream, frequent: &Mat) {
        self.check_frequent(frequent);
        let shape = (self.specs.len(), self.num_frequent);
        let sink = Sink::Step { step: self.step(), seed: self.seed };
        update_frequent(
            stream,
            self.instance,
            self.slice.tables(),
            shape,
            self.slots.gradients(),
            (frequent.device_ptr(), frequent.dtype()),
            sink,
        );
    }
}
