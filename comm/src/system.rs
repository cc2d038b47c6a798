//! What ranks that come together and exchange take from the system: clock, threads, locks, sockets,
//! waits, random bytes.
//!
//! The rendezvous, the TCP transport and the paths name all of these through this module and in no
//! other way: `comm/simulated` compiles the same files again over a system of its own, in which one
//! seed is one history.

mod local;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use snow::Builder;
use snow::params::NoiseParams;
use std::io::{self, IoSlice, IoSliceMut};
use std::time::Duration;

pub use local::{
    UnixListener, UnixStream, connect_to, listen_at, order, peer_of, receive_file, send_file,
    sleep_at, wake_at,
};
pub use rustix::event::{PollFd, PollFlags};
pub use std::net::{TcpListener, TcpStream};
pub use std::sync::{Condvar, Mutex, MutexGuard};
pub use std::thread::{JoinHandle, sleep, yield_now};
pub use std::time::Instant;

const SEND: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// Starts a thread with a name.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(work)
}

/// How many threads run at once.
pub fn num_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Waits until one of `descriptors` is ready, or `longest` is over. False: the wait was interrupted
/// or has failed, and says nothing about them; its caller looks again.
pub fn poll(descriptors: &mut [PollFd<'_>], longest: Duration) -> bool {
    let time = longest.try_into().expect("waits are shorter than centuries");
    rustix::event::poll(descriptors, Some(&time)).is_ok()
}

/// As `poll`, until one descriptor can be read.
pub fn poll_read(descriptor: &impl AsFd, longest: Duration) {
    poll(&mut [PollFd::new(descriptor, PollFlags::IN)], longest);
}

/// Connections that the system holds until they are accepted.
#[inline]
pub fn listen(socket: &TcpListener, backlog: i32) -> io::Result<()> {
    Ok(rustix::net::listen(socket, backlog)?)
}

/// Sends what the system takes now; how much.
#[inline]
pub fn send(stream: &TcpStream, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::net::send(stream, bytes, SEND)
}

/// As [`send`], of several parts.
#[inline]
pub fn send_parts(stream: &TcpStream, parts: &[IoSlice<'_>]) -> Result<usize, Errno> {
    rustix::net::sendmsg(stream, parts, &mut Default::default(), SEND)
}

/// Takes what has come; how much, 0 at the end.
#[inline]
pub fn receive(stream: &TcpStream, room: &mut [u8]) -> Result<usize, Errno> {
    rustix::net::recv(stream, room, RecvFlags::DONTWAIT).map(|(_, received)| received)
}

/// As [`receive`], into several parts.
#[inline]
pub fn receive_parts(stream: &TcpStream, parts: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
    let received =
        rustix::net::recvmsg(stream, parts, &mut Default::default(), RecvFlags::DONTWAIT);
    received.map(|message| message.bytes)
}

/// As [`receive`], of one byte, which stays.
pub fn peek(stream: &TcpStream) -> Result<usize, Errno> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    rustix::net::recv(stream, &mut [0; 1], flags).map(|(_, received)| received)
}

/// Random bytes that no one can guess.
pub fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    Ok(getrandom::fill(bytes)?)
}

/// What makes the keys of a connection, with random numbers of the system.
pub fn noise<'a>(pattern: NoiseParams) -> Builder<'a> {
    Builder::new(pattern)
}

/// Wakes a thread that polls it.
pub struct WakeUp(OwnedFd);

impl WakeUp {
    /// One that nothing has rung yet.
    pub fn new() -> io::Result<Self> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        Ok(Self(rustix::event::eventfd(0, flags)?))
    }

    /// Can be read from now on.
    pub fn ring(&self) {
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Can be read no longer.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for WakeUp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
