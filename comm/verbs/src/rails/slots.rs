//! Memory for the slots of a rail: the device's own, which the NIC reads and writes by itself
//! (GPUDirect), or page-locked memory of the host, which both see.

use crate::nic::{Access, Memory, Nic, Region};
use headlong_comm::Feature;
use headlong_comm::readable::text;
use headlong_device::cuda::{CudaDevice, DevicePtr, DmabufMemory, Pinned};

/// Slots that a NIC knows.
///
/// Note: fields end in this order.
pub(super) struct SlotMemory {
    pub(super) region: Box<dyn Region>,
    memory: Place,
    name: String,
}

enum Place {
    Device(DmabufMemory),
    Host(Pinned),
}

/// Payload alone: the device learns from the proxy, not from the slots, that something has come.
fn access() -> Access {
    Access { local_write: true, remote_write: true, relaxed_ordering: true, ..Access::default() }
}

impl SlotMemory {
    /// Takes and registers `bytes` bytes.
    ///
    /// # Safety
    /// As [`Nic::register`].
    ///
    /// # Errors
    /// Where neither memory can be had, or not the device's and `gpudirect` requires it.
    pub(super) unsafe fn new(
        device: &CudaDevice,
        nic: &dyn Nic,
        gpudirect: Feature,
        bytes: usize,
    ) -> Result<Self, String> {
        let mut name = "verbs through host memory".to_owned();
        if gpudirect != Feature::Off {
            // SAFETY: the caller's word.
            match (unsafe { Self::of_device(device, nic, bytes) }, gpudirect) {
                (Ok(slots), _) => return Ok(slots),
                (Err(reason), Feature::Require) => {
                    return Err(format!("`comm.verbs.gpudirect = \"require\"`: {reason}"));
                }
                (Err(reason), _) => name.extend([" (no GPUDirect: ", &reason, ")"]),
            }
        }
        let slots = Pinned::new(device, bytes).map_err(text)?;
        let memory = Memory::Host { start: slots.as_ptr(), length: bytes };
        // SAFETY: the memory ends after the region; the rest is the caller's word.
        let region = unsafe { nic.register(memory, access()) }.map_err(text)?;
        Ok(Self { region, memory: Place::Host(slots), name })
    }

    unsafe fn of_device(device: &CudaDevice, nic: &dyn Nic, bytes: usize) -> Result<Self, String> {
        let slots = DmabufMemory::new(device, "slots of the rail", bytes).map_err(text)?;
        let memory = Memory::Dmabuf {
            fd: slots.descriptor(),
            offset: 0,
            length: slots.bytes(),
            address: slots.ptr().0,
        };
        // What reads back is a peer, too.
        let access = Access { remote_read: true, ..access() };
        // SAFETY: as in `new`.
        let region = unsafe { nic.register(memory, access) }.map_err(text)?;
        Ok(Self { region, memory: Place::Device(slots), name: "verbs, GPUDirect".to_owned() })
    }

    pub(super) fn is_of_device(&self) -> bool {
        matches!(self.memory, Place::Device(_))
    }

    pub(super) fn ptr(&self) -> DevicePtr {
        match &self.memory {
            Place::Device(slots) => slots.ptr(),
            Place::Host(slots) => slots.device_visible(),
        }
    }

    /// Who carries, and through which memory.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}
