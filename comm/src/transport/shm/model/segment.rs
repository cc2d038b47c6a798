//! The memory of a node of two ranks, under loom.

use super::layout::{LINE, Layout};
use headlong_models::sync::{AtomicU32, AtomicU64, Condvar, Mutex, Ordering, Plain, fence};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

/// Lines of a ring.
const LINES: usize = 2;

pub type Shared = Arc<Segment>;

#[track_caller]
pub fn order() {
    fence(Ordering::SeqCst);
}

/// One ordered pair: the ring from a rank to the other.
struct Pair {
    written: AtomicU64,
    read: AtomicU64,
    hungry: AtomicU32,
    lines: [Plain<[u8; LINE]>; LINES],
}

impl Default for Pair {
    fn default() -> Self {
        Self {
            written: AtomicU64::default(),
            read: AtomicU64::default(),
            hungry: AtomicU32::default(),
            lines: std::array::from_fn(|_| Plain::new([0; LINE])),
        }
    }
}

#[derive(Default)]
struct Seat {
    rings: AtomicU32,
    listens: AtomicU32,
    /// The kernel's, of a futex: it compares and goes to sleep in one.
    queue: Mutex<()>,
    woken: Condvar,
}

#[derive(Default)]
pub struct Segment {
    pairs: [Arc<Pair>; 2],
    seats: [Seat; 2],
}

impl Segment {
    pub fn layout(&self) -> &Layout {
        &Layout
    }

    pub fn doorbell(&self, local: usize) -> (&AtomicU32, &AtomicU32) {
        let Seat { rings, listens, .. } = &self.seats[local];
        (rings, listens)
    }

    /// Without a time: what has not been woken sleeps for ever, and loom says so.
    pub fn sleep(&self, local: usize, seen: u32, _longest: Duration) {
        let Seat { rings, queue, woken, .. } = &self.seats[local];
        let guard = queue.lock().expect("no rank panics");
        if rings.load(Ordering::Relaxed) == seen {
            drop(woken.wait(guard).expect("no rank panics"));
        }
    }

    pub fn wake(&self, local: usize) {
        let Seat { queue, woken, .. } = &self.seats[local];
        drop(queue.lock().expect("no rank panics"));
        woken.notify_one();
    }

    pub fn counters(&self, from: usize, _to: usize) -> Counters<'_> {
        let Pair { written, read, hungry, .. } = &*self.pairs[from];
        Counters { written, read, hungry }
    }

    pub fn ring(&self, from: usize, _to: usize) -> Result<Mirror, String> {
        Ok(Mirror { pair: self.pairs[from].clone(), shown: RefCell::default() })
    }
}

pub struct Counters<'a> {
    pub written: &'a AtomicU64,
    pub read: &'a AtomicU64,
    pub hungry: &'a AtomicU32,
}

pub struct Mirror {
    pair: Arc<Pair>,
    /// What was read, in one piece.
    shown: RefCell<Vec<Box<[u8]>>>,
}

impl Mirror {
    pub fn len(&self) -> usize {
        LINES * LINE
    }

    pub fn touch(&self, _writes: bool) {}

    fn line(&self, at: u64, index: usize) -> &Plain<[u8; LINE]> {
        &self.pair.lines[(at as usize / LINE + index) % LINES]
    }

    /// # Safety
    /// None: loom looks.
    pub unsafe fn write(&self, at: u64, bytes: &[u8]) {
        for (index, part) in bytes.chunks(LINE).enumerate() {
            let mut line = [0; LINE];
            line[..part.len()].copy_from_slice(part);
            // SAFETY: loom looks.
            unsafe { self.line(at, index).set(line) };
        }
    }

    /// # Safety
    /// None: loom looks.
    pub unsafe fn bytes(&self, at: u64, len: usize) -> &[u8] {
        // SAFETY: loom looks.
        let line = |index| unsafe { self.line(at, index).get() };
        let lines = (0..len.div_ceil(LINE)).flat_map(line);
        let bytes: Box<[u8]> = lines.take(len).collect();
        let shown: *const [u8] = &*bytes;
        self.shown.borrow_mut().push(bytes);
        // SAFETY: what is in the list stays where it is, and the list only grows.
        unsafe { &*shown }
    }
}
