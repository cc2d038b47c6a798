//! Rank 0's side: open the listener, judge who comes, give everybody the table.

use super::handshake::{Claims, Purpose};
use super::listener::{Listener, Proven};
use super::waiting::{LOOPBACK_DOWN, Waiting, is_loopback_down};
use super::{JoinOptions, Joined, Keys, as_link, data_listener, machine, proof};
use crate::error::{CommError, Result};
use crate::launcher_env::{Launch, master_variable};
use crate::system::{Instant, TcpListener, TcpStream, sleep};
use crate::topology::{Rank, Topology};
use crate::transport::tcp::control_frame::{Control, FrameReader, PeerAddress};
use crate::transport::tcp::health::Link;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

/// A port that is used may be the last job's, which is just ending.
const PORT_PATIENCE: Duration = Duration::from_secs(3);
/// How long the listener stays open to tell those still to come that there will be no job.
const LAST_WORDS: Duration = Duration::from_secs(3);
/// How often the user hears who is missing.
const PROGRESS: Duration = Duration::from_secs(10);

struct Arrival {
    link: Link,
    reader: FrameReader,
    address: SocketAddr,
    claims: Claims,
}

enum Judgement {
    Admit,
    /// Not this one; the others continue.
    Refuse(String),
    /// The job cannot start any more, because of this one.
    GiveUp(String),
}

struct Gathering<'a> {
    options: &'a JoinOptions,
    own: Claims,
    listener: Listener,
    arrivals: Vec<Option<Arrival>>,
    /// This rank included.
    num_here: usize,
}

pub fn gather(options: &JoinOptions, keys: &Keys) -> Result<Joined> {
    let (listener, ip) = open(options)?;
    let listener =
        Listener::new(listener, Purpose::Rendezvous, keys.clone(), options.deadlines.handshake)
            .map_err(|error| CommError::system("opening the rendezvous", error))?;
    // Before any rank has come: a failure from here on would look like the loss of this one.
    let data_listener = data_listener(ip)?;
    let arrivals = (0..options.launch.world_size).map(|_| None).collect();
    let mut gathering =
        Gathering { options, own: options.claims(), listener, arrivals, num_here: 1 };
    match gathering.wait_for_all() {
        Ok(()) => gathering.send_table(ip, data_listener),
        Err(error) => Err(gathering.give_up(error)),
    }
}

/// Opens the rendezvous at the one address that the job's ranks are told.
fn open(options: &JoinOptions) -> Result<(TcpListener, IpAddr)> {
    let (launch, longest) = (&options.launch, options.deadlines.rendezvous);
    let (begin, mut waiting) = (Instant::now(), Waiting::begin(options.notice.as_ref()));
    let place = format!(
        "rank 0 cannot open the rendezvous at {}:{}",
        launch.master_host, launch.master_port
    );
    loop {
        let error = match try_open(launch) {
            Ok((_, ip)) if is_loopback_down((ip, launch.master_port).into()) => {
                return Err(CommError::System { what: place, reason: LOOPBACK_DOWN.into() });
            }
            Ok(open) => return Ok(open),
            Err(error) => error,
        };
        // A name may not be known yet, and a port not be free yet; everything else will not get
        // better.
        let patience = match error.kind() {
            ErrorKind::AddrInUse => PORT_PATIENCE.min(longest),
            ErrorKind::AddrNotAvailable | ErrorKind::InvalidInput => Duration::ZERO,
            _ => longest,
        };
        if begin.elapsed() >= patience {
            return Err(CommError::System { what: place, reason: explain(launch, &error) });
        }
        waiting.failed(&place, &error.to_string(), error.kind() != ErrorKind::AddrInUse);
        sleep(Duration::from_millis(100));
    }
}

fn try_open(launch: &Launch) -> std::io::Result<(TcpListener, IpAddr)> {
    let (host, port) = (launch.master_host.as_str(), launch.master_port);
    let mut last = std::io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        let has_other_machines = launch.local_size.is_some_and(|local| local < launch.world_size);
        if address.ip().is_loopback() && has_other_machines {
            last = std::io::Error::new(ErrorKind::InvalidInput, "a loopback address");
            continue;
        }
        match TcpListener::bind(address) {
            Ok(listener) => return Ok((listener, address.ip())),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn explain(launch: &Launch, error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::AddrInUse => {
            let port = launch.master_port;
            format!(
                "the port is already used by another process; `ss -ltnp 'sport = :{port}'` shows \
                 whose it is, HEADLONG_MASTER_PORT chooses another"
            )
        }
        ErrorKind::AddrNotAvailable => format!(
            "this is not an address of this machine: {} must be the machine of rank 0",
            master_variable()
        ),
        ErrorKind::InvalidInput => format!(
            "this machine takes that name for a loopback address, at which other machines cannot \
             reach it: set {} to its address in the network",
            master_variable()
        ),
        _ => error.to_string(),
    }
}

impl Gathering<'_> {
    fn wait_for_all(&mut self) -> Result<()> {
        let begin = Instant::now();
        let (mut next_word, mut next_progress) = (begin, begin + PROGRESS);
        while self.num_here < self.arrivals.len() {
            let here = self.arrivals.iter().flatten();
            let (ranks, streams): (Vec<usize>, Vec<&TcpStream>) =
                here.map(|arrival| (arrival.link.peer.0, &arrival.link.stream)).unzip();
            let longest = Duration::from_millis(50).min(self.options.deadlines.heartbeat);
            let stirring = self.listener.wait(&streams, longest);
            for place in stirring {
                self.look_after(ranks[place])?;
            }
            for peer in self.listener.turn()? {
                self.receive(peer)?;
            }
            self.options.check_wanted()?;
            let now = Instant::now();
            if now >= next_word {
                next_word = now + self.options.deadlines.heartbeat;
                self.tell(&Control::Wait);
            }
            if now >= next_progress {
                next_progress = now + PROGRESS;
                self.report(begin.elapsed());
            }
            if begin.elapsed() >= self.options.deadlines.rendezvous {
                return Err(self.too_late(begin.elapsed()));
            }
        }
        Ok(())
    }

    /// Ranks that have not come.
    fn missing(&self) -> Vec<usize> {
        (1..self.arrivals.len()).filter(|rank| self.arrivals[*rank].is_none()).collect()
    }

    fn missing_text(&self) -> String {
        let missing: Vec<String> = self.missing().iter().map(usize::to_string).collect();
        let noun = if missing.len() == 1 { "rank" } else { "ranks" };
        format!("{noun} {}", missing.join(", "))
    }

    fn report(&self, waited: Duration) {
        let Some(notice) = &self.options.notice else { return };
        let (size, missing) = (self.arrivals.len(), self.missing());
        let hint = if missing.len() + 1 == size { "; were they started?" } else { "" };
        notice(&format!(
            "waiting for {} since {} s ({} of {size} are here; {}){hint}",
            self.missing_text(),
            waited.as_secs(),
            size - missing.len(),
            self.listener.unauthenticated()
        ));
    }

    fn too_late(&self, waited: Duration) -> CommError {
        let seconds = waited.as_secs_f64();
        let reason = format!(
            "{} of {} did not come within {seconds:.1} s ({})",
            self.missing_text(),
            self.arrivals.len(),
            self.listener.unauthenticated()
        );
        CommError::Rendezvous { reason }
    }

    fn receive(&mut self, peer: Proven) -> Result<()> {
        match self.judge(&peer.claims) {
            Judgement::Admit => self.admit(peer),
            Judgement::Refuse(reason) => {
                if let Some(notice) = &self.options.notice {
                    notice(&format!(
                        "rank {} from {} was refused: {reason}",
                        peer.claims.rank, peer.address
                    ));
                }
                peer.refuse(&reason);
                Ok(())
            }
            Judgement::GiveUp(reason) => {
                let rank = peer.claims.rank.to_string();
                peer.refuse(&reason);
                Err(CommError::Refused { rank, reason })
            }
        }
    }

    fn judge(&self, claims: &Claims) -> Judgement {
        let (own, rank, size) = (&self.own, claims.rank, self.own.world_size);
        if claims.job_hash != own.job_hash {
            let (its, ours) = (&claims.job, &own.job);
            return Judgement::Refuse(format!("it belongs to job `{its}`; here is job `{ours}`"));
        }
        if claims.build != own.build {
            let (its, ours) = (&claims.build, &own.build);
            return Judgement::GiveUp(format!("it runs build {its}, rank 0 runs {ours}"));
        }
        if claims.world_size != size {
            let its = claims.world_size;
            let reason = format!("it expects a job of {its} ranks, rank 0 one of {size}");
            return Judgement::GiveUp(reason);
        }
        let taken = match self.arrivals.get(rank as usize) {
            None => {
                return Judgement::GiveUp(format!("there is no rank {rank} in a job of {size}"));
            }
            Some(_) if rank == 0 => Some("rank 0 itself".to_string()),
            Some(place) => {
                place.as_ref().map(|arrival| format!("a process at {}", arrival.address.ip()))
            }
        };
        if let Some(by) = taken {
            return Judgement::Refuse(format!(
                "rank {rank} is already there, it is {by}: two processes have one rank"
            ));
        }
        if claims.config != own.config {
            let reason = format!(
                "its configuration differs from rank 0's (fingerprints {} and {}): all ranks need \
                 the same settings",
                short(&claims.config),
                short(&own.config)
            );
            return Judgement::GiveUp(reason);
        }
        Judgement::Admit
    }

    fn admit(&mut self, peer: Proven) -> Result<()> {
        let (rank, address) = (peer.claims.rank as usize, peer.address);
        let claims = peer.claims.clone();
        let (stream, channel) = peer.admit()?;
        let (link, reader) = as_link(Rank(rank), stream, channel, self.arrivals.len())?;
        self.arrivals[rank] = Some(Arrival { link, reader, address, claims });
        self.num_here += 1;
        Ok(())
    }

    /// A rank that has heard that it is in and is gone again will not come back by itself: waiting
    /// for it would help no rank.
    fn look_after(&mut self, rank: usize) -> Result<()> {
        let Some(arrival) = &mut self.arrivals[rank] else { return Ok(()) };
        arrival.reader.receive(&arrival.link.stream);
        match arrival.reader.end() {
            None => Ok(()),
            Some(reason) => Err(CommError::PeerLost {
                culprit: arrival.link.peer,
                seen_by: Rank(0),
                reason: format!("{reason} while the job came together"),
            }),
        }
    }

    fn tell(&mut self, frame: &Control) {
        let bytes = frame.to_bytes();
        for Arrival { link, .. } in self.arrivals.iter_mut().flatten() {
            let outbox = link.outbox.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
            outbox.send(&link.stream, &bytes);
        }
    }

    fn send_table(mut self, ip: IpAddr, data_listener: TcpListener) -> Result<Joined> {
        let port = data_listener
            .local_addr()
            .map_err(|error| CommError::system("asking for an own address", error))?
            .port();
        let arrived = |arrival: &Arrival| {
            (Some(arrival.address.ip()), arrival.claims.data_port, arrival.claims.host)
        };
        let rows = self
            .arrivals
            .iter()
            .map(|place| place.as_ref().map_or((None, port, self.own.host), arrived));
        let (peers, hosts): (Vec<PeerAddress>, Vec<[u8; 32]>) =
            rows.map(|(ip, port, host)| (PeerAddress { ip, port }, host)).unzip();
        let node_of = match self.options.ranks_per_node {
            0 => machine::nodes_of(&hosts),
            each => {
                let topology = Topology::with_ranks_per_node(hosts.len(), each);
                topology.ranks().map(|rank| topology.node_of(rank)).collect()
            }
        };
        let random = proof::nonce()?;
        let epoch = u32::from_le_bytes([random[0], random[1], random[2], random[3]]).max(1);
        self.tell(&Control::Table { epoch, peers: peers.clone(), node_of: node_of.clone() });
        let here = self.arrivals.into_iter().flatten();
        let (links, readers) = here.map(|arrival| (arrival.link, arrival.reader)).unzip();
        Ok(Joined {
            epoch,
            peers,
            node_of,
            links,
            readers,
            rank_0: ip,
            data_listener,
            listener: Some(self.listener),
        })
    }

    /// Tells everybody, also those who are still to come, that there will be no job.
    fn give_up(&mut self, error: CommError) -> CommError {
        self.tell(&Control::Abort { error: error.clone() });
        let text = format!("there will be no job: {error}");
        let mut told: Vec<usize> =
            self.arrivals.iter().flatten().map(|arrival| arrival.link.peer.0).collect();
        if let CommError::Refused { rank, .. } = &error {
            told.extend(rank.parse::<usize>());
        }
        let begin = Instant::now();
        let timed_out = matches!(error, CommError::Rendezvous { .. });
        while !timed_out && told.len() + 1 < self.arrivals.len() && begin.elapsed() < LAST_WORDS {
            self.listener.wait(&[], Duration::from_millis(50));
            for peer in self.listener.turn().unwrap_or_default() {
                told.push(peer.claims.rank as usize);
                peer.refuse(&text);
            }
        }
        error
    }
}

fn short(fingerprint: &[u8; 32]) -> String {
    fingerprint[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}
