//! The memory itself: made, sealed, checked and mapped.

use super::layout::{COUNTERS, Layout};
use crate::system;
use headlong_device::copy::copy_raw;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: u64 = u64::from_le_bytes(*b"hlshm\0\0\x01");

/// What all ranks of a node must agree on: the first bytes of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Agreement {
    magic: u64,
    ring_bytes: u64,
    num_local: u32,
    epoch: u32,
    fingerprint: [u8; 32],
}

/// A part of this process's address space that maps a part of the memory of the node.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to no thread, and what is done in it is done by atomics, or in bytes
// that the counters of a ring give to one side alone.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this was mapped with this length, and every borrow of it held it alive.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

pub type Refusal = String;

fn refused(what: &str) -> impl FnOnce(Errno) -> Refusal {
    move |error| format!("{what}: {error}")
}

/// Maps `len` bytes of the file from `offset` on, at `place` where one is given.
fn map(
    file: &impl AsFd,
    offset: usize,
    len: usize,
    place: Option<NonNull<u8>>,
) -> Result<NonNull<u8>, Refusal> {
    let (address, flags) = match place {
        Some(place) => (place.as_ptr().cast::<c_void>(), MapFlags::SHARED | MapFlags::FIXED),
        None => (std::ptr::null_mut(), MapFlags::SHARED),
    };
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: without a place, the system chooses an unused one; with one, it is inside a
    // reservation of the caller's.
    let mapped = unsafe { rustix::mm::mmap(address, len, rights, flags, file, offset as u64) };
    let mapped = mapped.map_err(refused("mapping shared memory"))?;
    NonNull::new(mapped.cast()).ok_or_else(|| "mapping shared memory: address 0".to_owned())
}

pub struct Segment {
    control: Mapping,
    file: OwnedFd,
    layout: Layout,
}

impl Segment {
    pub fn create(layout: Layout, epoch: u32, fingerprint: [u8; 32]) -> Result<Self, Refusal> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("headlong", flags).map_err(refused("memfd_create"))?;
        rustix::fs::ftruncate(&file, layout.total_bytes() as u64)
            .map_err(refused("sizing shared memory"))?;
        // From here on no process can shrink it under another's feet.
        rustix::fs::fcntl_add_seals(&file, seals()).map_err(refused("sealing shared memory"))?;
        let segment = Self { control: control(&file, layout)?, file, layout };
        let agreement = agreement(layout, epoch, fingerprint);
        let bytes = agreement.as_bytes();
        // SAFETY: the control part is longer than this, and no other process has the file yet.
        unsafe {
            segment.control.base.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len())
        };
        Ok(segment)
    }

    /// Takes the memory that the node's first rank has handed out.
    pub fn open(
        file: OwnedFd,
        layout: Layout,
        epoch: u32,
        fingerprint: [u8; 32],
    ) -> Result<Self, Refusal> {
        let found =
            rustix::fs::fcntl_get_seals(&file).map_err(refused("looking at shared memory"))?;
        if !found.contains(seals()) {
            return Err("the memory handed out is not sealed: its size could change".into());
        }
        let size = rustix::fs::fstat(&file).map_err(refused("looking at shared memory"))?.st_size;
        if size as usize != layout.total_bytes() {
            return Err(format!(
                "the memory handed out has {size} bytes, expected {}",
                layout.total_bytes()
            ));
        }
        let segment = Self { control: control(&file, layout)?, file, layout };
        // SAFETY: the control part is longer than this, and it was written before the file was
        // handed out.
        let found: Agreement = unsafe { segment.control.base.cast().read() };
        if found != agreement(layout, epoch, fingerprint) {
            return Err("the memory handed out is another job's, or another program's".into());
        }
        Ok(segment)
    }

    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// # Safety
    /// `offset` is the place of a `T` in the control part that is only ever accessed as one.
    unsafe fn word<T>(&self, offset: usize) -> &T {
        assert!(offset + size_of::<T>() <= self.control.len, "a word of the control part");
        // SAFETY: inside the mapping, which lives as long as the borrow; aligned, because pages and
        // offsets are.
        unsafe { self.control.base.add(offset).cast().as_ref() }
    }

    /// How often the doorbell of a rank has rung, and whether it listens.
    pub fn doorbell(&self, local: usize) -> (&AtomicU32, &AtomicU32) {
        let place = self.layout.doorbell(local);
        assert!(local < self.layout.num_local, "a rank of the node");
        // SAFETY: each doorbell has its own 128 bytes, of which these two words are used.
        unsafe { (self.word(place), self.word(place + 4)) }
    }

    /// Sleeps at the doorbell of a rank until a peer [wakes](Segment::wake) it, for `longest` at
    /// most, where it has not rung since `seen`. May end early.
    pub fn sleep(&self, local: usize, seen: u32, longest: Duration) {
        system::sleep_at(self.doorbell(local).0, seen, longest);
    }

    /// Wakes a rank that sleeps at its doorbell.
    pub fn wake(&self, local: usize) {
        system::wake_at(self.doorbell(local).0);
    }

    pub fn counters(&self, from: usize, to: usize) -> Counters<'_> {
        let place = self.layout.counters(from, to);
        // SAFETY: each pair has its own 256 bytes: the writer's word in the first half, the
        // reader's in the second, and after it the word that says that the writer waits for room.
        unsafe {
            Counters {
                written: self.word(place),
                read: self.word(place + COUNTERS / 2),
                hungry: self.word(place + COUNTERS / 2 + 8),
            }
        }
    }

    pub fn ring(&self, from: usize, to: usize) -> Result<Mirror, Refusal> {
        let len = self.layout.ring_bytes;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the system chooses an unused part of the address space; nothing can be read or
        // written in it yet.
        let reserved = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), 2 * len, ProtFlags::empty(), flags)
        };
        let reserved = reserved.map_err(refused("reserving addresses"))?;
        let base = NonNull::new(reserved.cast::<u8>()).ok_or("reserving addresses: address 0")?;
        let mapping = Mapping { base, len: 2 * len };
        let offset = self.layout.ring(from, to);
        map(&self.file, offset, len, Some(base))?;
        // SAFETY: half of the reservation lies after the first half.
        map(&self.file, offset, len, Some(unsafe { base.add(len) }))?;
        Ok(Mirror { mapping, len })
    }
}

pub struct Counters<'a> {
    /// Bytes written so far: the writer's alone to change.
    pub written: &'a AtomicU64,
    /// Bytes read so far: the reader's alone to change.
    pub read: &'a AtomicU64,
    /// The writer waits for room.
    pub hungry: &'a AtomicU32,
}

/// One ring, mapped twice end to end: any stretch of at most its length lies in one piece.
pub struct Mirror {
    mapping: Mapping,
    len: usize,
}

impl Mirror {
    pub fn len(&self) -> usize {
        self.len
    }

    fn place(&self, at: u64, len: usize) -> NonNull<u8> {
        assert!(len <= self.len, "a stretch is at most as long as the ring");
        // SAFETY: the place in the first half, plus at most the ring's length, stays inside both
        // halves.
        unsafe { self.mapping.base.add(at as usize & (self.len - 1)) }
    }

    /// Writes at the place of byte `at`.
    ///
    /// # Safety
    /// The counters give this stretch to the writer, which the caller is.
    pub unsafe fn write(&self, at: u64, bytes: &[u8]) {
        let place = self.place(at, bytes.len());
        // SAFETY: inside the mapping; the reader does not look at it before the counter tells it
        // to.
        unsafe { copy_raw(bytes.as_ptr(), place.as_ptr().cast(), bytes.len()) };
    }

    /// The bytes from byte `at` on.
    ///
    /// # Safety
    /// The counters give this stretch to the reader, which the caller is, for as long as the borrow
    /// lasts.
    pub unsafe fn bytes(&self, at: u64, len: usize) -> &[u8] {
        // SAFETY: inside the mapping; the writer does not touch it before the reader's counter has
        // passed it.
        unsafe { NonNull::slice_from_raw_parts(self.place(at, len), len).as_ref() }
    }

    /// Touches every page, so that no step waits for one. `writes`: this rank is the writer, and no
    /// message has passed: the pages come to lie near it.
    pub fn touch(&self, writes: bool) {
        for at in (0..2 * self.len).step_by(4096) {
            // SAFETY: inside the mapping; the writer is the only one, before the first message.
            unsafe {
                let byte = self.mapping.base.add(at);
                match writes {
                    true => byte.write_volatile(0),
                    false => drop(byte.read_volatile()),
                }
            }
        }
    }
}

fn seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

fn control(file: &OwnedFd, layout: Layout) -> Result<Mapping, Refusal> {
    let len = layout.control_bytes();
    Ok(Mapping { base: map(file, 0, len, None)?, len })
}

fn agreement(layout: Layout, epoch: u32, fingerprint: [u8; 32]) -> Agreement {
    let Layout { num_local, ring_bytes } = layout;
    Agreement {
        magic: MAGIC,
        ring_bytes: ring_bytes as u64,
        num_local: num_local as u32,
        epoch,
        fingerprint,
    }
}

pub type Shared = Arc<Segment>;

/// Orders what was written before it before what is read after it, for those who decide whether to
/// ring.
pub fn order() {
    system::order();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    fn layout() -> Layout {
        Layout::new(2)
    }

    #[test]
    fn a_ring_is_one_piece_wherever_a_message_begins() {
        let segment = Segment::create(layout(), 7, [1; 32]).unwrap();
        let other = Segment::open(segment.file.try_clone().unwrap(), layout(), 7, [1; 32]).unwrap();
        let (here, there) = (segment.ring(0, 1).unwrap(), other.ring(0, 1).unwrap());
        here.touch(true);
        there.touch(false);
        let message: Vec<u8> = (0..5000).map(|at| at as u8).collect();
        for at in [0, 64, here.len() as u64 - 64, 3 * here.len() as u64 - 4992] {
            // SAFETY: one thread, which is both sides.
            unsafe {
                here.write(at, &message);
                assert_eq!(there.bytes(at, message.len()), message, "at {at}");
            }
        }
        segment.counters(0, 1).written.store(5, Ordering::Relaxed);
        assert_eq!(other.counters(0, 1).written.load(Ordering::Relaxed), 5);
        assert_eq!(other.counters(1, 0).written.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn memory_of_another_job_or_size_or_without_seals_is_refused() {
        let segment = Segment::create(layout(), 7, [1; 32]).unwrap();
        let open = |layout, epoch, fingerprint| {
            Segment::open(segment.file.try_clone().unwrap(), layout, epoch, fingerprint).err()
        };
        assert!(open(layout(), 8, [1; 32]).unwrap().contains("another job's"));
        assert!(open(layout(), 7, [2; 32]).unwrap().contains("another job's"));
        assert!(open(Layout::new(3), 7, [1; 32]).unwrap().contains("bytes, expected"));
        assert!(rustix::fs::ftruncate(&segment.file, 4096).is_err(), "its size is sealed");
        let loose = rustix::fs::memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&loose, layout().total_bytes() as u64).unwrap();
        assert!(Segment::open(loose, layout(), 7, [1; 32]).err().unwrap().contains("not sealed"));
    }
}
