//! The path of last resort: the connection that a TCP transport has to the peer.

use super::{Path, PathError, Progress};
use crate::error::Result;
use crate::system::TcpStream;
use crate::topology::Rank;
use crate::transport::head::{HEAD_BYTES, Head, MAGIC};
use crate::transport::tcp::TcpTransport;
use crate::transport::tcp::mesh::Mesh;
use crate::transport::tcp::wire::Wire;
use std::sync::Arc;

/// A connection, from the first exchange with the peer on, and the head that is coming in.
pub struct TcpPath {
    mesh: Arc<Mesh>,
    peer: Rank,
    wire: Option<Box<Wire>>,
    sealed: bool,
    incoming: [u8; HEAD_BYTES],
}

impl TcpPath {
    /// Over the connection of `control` to `peer`, which `control` uses no more.
    pub fn new(control: &TcpTransport, peer: Rank) -> Self {
        let (mesh, wire) = (Arc::clone(control.mesh()), control.take_wire(peer));
        Self { mesh, peer, wire, sealed: false, incoming: [0; HEAD_BYTES] }
    }

    fn connected(&mut self) -> (&mut Wire, &TcpStream, &mut [u8; HEAD_BYTES]) {
        let wire = self.wire.as_mut().expect("a path is connected before it is used");
        (wire, self.mesh.health.data(self.peer), &mut self.incoming)
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
        let (wire, stream, _) = self.connected();
        let sent = wire.send(stream, &head.to_bytes(MAGIC), bytes, *at);
        Ok(progress(sent.map_err(PathError::Lost)?, at, bytes.len()))
    }

    fn receive(
        &mut self,
        head: &Head,
        bytes: &mut [u8],
        at: &mut usize,
    ) -> Result<Progress, PathError> {
        let had_head = *at >= HEAD_BYTES;
        let (wire, stream, incoming) = self.connected();
        let received = wire.receive(stream, incoming, bytes, *at);
        let progress = progress(received.map_err(PathError::Lost)?, at, bytes.len());
        if !had_head && *at >= HEAD_BYTES && self.incoming != head.to_bytes(MAGIC) {
            let found = Head::found(&self.incoming).map_err(PathError::Failed)?;
            return Err(PathError::Mismatch(found));
        }
        Ok(progress)
    }

    fn connect(&mut self) -> Result<()> {
        if self.wire.is_some() {
            return Ok(());
        }
        let Self { mesh, peer, wire, sealed, .. } = self;
        mesh.connect(&[*peer], |_, mut made| {
            made.set_sealed(*sealed);
            *wire = Some(made);
        })
    }

    fn set_sealed(&mut self, sealed: bool) {
        self.sealed = sealed;
        if let Some(wire) = &mut self.wire {
            wire.set_sealed(sealed);
        }
    }
}
