//! A message on a data connection: a head and its bytes, in one call each way, never waited for.

use crate::transport::head::HEAD_BYTES;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{IoSlice, IoSliceMut};
use std::net::TcpStream;

/// Sends what the system takes now of a message of which `at` bytes have left; how many.
pub fn send(
    stream: &TcpStream,
    head: &[u8; HEAD_BYTES],
    bytes: &[u8],
    at: usize,
) -> Result<usize, String> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    moved(if at < HEAD_BYTES {
        let parts = [IoSlice::new(&head[at..]), IoSlice::new(bytes)];
        rustix::net::sendmsg(stream, &parts, &mut Default::default(), flags)
    } else {
        rustix::net::send(stream, &bytes[at - HEAD_BYTES..], flags)
    })
}

/// Takes what has come of a message of which `at` bytes were here, and never a byte of the next
/// one; how many.
pub fn receive(
    stream: &TcpStream,
    head: &mut [u8; HEAD_BYTES],
    bytes: &mut [u8],
    at: usize,
) -> Result<usize, String> {
    let flags = RecvFlags::DONTWAIT;
    let received = if at < HEAD_BYTES {
        let mut parts = [IoSliceMut::new(&mut head[at..]), IoSliceMut::new(bytes)];
        let received = rustix::net::recvmsg(stream, &mut parts, &mut Default::default(), flags);
        received.map(|message| message.bytes)
    } else {
        let received = rustix::net::recv(stream, &mut bytes[at - HEAD_BYTES..], flags);
        received.map(|(_, received)| received)
    };
    match received {
        Ok(0) => Err("its data connection closed".to_owned()),
        received => moved(received),
    }
}

fn moved(bytes: Result<usize, Errno>) -> Result<usize, String> {
    match bytes {
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        bytes => bytes.map_err(|error| format!("its data connection broke: {error}")),
    }
}
