//! Sockets with a name, which hand out a file, and words at which ranks sleep. The memory itself is
//! real: all ranks are of one process.

use super::network::Handle;
use super::streams::{Pollable, TcpListener, TcpStream};
use super::time::nanoseconds;
use super::world::{On, call};
use rustix::io::Errno;
use std::io::{self, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// One end of a connection inside a machine.
#[derive(Debug)]
pub struct UnixStream(TcpStream);

/// Where such connections come.
#[derive(Debug)]
pub struct UnixListener(TcpListener);

impl Pollable for UnixListener {
    fn handle(&self) -> Handle {
        self.0.handle()
    }
}

impl UnixListener {
    /// # Errors
    /// As the system's; it never waits.
    pub fn accept(&self) -> io::Result<(UnixStream, ())> {
        self.0.accept().map(|(stream, _)| (UnixStream(stream), ()))
    }
}

impl UnixStream {
    /// # Errors
    /// None.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.0.set_nonblocking(nonblocking)
    }

    /// # Errors
    /// None.
    pub fn set_read_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(time)
    }

    /// # Errors
    /// None.
    pub fn set_write_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        self.0.set_write_timeout(time)
    }
}

impl Read for &UnixStream {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.read_now(room)
    }
}

impl Write for &UnixStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_now(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A listener at a name.
///
/// # Errors
/// As the system's.
pub fn listen_at(name: &str) -> io::Result<UnixListener> {
    call("binds", |call| {
        let rank = call.rank;
        Ok(UnixListener(TcpListener::of(call.network.bind_name(rank, name))))
    })
}

/// Connects to a name; now and then the queue there is full.
///
/// # Errors
/// As the system's.
pub fn connect_to(name: &str) -> Result<UnixStream, Errno> {
    call("connects", |call| {
        if call.is_dead {
            return Err(Errno::CONNREFUSED);
        }
        if call.random.chance(10) {
            return Err(Errno::AGAIN);
        }
        let (rank, now) = (call.rank, call.now);
        let address = call.network.address_of(name).ok_or(Errno::CONNREFUSED)?;
        let end = call.network.connect(rank, address, now)?;
        call.network.set_blocking(end, false);
        Ok(UnixStream(TcpStream::of(end)))
    })
}

/// This process: all ranks are of it.
///
/// # Errors
/// None.
pub fn peer_of(_stream: &UnixStream) -> Result<(u32, u32), Errno> {
    Ok((rustix::process::getuid().as_raw(), std::process::id()))
}

/// Sends `bytes` and a file.
///
/// # Errors
/// As the system's.
pub fn send_file(stream: &UnixStream, bytes: &[u8], file: BorrowedFd<'_>) -> Result<usize, Errno> {
    let file = file.try_clone_to_owned().map_err(|_| Errno::MFILE)?;
    call("sends a file", |call| call.network.put_file(stream.0.end(), file));
    super::send(&stream.0, bytes)
}

/// Fills `bytes`, and takes the file that has come.
///
/// # Errors
/// As the system's.
pub fn receive_file(
    stream: &UnixStream,
    bytes: &mut [u8],
) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut filled = 0;
    while filled < bytes.len() {
        match stream.0.read_now(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(received) => filled += received,
            Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }
    Ok((filled, call("takes a file", |call| call.network.take_file(stream.0.end()))))
}

/// Sleeps until `word` is woken and another one than `seen`, for `longest` at most.
pub fn sleep_at(word: &AtomicU32, seen: u32, longest: Duration) {
    call("sleeps at a word", |call| {
        let due = call.now.saturating_add(nanoseconds(longest));
        while word.load(Ordering::Relaxed) == seen && call.now < due && !call.is_dead {
            let wakes = Arc::clone(&call.wakes);
            let count = wakes.load(Ordering::Relaxed);
            call.wait(On::Signal(wakes, count), due);
        }
    });
}

/// Wakes who sleeps at `word`.
pub fn wake_at(_word: &AtomicU32) {
    call("wakes", |call| call.wakes.fetch_add(1, Ordering::Relaxed));
}

/// Others may come in between.
pub fn order() {
    fence(Ordering::SeqCst);
    call("orders", |_| ());
}
