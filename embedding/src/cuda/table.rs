//! Tables that hide their rows on a device: their authors' kernels, called on a batch.

use super::DeviceTables;
use super::layout::TableLayout;
use crate::error::Result;
use crate::route::cuda::Sorted;
use crate::slot::TableSlot;
use crate::table::{CudaStep, CudaTable, DeviceRows};
use headlong_device::cuda::{CudaStream, DevicePtr};

/// A table that hides its rows: its slot, its number, and its part of a batch.
pub(crate) struct Hidden<'a> {
    pub(crate) slot: &'a TableSlot,
    pub(crate) table: usize,
    pub(crate) layout: &'a TableLayout,
}

/// The tables of `slots` that hide their rows.
pub(crate) fn hidden<'a>(
    slots: impl Iterator<Item = Option<&'a TableSlot>>,
    layouts: &'a [TableLayout],
) -> impl Iterator<Item = Hidden<'a>> {
    let each = slots.zip(layouts).enumerate();
    each.filter_map(|(table, (slot, layout))| {
        let slot = slot.filter(|slot| slot.staging.is_some())?;
        Some(Hidden { slot, table, layout })
    })
}

impl Hidden<'_> {
    fn staging(&self) -> DevicePtr {
        self.slot.staging.as_ref().map_or(DevicePtr::NULL, headlong_device::Mat::device_ptr)
    }

    fn with(&self, body: impl FnOnce(&dyn CudaTable) -> Result<()>) -> Result<()> {
        let table = self.slot.lock();
        body(table.cuda().expect("a set on a device has checked that the table has a CUDA body"))
    }

    /// The author's vectors of `rows` into the staging matrix.
    pub(crate) fn lookup(
        &self,
        stream: &CudaStream,
        rows: DevicePtr,
        count: DevicePtr,
    ) -> Result<()> {
        let rows = DeviceRows { rows, count, capacity: self.layout.max_ids };
        self.with(|table| table.lookup(stream, rows, self.staging()))
    }

    /// The author's step on the rows whose gradients lie in the staging matrix.
    pub(crate) fn apply(
        &self,
        stream: &CudaStream,
        sorted: &Sorted,
        step: &CudaStep,
    ) -> Result<()> {
        let [rows, count] = sorted.unique(self.table);
        let rows = DeviceRows { rows, count, capacity: self.layout.max_ids };
        self.with(|table| table.apply(stream, rows, self.staging(), step))
    }
}

/// Takes the authors' steps on all of `hidden`, whose gradients are summed.
pub(crate) fn apply_all<'a>(
    stream: &CudaStream,
    hidden: impl Iterator<Item = Hidden<'a>>,
    (sorted, tables): (&Sorted, &DeviceTables),
    num_entries: (DevicePtr, u32),
    step: &CudaStep,
) -> Result<()> {
    let mut hidden = hidden.peekable();
    if hidden.peek().is_none() {
        return Ok(());
    }
    sorted.list_unique(stream, tables, num_entries, step.device);
    hidden.try_for_each(|table| table.apply(stream, sorted, step))
}
