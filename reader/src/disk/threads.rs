//! Reads by a few threads, where io_uring is refused: the same number in flight, one system call
//! each.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Done, IoBackend, Read};
use crate::prefetch::OwnedThreads;

/// Threads that read, as many as reads may be in flight.
pub(super) struct Threads {
    done: Receiver<Done>,
    reads: SyncSender<Read>,
    _threads: OwnedThreads,
}

impl Threads {
    /// Starts `depth` threads.
    pub fn start(depth: usize) -> io::Result<Self> {
        let (reads, work) = sync_channel::<Read>(depth);
        let (finished, done) = sync_channel(depth);
        let work = Arc::new(Mutex::new(work));
        let mut threads = OwnedThreads::default();
        for index in 0..depth {
            let (work, finished) = (Arc::clone(&work), finished.clone());
            let body = move || {
                while let Some(read) = next(&work) {
                    if finished.send(perform(read)).is_err() {
                        return;
                    }
                }
            };
            threads.spawn(format!("reader-disk-{index}"), body).map_err(io::Error::other)?;
        }
        Ok(Self { done, reads, _threads: threads })
    }
}

fn next(work: &Mutex<Receiver<Read>>) -> Option<Read> {
    work.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

fn perform(mut read: Read) -> Done {
    let (from, to, at) = (read.from, read.to, read.offset + read.from as u64);
    let result = read.file.read_at(&mut read.buffer.bytes_mut()[from..to], at);
    Done { read, result }
}

impl IoBackend for Threads {
    fn begin(&mut self, read: Read) -> io::Result<()> {
        self.reads.send(read).map_err(|_| io::Error::other("the reading threads have ended"))
    }

    fn wait(&mut self) -> io::Result<Done> {
        self.done.recv().map_err(|_| io::Error::other("the reading threads have ended"))
    }
}
