//! One connection for each pair of ranks: the higher rank dials, the lower one has a listener.

use super::control_frame::PeerAddress;
use super::health::Health;
use crate::error::{CommError, Result};
use crate::rendezvous::channel::Channel;
use crate::rendezvous::dial::Dial;
use crate::rendezvous::handshake::{Claims, Purpose};
use crate::rendezvous::listener::{Listener, Proven};
use crate::rendezvous::trust::Keys;
use crate::topology::Rank;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// A connection to a peer, and its keys.
pub type Connection = (TcpStream, Channel);

pub struct Meeting<'a> {
    /// The state of the job: ends the meeting when a rank has failed.
    pub health: &'a Health,
    pub listener: TcpListener,
    pub peers: &'a [PeerAddress],
    pub rank_0: IpAddr,
    pub keys: &'a Keys,
    pub epoch: u32,
    pub job_hash: [u8; 32],
    pub longest: Duration,
    pub patience: Duration,
}

impl Meeting<'_> {
    /// Connects to everybody. Returns the connections by rank; none to itself.
    pub fn meet(self) -> Result<Vec<Option<Connection>>> {
        let deadline = Instant::now() + self.longest;
        let mut streams: Vec<Option<Connection>> = self.peers.iter().map(|_| None).collect();
        for (rank, stream) in streams.iter_mut().enumerate().take(self.health.rank().0) {
            *stream = Some(self.dial(rank, deadline)?);
        }
        self.receive(&mut streams, deadline)?;
        Ok(streams)
    }

    fn dial(&self, rank: usize, deadline: Instant) -> Result<Connection> {
        let peer = &self.peers[rank];
        let dial = Dial {
            host: &peer.ip.unwrap_or(self.rank_0).to_string(),
            port: peer.port,
            name: &format!("the data port of rank {rank}"),
            purpose: Purpose::Data,
            rank: self.health.rank().0,
            keys: self.keys,
            deadline,
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
        prepare(&welcome.stream)?;
        Ok((welcome.stream, welcome.channel))
    }

    /// A port that cannot be reached is this rank's failure to everybody: it may be a firewall
    /// between two of them.
    fn explain(&self, error: CommError) -> CommError {
        match self.health.check() {
            Err(first) => first,
            Ok(()) => self.health.fail(CommError::Aborted {
                culprit: self.health.rank(),
                reason: format!("{error}; is a firewall between them?"),
            }),
        }
    }

    fn receive(&self, streams: &mut [Option<Connection>], deadline: Instant) -> Result<()> {
        let own = self.health.rank().0;
        let listener = self
            .listener
            .try_clone()
            .map_err(|error| CommError::system("cloning a listener", error))?;
        let mut listener = Listener::new(listener, Purpose::Data, self.keys.clone(), self.patience)
            .map_err(|error| CommError::system("opening the data port", error))?;
        while let Some(missing) = (own + 1..streams.len()).find(|rank| streams[*rank].is_none()) {
            self.health.check()?;
            if Instant::now() >= deadline {
                let late =
                    self.health.late(Rank(missing), "connecting its data port", 0, self.longest);
                return Err(self.health.suspect(late));
            }
            self.health.note_waiting(Some(Rank(missing)));
            listener.wait(&[], Duration::from_millis(50));
            for peer in listener.turn()? {
                self.admit(peer, streams)?;
            }
        }
        self.health.note_waiting(None);
        Ok(())
    }

    fn admit(&self, peer: Proven, streams: &mut [Option<Connection>]) -> Result<()> {
        let claims = &peer.claims;
        let rank = claims.rank as usize;
        let expected =
            rank > self.health.rank().0 && rank < streams.len() && streams[rank].is_none();
        if !expected || claims.epoch != self.epoch || claims.job_hash != self.job_hash {
            peer.refuse("this rank is not expected here: it is another job's, or too late");
            return Ok(());
        }
        let (stream, channel) = peer.admit()?;
        prepare(&stream)?;
        streams[rank] = Some((stream, channel));
        Ok(())
    }
}

fn prepare(stream: &TcpStream) -> Result<()> {
    let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
    ready.map_err(|error| CommError::system("preparing a data connection", error))
}
