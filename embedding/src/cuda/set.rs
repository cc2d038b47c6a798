//! The CUDA body of [`crate::EmbeddingSet`]: one rank with all rows.

use super::layout::{CHUNK, Layout};
use super::staging::Staging;
use super::table::{Hidden, apply_all, hidden};
use super::tables::describe;
use super::{DeviceLeaves, DeviceTables, FlagsMemory, Instance, partial_stride};
use crate::error::Result;
use crate::lookup::cuda as lookup_cuda;
use crate::route::bits_below;
use crate::route::cuda::Sorted;
use crate::slot::TableSlot;
use crate::table::{CudaStep, TableSpec};
use crate::update::cuda::{Gradients, Sink, Update, update};
use headlong_device::cuda::{
    CudaDevice, CudaStream, DeviceMemory, DevicePtr, DeviceStep, OptimizerConstants,
};
use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::{DType, Mat};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tables on a device, without their rows.
pub(crate) struct CudaSet {
    device: CudaDevice,
    specs: Arc<[TableSpec]>,
    layout: Arc<Layout>,
    tables: DeviceTables,
    instance: Instance,
    key_bits: u32,
    partials: DeviceMemory,
    flags: FlagsMemory,
    /// Where bags are summed in parts.
    leaves: Option<DeviceLeaves>,
    /// Address of the step in device memory; 0 where the host's is used.
    device_step: AtomicU64,
    optimizer: Optimizer,
    seed: u64,
    /// Whether authors' own tables are among them, whose rows are numbered.
    has_hidden: bool,
}

#[derive(Debug)]
pub(crate) struct DeviceRoute {
    pub(crate) staging: Staging,
    sorted: Sorted,
}

/// Refuses tables that do not fit the kernels, by name.
pub(crate) fn check_specs(specs: &[TableSpec]) -> Result<()> {
    let dtype = specs.first().map_or(DType::F32, |spec| spec.dtype);
    for spec in specs {
        if spec.rows >= u64::from(u32::MAX) >> 1 {
            let rows = spec.rows;
            let reason = format!("{rows} rows, a CUDA device takes fewer than 2^31 a table");
            return Err(spec.refused(reason));
        }
        if spec.dtype != dtype {
            let (found, others) = (spec.dtype.name(), dtype.name());
            return Err(spec.refused(format!(
                "holds {found}, other tables {others}: on a CUDA device all hold the same"
            )));
        }
    }
    Ok(())
}

impl CudaSet {
    /// For tables whose rows lie on the device already.
    pub(crate) fn new(
        device: &CudaDevice,
        specs: &[TableSpec],
        slots: &[TableSlot],
        (max_samples, max_ids): (usize, &[usize]),
        (optimizer, seed): (Optimizer, u64),
    ) -> Result<Self> {
        check_specs(specs)?;
        let layout = Layout::new(specs, max_samples, max_ids);
        let tables = specs.iter().zip(slots).enumerate();
        let tables = tables.map(|(index, (spec, slot))| {
            describe(spec, index, &layout, Some(slot), DevicePtr::NULL)
        });
        let tables = DeviceTables::new(device, &tables.collect::<Vec<_>>(), &layout)?;
        let dtype = specs.first().map_or(DType::F32, |spec| spec.dtype);
        Ok(Self {
            device: device.clone(),
            tables,
            instance: Instance::new(specs.iter().map(|spec| spec.dim), dtype),
            key_bits: specs.iter().map(|spec| bits_below(spec.rows)).max().unwrap_or(1),
            partials: DeviceMemory::new(
                device,
                "partial sums of rows",
                partial_bytes(specs, &layout),
            )?,
            flags: FlagsMemory::new(device)?,
            leaves: None,
            device_step: AtomicU64::new(0),
            specs: specs.into(),
            layout: Arc::new(layout),
            has_hidden: slots.iter().any(|slot| slot.staging.is_some()),
            optimizer,
            seed,
        })
    }

    pub(crate) fn new_route(&self) -> Result<DeviceRoute> {
        Ok(DeviceRoute {
            staging: Staging::new(&self.device, &self.specs, &self.layout, false)?,
            sorted: Sorted::new(&self.device, &self.layout, self.key_bits, self.has_hidden)?,
        })
    }

    pub(crate) fn set_device_step(&self, step: DevicePtr) {
        self.device_step.store(step.0, Ordering::Relaxed);
    }

    /// Sums the bags of `tables` in the parts whose leaves these are.
    pub(crate) fn sum_in_parts(
        &mut self,
        tables: impl Iterator<Item = usize>,
        leaf_of: &[u32],
    ) -> Result<()> {
        for table in tables.filter(|_| leaf_of.len() > 1) {
            self.tables.set_parts(table, (1, table as u32))?;
            if self.leaves.is_none() {
                self.leaves = Some(DeviceLeaves::new(&self.device, leaf_of)?);
            }
        }
        Ok(())
    }

    pub(crate) fn check_flags(&self) -> Result<()> {
        self.flags.check(&self.specs)
    }

    pub(crate) fn route(&self, stream: &CudaStream, route: &DeviceRoute) {
        route.sorted.route(stream, &self.tables, &route.staging, &self.flags);
    }

    pub(crate) fn lookup(
        &self,
        stream: &CudaStream,
        slots: &[TableSlot],
        route: &DeviceRoute,
        vectors: &Mat,
    ) -> Result<()> {
        for table in self.hidden(slots) {
            let [ids, count] = route.staging.ids_of(table.table);
            table.lookup(stream, ids, count)?;
        }
        let from = lookup_cuda::From {
            tables: self.tables.tables(),
            num_tables: self.specs.len(),
            staged: route.staging.ptr(),
            leaves: self.leaves.as_ref().map(|leaves| (leaves.ptr(), leaves.num_parts())),
            received: None,
        };
        lookup_cuda::lookup(stream, self.instance, &from, vectors);
        Ok(())
    }

    fn hidden<'a>(&'a self, slots: &'a [TableSlot]) -> impl Iterator<Item = Hidden<'a>> {
        hidden(slots.iter().map(Some), &self.layout.tables)
    }

    pub(crate) fn update(
        &self,
        stream: &CudaStream,
        slots: &[TableSlot],
        route: &DeviceRoute,
        (d_vectors, step): (&Mat, &Step),
    ) -> Result<()> {
        let step = CudaStep {
            optimizer: self.optimizer,
            constants: OptimizerConstants::new(&self.optimizer),
            device: DevicePtr(self.device_step.load(Ordering::Relaxed)),
            host: DeviceStep::new(step, &self.optimizer),
        };
        let work = Update {
            tables: self.tables.tables(),
            tile_tables: self.tables.tile_tables(),
            sorted: &route.sorted,
            gradients: Gradients::OfVectors(d_vectors, route.staging.ptr()),
            sink: Sink::Step { step, seed: self.seed },
            partials: (self.partials.ptr(), partial_stride(&self.specs)),
        };
        update(stream, self.instance, &work);
        let lists = (&route.sorted, &self.tables);
        apply_all(stream, self.hidden(slots), lists, (route.staging.num_entries(), 2), &step)
    }
}

/// Two places for every chunk's entries; see `partial_of` in update.cu.
pub(crate) fn partial_bytes(specs: &[TableSpec], layout: &Layout) -> usize {
    2 * layout.num_entries() / CHUNK * partial_stride(specs) * size_of::<f32>()
}
