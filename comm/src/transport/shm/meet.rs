//! How the ranks of a node come to one memory: its first rank hands it out through a Unix socket.
//!
//! The socket has an abstract, random name, which ends with its owner. A process that connects must
//! be a process of this user with the number that a rank of the node has told over the control
//! plane, and prove that it knows the key that the host has told there, as at any other listener of
//! the job ([`handshake`](crate::rendezvous::handshake)); the host proves it too, before its
//! attachment takes the memory.

use super::Neighbourhood;
use super::doorbell::ShmDoorbell;
use super::layout::Layout;
use super::path::ShmPath;
use super::segment::Segment;
use crate::readable::text;
use crate::rendezvous::handshake::{
    Asking, CLAIM_BYTES, Claims, HELLO_BYTES, Purpose, VERDICT_BYTES, hello, is_hello, read_claim,
    verdict_length,
};
use crate::rendezvous::proof::{Secret, nonce};
use crate::system::{
    Instant, UnixListener, UnixStream, connect_to, listen_at, peer_of, poll_read, receive_file,
    send_file, sleep,
};
use crate::topology::{Rank, Topology};
use crate::transport::Transport as _;
use crate::transport::tcp::TcpTransport;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of the verdict that lets a rank in: it has no text.
const ADMITTED_BYTES: usize = VERDICT_BYTES + 32 + 1 + 16;

/// What a rank tells all others before the node's ranks meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Its process.
    pub process: u32,
    /// Of the first rank of a node: the abstract name of its socket, or why there is none.
    pub socket: Result<String, String>,
    /// What those have to know who want that memory.
    pub key: MemoryKey,
}

/// The key of a node's memory, new for each coming-together; it is never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryKey([u8; 32]);

impl std::fmt::Debug for MemoryKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("MemoryKey")
    }
}

/// What the first rank of a node holds ready.
pub struct Host {
    listener: UnixListener,
    segment: Segment,
    key: MemoryKey,
}

/// This rank's side: the host's memory, a connection to it, or why there is neither.
pub enum Attachment {
    /// The first rank of the node.
    Host(Host),
    /// Another one, connected.
    Connected(UnixStream),
    /// No way to the memory, for this reason.
    Away(String),
}

/// A rank among those of its node.
pub struct Table<'a> {
    control: &'a TcpTransport,
    offers: &'a [Offer],
}

/// Prepares this rank's part: the first rank of a node of several makes the memory.
pub fn offer(control: &TcpTransport) -> (Offer, Option<Host>) {
    let (topology, rank) = (control.topology(), control.rank());
    let ranks = topology.ranks_of(topology.node_of(rank));
    let process = std::process::id();
    let none = |reason: String| Offer { process, socket: Err(reason), key: MemoryKey([0; 32]) };
    if ranks[0] != rank || ranks.len() == 1 {
        return (none("this rank offers no memory".into()), None);
    }
    match host(control, ranks.len()) {
        Ok((name, host)) => {
            (Offer { process, socket: Ok(name), key: host.key.clone() }, Some(host))
        }
        Err(reason) => (none(reason), None),
    }
}

fn host(control: &TcpTransport, num_local: usize) -> Result<(String, Host), String> {
    let (words, key) = (nonce().map_err(text)?, MemoryKey(nonce().map_err(text)?));
    let name: String = std::iter::once("headlong-".to_owned())
        .chain(words[..16].iter().map(|byte| format!("{byte:02x}")))
        .collect();
    let listener = listen_at(&name).map_err(|error| format!("opening a socket: {error}"))?;
    let layout = Layout::new(num_local);
    let segment = Segment::create(layout, control.epoch(), fingerprint(control, &key))?;
    Ok((name, Host { listener, segment, key }))
}

/// What only ranks of this node in this coming-together write into their memory.
fn fingerprint(control: &TcpTransport, key: &MemoryKey) -> [u8; 32] {
    let node = control.topology().node_of(control.rank()) as u64;
    let words = Sha256::new().chain_update(b"the memory of a node").chain_update(key.0);
    let words = words.chain_update(control.epoch().to_le_bytes());
    words.chain_update(node.to_le_bytes()).finalize().into()
}

impl<'a> Table<'a> {
    /// With what all ranks have told, by rank.
    pub fn new(control: &'a TcpTransport, offers: &'a [Offer]) -> Self {
        Self { control, offers }
    }

    fn topology(&self) -> &'a Topology {
        self.control.topology()
    }

    fn me(&self) -> Rank {
        self.control.rank()
    }

    fn neighbours(&self) -> &'a [Rank] {
        self.topology().ranks_of(self.topology().node_of(self.me()))
    }

    /// Goes to the host, without waiting: who cannot reach it is known before anybody waits.
    pub fn approach(&self, host: Option<Host>) -> Attachment {
        if let Some(host) = host {
            return Attachment::Host(host);
        }
        let first = self.neighbours()[0];
        match &self.offers[first.0].socket {
            Err(reason) => Attachment::Away(format!("{first}: {reason}")),
            Ok(name) => match connect(name) {
                Ok(stream) => {
                    match check_peer(&stream, |process| process == self.offers[first.0].process) {
                        Ok(()) => Attachment::Connected(stream),
                        Err(reason) => Attachment::Away(reason),
                    }
                }
                Err(error) => Attachment::Away(format!(
                    "it cannot reach the socket of {first} ({error}): are they in different \
                     containers or network namespaces?"
                )),
            },
        }
    }

    /// Takes or hands out the memory, and maps the rings of this rank.
    ///
    /// # Errors
    /// Why this rank cannot share memory with its node.
    pub fn meet(&self, attachment: Attachment) -> Result<Neighbourhood, String> {
        let segment = match attachment {
            Attachment::Host(host) => self.hand_out(host)?,
            Attachment::Connected(stream) => self.take(&stream)?,
            Attachment::Away(reason) => return Err(reason),
        };
        let segment = Arc::new(segment);
        let local = self.topology().local_index(self.me());
        let peers = self.neighbours().iter().enumerate().filter(|(_, rank)| **rank != self.me());
        let path = |(peer, rank): (usize, &Rank)| -> Result<_, String> {
            Ok((
                *rank,
                Box::new(ShmPath::new(&segment, local, peer)?)
                    as Box<dyn crate::transport::paths::Path>,
            ))
        };
        let paths = peers.map(path).collect::<Result<_, _>>()?;
        Ok(Neighbourhood { paths, doorbell: Box::new(ShmDoorbell::new(segment, local)) })
    }

    /// Gives the memory to every other rank of the node; all of them have connected already.
    fn hand_out(&self, host: Host) -> Result<Segment, String> {
        let mut missing: Vec<Rank> = self.neighbours()[1..].to_vec();
        let begin = Instant::now();
        while let Some(&next) = missing.first() {
            if self.control.check().is_err() || begin.elapsed() > PATIENCE {
                return Err(format!("{next} has not come for the memory of its node"));
            }
            poll_read(&host.listener, Duration::from_millis(50));
            let Ok((stream, _)) = host.listener.accept() else { continue };
            // Unauthenticated peers are dropped without a word.
            if let Some(rank) = self.serve(&stream, &host) {
                missing.retain(|other| *other != rank);
            }
        }
        Ok(host.segment)
    }

    fn serve(&self, mut stream: &UnixStream, host: &Host) -> Option<Rank> {
        let known =
            |process| self.neighbours().iter().any(|rank| self.offers[rank.0].process == process);
        check_peer(stream, known).ok()?;
        prepare(stream).ok()?;
        let hello = hello(Purpose::Memory, &nonce().ok()?);
        stream.write_all(&hello).ok()?;
        let mut claim = [0; CLAIM_BYTES];
        stream.read_exact(&mut claim).ok()?;
        let (session, claims) = read_claim(&claim, &Secret::of_key(host.key.0), &hello)?;
        let rank = Rank(claims.rank as usize);
        if claims.epoch != self.control.epoch() || !self.neighbours()[1..].contains(&rank) {
            return None;
        }
        let (verdict, _) = session.admit().ok()?;
        send_file(stream, &verdict, host.segment.file().as_fd()).ok()?;
        Some(rank)
    }

    fn take(&self, mut stream: &UnixStream) -> Result<Segment, String> {
        let first = self.neighbours()[0];
        let failed =
            |what: &str| format!("{first} has not handed out the memory of the node: {what}");
        let broken = |error: std::io::Error| failed(&error.to_string());
        prepare(stream).map_err(broken)?;
        let mut hello = [0; HELLO_BYTES];
        stream.read_exact(&mut hello).map_err(broken)?;
        if !is_hello(&hello, Purpose::Memory) {
            return Err(failed("it does not speak this protocol"));
        }
        let (key, epoch) = (&self.offers[first.0].key, self.control.epoch());
        let claims = Claims { rank: self.me().0 as u32, epoch, ..Claims::default() };
        let asking = Asking::claim(&Secret::of_key(key.0), &hello, &claims);
        let (asking, claim) = asking.map_err(|error| failed(&error.to_string()))?;
        stream.write_all(&claim).map_err(broken)?;
        let (verdict, file) = receive_memory(stream).map_err(|reason| failed(&reason))?;
        let (head, message) = verdict
            .split_first_chunk::<VERDICT_BYTES>()
            .expect("a verdict is longer than its head");
        if verdict_length(head).is_none() || asking.read_verdict(head, message).is_err() {
            return Err(failed("it does not know the key of that memory"));
        }
        let layout = Layout::new(self.neighbours().len());
        Segment::open(file, layout, epoch, fingerprint(self.control, key))
    }
}

/// Connects without waiting longer than for one word. Any process of this machine can fill the
/// queue of this socket, whose name is public: connecting must not block a rank.
fn connect(name: &str) -> std::io::Result<UnixStream> {
    let begin = Instant::now();
    loop {
        match connect_to(name) {
            Ok(stream) => return Ok(stream),
            Err(Errno::AGAIN | Errno::INTR) if begin.elapsed() < PATIENCE => {
                sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn prepare(stream: &UnixStream) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

/// The other end must be a process of this user, with a number that was told over the control
/// plane.
fn check_peer(stream: &UnixStream, known: impl Fn(u32) -> bool) -> Result<(), String> {
    let (user, process) = peer_of(stream)
        .map_err(|error| format!("asking the system who is at a socket: {error}"))?;
    let own = rustix::process::getuid().as_raw();
    if user != own {
        return Err(format!("a process of user {user} is at the socket, expected user {own}"));
    }
    match known(process) {
        true => Ok(()),
        false => Err(format!(
            "process {process} is at the socket, which no rank of this node has told as its own: \
             are they in different process namespaces?"
        )),
    }
}

fn receive_memory(stream: &UnixStream) -> Result<([u8; ADMITTED_BYTES], OwnedFd), String> {
    let mut verdict = [0; ADMITTED_BYTES];
    match receive_file(stream, &mut verdict).map_err(text)? {
        (ADMITTED_BYTES, Some(file)) => Ok((verdict, file)),
        _ => Err("it has closed the socket".into()),
    }
}
