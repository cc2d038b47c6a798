//! The stages of a step among several ranks on a device, as a schedule drives them.

use super::{DeviceHybridRoute, DeviceSlots, RankTables};
use crate::cuda::partial_stride;
use crate::cuda::table::{CudaStep, Hidden, apply_all, hidden};
use crate::error::Result;
use crate::hybrid::route::HybridRoute;
use crate::hybrid::set::{HybridSet, HybridTable};
use crate::lookup::cuda::{From, lookup};
use crate::update::cuda::{Gradients, Sink, Update, update, update_frequent};
use headlong_device::cuda::{CudaStream, DevicePtr, DeviceStep, OptimizerConstants};
use headlong_device::{DeviceError, Mat, Stream};
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

    fn partials(&self) -> (DevicePtr, usize) {
        (self.partials.ptr(), partial_stride(&self.specs))
    }

    fn pool(&self, stream: &CudaStream, route: &DeviceHybridRoute, requested: &Mat, vectors: &Mat) {
        let from = From {
            tables: self.slice.tables(),
            num_tables: self.specs.len(),
            staged: route.staging.ptr(),
            origins: Some((route.at(route.places.origins), requested.device_ptr())),
        };
        lookup(stream, self.instance, &from, vectors);
    }

    fn reduce(
        &self,
        stream: &CudaStream,
        route: &DeviceHybridRoute,
        d_vectors: &Mat,
        [requested, frequent]: [DevicePtr; 2],
    ) {
        stream.fill_bytes(frequent, 0, 4 * self.frequent_len);
        let work = Update {
            tables: self.slice.tables(),
            tile_tables: self.slice.tile_tables(),
            sorted: &route.sorted,
            gradients: Gradients::OfVectors(d_vectors, route.staging.ptr()),
            sink: Sink::Write {
                destinations: route.at(route.places.destinations),
                to_owners: requested,
                frequent,
            },
            partials: self.partials(),
        };
        update(stream, self.instance, &work);
    }

    fn update_infrequent(
        &self,
        stream: &CudaStream,
        tables: &[HybridTable],
        route: &DeviceHybridRoute,
        asked: &Mat,
    ) -> Result<()> {
        let step = self.step();
        let work = Update {
            tables: self.owned.tables(),
            tile_tables: self.owned.tile_tables(),
            sorted: &route.asked,
            gradients: Gradients::Packed(asked.device_ptr()),
            sink: Sink::Step { step, seed: self.seed },
            partials: self.partials(),
        };
        update(stream, self.instance, &work);
        let num_entries = (route.at(route.places.num_asked), 1);
        apply_all(stream, self.hidden(tables), (&route.asked, &self.owned), num_entries, &step)
    }

    fn update_frequent(&self, stream: &CudaStream, frequent: &Mat) {
        let shape = (self.specs.len(), self.num_frequent);
        let sink = Sink::Step { step: self.step(), seed: self.seed };
        update_frequent(
            stream,
            self.instance,
            self.slice.tables(),
            shape,
            frequent.device_ptr(),
            sink,
        );
    }
}

/// An author's failure becomes the stream's.
fn keep(stream: &Stream, result: Result<()>) {
    if let Err(error) = result {
        let (what, reason) = ("a table's CUDA body".to_owned(), error.to_string());
        stream.cuda_body().fail(DeviceError::Misuse { what, reason });
    }
}

impl HybridRoute {
    fn device(&self) -> &DeviceHybridRoute {
        self.cuda.as_deref().expect("the route was made by a set of several ranks on a device")
    }

    /// The slots of ids of a route on a device: an exchange sends each peer its slot and receives
    /// one of each.
    ///
    /// # Panics
    /// When the route is on the CPU, or of a set that is alone.
    pub fn id_slots(&self) -> DeviceSlots {
        self.device().id_slots()
    }

    /// On a device, where the bytes that count in each peer's slot of vectors are, u32: in those
    /// that this rank sends as an owner, and in those of gradients that it sends back.
    ///
    /// # Panics
    /// As [`Self::id_slots`].
    pub fn vector_lengths(&self) -> [DevicePtr; 2] {
        self.device().vector_lengths()
    }
}

/// The stages on a CUDA device. Each enqueues its work and returns; what kernels find wrong,
/// [`HybridSet::check_flags`] tells. All of them panic for sets and routes that are on the CPU or
/// alone, and for matrices of other shapes; updates, where [`HybridSet::set_device_step`] was not
/// called.
impl HybridSet {
    fn ranks(&self) -> &RankTables {
        self.cuda.as_ref().expect("the set is one of several ranks on a device")
    }

    /// Elements of one peer's slot of vectors. Matrices of slots are
    /// [`Self::max_requested_elements`] long. 0 on the CPU.
    pub fn slot_elements(&self) -> usize {
        self.cuda.as_ref().map_or(0, |cuda| cuda.slots.elements)
    }

    fn check_slots(&self, slots: &Mat) {
        let needed = self.ranks().slots.elements * self.ranks().slots.peers;
        let found = slots.rows() * slots.cols();
        assert!(
            found >= needed,
            "`{}` holds all slots: {needed} elements, got {found}",
            slots.name()
        );
    }

    /// As [`Self::route`], of the ids that were staged and copied; requests lie in
    /// [`HybridRoute::id_slots`].
    pub fn route_on_device(&self, stream: &Stream, route: &mut HybridRoute) {
        let (tables, stream, route) = (self.ranks(), stream.cuda_body(), route.device());
        route.sorted.route(stream, &tables.slice, &route.staging, &tables.flags);
        tables.write_requests(stream, route);
    }

    /// As [`Self::accept`], of what has arrived in [`HybridRoute::id_slots`].
    pub fn accept_on_device(&self, stream: &Stream, route: &mut HybridRoute) {
        self.ranks().accept(stream.cuda_body(), route.device());
    }

    /// As [`Self::answer`]: writes the slots of vectors.
    pub fn answer_on_device(&self, stream: &Stream, route: &HybridRoute, asked: &Mat) {
        self.check_slots(asked);
        let answered = self.ranks().answer(stream.cuda_body(), &self.tables, route.device(), asked);
        keep(stream, answered);
    }

    /// Nothing: bags of frequent rows are pooled with all others, in the one launch of
    /// [`Self::pool_on_device`].
    pub fn lookup_frequent_on_device(
        &self,
        _stream: &Stream,
        _route: &HybridRoute,
        _vectors: &Mat,
    ) {
    }

    /// As [`Self::lookup_frequent`] and [`Self::pool`], from the slots that owners sent and the
    /// replica.
    pub fn pool_on_device(
        &self,
        stream: &Stream,
        route: &HybridRoute,
        requested: &Mat,
        vectors: &Mat,
    ) {
        self.check_slots(requested);
        self.check_vectors(vectors, route);
        self.ranks().pool(stream.cuda_body(), route.device(), requested, vectors);
    }

    /// As [`Self::reduce`]: writes the slots of gradients and the block of frequent gradients.
    pub fn reduce_on_device(
        &self,
        stream: &Stream,
        route: &HybridRoute,
        d_vectors: &Mat,
        requested: &Mat,
        frequent: &Mat,
    ) {
        self.check_slots(requested);
        self.check_vectors(d_vectors, route);
        self.check_frequent(frequent);
        let to = [requested.device_ptr(), frequent.device_ptr()];
        self.ranks().reduce(stream.cuda_body(), route.device(), d_vectors, to);
    }

    /// As [`Self::update_infrequent`], from the slots of gradients that sources sent.
    pub fn update_infrequent_on_device(&self, stream: &Stream, route: &HybridRoute, asked: &Mat) {
        self.check_slots(asked);
        if !self.frozen {
            let updated = self.ranks().update_infrequent(
                stream.cuda_body(),
                &self.tables,
                route.device(),
                asked,
            );
            keep(stream, updated);
        }
    }

    /// As [`Self::update_frequent`], of the whole block.
    pub fn update_frequent_on_device(&self, stream: &Stream, frequent: &Mat) {
        self.check_frequent(frequent);
        if !self.frozen {
            self.ranks().update_frequent(stream.cuda_body(), frequent);
        }
    }

    fn check_frequent(&self, frequent: &Mat) {
        let found = frequent.rows() * frequent.cols();
        assert!(found >= self.frequent_len(), "`{}` holds all frequent rows", frequent.name());
    }
}
