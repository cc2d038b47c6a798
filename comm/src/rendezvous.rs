//! How the processes of a job find each other: one listener at rank 0, at which every rank proves
//! that it knows the job's secret.
//!
//! A rank says which rank of how many it is, of which job and build, and a fingerprint of its
//! configuration. A rank that does not fit is refused by name; a mistake that leaves the job no way
//! to start ends it for all ranks at once, with the culprit's name. Unauthenticated peers are
//! dropped, counted and never answered. When all are there, rank 0 gives everybody the table of who
//! is where; its connections stay open as the control channel, and the listener stays too, to tell
//! latecomers why they are not let in.

pub(crate) mod channel;
pub(crate) mod deadlines;
pub(crate) mod descriptors;
pub mod dial;
mod enter;
mod gather;
pub mod handshake;
pub(crate) mod listener;
mod machine;
pub mod proof;
pub mod trust;
mod waiting;
pub mod whole;

use crate::error::{CommError, Result};
use crate::launcher_env::{Launch, Remark};
use crate::system::{self, Mutex, TcpListener, TcpStream};
use crate::topology::{Rank, Topology};
use crate::transport::tcp::control::{ControlThread, Ports};
use crate::transport::tcp::control_frame::{FrameReader, Outbox, PeerAddress};
use crate::transport::tcp::health::{Health, Link};
use crate::transport::tcp::mesh::{Arrived, DataPort, Mesh};
use crate::transport::tcp::{Parts, TcpTransport};
use channel::Channel;
pub use deadlines::{Deadlines, Notice};
use handshake::Claims;
use listener::Listener;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use sha2::{Digest as _, Sha256};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, mpsc};
pub use trust::Keys;

/// Number of the protocol between ranks; it changes with every change of a frame.
pub const PROTOCOL: u32 = 3;

/// What a process says and wants to know when it joins its job.
pub struct JoinOptions {
    /// Who it is, from [`launcher_env`](crate::launcher_env).
    pub launch: Launch,
    /// Fingerprint of everything that must be equal on all ranks.
    pub config_fingerprint: [u8; 32],
    /// Version of the program; must be equal on all ranks.
    pub build: String,
    /// Ranks on each node, numbered node by node; 0: ranks that see the same machine share a node.
    pub ranks_per_node: usize,
    /// Deadlines.
    pub deadlines: Deadlines,
    /// A job that other machines can reach may do without a secret.
    pub insecure: bool,
    /// What ranks exchange over TCP is encrypted; control messages and keys always are.
    pub encrypt_data: bool,
    /// Hears who is still missing, and whom ranks wait for.
    pub notice: Option<Notice>,
    /// Asked while ranks come together: an error ends that.
    pub still_wanted: Option<StillWanted>,
}

/// Whether a job that is coming together is still wanted.
pub type StillWanted = Arc<dyn Fn() -> Result<()> + Send + Sync>;

impl JoinOptions {
    /// The defaults: this build, nodes as found, default deadlines, a secret where other machines
    /// can come, silent.
    pub fn new(launch: Launch, config_fingerprint: [u8; 32]) -> Self {
        Self {
            launch,
            config_fingerprint,
            build: env!("CARGO_PKG_VERSION").into(),
            ranks_per_node: 0,
            deadlines: Deadlines::default(),
            insecure: false,
            encrypt_data: false,
            notice: None,
            still_wanted: None,
        }
    }

    fn check_wanted(&self) -> Result<()> {
        self.still_wanted.as_ref().map_or(Ok(()), |still_wanted| still_wanted())
    }

    fn claims(&self) -> Claims {
        Claims {
            rank: self.launch.rank.0 as u32,
            world_size: self.launch.world_size as u32,
            epoch: 0,
            data_port: 0,
            job_hash: Sha256::digest(&self.launch.job).into(),
            job: self.launch.job.clone(),
            build: format!("{} (protocol {PROTOCOL})", self.build),
            config: self.config_fingerprint,
            host: machine::identity(),
        }
    }
}

struct Joined {
    epoch: u32,
    peers: Vec<PeerAddress>,
    node_of: Vec<usize>,
    links: Vec<Link>,
    readers: Vec<FrameReader>,
    rank_0: IpAddr,
    data_listener: TcpListener,
    listener: Option<Listener>,
}

/// Joins this process's job: returns when all ranks are there and connected.
///
/// # Errors
/// [`CommError::Refused`] this rank does not fit; [`CommError::Rendezvous`] the job did not come
/// together, with the missing ranks or the culprit; [`CommError::PeerLost`] and
/// [`CommError::Timeout`] a rank has ended or stopped meanwhile; [`CommError::System`] a port that
/// is already used; [`CommError::Setting`] an address or secret that cannot be used.
pub fn join(options: &JoinOptions) -> Result<Arc<TcpTransport>> {
    let launch = &options.launch;
    let mut remarks = launch.remarks.clone();
    let keys = Keys::of(launch, options.insecure)?;
    if launch.world_size == 1 {
        return alone(options, keys, remarks);
    }
    remarks.extend(keys.trust.remark(launch));
    descriptors::reserve(launch.rank, launch.world_size)?;
    let joined = match launch.rank {
        Rank(0) => gather::gather(options, &keys)?,
        _ => enter::enter(options, &keys)?,
    };
    connect(options, keys, joined, remarks)
}

fn alone(options: &JoinOptions, keys: Keys, remarks: Vec<Remark>) -> Result<Arc<TcpTransport>> {
    let health = Arc::new(Health::new(Rank(0), 1, Vec::new(), options.deadlines.heartbeat)?);
    let mesh = Arc::new(mesh(options, keys, health, (0, Vec::new(), Ipv4Addr::LOCALHOST.into())));
    let topology = Topology::single();
    Ok(Arc::new(TcpTransport::new(Parts { mesh, topology, control: None, remarks })))
}

/// What makes the data connections of a job with this epoch, these ranks, and rank 0 there.
fn mesh(
    options: &JoinOptions,
    keys: Keys,
    health: Arc<Health>,
    (epoch, peers, rank_0): (u32, Vec<PeerAddress>, IpAddr),
) -> Mesh {
    let deadlines = options.deadlines;
    Mesh {
        health,
        peers,
        rank_0,
        keys,
        epoch,
        job_hash: options.claims().job_hash,
        deadline: deadlines.operation,
        patience: deadlines.handshake,
        encrypt: options.encrypt_data,
        arrived: Arrived::default(),
    }
}

fn connect(
    options: &JoinOptions,
    keys: Keys,
    joined: Joined,
    remarks: Vec<Remark>,
) -> Result<Arc<TcpTransport>> {
    let Joined { epoch, peers, node_of, links, readers, rank_0, data_listener, listener } = joined;
    let (rank, deadlines) = (options.launch.rank, options.deadlines);
    let health = Arc::new(Health::new(rank, peers.len(), links, deadlines.heartbeat)?);
    let mesh = Arc::new(mesh(options, keys, Arc::clone(&health), (epoch, peers, rank_0)));
    let ports =
        Ports { late: listener, data: Some(DataPort::new(Arc::clone(&mesh), data_listener)?) };
    // Only rank 0 has something to say while the job runs.
    let notice =
        options.notice.clone().filter(|_| rank == Rank(0)).map(without_waiting).transpose()?;
    let thread = ControlThread::new(health, deadlines, readers, ports, notice);
    let control = system::spawn("comm-control", || thread.run())
        .map_err(|error| CommError::system("starting the control thread", error))?;
    let topology = Topology::from_node_of(node_of);
    // Note: dropped, the transport tells the others.
    let parts = Parts { mesh, topology, control: Some(control), remarks };
    Ok(Arc::new(TcpTransport::new(parts)))
}

/// `notice` on a thread of its own: who reads what is said may be slow, and signs of life must not
/// wait for that. What comes while a notice is still being said, and another waits, is dropped.
fn without_waiting(notice: Notice) -> Result<Notice> {
    let (sender, receiver) = mpsc::sync_channel::<String>(1);
    system::spawn("comm-notice", move || receiver.iter().for_each(|text| notice(&text)))
        .map_err(|error| CommError::system("starting the thread of notices", error))?;
    Ok(Arc::new(move |text: &str| drop(sender.try_send(text.to_owned()))))
}

/// A port of this machine that no one else is given as long as the socket lives; a listener can
/// still be opened there.
pub fn reserve_port(ip: IpAddr) -> std::io::Result<(OwnedFd, u16)> {
    let family = match ip {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(family, kind, flags, Some(ipproto::TCP))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddr::from((ip, 0)))?;
    let port = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?.port();
    Ok((socket, port))
}

/// A listener for peers' messages, at the one address that the others reach this rank at.
fn data_listener(ip: IpAddr) -> Result<TcpListener> {
    TcpListener::bind((ip, 0))
        .map_err(|error| CommError::system(format!("opening a data port at {ip}"), error))
}

/// A control connection in a job of so many ranks: what this rank sends, and what it hears.
fn as_link(
    peer: Rank,
    stream: TcpStream,
    channel: Channel,
    num_ranks: usize,
) -> Result<(Link, FrameReader)> {
    stream
        .set_nonblocking(true)
        .map_err(|error| CommError::system("preparing a control connection", error))?;
    let (sealer, opener) = channel.split();
    let outbox = Mutex::new(Outbox::new(sealer));
    Ok((Link { peer, stream, outbox }, FrameReader::new(num_ranks, opener)))
}
