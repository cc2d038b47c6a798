//! What a set does where it is alone, and what it tells and asks a device.

use super::cuda::RankTables;
use super::route::HybridRoute;
use super::set::{Deduplicate, HybridOptions, HybridSet};
use crate::error::{EmbeddingError, Result};
use crate::ids::Ids;
use crate::registry::Registry;
use crate::set::{EmbeddingSet, check_on_cuda};
use crate::table::{MemoryNeeds, TableSpec};
use headlong_device::cuda::DevicePtr;
use headlong_device::optimizer::Step;
use headlong_device::{Device, Mat, Stream};

impl HybridSet {
    /// As [`Self::memory`], on `device`: there the bytes are the device's.
    ///
    /// # Errors
    /// As there, and tables that the device does not take.
    pub fn memory_on(
        device: Device,
        registry: &Registry,
        specs: &[TableSpec],
        options: &HybridOptions,
        routes: usize,
    ) -> Result<MemoryNeeds> {
        if options.partition.num_owners() == 1 {
            return EmbeddingSet::memory_on(device, registry, specs, &options.set, routes);
        }
        let needs = Self::memory(registry, specs, options, routes)?;
        let Device::Cuda(_) = device else { return Ok(needs) };
        check_on_cuda(registry, specs)?;
        Ok(MemoryNeeds { work_bytes: RankTables::work_bytes(specs, options, routes), ..needs })
    }

    /// The tables of a set that is alone.
    fn the_only(&self) -> &EmbeddingSet {
        self.alone().expect("the paths for one rank are taken by sets that are alone")
    }

    /// [`EmbeddingSet::route`], of a set that is alone.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// When there are several owners.
    pub fn route_alone<I: Ids + ?Sized>(
        &self,
        stream: &Stream,
        ids: &I,
        route: &mut HybridRoute,
    ) -> Result<()> {
        let out = route.alone.as_mut().expect("the route was made by a set that is alone");
        self.the_only().route(stream, ids, out)
    }

    /// [`EmbeddingSet::lookup_routed`], of a set that is alone.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// When there are several owners, and as there.
    pub fn lookup_alone<I: Ids + ?Sized>(
        &self,
        stream: &Stream,
        ids: &I,
        route: &HybridRoute,
        vectors: &Mat,
    ) -> Result<()> {
        let route = route.alone.as_ref().expect("the route was made by a set that is alone");
        self.the_only().lookup_routed(stream, ids, route, vectors)
    }

    /// [`EmbeddingSet::set_device_step`].
    pub fn set_device_step(&self, step: DevicePtr) {
        if let Some(alone) = self.alone() {
            alone.set_device_step(step);
        }
        if let Some(cuda) = &self.cuda {
            cuda.device_step.store(step.0, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// [`EmbeddingSet::check_flags`].
    ///
    /// # Errors
    /// As there.
    pub fn check_flags(&self) -> Result<()> {
        match (self.alone(), &self.cuda) {
            (Some(alone), _) => alone.check_flags(),
            (None, Some(cuda)) => cuda.check_flags(),
            (None, None) => Ok(()),
        }
    }

    /// [`EmbeddingSet::update`], of a set that is alone.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// When there are several owners, and as there.
    pub fn update_alone(
        &self,
        stream: &Stream,
        route: &HybridRoute,
        d_vectors: &Mat,
        step: &Step,
    ) -> Result<()> {
        let route = route.alone.as_ref().expect("the route was made by a set that is alone");
        self.the_only().update(stream, route, d_vectors, step)
    }
}

/// On a device every rank asks for unique rows, and owners are asked by ranks.
pub(super) fn check_deduplicate(specs: &[TableSpec], deduplicate: Deduplicate) -> Result<()> {
    match (deduplicate, specs.first()) {
        (Deduplicate::Node { .. }, Some(spec)) => Err(EmbeddingError::Placement {
            table: spec.name.clone(),
            reason:
                "equal rows are merged on each rank on CUDA devices, not on nodes: use deduplicate \
                 = rank"
                    .to_owned(),
        }),
        _ => Ok(()),
    }
}
