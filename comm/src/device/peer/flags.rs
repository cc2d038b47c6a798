//! Barriers between streams of several devices: words in device memory that streams write and wait
//! for.
//!
//! Not kernels that spin: a waiting stream occupies no multiprocessor, and a captured step holds
//! the same operations.

use crate::readable::text;
use headlong_device::cuda::{self, CudaDevice, CudaStream, DeviceMemory, DevicePtr};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

type Operation =
    unsafe extern "C" fn(stream: *mut c_void, address: u64, value: c_uint, flags: c_uint) -> c_int;

const EQUAL: c_uint = 1;

/// One rank's words: for each of the two barriers of an operation one word for each rank, which
/// that rank sets; and one after them that a rank sets that has given up.
pub(super) struct Flags {
    rank: usize,
    num_ranks: usize,
    words: Arc<DeviceMemory>,
    write: Operation,
    wait: Operation,
}

impl Flags {
    pub(super) fn new(device: &CudaDevice, rank: usize, num_ranks: usize) -> Result<Self, String> {
        let bytes = (2 * num_ranks + 1) * size_of::<u32>();
        let words = Arc::new(DeviceMemory::new(device, "flags of peers", bytes).map_err(text)?);
        let find = |name| cuda::Library::Driver.symbol(name).map_err(text);
        // SAFETY: the driver's functions of these names have this type since CUDA 12.
        let write = unsafe {
            std::mem::transmute::<*mut c_void, Operation>(find(c"cuStreamWriteValue32_v2")?)
        };
        // SAFETY: as above.
        let wait = unsafe {
            std::mem::transmute::<*mut c_void, Operation>(find(c"cuStreamWaitValue32_v2")?)
        };
        Ok(Self { rank, num_ranks, words, write, wait })
    }

    pub(super) fn address(&self) -> u64 {
        self.words.ptr().0
    }

    /// Where the flags at `address` tell that another rank has given up.
    pub(super) fn told(&self, address: u64) -> DevicePtr {
        DevicePtr(address).offset(self.told_offset())
    }

    fn told_offset(&self) -> usize {
        2 * self.num_ranks * size_of::<u32>()
    }

    /// Whether another process has given up, and has let its streams pass barriers since.
    pub(super) fn is_told(&self) -> Result<bool, String> {
        let mut word = [0; size_of::<u32>()];
        self.words.read_unordered(self.told_offset(), &mut word).map_err(text)?;
        Ok(word != [0; size_of::<u32>()])
    }

    /// Enqueues that the stream continues when all ranks have come to their barrier `which`, 0 or
    /// 1; `all` says where each rank's words are. An operation has both: a word is set for the next
    /// one only after its owner has cleared it, because in between every rank has passed the other
    /// barrier.
    pub(super) fn barrier(
        &self,
        stream: &CudaStream,
        which: usize,
        all: &[u64],
    ) -> Result<(), String> {
        let word =
            |of: usize, by: usize| DevicePtr(all[of]).offset((which * self.num_ranks + by) * 4).0;
        let peers = || (0..self.num_ranks).filter(|peer| *peer != self.rank);
        for peer in peers() {
            // A write waits for everything before it in the stream, and is seen after it by every
            // device.
            self.enqueue(self.write, stream, word(peer, self.rank), 1, 0)?;
        }
        for peer in peers() {
            self.enqueue(self.wait, stream, word(self.rank, peer), 1, EQUAL)?;
            self.enqueue(self.write, stream, word(self.rank, peer), 0, 0)?;
        }
        Ok(())
    }

    fn enqueue(
        &self,
        operation: Operation,
        stream: &CudaStream,
        address: u64,
        value: u32,
        flags: c_uint,
    ) -> Result<(), String> {
        // SAFETY: the stream is alive; the address is a word of a rank's flags, which all ranks
        // keep until all are done.
        match unsafe { operation(stream.raw(), address, value, flags) } {
            0 => Ok(()),
            code => Err(format!("the driver refuses a barrier between devices (code {code})")),
        }
    }

    /// Begins to let this rank's streams pass every barrier, until the answer is dropped.
    pub(super) fn give_up(&self) -> GivingUp {
        let (words, stop) = (self.words.clone(), Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let set_all = move || {
            let ones: Vec<u8> = [1_u8, 0, 0, 0].repeat(words.bytes() / 4 - 1);
            // Each barrier clears its words again: they are set until no one waits any more. A copy
            // that waited for the device first would wait for the stream that waits for the copy.
            while !stopped.load(Ordering::Relaxed) && words.write_unordered(0, &ones).is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let thread = std::thread::Builder::new().name("peer-give-up".into()).spawn(set_all);
        GivingUp { stop, thread: thread.ok() }
    }
}

pub(super) struct GivingUp {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for GivingUp {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // It cannot have panicked: it only copies and sleeps.
        self.thread.take().map(JoinHandle::join);
    }
}
