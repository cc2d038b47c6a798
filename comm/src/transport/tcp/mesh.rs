//! The data connections of a rank, each made when the two first have something for each other: a
//! job of thousands of ranks has as many as its exchanges need, not one for each pair.
//!
//! The higher rank dials. The lower one's control thread lets it in and leaves the connection here,
//! so a rank can be dialled while it computes.

use super::control_frame::PeerAddress;
use super::health::{Health, Wait};
use super::wire::Wire;
use crate::error::{CommError, Result};
use crate::rendezvous::channel::Channel;
use crate::rendezvous::dial::Dial;
use crate::rendezvous::handshake::{Claims, Purpose};
use crate::rendezvous::listener::{Listener, Proven};
use crate::rendezvous::trust::Keys;
use crate::system::{Instant, Mutex, MutexGuard, TcpListener, TcpStream};
use crate::topology::Rank;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How long a data port may not be reachable: every rank has opened its own before the job begins.
const DIAL: Duration = Duration::from_secs(30);
/// How long a rank that waits to be dialled waits before it looks whether the job has failed.
const LOOK: Duration = Duration::from_millis(500);

pub struct Mesh {
    /// The state of the job: ends waiting when a rank has failed, and dialling after the attempt at
    /// hand.
    pub health: Arc<Health>,
    pub peers: Vec<PeerAddress>,
    pub rank_0: IpAddr,
    pub keys: Keys,
    pub epoch: u32,
    pub job_hash: [u8; 32],
    /// For a peer to come to the exchange in which it dials this rank.
    pub deadline: Duration,
    /// For one answer.
    pub patience: Duration,
    /// All messages are sealed.
    pub encrypt: bool,
    /// Connections that peers have made and no exchange has used yet.
    pub arrived: Arrived,
}

/// By rank.
pub type Arrived = Mutex<HashMap<usize, (TcpStream, Channel)>>;

impl Mesh {
    /// Where the others reach a rank.
    pub fn address(&self, rank: Rank) -> IpAddr {
        self.peers[rank.0].ip.unwrap_or(self.rank_0)
    }

    /// Connects to `peers`, to whom there is no connection yet. Gives what is kept of each; the
    /// connections themselves are the state's. Waits for those that dial this rank, which do so
    /// when they come to the same exchange.
    ///
    /// # Errors
    /// The job's first error.
    pub fn connect(&self, peers: &[Rank], mut take: impl FnMut(Rank, Box<Wire>)) -> Result<()> {
        let (lower, higher): (Vec<_>, Vec<_>) =
            peers.iter().copied().partition(|&peer| peer < self.health.rank());
        for peer in lower {
            self.health.check()?;
            take(peer, self.keep(peer, self.dial(peer)?));
        }
        for peer in higher {
            take(peer, self.keep(peer, self.await_peer(peer)?));
        }
        self.health.note_waiting(None);
        Ok(())
    }

    fn keep(&self, peer: Rank, (stream, channel): (TcpStream, Channel)) -> Box<Wire> {
        self.health.set_data(peer, stream);
        Box::new(Wire::new(channel, self.encrypt))
    }

    fn dial(&self, peer: Rank) -> Result<(TcpStream, Channel)> {
        self.health.note_waiting(Some(peer));
        let dial = Dial {
            host: &self.address(peer).to_string(),
            port: self.peers[peer.0].port,
            name: &format!("the data port of {peer}"),
            purpose: Purpose::Data,
            rank: self.health.rank().0,
            keys: &self.keys,
            deadline: Instant::now() + self.deadline.min(DIAL),
            patience: self.patience,
            notice: None,
        };
        let claims = Claims {
            rank: self.health.rank().0 as u32,
            epoch: self.epoch,
            job_hash: self.job_hash,
            ..Claims::default()
        };
        let welcome = dial.connect(&mut |_| Ok(claims.clone()), &|| self.health.check());
        let welcome = welcome.map_err(|error| self.explain(error))?;
        let ready = welcome.stream.set_nonblocking(true);
        ready.map_err(|error| CommError::system("preparing a data connection", error))?;
        Ok((welcome.stream, welcome.channel))
    }

    /// A port that cannot be reached is this rank's failure to everybody: it may be a firewall
    /// between two of them.
    fn explain(&self, error: CommError) -> CommError {
        match self.health.check() {
            Err(first) => first,
            Ok(()) => {
                let is_unreachable = matches!(error, CommError::Rendezvous { .. });
                let hint = if is_unreachable { "; is a firewall between them?" } else { "" };
                let culprit = self.health.rank();
                self.health.fail(CommError::Aborted { culprit, reason: format!("{error}{hint}") })
            }
        }
    }

    fn await_peer(&self, peer: Rank) -> Result<(TcpStream, Channel)> {
        let wait = Wait::begin(&self.health);
        loop {
            if let Some(connection) = self.arrived().remove(&peer.0) {
                return Ok(connection);
            }
            self.health.note_waiting(Some(peer));
            let waited = wait.time(&self.health);
            if waited >= self.deadline {
                let late = self.health.late(peer, "connecting to its peers", 0, waited);
                return Err(self.health.suspect(late));
            }
            let is_here = || self.arrived().contains_key(&peer.0);
            self.health.wait_for_change((self.deadline - waited).min(LOOK), is_here)?;
        }
    }

    fn arrived(&self) -> MutexGuard<'_, HashMap<usize, (TcpStream, Channel)>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets in a peer that has proven itself at this rank's data port, if it is one that dials.
    fn admit(&self, peer: Proven) -> Result<()> {
        let claims = &peer.claims;
        let rank = claims.rank as usize;
        let own = self.health.rank();
        let refusal = if claims.epoch != self.epoch || claims.job_hash != self.job_hash {
            "it is of another job".to_owned()
        } else if rank <= own.0 || rank >= self.peers.len() {
            format!("{own} has no connection from rank {rank}")
        } else if self.health.has_data(Rank(rank)) {
            format!("{own} has its connection from rank {rank} already")
        } else {
            String::new()
        };
        if !refusal.is_empty() {
            peer.refuse(&refusal);
            return Ok(());
        }
        // One that comes again has given up the connection that it made before.
        self.arrived().insert(rank, peer.admit()?);
        self.health.announce();
        Ok(())
    }
}

/// A rank's data port, which its control thread serves.
pub struct DataPort {
    pub mesh: Arc<Mesh>,
    pub listener: Listener,
}

impl DataPort {
    pub fn new(mesh: Arc<Mesh>, socket: TcpListener) -> Result<Self> {
        let listener = Listener::new(socket, Purpose::Data, mesh.keys.clone(), mesh.patience)
            .map_err(|error| CommError::system("opening the data port", error))?;
        Ok(Self { mesh, listener })
    }

    /// Lets in who has proven itself meanwhile.
    pub fn turn(&mut self) {
        let arrived = self
            .listener
            .turn()
            .and_then(|proven| proven.into_iter().try_for_each(|peer| self.mesh.admit(peer)));
        if let Err(error) = arrived {
            self.mesh.health.fail(error);
        }
    }
}
