//! The path of last resort: the connection that a TCP transport has to the peer.

use super::{Path, PathError, Progress};
use crate::error::{CommError, Result};
use crate::topology::Rank;
use crate::transport::head::{HEAD_BYTES, Head, MAGIC};
use crate::transport::tcp::TcpTransport;
use crate::transport::tcp::wire::Wire;
use std::net::TcpStream;

/// A connection and the head that is coming in.
pub struct TcpPath {
    stream: TcpStream,
    wire: Wire,
    incoming: [u8; HEAD_BYTES],
}

impl TcpPath {
    /// Over the connection of `control` to `peer`, which `control` uses no more.
    pub fn new(control: &TcpTransport, peer: Rank) -> Result<Self> {
        let stream = control.health().data(peer).try_clone().map_err(|error| {
            CommError::system(format!("a second descriptor of the connection to {peer}"), error)
        })?;
        Ok(Self { stream, wire: control.take_wire(peer), incoming: [0; HEAD_BYTES] })
    }
}

fn progress(moved: usize, at: &mut usize, length: usize) -> Progress {
    *at += moved;
    match moved {
        0 => Progress::Idle,
        _ if *at == HEAD_BYTES + length => Progress::Done,
        _ => Progress::Moved,
    }
}

impl Path for TcpPath {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn send(&mut self, head: &Head, bytes: &[u8], at: &mut usize) -> Result<Progress, PathError> {
        let sent = self.wire.send(&self.stream, &head.to_bytes(MAGIC), bytes, *at);
        Ok(progress(sent.map_err(PathError::Lost)?, at, bytes.len()))
    }

    fn receive(
        &mut self,
        head: &Head,
        bytes: &mut [u8],
        at: &mut usize,
    ) -> Result<Progress, PathError> {
        let had_head = *at >= HEAD_BYTES;
        let received = self.wire.receive(&self.stream, &mut self.incoming, bytes, *at);
        let progress = progress(received.map_err(PathError::Lost)?, at, bytes.len());
        if !had_head && *at >= HEAD_BYTES && self.incoming != head.to_bytes(MAGIC) {
            let found = Head::found(&self.incoming).map_err(PathError::Failed)?;
            return Err(PathError::Mismatch(found));
        }
        Ok(progress)
    }

    fn set_sealed(&mut self, sealed: bool) {
        self.wire.set_sealed(sealed);
    }
}
