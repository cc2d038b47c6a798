//! The path of last resort: the TCP connection that the control plane has made to this peer.

use super::{Head, Path, PathError, Progress};
use crate::error::Result;
use crate::topology::Rank;
use crate::transport::tcp::TcpTransport;
use crate::transport::tcp::frame::{HEADER_BYTES, Header};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{IoSlice, IoSliceMut};
use std::net::TcpStream;

/// A connection and the header that is coming in.
pub struct TcpPath {
    stream: TcpStream,
    incoming: [u8; HEADER_BYTES],
}

impl TcpPath {
    /// Over the connection of `control` to `peer`.
    pub fn new(control: &TcpTransport, peer: Rank) -> Result<Self> {
        let stream = control.health().data(peer).try_clone();
        let stream = stream.map_err(|error| {
            crate::CommError::system(
                format!("a second descriptor of the connection to {peer}"),
                error,
            )
        })?;
        Ok(Self { stream, incoming: [0; HEADER_BYTES] })
    }
}

fn progress(moved: usize, at: &mut usize, total: usize) -> Progress {
    *at += moved;
    if *at == total { Progress::Done } else { Progress::Moved }
}

fn refused(error: Errno) -> Result<Progress, PathError> {
    match error {
        Errno::AGAIN | Errno::INTR => Ok(Progress::Idle),
        error => Err(PathError::Lost(format!("its data connection broke: {error}"))),
    }
}

impl Path for TcpPath {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn send(&mut self, head: &Head, bytes: &[u8], at: &mut usize) -> Result<Progress, PathError> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = if *at < HEADER_BYTES {
            let header = Header::from(*head).to_bytes();
            let parts = [IoSlice::new(&header[*at..]), IoSlice::new(bytes)];
            rustix::net::sendmsg(&self.stream, &parts, &mut Default::default(), flags)
        } else {
            rustix::net::send(&self.stream, &bytes[*at - HEADER_BYTES..], flags)
        };
        sent.map_or_else(refused, |sent| Ok(progress(sent, at, HEADER_BYTES + bytes.len())))
    }

    /// Takes what has come, and never a byte of the next message.
    fn receive(
        &mut self,
        head: &Head,
        bytes: &mut [u8],
        at: &mut usize,
    ) -> Result<Progress, PathError> {
        let total = HEADER_BYTES + bytes.len();
        let had_header = *at >= HEADER_BYTES;
        let received = if had_header {
            rustix::net::recv(&self.stream, &mut bytes[*at - HEADER_BYTES..], RecvFlags::DONTWAIT)
                .map(|(_, received)| received)
        } else {
            let mut parts = [IoSliceMut::new(&mut self.incoming[*at..]), IoSliceMut::new(bytes)];
            rustix::net::recvmsg(
                &self.stream,
                &mut parts,
                &mut Default::default(),
                RecvFlags::DONTWAIT,
            )
            .map(|message| message.bytes)
        };
        let moved = match received {
            Ok(0) => return Err(PathError::Lost("its data connection closed".into())),
            Ok(received) => progress(received, at, total),
            Err(error) => return refused(error),
        };
        if !had_header && *at >= HEADER_BYTES && self.incoming != Header::from(*head).to_bytes() {
            return Err(mismatch(&self.incoming));
        }
        Ok(moved)
    }
}

fn mismatch(found: &[u8; HEADER_BYTES]) -> PathError {
    match Header::read(found) {
        Some(header) => PathError::Mismatch(header.into()),
        None => PathError::Failed(Header::describe(found)),
    }
}
