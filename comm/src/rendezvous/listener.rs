//! A listener: accepts connections, makes each prove itself, and drops the others, in bounded
//! memory and without a thread.
//!
//! A peer that has not proven to know the secret gets no more than one fixed HELLO, one small
//! buffer and a few seconds. A dropped peer is counted, never answered; only when the table is
//! full, the peer that has waited longest learns that it must come again.

use super::channel::Channel;
use super::handshake::{self, CLAIM_BYTES, Claims, HelloFrame, MAGIC, Purpose, Session};
use super::proof::{self, Secret};
use super::trust::Keys;
use crate::error::Result;
use crate::system::{self, Instant, PollFd, PollFlags, TcpListener, TcpStream, poll};
use rustix::io::Errno;
use std::net::SocketAddr;
use std::time::Duration;

const MAX_PENDING: usize = 256;
/// Connections taken from the system's queue before the peers are heard again.
const ACCEPTS_PER_TURN: usize = 64;
/// Connections that the system holds until they are accepted: all ranks of a job come at once. It
/// takes fewer where its own limit is lower (net.core.somaxconn).
const BACKLOG: i32 = 4096;
/// A peer who has been here this long may be sent away for another when the table is full.
const SHORTEST_STAY: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Default)]
pub struct Unauthenticated {
    pub count: u64,
    /// How many of them sent a whole claim with a proof that does not fit: a wrong secret, most
    /// likely.
    pub wrong_proofs: u64,
    /// How many were processes of another user, where a job without a secret lets in none of them.
    pub of_others: u64,
    pub last: Option<SocketAddr>,
}

impl std::fmt::Display for Unauthenticated {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(last) = self.last else { return out.write_str("no unauthenticated connections") };
        write!(out, "{} unauthenticated connections dropped, the last from {last}", self.count)?;
        if self.of_others > 0 {
            let others = self.of_others;
            write!(
                out,
                "; {others} of them of another user: a job of several users needs a secret"
            )?;
        }
        match self.wrong_proofs {
            0 => Ok(()),
            wrong => write!(
                out,
                "; {wrong} of them with a proof that does not fit: is the secret the same \
                 everywhere?"
            ),
        }
    }
}

struct Pending {
    stream: TcpStream,
    address: SocketAddr,
    hello: HelloFrame,
    since: Instant,
    frame: [u8; CLAIM_BYTES],
    received: usize,
}

/// A peer who has proven to know the secret; whether its claims are welcome is the caller's
/// business.
pub struct Proven {
    /// The connection, not blocking.
    pub stream: TcpStream,
    pub address: SocketAddr,
    pub claims: Claims,
    session: Session,
}

impl Proven {
    /// Tells a peer that it is in. Gives its connection, and the keys of that. A peer that cannot
    /// be told is gone, which the first look at its connection finds.
    pub fn admit(self) -> Result<(TcpStream, Channel)> {
        let (verdict, channel) = self.session.admit()?;
        tell(&self.stream, &verdict);
        Ok((self.stream, channel))
    }

    /// Tells a peer why it is not in. One that cannot be told is not the caller's problem.
    pub fn refuse(self, reason: &str) {
        if let Ok(verdict) = self.session.refuse(reason) {
            tell(&self.stream, &verdict);
        }
    }
}

/// A verdict is smaller than any socket's buffer: one call takes it whole, or the connection is
/// gone.
fn tell(stream: &TcpStream, verdict: &[u8]) {
    let _ = system::send(stream, verdict);
}

enum Fate {
    Waits,
    Proven(Box<(Session, Claims)>),
    Dropped(Why),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// It speaks no word of the handshake, or none in time.
    Odd,
    /// A whole claim, whose proof does not fit.
    WrongProof,
    OfAnother,
}

pub struct Listener {
    socket: TcpListener,
    purpose: Purpose,
    keys: Keys,
    patience: Duration,
    pending: Vec<Pending>,
    unauthenticated: Unauthenticated,
}

impl Listener {
    /// Accepts from a socket that listens; a peer has `patience` to prove itself.
    ///
    /// # Errors
    /// When the listener cannot be made non-blocking.
    pub fn new(
        socket: TcpListener,
        purpose: Purpose,
        keys: Keys,
        patience: Duration,
    ) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        system::listen(&socket, BACKLOG)?;
        Ok(Self {
            socket,
            purpose,
            keys,
            patience,
            pending: Vec::new(),
            unauthenticated: Unauthenticated::default(),
        })
    }

    pub fn unauthenticated(&self) -> &Unauthenticated {
        &self.unauthenticated
    }

    /// What to wait for: the listener and each peer.
    pub fn descriptors<'a>(&'a self, into: &mut Vec<PollFd<'a>>) {
        into.push(PollFd::new(&self.socket, PollFlags::IN));
        into.extend(self.pending.iter().map(|peer| PollFd::new(&peer.stream, PollFlags::IN)));
    }

    /// Waits until a peer stirs at the listener, one of `others` does, or `longest` is over. Which
    /// of `others` did.
    pub fn wait(&self, others: &[&TcpStream], longest: Duration) -> Vec<usize> {
        let mut descriptors = Vec::with_capacity(1 + self.pending.len() + others.len());
        self.descriptors(&mut descriptors);
        let own = descriptors.len();
        descriptors.extend(others.iter().map(|stream| PollFd::new(*stream, PollFlags::IN)));
        poll(&mut descriptors, longest);
        let others = descriptors[own..].iter().enumerate();
        others.filter(|(_, other)| !other.revents().is_empty()).map(|(place, _)| place).collect()
    }

    /// Accepts, listens, drops. Returns those who have just proven themselves. Never blocks.
    pub fn turn(&mut self) -> Result<Vec<Proven>> {
        let mut proven = Vec::new();
        self.hear(&mut proven);
        self.accept(&mut proven)?;
        self.hear(&mut proven);
        Ok(proven)
    }

    fn accept(&mut self, proven: &mut Vec<Proven>) -> Result<()> {
        for _ in 0..ACCEPTS_PER_TURN {
            if self.pending.len() == MAX_PENDING && !(self.is_asked() && self.make_place(proven)) {
                return Ok(());
            }
            match self.socket.accept() {
                Ok((stream, address)) => self.welcome(stream, address)?,
                Err(error) if is_out_of_descriptors(&error) => {
                    // Without a free descriptor no peer could come in: the longest silent one goes.
                    if !self.make_place(proven) {
                        system::sleep(Duration::from_millis(5));
                    }
                    return Ok(());
                }
                // No peer there, or one that has left already.
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    /// Whether a peer waits to be accepted: only for one that does, another has to go.
    fn is_asked(&self) -> bool {
        let mut socket = [PollFd::new(&self.socket, PollFlags::IN)];
        poll(&mut socket, Duration::ZERO);
        socket[0].revents().contains(PollFlags::IN)
    }

    fn welcome(&mut self, stream: TcpStream, address: SocketAddr) -> Result<()> {
        let nonce = proof::nonce()?;
        let hello = handshake::hello(self.purpose, &nonce);
        let usable = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)).is_ok();
        let told = system::send(&stream, &hello);
        if !usable || told != Ok(hello.len()) {
            self.count(address, Why::Odd);
            return Ok(());
        }
        let since = Instant::now();
        self.pending.push(Pending {
            stream,
            address,
            hello,
            since,
            frame: [0; CLAIM_BYTES],
            received: 0,
        });
        Ok(())
    }

    /// Sends the peer away who has been here longest, if long enough; one whose proof has come
    /// meanwhile is let in.
    fn make_place(&mut self, proven: &mut Vec<Proven>) -> bool {
        let oldest = self.pending.iter().enumerate().min_by_key(|(_, peer)| peer.since);
        let Some((place, _)) = oldest.filter(|(_, peer)| peer.since.elapsed() >= SHORTEST_STAY)
        else {
            return false;
        };
        if self.hear_one(place, proven) {
            let peer = self.pending.swap_remove(place);
            tell(&peer.stream, &handshake::FULL);
            self.count(peer.address, Why::Odd);
        }
        true
    }

    fn count(&mut self, address: SocketAddr, why: Why) {
        self.unauthenticated.count += 1;
        self.unauthenticated.wrong_proofs += u64::from(why == Why::WrongProof);
        self.unauthenticated.of_others += u64::from(why == Why::OfAnother);
        self.unauthenticated.last = Some(address);
    }

    fn hear(&mut self, proven: &mut Vec<Proven>) {
        let mut place = 0;
        while place < self.pending.len() {
            place += usize::from(self.hear_one(place, proven));
        }
    }

    /// Whether the peer at `place` is still waited for; another is at its place, if not.
    fn hear_one(&mut self, place: usize, proven: &mut Vec<Proven>) -> bool {
        let mut fate = self.pending[place].listen(&self.keys.secret, self.patience);
        // Asked of those alone who speak the language: looking it up takes as long as the machine
        // has connections.
        let is_proven = matches!(fate, Fate::Proven(_));
        if is_proven && self.keys.trust.check(&self.pending[place].stream).is_err() {
            fate = Fate::Dropped(Why::OfAnother);
        }
        match fate {
            Fate::Waits => return true,
            Fate::Dropped(why) => {
                let peer = self.pending.swap_remove(place);
                self.count(peer.address, why);
            }
            Fate::Proven(who) => {
                let (session, claims) = *who;
                let Pending { stream, address, .. } = self.pending.swap_remove(place);
                proven.push(Proven { stream, address, session, claims });
            }
        }
        false
    }
}

impl Pending {
    fn has_left(&self) -> bool {
        !matches!(system::peek(&self.stream), Err(Errno::AGAIN | Errno::INTR))
    }

    fn listen(&mut self, secret: &Secret, patience: Duration) -> Fate {
        let room = &mut self.frame[self.received..];
        match system::receive(&self.stream, room) {
            Ok(0) => return Fate::Dropped(Why::Odd),
            Ok(received) => self.received += received,
            Err(Errno::AGAIN | Errno::INTR) if self.since.elapsed() < patience => {
                return Fate::Waits;
            }
            Err(_) => return Fate::Dropped(Why::Odd),
        }
        let known = self.received.min(MAGIC.len());
        if self.frame[..known] != MAGIC[..known] {
            return Fate::Dropped(Why::Odd);
        }
        if self.received < CLAIM_BYTES {
            let late = self.since.elapsed() >= patience;
            return if late { Fate::Dropped(Why::Odd) } else { Fate::Waits };
        }
        match handshake::read_claim(&self.frame, secret, &self.hello) {
            // It has lost patience, and comes again: a verdict would not reach it.
            Some(_) if self.has_left() => Fate::Dropped(Why::Odd),
            Some(who) => Fate::Proven(Box::new(who)),
            None => Fate::Dropped(Why::WrongProof),
        }
    }
}

pub(crate) fn is_out_of_descriptors(error: &std::io::Error) -> bool {
    let number = error.raw_os_error().unwrap_or(0);
    number == libc::EMFILE || number == libc::ENFILE
}

#[cfg(test)]
mod tests {
    use super::super::handshake::Asking;
    use super::super::trust::Trust;
    use super::*;
    use std::io::{Read as _, Write as _};

    /// One whose claim is read too late has given up, and must find its place free as it comes
    /// again.
    #[test]
    fn a_peer_that_has_left_is_not_let_in() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let keys = Keys { secret: Secret::of_key([1; 32]), trust: Trust::Secret };
        let patience = Duration::from_secs(60);
        let mut listener = Listener::new(socket, Purpose::Data, keys.clone(), patience).unwrap();
        for leaves in [true, false] {
            let mut rank = TcpStream::connect(address).unwrap();
            while listener.pending.is_empty() {
                assert!(listener.turn().unwrap().is_empty());
            }
            let mut hello = [0; handshake::HELLO_BYTES];
            rank.read_exact(&mut hello).unwrap();
            let (_, claim) = Asking::claim(&keys.secret, &hello, &Claims::default()).unwrap();
            rank.write_all(&claim).unwrap();
            let rank = Some(rank).filter(|_| !leaves);
            let mut proven = 0;
            while !listener.pending.is_empty() {
                listener.wait(&[], patience);
                proven += listener.turn().unwrap().len();
            }
            assert_eq!(proven, usize::from(rank.is_some()));
        }
    }

    /// A flood that fills the table must not make a rank believe that its secret is wrong.
    #[test]
    fn the_longest_waiting_peer_is_heard_before_it_has_to_go() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let keys = Keys { secret: Secret::of_key([1; 32]), trust: Trust::Secret };
        let patience = Duration::from_secs(60);
        let mut listener =
            Listener::new(socket, Purpose::Rendezvous, keys.clone(), patience).unwrap();
        let mut rank = TcpStream::connect(address).unwrap();
        let mut others = Vec::new();
        while listener.pending.len() < MAX_PENDING {
            others.push(TcpStream::connect(address).unwrap());
            assert!(listener.turn().unwrap().is_empty());
        }
        std::thread::sleep(SHORTEST_STAY);
        // Both arrive after all have been heard, and before the next is accepted.
        let mut hello = [0; handshake::HELLO_BYTES];
        rank.read_exact(&mut hello).unwrap();
        let (_, claim) = Asking::claim(&keys.secret, &hello, &Claims::default()).unwrap();
        rank.write_all(&claim).unwrap();
        poll(&mut [PollFd::new(&listener.pending[0].stream, PollFlags::IN)], patience);
        others.extend((0..2).map(|_| TcpStream::connect(address).unwrap()));
        let mut proven = Vec::new();
        let begin = Instant::now();
        while listener.unauthenticated.count == 0 && begin.elapsed() < patience {
            listener.accept(&mut proven).unwrap();
        }
        assert_eq!(proven.len(), 1, "the rank has proven itself");
        // Another had to go for the second; it learns why.
        let mut said = Vec::new();
        others[0].read_to_end(&mut said).unwrap();
        assert_eq!(said[handshake::HELLO_BYTES..], handshake::FULL);
    }
}
