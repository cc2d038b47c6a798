//! Where the ranks of a node meet on their hosts: each learns where the others' memory is when it
//! enqueues.

use crate::communicator::Communicator;
use crate::error::{CommError, Result};
use crate::topology::Rank;
use headlong_device::cuda::{
    CudaDevice, DeviceMemory, DevicePtr, ForeignMemory, HANDLE_BYTES, SharedPlace,
};
use headlong_device::error::{DeviceError, Result as DeviceResult};
use std::sync::{Mutex, PoisonError};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What a rank brings to an operation, and what it learns of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) struct Part {
    pub(in crate::device) operation: &'static str,
    /// Bytes; the same on all ranks.
    pub(in crate::device) size: u64,
    pub(in crate::device) root: usize,
    pub(in crate::device) addresses: [u64; 2],
}

impl Part {
    /// An operation that moves nothing.
    pub(super) fn none(operation: &'static str) -> Self {
        Self { operation, size: 0, root: 0, addresses: [0; 2] }
    }

    pub(in crate::device) fn first(&self) -> DevicePtr {
        DevicePtr(self.addresses[0])
    }
}

/// A part on its way to another rank.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Message {
    operation: [u8; 16],
    size: u64,
    root: u64,
    places: [Place; 2],
}

/// An address, and how another process finds it: where it is of no use, its handle is zero.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Place {
    address: u64,
    offset: u64,
    handle: [u8; HANDLE_BYTES],
}

impl Message {
    fn describe(&self) -> String {
        let operation = String::from_utf8_lossy(&self.operation);
        let (operation, size, root) = (operation.trim_end_matches('\0'), self.size, self.root);
        format!("{operation} of {size} bytes (root {root})")
    }

    fn is_of_the_same_operation(&self, other: &Message) -> bool {
        (self.operation, self.size, self.root) == (other.operation, other.size, other.root)
    }
}

/// One rank's way to meet those of its group.
pub(super) struct Meeting {
    communicator: Communicator,
    device: CudaDevice,
    ranks: Vec<Rank>,
    /// Which of them are of another process.
    foreign: Vec<bool>,
    /// Memory of other processes that is mapped here.
    mapped: Mutex<Vec<([u8; HANDLE_BYTES], ForeignMemory)>>,
}

impl Meeting {
    pub(super) fn new(
        communicator: &Communicator,
        device: &CudaDevice,
        ranks: &[Rank],
        foreign: Vec<bool>,
    ) -> Self {
        let (communicator, device) = (communicator.another_handle(), device.clone());
        Self { communicator, device, ranks: ranks.to_vec(), foreign, mapped: Mutex::default() }
    }

    /// Waits until every rank of the group has brought its part; those of all, in the order of
    /// ranks, with addresses that this rank can use.
    ///
    /// # Errors
    /// The job's first error; [`CommError::Mismatch`] where ranks are not in the same operation;
    /// [`CommError::Device`] where memory cannot be shared.
    pub(super) fn meet(&self, part: Part) -> Result<Vec<Part>> {
        let failed = |reason: DeviceError| CommError::Device {
            seen_by: self.communicator.rank(),
            operation: part.operation.to_owned(),
            reason: reason.to_string(),
        };
        let own = self.message(&part).map_err(failed)?;
        let mut messages = vec![own; self.ranks.len()];
        self.communicator.gather_in_group(&self.ranks, own.as_bytes(), messages.as_mut_bytes())?;
        if let Some(other) = messages.iter().position(|other| !other.is_of_the_same_operation(&own))
        {
            return Err(CommError::Mismatch {
                culprit: self.ranks[other],
                seen_by: self.communicator.rank(),
                expected: own.describe(),
                found: messages[other].describe(),
            });
        }
        let parts = messages.iter().zip(&self.foreign).map(|(message, &is_foreign)| {
            let [first, second] = &message.places;
            let addresses = [self.find(first, is_foreign)?, self.find(second, is_foreign)?];
            Ok(Part { addresses, ..part })
        });
        parts.collect::<DeviceResult<Vec<_>>>().map_err(failed)
    }

    fn message(&self, part: &Part) -> DeviceResult<Message> {
        let mut operation = [0; 16];
        operation.iter_mut().zip(part.operation.bytes()).for_each(|(to, byte)| *to = byte);
        let [first, second] = part.addresses;
        let places = [self.place(first)?, self.place(second)?];
        Ok(Message { operation, size: part.size, root: part.root as u64, places })
    }

    fn place(&self, address: u64) -> DeviceResult<Place> {
        let is_shared = address != 0 && self.foreign.contains(&true);
        let SharedPlace { handle, offset } = match is_shared {
            true => self.device.share(DevicePtr(address))?,
            false => SharedPlace { handle: [0; HANDLE_BYTES], offset: 0 },
        };
        Ok(Place { address, offset, handle })
    }

    fn find(&self, place: &Place, is_foreign: bool) -> DeviceResult<u64> {
        if !is_foreign || place.address == 0 {
            return Ok(place.address);
        }
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        let known = mapped.iter().find(|(handle, _)| *handle == place.handle);
        let start = match known {
            Some((_, memory)) => memory.ptr(),
            None => {
                let memory = self.device.map_shared(place.handle)?;
                let start = memory.ptr();
                mapped.push((place.handle, memory));
                start
            }
        };
        Ok(start.0 + place.offset)
    }

    /// Whether all ranks can use memory of those of their group that are of other processes: the
    /// same answer on all ranks.
    pub(super) fn can_map(&self) -> Result<bool> {
        let word = DeviceMemory::new(&self.device, "a word for peers", size_of::<u32>());
        let word = word.and_then(|word| Ok((self.place(word.ptr().0)?, word)));
        let none = Place { address: 0, offset: 0, handle: [0; HANDLE_BYTES] };
        let own = word.as_ref().map_or(none, |(place, _)| *place);
        let mut places = vec![own; self.ranks.len()];
        self.communicator.gather_in_group(&self.ranks, own.as_bytes(), places.as_mut_bytes())?;
        let maps = places
            .iter()
            .zip(&self.foreign)
            .all(|(place, &is_foreign)| place.address != 0 && self.find(place, is_foreign).is_ok());
        let answer = self.communicator.all_say(maps);
        // No memory goes while others have it mapped.
        self.unmap();
        self.communicator.barrier()?;
        answer
    }

    /// Nothing of other processes is mapped here any longer.
    pub(super) fn unmap(&self) {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(super) fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    pub(super) fn communicator(&self) -> &Communicator {
        &self.communicator
    }
}
