//! Memory for the slots of a rail: the device's own, which the NIC reads and writes by itself
//! (GPUDirect), or page-locked memory of the host, which both see.

use super::read_back::ReadBack;
use super::{connection, queue_pair_options};
use crate::Choice;
use crate::bus::share_a_bridge;
use crate::nic::{Access, CompletionQueue, Memory, Nic, NicResult, Region};
use crate::settings::VerbsSettings;
use headlong_comm::Feature;
use headlong_comm::readable::text;
use headlong_device::cuda::{CudaDevice, DevicePtr, DmabufMemory, Pinned};
use std::sync::Arc;

/// Slots that a NIC knows.
///
/// Note: fields end in this order.
pub(super) struct SlotMemory {
    pub(super) region: Box<dyn Region>,
    memory: Place,
    /// Why it is not the device's, where that was wanted.
    lacks: Option<String>,
}

enum Place {
    Device(DmabufMemory),
    Host(Pinned),
}

/// Slots, the queue for all that completes, and what reads back where the slots are a device's.
pub(super) type Served = (SlotMemory, Arc<dyn CompletionQueue>, Option<ReadBack>);

/// What slots are taken for.
pub(super) struct Wanted<'a> {
    pub(super) device: &'a CudaDevice,
    pub(super) nic: &'a dyn Nic,
    pub(super) settings: &'a VerbsSettings,
    pub(super) choice: &'a Choice,
    pub(super) first_packet: u32,
    pub(super) bytes: usize,
    /// Of the queue.
    pub(super) depth: u32,
}

/// Payload alone: the device learns from the proxy, not from the slots, that something has come.
fn access() -> Access {
    Access { local_write: true, remote_write: true, relaxed_ordering: true, ..Access::default() }
}

impl Wanted<'_> {
    /// Takes and registers memory of the device where the settings want it and it is of use, else
    /// of the host.
    ///
    /// # Safety
    /// As [`Nic::register`].
    ///
    /// # Errors
    /// Where neither can be had, or not the device's and that is required.
    pub(super) unsafe fn serve(&self) -> Result<Served, String> {
        let mut lacks = None;
        if self.settings.gpudirect != Feature::Off {
            // SAFETY: the caller's word.
            match (unsafe { self.of_device() }, self.settings.gpudirect) {
                (Ok(served), _) => return Ok(served),
                (Err(reason), Feature::Require) => {
                    return Err(format!("`comm.verbs.gpudirect = \"require\"`: {reason}"));
                }
                (Err(reason), _) => lacks = Some(reason),
            }
        }
        let slots = Pinned::new(self.device, self.bytes).map_err(text)?;
        let memory = Memory::Host { start: slots.as_ptr(), length: self.bytes };
        // SAFETY: the memory ends after the region; the rest is the caller's word.
        let region = unsafe { self.nic.register(memory, access()) }.map_err(text)?;
        let queue = self.nic.completion_queue(self.depth).map_err(text)?;
        Ok((SlotMemory { region, memory: Place::Host(slots), lacks }, queue, None))
    }

    unsafe fn of_device(&self) -> Result<Served, String> {
        let Self { nic, settings, choice, .. } = self;
        if let (Feature::Auto, Some(near), Some(path)) =
            (settings.gpudirect, &settings.near, &choice.path)
            && !share_a_bridge(near, path)
        {
            return Err(format!("{} and the GPU have no PCIe bridge in common", choice.device));
        }
        let slots =
            DmabufMemory::new(self.device, "slots of the rail", self.bytes).map_err(text)?;
        let memory = Memory::Dmabuf {
            fd: slots.descriptor(),
            offset: 0,
            length: slots.bytes(),
            address: slots.ptr().0,
        };
        // What reads back is a peer, too.
        let access = Access { remote_read: true, ..access() };
        // SAFETY: as in `serve`.
        let region = unsafe { nic.register(memory, access) }.map_err(text)?;
        let queue = nic.completion_queue(self.depth).map_err(text)?;
        let mut read_back = self.read_back(&queue, &*region).map_err(text)?;
        read_back.try_out(&*queue, || slots.read_word().map_err(text))?;
        let slots = SlotMemory { region, memory: Place::Device(slots), lacks: None };
        Ok((slots, queue, Some(read_back)))
    }

    /// A connection of this rank to itself.
    fn read_back(
        &self,
        queue: &Arc<dyn CompletionQueue>,
        region: &dyn Region,
    ) -> NicResult<ReadBack> {
        let with = connection(self.settings, self.choice, self.choice.port.mtu);
        let mut pair = self.nic.queue_pair(&queue_pair_options(queue))?;
        pair.init(&with)?;
        pair.ready_to_receive(&with, &self.choice.endpoint(pair.number(), self.first_packet))?;
        pair.ready_to_send(&with, self.first_packet)?;
        ReadBack::new(self.nic, pair, region)
    }
}

impl SlotMemory {
    pub(super) fn is_of_device(&self) -> bool {
        matches!(self.memory, Place::Device(_))
    }

    pub(super) fn ptr(&self) -> DevicePtr {
        match &self.memory {
            Place::Device(slots) => slots.ptr(),
            Place::Host(slots) => slots.device_visible(),
        }
    }

    /// Who carries, and through which memory, on so many of all ranks through the device's.
    pub(super) fn name(&self, by_device: usize, ranks: usize) -> String {
        let of_all = match by_device == ranks {
            true => String::new(),
            false => format!(" on {by_device} of {ranks} ranks"),
        };
        match (&self.memory, &self.lacks, by_device) {
            (Place::Device(_), ..) => format!("verbs, GPUDirect{of_all}"),
            (_, None, _) => "verbs through host memory".to_owned(),
            (_, Some(reason), 0) => format!("verbs through host memory (no GPUDirect: {reason})"),
            (_, Some(reason), _) => format!("verbs, GPUDirect{of_all} (not on this: {reason})"),
        }
    }
}
