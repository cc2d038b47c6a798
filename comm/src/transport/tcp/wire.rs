//! A message on a data connection, never waited for: a head and its bytes.
//!
//! Plain, both leave in one call and come in one. Sealed, the head is a record, and the bytes are
//! records of [`CHUNK`] bytes and a shorter last one: both sides know from the length of a message
//! what it looks like on its way, and never take a byte of the next one.

use crate::rendezvous::channel::{Channel, FORGED, Opener, Sealer, TAG_BYTES};
use crate::system::{self, TcpStream};
use crate::transport::head::HEAD_BYTES;
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};

/// Bytes of a message that one record carries: a record stays in the nearest caches.
const CHUNK: usize = 32 << 10;
/// Room for a head and the record after it.
const ROOM: usize = HEAD_BYTES + CHUNK + 2 * TAG_BYTES;

/// What is kept of a connection between calls.
pub struct Wire {
    sealer: Sealer,
    opener: Opener,
    /// Whether it is sealed also where no caller has asked for it.
    always: bool,
    sealed: bool,
    out: Vec<u8>,
    /// Of `out`, how much has left, and how much of the message that is.
    left: usize,
    carried: usize,
    incoming: Vec<u8>,
    filled: usize,
}

impl Wire {
    /// Over a connection with these keys; `always` sealed, or only when that is wanted.
    pub fn new(channel: Channel, always: bool) -> Self {
        let (sealer, opener) = channel.split();
        Self {
            sealer,
            opener,
            always,
            sealed: always,
            out: Vec::new(),
            left: 0,
            carried: 0,
            incoming: Vec::new(),
            filled: 0,
        }
    }

    /// From the next message on, which is the same one at the other end.
    pub fn set_sealed(&mut self, sealed: bool) {
        self.sealed = sealed || self.always;
        if !self.sealed && self.out.is_empty() && self.filled == 0 {
            (self.out, self.incoming) = (Vec::new(), Vec::new());
        }
    }

    /// Sends what the system takes now of a message of which `at` bytes have left; how many.
    ///
    /// # Errors
    /// Why nothing leaves any more.
    pub fn send(
        &mut self,
        stream: &TcpStream,
        head: &[u8; HEAD_BYTES],
        bytes: &[u8],
        at: usize,
    ) -> Result<usize, String> {
        if self.sealed {
            return self.send_sealed(stream, head, bytes, at);
        }
        moved(if at < HEAD_BYTES {
            let parts = [IoSlice::new(&head[at..]), IoSlice::new(bytes)];
            system::send_parts(stream, &parts)
        } else {
            system::send(stream, &bytes[at - HEAD_BYTES..])
        })
    }

    /// Takes what has come of a message of which `at` bytes were here, and never a byte of the next
    /// one; how many. A head comes by itself or with plain bytes: what is sealed is opened after
    /// the caller has seen the head.
    ///
    /// # Errors
    /// Why nothing comes any more.
    pub fn receive(
        &mut self,
        stream: &TcpStream,
        head: &mut [u8; HEAD_BYTES],
        bytes: &mut [u8],
        at: usize,
    ) -> Result<usize, String> {
        if self.sealed {
            return self.receive_sealed(stream, head, bytes, at);
        }
        let received = if at < HEAD_BYTES {
            let mut parts = [IoSliceMut::new(&mut head[at..]), IoSliceMut::new(bytes)];
            system::receive_parts(stream, &mut parts)
        } else {
            system::receive(stream, &mut bytes[at - HEAD_BYTES..])
        };
        match received {
            Ok(0) => Err(CLOSED.to_owned()),
            received => moved(received),
        }
    }

    fn send_sealed(
        &mut self,
        stream: &TcpStream,
        head: &[u8; HEAD_BYTES],
        bytes: &[u8],
        mut at: usize,
    ) -> Result<usize, String> {
        let begin = at;
        loop {
            while self.left < self.out.len() {
                match moved(system::send(stream, &self.out[self.left..]))? {
                    0 => return Ok(at - begin),
                    sent => self.left += sent,
                }
            }
            // Bytes count once their whole record has left.
            at += self.carried;
            self.out.clear();
            (self.left, self.carried) = (0, 0);
            if at == HEAD_BYTES + bytes.len() {
                return Ok(at - begin);
            }
            if at == 0 {
                self.pack(head);
            }
            let offset = (at + self.carried) - HEAD_BYTES;
            let rest = &bytes[offset..];
            if !rest.is_empty() {
                self.pack(&rest[..rest.len().min(CHUNK)]);
            }
        }
    }

    fn pack(&mut self, bytes: &[u8]) {
        let begin = self.out.len();
        self.out.resize(begin + bytes.len() + TAG_BYTES, 0);
        self.sealer.seal(bytes, &mut self.out[begin..]);
        self.carried += bytes.len();
    }

    fn receive_sealed(
        &mut self,
        stream: &TcpStream,
        head: &mut [u8; HEAD_BYTES],
        bytes: &mut [u8],
        mut at: usize,
    ) -> Result<usize, String> {
        let (begin, total) = (at, HEAD_BYTES + bytes.len());
        loop {
            let carried = if at == 0 { HEAD_BYTES } else { CHUNK.min(total - at) };
            let record = carried + TAG_BYTES;
            if self.filled < record {
                let wanted = sealed_bytes(at, total).min(ROOM);
                if self.incoming.len() < wanted {
                    self.incoming.resize(wanted, 0);
                }
                let room = &mut self.incoming[self.filled..wanted];
                match system::receive(stream, room) {
                    Ok(0) => return Err(CLOSED.to_owned()),
                    received => match moved(received)? {
                        0 => return Ok(at - begin),
                        received => self.filled += received,
                    },
                }
                continue;
            }
            let place = match at {
                0 => &mut head[..],
                _ => &mut bytes[at - HEAD_BYTES..][..carried],
            };
            if !self.opener.open(&self.incoming[..record], place) {
                return Err(format!("its data connection carries {FORGED}"));
            }
            self.incoming.copy_within(record..self.filled, 0);
            self.filled -= record;
            at += carried;
            if at == HEAD_BYTES || at == total {
                return Ok(at - begin);
            }
        }
    }
}

const CLOSED: &str = "its data connection closed";

/// Bytes on their way of the rest of a message, from the beginning of a record on.
fn sealed_bytes(at: usize, total: usize) -> usize {
    let heads = usize::from(at == 0);
    let rest = total - at - heads * HEAD_BYTES;
    total - at + (heads + rest.div_ceil(CHUNK)) * TAG_BYTES
}

fn moved(bytes: Result<usize, Errno>) -> Result<usize, String> {
    match bytes {
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        bytes => bytes.map_err(|error| format!("its data connection broke: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::channel::pair;
    use std::net::TcpListener;

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    /// One message after the other, both sides in turn as long as something moves.
    fn carry(
        (here, there): (&mut Wire, &mut Wire),
        (one, other): (&TcpStream, &TcpStream),
        message: &[u8],
    ) -> Vec<u8> {
        let head = [message.len() as u8; HEAD_BYTES];
        let (mut sent, mut received) = (0, 0);
        let (mut got_head, mut got) = ([0; HEAD_BYTES], vec![0; message.len()]);
        let total = HEAD_BYTES + message.len();
        while received < total {
            if sent < total {
                sent += here.send(one, &head, message, sent).unwrap();
            }
            received += there.receive(other, &mut got_head, &mut got, received).unwrap();
        }
        assert_eq!((sent, got_head), (total, head));
        got
    }

    #[test]
    fn messages_of_all_lengths_cross_plain_and_sealed_in_turn() {
        let (one, other) = connected();
        let (host, peer) = pair();
        let (mut here, mut there) = (Wire::new(host, false), Wire::new(peer, false));
        for (number, length) in
            [0, 1, 5, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 9 << 20, 0, 77].iter().enumerate()
        {
            let message: Vec<u8> = (0..*length).map(|at| (at * 7 + number) as u8).collect();
            for sealed in [true, false, true] {
                [&mut here, &mut there].into_iter().for_each(|wire| wire.set_sealed(sealed));
                let got = carry((&mut here, &mut there), (&one, &other), &message);
                assert!(got == message, "{length} bytes, sealed: {sealed}");
            }
        }
    }

    #[test]
    fn what_was_changed_on_the_way_is_found_before_it_is_used() {
        let (one, other) = connected();
        let (host, peer) = pair();
        let (mut here, mut there) = (Wire::new(host, true), Wire::new(peer, true));
        let (head, mut got) = ([1; HEAD_BYTES], [0; 8]);
        assert_eq!(here.send(&one, &head, b"8 bytes.", 0), Ok(HEAD_BYTES + 8));
        let mut raw = [0; HEAD_BYTES + 8 + 2 * TAG_BYTES];
        std::io::Read::read_exact(&mut &other, &mut raw).unwrap();
        assert!(!raw.windows(8).any(|bytes| bytes == b"8 bytes."), "it is encrypted");
        // The head is right, the last byte is not.
        raw[HEAD_BYTES + TAG_BYTES + 7] ^= 1;
        std::io::Write::write_all(&mut &one, &raw).unwrap();
        let mut got_head = [0; HEAD_BYTES];
        while got_head != head {
            there.receive(&other, &mut got_head, &mut got, 0).unwrap();
        }
        let forged = there.receive(&other, &mut got_head, &mut got, HEAD_BYTES);
        assert!(forged.unwrap_err().contains("does not open"));
    }
}
