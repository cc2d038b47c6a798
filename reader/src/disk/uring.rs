//! Reads by io_uring: the kernel is asked once for as many as may be in flight, and no thread waits
//! for each.

use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use super::{Done, IoBackend, Read};

pub(super) struct Uring {
    ring: IoUring,
    /// Reads in flight, at the index that the kernel gives back; their buffers may be written until
    /// they return.
    in_flight: Vec<Option<Read>>,
}

impl Uring {
    /// A ring of `depth` reads.
    ///
    /// # Errors
    /// What the kernel says where it refuses: container profiles often do.
    pub fn start(depth: usize) -> io::Result<Self> {
        let ring = IoUring::new(depth as u32)?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel's io_uring cannot read",
            ));
        }
        Ok(Self { ring, in_flight: (0..depth).map(|_| None).collect() })
    }

    fn num_in_flight(&self) -> usize {
        self.in_flight.iter().flatten().count()
    }
}

impl IoBackend for Uring {
    fn begin(&mut self, read: Read) -> io::Result<()> {
        let full = || io::Error::other("more reads than the ring was made for");
        let index = self.in_flight.iter().position(Option::is_none).ok_or_else(full)?;
        let read = self.in_flight[index].insert(read);
        let (at, length) = (read.offset + read.from as u64, read.to - read.from);
        let memory = read.buffer.bytes_mut()[read.from..read.to].as_mut_ptr();
        let entry = opcode::Read::new(types::Fd(read.file.as_raw_fd()), memory, length as u32);
        let entry = entry.offset(at).build().user_data(index as u64);
        // SAFETY: `in_flight` owns the read, with its buffer on the heap and its open file, until
        // the completion has been taken; `drop` waits for all of them.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|_| full())?;
        self.ring.submit().map(drop)
    }

    fn wait(&mut self) -> io::Result<Done> {
        loop {
            let completion = self.ring.completion().next();
            if let Some(completion) = completion {
                let slot =
                    self.in_flight.get_mut(completion.user_data() as usize).and_then(Option::take);
                let read = slot
                    .ok_or_else(|| io::Error::other("the kernel finished a read no one began"))?;
                let code = completion.result();
                let result = if code < 0 {
                    Err(io::Error::from_raw_os_error(-code))
                } else {
                    Ok(code as usize)
                };
                return Ok(Done { read, result });
            }
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
    }
}

impl Drop for Uring {
    /// The kernel may write into buffers in flight: they go only when it is done with them.
    fn drop(&mut self) {
        while self.num_in_flight() > 0 {
            if self.wait().is_err() {
                // Rather lost memory than memory that the kernel writes to after it has another
                // owner.
                std::mem::forget(std::mem::take(&mut self.in_flight));
                return;
            }
        }
    }
}
