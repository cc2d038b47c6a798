//! One direction between two ranks: a writer and a reader of one ring.
//!
//! A message takes a header of 64 bytes and its payload, filled up to 64 bytes; what both sides
//! count are these bytes. Every step of either counter is whole lines of 64, so that the end of a
//! message always has room for its filling.

use super::layout::{CHUNK, LINE};
use super::segment::{Mirror, Shared, order};
use crate::transport::head::{HEAD_BYTES, Head, MAGIC};
use crate::transport::paths::{PathError, Progress};
use headlong_device::copy::copy;
use std::sync::atomic::Ordering;

fn filled(length: usize) -> usize {
    length.next_multiple_of(LINE)
}

pub struct End {
    segment: Shared,
    ring: Mirror,
    from: usize,
    to: usize,
    /// What this end has counted.
    own: u64,
    /// What the other end had counted when this one last looked.
    other: u64,
}

impl End {
    pub fn new(segment: &Shared, from: usize, to: usize, writes: bool) -> Result<Self, String> {
        let ring = segment.ring(from, to)?;
        ring.touch(writes);
        Ok(Self { segment: segment.clone(), ring, from, to, own: 0, other: 0 })
    }

    pub fn shows(&self) -> usize {
        self.segment.layout().in_place_bytes()
    }

    /// Whether so many bytes may be written now. Where not, the reader is asked to ring.
    fn has_room(&mut self, wanted: usize) -> Result<bool, PathError> {
        let used = |end: &Self| end.own.wrapping_sub(end.other);
        let free = (self.ring.len() - wanted) as u64;
        if used(self) > free {
            let counters = self.segment.counters(self.from, self.to);
            self.other = counters.read.load(Ordering::Acquire);
            if used(self) > free {
                counters.hungry.store(1, Ordering::Relaxed);
                // A reader that gives room back after this look sees that it is wanted.
                order();
                self.other = counters.read.load(Ordering::Acquire);
            }
        }
        match used(self) <= self.ring.len() as u64 {
            true => Ok(used(self) <= free),
            false => Err(self.senseless(used(self))),
        }
    }

    fn senseless(&self, bytes: u64) -> PathError {
        let length = self.ring.len();
        PathError::Failed(format!(
            "its shared memory says that {bytes} bytes wait in a ring of {length}"
        ))
    }

    /// Writes a chunk, where there is room for it. Short messages are written and counted at once.
    pub fn send(
        &mut self,
        head: &Head,
        bytes: &[u8],
        at: &mut usize,
    ) -> Result<Progress, PathError> {
        let total = LINE + filled(bytes.len());
        let first = *at == 0;
        let wanted = (total - *at).min(CHUNK);
        if !self.has_room(wanted)? {
            return Ok(Progress::Idle);
        }
        if first {
            let mut line = [0; LINE];
            line[..HEAD_BYTES].copy_from_slice(&head.to_bytes(MAGIC));
            // SAFETY: there is room for a chunk, which begins with the header.
            unsafe { self.ring.write(self.own, &line) };
        }
        let payload = if first { 0..wanted - LINE } else { *at - LINE..*at - LINE + wanted };
        let here = if first { self.own + LINE as u64 } else { self.own };
        let payload = payload.start..payload.end.min(bytes.len());
        // SAFETY: there is room for all of the chunk.
        unsafe { self.ring.write(here, &bytes[payload]) };
        *at += wanted;
        self.own += wanted as u64;
        self.segment.counters(self.from, self.to).written.store(self.own, Ordering::Release);
        Ok(if *at == total { Progress::Done } else { Progress::Moved })
    }

    /// Bytes that have come and are not read yet. A counter that cannot be is the end of the path.
    fn arrived(&mut self, wanted: usize) -> Result<usize, PathError> {
        let arrived = |end: &Self| end.other.wrapping_sub(end.own);
        if arrived(self) < wanted as u64 {
            self.other = self.segment.counters(self.from, self.to).written.load(Ordering::Acquire);
        }
        let arrived = arrived(self);
        if arrived > self.ring.len() as u64 || !arrived.is_multiple_of(LINE as u64) {
            return Err(self.senseless(arrived));
        }
        Ok(arrived as usize)
    }

    /// Reads and compares the header of the next message, if it has come.
    fn header(&mut self, head: &Head) -> Result<bool, PathError> {
        if self.arrived(LINE)? == 0 {
            return Ok(false);
        }
        // SAFETY: a line has come, and is not given back before it is read.
        let line = unsafe { self.ring.bytes(self.own, LINE) };
        let line = line.first_chunk::<HEAD_BYTES>().expect("a line is longer than a head");
        match Head::found(line).map_err(PathError::Failed)? {
            found if found == *head => Ok(true),
            found => Err(PathError::Mismatch(found)),
        }
    }

    pub fn receive(
        &mut self,
        head: &Head,
        bytes: &mut [u8],
        at: &mut usize,
    ) -> Result<Progress, PathError> {
        if *at == 0 {
            if !self.header(head)? {
                return Ok(Progress::Idle);
            }
            *at = LINE;
            self.own += LINE as u64;
        }
        let left = filled(bytes.len()) + LINE - *at;
        let taken = self.arrived(left.min(CHUNK))?.min(left).min(CHUNK);
        if taken > 0 {
            let start = *at - LINE;
            let payload = &mut bytes[start..];
            let length = payload.len().min(taken);
            // SAFETY: these bytes have come, and are given back below.
            copy(unsafe { self.ring.bytes(self.own, length) }, &mut payload[..length]);
            *at += taken;
            self.own += taken as u64;
        } else if left > 0 {
            return Ok(Progress::Idle);
        }
        self.give_back();
        Ok(if taken == left { Progress::Done } else { Progress::Moved })
    }

    /// The next message where it lies, once all of it has come.
    pub fn peek(&mut self, head: &Head) -> Result<Option<&[u8]>, PathError> {
        let length = head.length as usize;
        assert!(length <= self.shows(), "a message that this path shows");
        if !self.header(head)? || self.arrived(LINE + filled(length))? < LINE + filled(length) {
            return Ok(None);
        }
        // SAFETY: all of it has come, and `release` gives it back after the borrow.
        Ok(Some(unsafe { self.ring.bytes(self.own + LINE as u64, length) }))
    }

    pub fn release(&mut self, length: usize) {
        self.own += (LINE + filled(length)) as u64;
        self.give_back();
    }

    fn give_back(&self) {
        self.segment.counters(self.from, self.to).read.store(self.own, Ordering::Release);
    }

    /// Whether the writer had too little room when it last looked; asked once. Called after
    /// [`order`].
    pub fn takes_hunger(&self) -> bool {
        let hungry = self.segment.counters(self.from, self.to).hungry;
        hungry.load(Ordering::Relaxed) == 1 && hungry.swap(0, Ordering::Acquire) == 1
    }
}
