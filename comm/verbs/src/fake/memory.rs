//! Registered memory: every access is checked, and none happens after the end of its registration.

use super::super::nic::{Access, Segment};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// One registration.
pub(super) struct RegionState {
    pub(super) nic: usize,
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) access: Access,
    /// Memory of a device: what a NIC has written is there for the device's own programs only
    /// after a read through the same NIC.
    pub(super) is_device: bool,
}

/// All registrations, by number. Keys for this NIC are even, those for peers odd.
#[derive(Default)]
pub(super) struct Regions {
    all: BTreeMap<u32, RegionState>,
    next: u32,
}

/// A piece of registered memory that was checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    region: u32,
    address: u64,
    length: usize,
}

/// The key for the NIC itself.
pub(super) fn local_key(region: u32) -> u32 {
    region << 1
}

/// The key for peers.
pub(super) fn remote_key(region: u32) -> u32 {
    region << 1 | 1
}

impl Regions {
    /// A new registration; its number.
    pub(super) fn add(&mut self, region: RegionState) -> u32 {
        // Note: a step that is no power of two, so that a key of one NIC is no other NIC's by
        // chance.
        self.next += 0x1003;
        self.all.insert(self.next, region);
        self.next
    }

    /// The end of a registration. Nothing touches its memory any more.
    pub(super) fn remove(&mut self, region: u32) {
        self.all.remove(&region);
    }

    /// The place of a segment of `nic`.
    pub(super) fn local(
        &self,
        nic: usize,
        segment: &Segment,
        write: bool,
    ) -> Result<Place, String> {
        let is_key = segment.key & 1 == 0;
        let allowed = |access: &Access| !write || access.local_write;
        self.place(nic, segment.key, is_key, segment.address, segment.length as usize, &allowed)
    }

    /// The place that a peer names at `nic`.
    pub(super) fn remote(
        &self,
        nic: usize,
        key: u32,
        (address, length): (u64, usize),
        allowed: impl Fn(&Access) -> bool,
    ) -> Result<Place, String> {
        self.place(nic, key, key & 1 == 1, address, length, &allowed)
    }

    fn place(
        &self,
        nic: usize,
        key: u32,
        is_key: bool,
        address: u64,
        length: usize,
        allowed: &dyn Fn(&Access) -> bool,
    ) -> Result<Place, String> {
        let number = key >> 1;
        let region = self.all.get(&number).filter(|region| is_key && region.nic == nic);
        let region =
            region.ok_or_else(|| format!("key {key:#x} is no registration of this NIC"))?;
        let inside = address >= region.address
            && (address - region.address)
                .checked_add(length as u64)
                .is_some_and(|end| end <= region.length);
        if !inside {
            return Err(format!(
                "{length} bytes at {address:#x} are not inside the {} registered at {:#x}",
                region.length, region.address
            ));
        }
        if !allowed(&region.access) {
            return Err(format!("key {key:#x} does not allow this access"));
        }
        Ok(Place { region: number, address, length })
    }

    /// Whether memory of a device lies there; none: nothing is registered there any more.
    pub(super) fn region(&self, place: Place) -> Option<&RegionState> {
        self.all.get(&place.region)
    }

    /// Appends what lies there.
    pub(super) fn read(&self, place: Place, into: &mut Vec<u8>) {
        if !self.all.contains_key(&place.region) || place.length == 0 {
            return;
        }
        // SAFETY: the place was checked against a registration, which is still valid, and the
        // caller that registered the memory keeps it mapped until it ends (`Nic::register`) and
        // writes it only where no NIC reads.
        into.extend_from_slice(unsafe {
            std::slice::from_raw_parts(place.address as *const u8, place.length)
        });
    }

    /// Writes `bytes` from `offset` on.
    pub(super) fn write(&self, place: Place, offset: usize, bytes: &[u8]) {
        assert!(
            offset + bytes.len() <= place.length,
            "a write stays in the place that was checked"
        );
        if !self.all.contains_key(&place.region) {
            return;
        }
        let start = place.address as usize + offset;
        // SAFETY: as in `read`; nothing else writes here before the completion that says so.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start as *mut u8, bytes.len()) };
    }

    /// Changes eight bytes at once; what was there before.
    pub(super) fn atomic(&self, place: Place, change: impl Fn(u64) -> u64) -> Option<u64> {
        self.all.get(&place.region)?;
        assert!(place.length == 8 && place.address.is_multiple_of(8), "atomics were checked");
        // SAFETY: eight aligned bytes of a registration that is still valid; programs look at them
        // by atomics alone.
        let word = unsafe { AtomicU64::from_ptr(place.address as *mut u64) };
        let old =
            word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |value| Some(change(value)));
        Some(old.unwrap_or_else(|old| old))
    }
}
