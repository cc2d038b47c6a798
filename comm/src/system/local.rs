//! What the processes of one machine have for each other: sockets with a name, which hand out a
//! file, and words in shared memory at which they sleep.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::thread::futex;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::SocketAddr;
pub use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A listener at an abstract name, which ends with its owner; it does not block.
pub fn listen_at(name: &str) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Connects to an abstract name, without waiting.
///
/// # Errors
/// [`Errno::AGAIN`] the queue there is full.
pub fn connect_to(name: &str) -> Result<UnixStream, Errno> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    Ok(UnixStream::from(socket))
}

/// User and number of the process at the other end.
pub fn peer_of(stream: &UnixStream) -> Result<(u32, u32), Errno> {
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    Ok((peer.uid.as_raw(), peer.pid.as_raw_pid() as u32))
}

/// Sends `bytes` and a file.
pub fn send_file(stream: &UnixStream, bytes: &[u8], file: BorrowedFd<'_>) -> Result<usize, Errno> {
    let files = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    assert!(rights.push(SendAncillaryMessage::ScmRights(&files)), "there is room for one file");
    rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut rights, SendFlags::NOSIGNAL)
}

/// Fills `bytes`, and takes the file that comes with them.
pub fn receive_file(
    stream: &UnixStream,
    bytes: &mut [u8],
) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let mut parts = [IoSliceMut::new(bytes)];
    let received = rustix::net::recvmsg(stream, &mut parts, &mut rights, flags)?;
    let file = rights.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Ok((received.bytes, file))
}

/// Sleeps until `word` is [woken](wake_at), for `longest` at most, where it is still `seen`. May
/// end early.
#[inline]
pub fn sleep_at(word: &AtomicU32, seen: u32, longest: Duration) {
    let time = futex::Timespec::try_from(longest).expect("naps are short");
    let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&time));
}

/// Wakes one that sleeps at `word`.
#[inline]
pub fn wake_at(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

/// What is written before it is written before what is read after it.
#[inline]
pub fn order() {
    std::sync::atomic::fence(Ordering::SeqCst);
}
