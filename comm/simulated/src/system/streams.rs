//! Sockets and waits for them, as the files of the transport call them.

use super::network::Handle;
use super::plan::{NEVER, Time};
use super::time::nanoseconds;
use super::world::{Call, On, call, glance};
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::marker::PhantomData;
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// One end of a connection.
#[derive(Debug)]
pub struct TcpStream(usize);

/// Where connections come.
#[derive(Debug)]
pub struct TcpListener(usize);

/// What can be polled.
pub trait Pollable {
    fn handle(&self) -> Handle;
}

impl Pollable for TcpStream {
    fn handle(&self) -> Handle {
        Handle::Stream(self.0)
    }
}

impl Pollable for TcpListener {
    fn handle(&self) -> Handle {
        Handle::Listener(self.0)
    }
}

/// A handle and what is waited for.
#[derive(Debug, Clone)]
pub struct PollFd<'a> {
    handle: Handle,
    wanted: PollFlags,
    found: PollFlags,
    of: PhantomData<&'a ()>,
}

impl<'a> PollFd<'a> {
    pub fn new(of: &'a impl Pollable, wanted: PollFlags) -> Self {
        Self { handle: of.handle(), wanted, found: PollFlags::empty(), of: PhantomData }
    }

    pub fn revents(&self) -> PollFlags {
        self.found
    }
}

/// Waits until one of `descriptors` is ready, or `longest` is over. Now and then it is interrupted.
pub fn poll(descriptors: &mut [PollFd<'_>], longest: Duration) -> bool {
    call("polls", |call| {
        if call.is_dead || call.random.chance(1) {
            return false;
        }
        let on = On::Any(descriptors.iter().map(|one| (one.handle.clone(), one.wanted)).collect());
        let due = call.now.saturating_add(nanoseconds(longest));
        if !look(call, descriptors) && due > call.now {
            call.wait(on, due);
            look(call, descriptors);
        }
        true
    })
}

fn look(call: &Call<'_>, descriptors: &mut [PollFd<'_>]) -> bool {
    for one in descriptors.iter_mut() {
        one.found = call.network.stirs(&one.handle, one.wanted, call.now);
    }
    descriptors.iter().any(|one| !one.found.is_empty())
}

/// As [`poll`], until one can be read.
pub fn poll_read(descriptor: &impl Pollable, longest: Duration) {
    poll(&mut [PollFd::new(descriptor, PollFlags::IN)], longest);
}

/// Where someone listens, for those who are no rank.
pub fn listening() -> Vec<SocketAddr> {
    call("looks for listeners", |call| call.network.listening())
}

/// # Errors
/// None.
pub fn listen(_socket: &TcpListener, _backlog: i32) -> io::Result<()> {
    Ok(())
}

/// Sends what the system takes now; how much.
///
/// # Errors
/// As the system's.
pub fn send(stream: &TcpStream, bytes: &[u8]) -> Result<usize, Errno> {
    call("sends", |call| send_now(call, stream.0, bytes))
}

fn send_now(call: &mut Call<'_>, end: usize, bytes: &[u8]) -> Result<usize, Errno> {
    if call.is_dead {
        return Err(Errno::PIPE);
    }
    let (thread, now) = (call.thread, call.now);
    let state = &mut **call;
    let sent = state.network.send(end, bytes, now, &mut state.random);
    state.note("sent", thread, sent.map_or(u64::MAX, |sent| sent as u64));
    sent
}

/// As [`send`], of several parts.
///
/// # Errors
/// As the system's.
pub fn send_parts(stream: &TcpStream, parts: &[IoSlice<'_>]) -> Result<usize, Errno> {
    send(stream, &parts.iter().flat_map(|part| part.iter().copied()).collect::<Vec<u8>>())
}

/// Takes what has come; how much, 0 at the end.
///
/// # Errors
/// As the system's.
pub fn receive(stream: &TcpStream, room: &mut [u8]) -> Result<usize, Errno> {
    call("receives", |call| receive_now(call, stream.0, room))
}

fn receive_now(call: &mut Call<'_>, end: usize, room: &mut [u8]) -> Result<usize, Errno> {
    if call.is_dead {
        return Err(Errno::CONNRESET);
    }
    let (thread, now) = (call.thread, call.now);
    let state = &mut **call;
    let received = state.network.receive(end, room.len(), now, &mut state.random);
    state.note("received", thread, received.as_ref().map_or(u64::MAX, |all| all.len() as u64));
    received.map(|bytes| {
        room[..bytes.len()].copy_from_slice(&bytes);
        bytes.len()
    })
}

/// As [`receive`], into several parts.
///
/// # Errors
/// As the system's.
pub fn receive_parts(stream: &TcpStream, parts: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
    let mut room = vec![0; parts.iter().map(|part| part.len()).sum()];
    let received = receive(stream, &mut room)?;
    let mut rest = &room[..received];
    for part in parts {
        let (here, after) = rest.split_at(rest.len().min(part.len()));
        part[..here.len()].copy_from_slice(here);
        rest = after;
    }
    Ok(received)
}

/// As [`receive`], of one byte, which stays.
///
/// # Errors
/// As the system's.
pub fn peek(stream: &TcpStream) -> Result<usize, Errno> {
    call("peeks", |call| {
        let now = call.now;
        call.network.peek(stream.0, now)
    })
}

fn refused<T>(error: Errno) -> io::Result<T> {
    Err(error.into())
}

impl TcpStream {
    pub(super) fn of(end: usize) -> Self {
        Self(end)
    }

    pub(super) fn end(&self) -> usize {
        self.0
    }

    pub(super) fn read_now(&self, room: &mut [u8]) -> io::Result<usize> {
        blocking(self, PollFlags::IN, |call| receive_now(call, self.0, room))
    }

    pub(super) fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        blocking(self, PollFlags::OUT, |call| send_now(call, self.0, bytes))
    }

    /// # Errors
    /// As the system's.
    pub fn connect_timeout(address: &SocketAddr, patience: Duration) -> io::Result<Self> {
        call("connects", |call| {
            if call.is_dead {
                return refused(Errno::CONNREFUSED);
            }
            let state = &mut **call;
            let (now, there) = (state.now, state.network.listener_rank(*address));
            let rank = call.rank;
            let state = &mut **call;
            let way = state.network.delay((rank, there), now, &mut state.random);
            let back = state.network.delay((there, rank), now, &mut state.random);
            let both = way.saturating_add(back);
            let patience = nanoseconds(patience);
            call.wait(On::Nothing, now.saturating_add(both.min(patience)));
            if both > patience {
                return refused(Errno::TIMEDOUT);
            }
            let now = call.now;
            call.network.connect(rank, *address, now).map(Self).or_else(refused)
        })
    }

    /// # Errors
    /// None.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        call("asks", |call| Ok(call.network.addresses(self.0).0))
    }

    /// # Errors
    /// None.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        call("asks", |call| Ok(call.network.addresses(self.0).1))
    }

    /// # Errors
    /// None.
    pub fn set_nodelay(&self, _nodelay: bool) -> io::Result<()> {
        Ok(())
    }

    /// # Errors
    /// None.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        call("sets", |call| call.network.set_blocking(self.0, !nonblocking));
        Ok(())
    }

    /// # Errors
    /// None.
    pub fn set_read_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        let time = Some(time.map(nanoseconds));
        call("sets", |call| call.network.set_patience(self.0, time, None));
        Ok(())
    }

    /// # Errors
    /// None.
    pub fn set_write_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        let time = Some(time.map(nanoseconds));
        call("sets", |call| call.network.set_patience(self.0, None, time));
        Ok(())
    }

    /// # Errors
    /// None.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let both = (how != Shutdown::Write, how != Shutdown::Read);
        call("shuts", |call| {
            if call.is_dead {
                return;
            }
            let now = call.now;
            let state = &mut **call;
            state.network.shut(self.0, both, now, &mut state.random);
        });
        Ok(())
    }
}

/// Tries again until it need not wait, or the connection's patience has ended.
fn blocking(
    stream: &TcpStream,
    flags: PollFlags,
    mut attempt: impl FnMut(&mut Call<'_>) -> Result<usize, Errno>,
) -> io::Result<usize> {
    call("reads or writes", |call| {
        let (read, write) = call.network.patience(stream.0);
        let patience: Time = if flags == PollFlags::IN { read } else { write };
        let due = if patience == NEVER { NEVER } else { call.now.saturating_add(patience) };
        loop {
            match attempt(call) {
                Err(Errno::AGAIN) if call.now < due => {
                    call.wait(On::Any(vec![(stream.handle(), flags)]), due);
                }
                done => return done.or_else(refused),
            }
        }
    })
}

impl Read for TcpStream {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.read_now(room)
    }
}

impl Write for TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_now(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        glance(|call| {
            let now = call.now;
            let state = &mut **call;
            state.network.close(self.0, now, &mut state.random);
        });
    }
}

impl TcpListener {
    pub(super) fn of(listener: usize) -> Self {
        Self(listener)
    }

    /// # Errors
    /// As the system's.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        let address = address.to_socket_addrs()?.next().ok_or(io::ErrorKind::InvalidInput)?;
        call("binds", |call| {
            let rank = call.rank;
            call.network.bind(rank, address).map(Self).or_else(refused)
        })
    }

    /// # Errors
    /// As the system's; it never waits.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        call("accepts", |call| {
            let now = call.now;
            let accepted = call.network.accept(self.0, now);
            accepted.map(|(end, from)| (TcpStream(end), from)).or_else(refused)
        })
    }

    /// # Errors
    /// None.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        call("asks", |call| Ok(call.network.listener_address(self.0)))
    }

    /// # Errors
    /// None.
    pub fn set_nonblocking(&self, _nonblocking: bool) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        glance(|call| {
            let now = call.now;
            let state = &mut **call;
            state.network.close_listener(self.0, now, &mut state.random);
        });
    }
}
