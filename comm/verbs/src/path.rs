//! A [`Path`] over a link.

use super::arena::Arena;
use super::header::StripHeader;
use super::hub::Hub;
use super::layout::Near;
use headlong_comm::transport::paths::{DoorbellKind, Head, Path, PathError, Progress};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Both directions between this rank and one peer, over a NIC. Messages that are longer
/// than a slot take several turns.
pub(super) struct VerbsPath {
    link: usize,
    capacity: usize,
    rings: bool,
    hub: Arc<Mutex<Hub>>,
    /// The hub's own memory, for messages that are shown where they lie.
    slots: Arc<Arena>,
}

impl VerbsPath {
    pub(super) fn new(hub: &Arc<Mutex<Hub>>, link: usize) -> Self {
        let locked = hub.lock().unwrap_or_else(PoisonError::into_inner);
        let (capacity, slots) = (locked.links[link].layout.capacity, Arc::clone(&locked.slots));
        Self { link, capacity, rings: locked.rings(), hub: Arc::clone(hub), slots }
    }

    fn look(&self) -> Result<MutexGuard<'_, Hub>, PathError> {
        let mut hub = self.hub.lock().unwrap_or_else(PoisonError::into_inner);
        hub.look();
        hub.links[self.link].check()?;
        Ok(hub)
    }
}

fn strip(
    hub: &mut Hub,
    link: usize,
    head: &Head,
    at: usize,
) -> Result<Option<(StripHeader, usize)>, PathError> {
    let near = Near { slots: &hub.slots, flags: &hub.flags };
    let Some((header, place)) = hub.links[link].next_strip(near)? else { return Ok(None) };
    match header.head == *head && header.offset == at as u64 {
        true => Ok(Some((header, place))),
        false => Err(PathError::Mismatch(header.head)),
    }
}

impl Path for VerbsPath {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn send(&mut self, head: &Head, bytes: &[u8], at: &mut usize) -> Result<Progress, PathError> {
        let mut hub = self.look()?;
        let Hub { links, slots, flags, .. } = &mut *hub;
        let near = Near { slots, flags };
        let mut progress = Progress::Idle;
        loop {
            let end = bytes.len().min(*at + self.capacity);
            if !links[self.link].fill(near, head, *at, &bytes[*at..end])? {
                return Ok(progress);
            }
            *at = end;
            if end == bytes.len() {
                return Ok(Progress::Done);
            }
            progress = Progress::Moved;
        }
    }

    fn receive(
        &mut self,
        head: &Head,
        bytes: &mut [u8],
        at: &mut usize,
    ) -> Result<Progress, PathError> {
        let mut hub = self.look()?;
        let mut progress = Progress::Idle;
        while let Some((header, place)) = strip(&mut hub, self.link, head, *at)? {
            let end = *at + header.bytes as usize;
            if end > bytes.len() || (header.bytes == 0 && !bytes.is_empty()) {
                return Err(PathError::Mismatch(header.head));
            }
            hub.slots.read(place, &mut bytes[*at..end]);
            hub.links[self.link].give_back()?;
            *at = end;
            if end == bytes.len() {
                return Ok(Progress::Done);
            }
            progress = Progress::Moved;
        }
        Ok(progress)
    }

    fn shows(&self) -> u64 {
        self.capacity as u64
    }

    fn peek(&mut self, head: &Head) -> Result<Option<&[u8]>, PathError> {
        let found = strip(&mut *self.look()?, self.link, head, 0)?;
        let Some((header, place)) = found else { return Ok(None) };
        // SAFETY: the strip has arrived, and its slot is not given back while this path is
        // borrowed: `release` and `receive` need it.
        Ok(Some(unsafe { self.slots.view(place, header.bytes as usize) }))
    }

    fn release(&mut self) {
        let mut hub = self.hub.lock().unwrap_or_else(PoisonError::into_inner);
        // Note: an error stays with the link, for the next call.
        let _ = hub.links[self.link].give_back();
    }

    fn flush(&mut self) -> Result<Progress, PathError> {
        match self.look()?.links[self.link].is_quiet() {
            true => Ok(Progress::Done),
            false => Ok(Progress::Idle),
        }
    }

    fn rings(&self) -> Option<DoorbellKind> {
        self.rings.then_some(DoorbellKind::Network)
    }

    fn is_watched(&self) -> bool {
        true
    }

    fn watch(&mut self) -> Result<(), String> {
        let mut hub = self.hub.lock().unwrap_or_else(PoisonError::into_inner);
        hub.look_at_events();
        hub.links[self.link].check().map_err(|error| error.to_string())
    }
}
