//! What the tests of processes joined by TCP have in common, and of what carries their payload
//! instead.
#![allow(dead_code, unused_macros, unused_imports, reason = "each test uses a part")]

use headlong_comm::launcher_env::{Launch, SecretSource};
use headlong_comm::rendezvous::{Deadlines, JoinOptions, join};
use headlong_comm::transport::Transport;
use headlong_comm::transport::choose::{ChooseOptions, Network, Wanted, choose};
use headlong_comm::transport::tcp::TcpTransport;
use headlong_comm::{CommError, Rank};
use headlong_ucx::UcxNetwork;
use headlong_verbs::fake::{Fabric, NetworkModel};
use headlong_verbs::{VerbsNetwork, VerbsSettings};
use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A port that no one else is given while this lives: it is bound, but not listened at.
pub struct ReservedPort {
    pub port: u16,
    _socket: OwnedFd,
}

pub fn reserve_port() -> ReservedPort {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        flags,
        Some(ipproto::TCP),
    );
    let socket = socket.expect("a socket");
    sockopt::set_socket_reuseaddr(&socket, true).expect("a socket option");
    let any: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    rustix::net::bind(&socket, &any).expect("a free port");
    let address: SocketAddr =
        rustix::net::getsockname(&socket).expect("its address").try_into().expect("IPv4");
    ReservedPort { port: address.port(), _socket: socket }
}

/// The program of `tests/rank`.
pub fn rank_program() -> PathBuf {
    let test = std::env::current_exe().expect("this test is a program");
    test.parent().expect("it lies in a folder").with_file_name("examples/rank")
}

/// Deadlines short enough for tests, long enough for a busy machine.
pub fn deadlines() -> Deadlines {
    Deadlines {
        rendezvous: Duration::from_secs(20),
        operation: Duration::from_secs(10),
        heartbeat: Duration::from_millis(100),
        silence: Duration::from_millis(1500),
        handshake: Duration::from_secs(2),
        ..Deadlines::default()
    }
}

pub fn launch(rank: usize, world_size: usize, port: u16) -> Launch {
    Launch {
        job: "test".into(),
        secret: SecretSource::Value(b"a secret of the test".into()),
        ..Launch::on_loopback(rank, world_size, port)
    }
}

pub fn options(rank: usize, world_size: usize, port: u16) -> JoinOptions {
    JoinOptions {
        deadlines: deadlines(),
        ..JoinOptions::new(launch(rank, world_size, port), [7; 32])
    }
}

pub type Joined = Result<Arc<TcpTransport>, CommError>;

/// Joins all of `all` as threads of this process; their answers in the same order.
pub fn join_all(all: Vec<JoinOptions>) -> Vec<Joined> {
    std::thread::scope(|scope| {
        let joins: Vec<_> =
            all.into_iter().map(|options| scope.spawn(move || join(&options))).collect();
        joins.into_iter().map(|join| join.join().expect("joining does not panic")).collect()
    })
}

/// A whole job of threads, every rank with its own transport.
pub fn job(world_size: usize) -> Vec<Arc<TcpTransport>> {
    let port = reserve_port();
    let all = (0..world_size).map(|rank| options(rank, world_size, port.port)).collect();
    join_all(all).into_iter().map(|joined| joined.expect("all ranks join")).collect()
}

/// The options of all ranks of a job, in order.
pub fn job_options(world_size: usize, port: u16) -> Vec<JoinOptions> {
    (0..world_size).map(|rank| options(rank, world_size, port)).collect()
}

/// What carries the payload of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The connections of the control plane.
    Tcp,
    /// Memory that all ranks share.
    Shm,
    /// Two ranks to a node: memory inside, TCP between nodes.
    Mixed,
    /// Every rank on a node of its own, with a NIC of a fabric of this process.
    Verbs,
    /// Two ranks to a node: memory inside, such NICs between nodes.
    Nodes,
    /// UCX, by whatever it finds here.
    Ucx,
    /// As [`Way::Tcp`], encrypted.
    Sealed,
    /// As [`Way::Mixed`], encrypted between nodes.
    SealedMixed,
}

impl Way {
    pub fn wanted(self) -> Wanted {
        match self {
            Way::Tcp | Way::Sealed => Wanted::Tcp,
            Way::Shm => Wanted::Shm,
            Way::Mixed | Way::SealedMixed => Wanted::Auto,
            Way::Verbs | Way::Nodes => Wanted::Verbs,
            Way::Ucx => Wanted::Ucx,
        }
    }

    pub fn ranks_per_node(self) -> usize {
        match self {
            Way::Tcp | Way::Sealed | Way::Shm | Way::Ucx => 0,
            Way::Verbs => 1,
            Way::Mixed | Way::SealedMixed | Way::Nodes => 2,
        }
    }

    /// Why this machine does not have it.
    pub fn is_missing(self) -> Option<String> {
        match self {
            Way::Ucx => headlong_ucx::version().err(),
            _ => None,
        }
    }

    /// The name of its transport, among enough ranks for all of its paths.
    pub fn name(self) -> &'static str {
        match self {
            Way::Tcp | Way::Sealed => "tcp",
            Way::Shm => "shm",
            Way::Mixed | Way::SealedMixed => "shm+tcp",
            Way::Verbs => "verbs",
            Way::Ucx => "ucx",
            Way::Nodes => "shm+verbs",
        }
    }

    /// For [`rank_program`].
    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            Way::Tcp => &["--transport", "tcp"],
            Way::Shm => &["--transport", "shm"],
            Way::Ucx => &["--transport", "ucx"],
            Way::Mixed => &["--transport", "auto", "--ranks-per-node", "2"],
            Way::Sealed => &["--transport", "tcp", "--encrypt-data"],
            Way::SealedMixed => &["--transport", "auto", "--ranks-per-node", "2", "--encrypt-data"],
            Way::Verbs | Way::Nodes => panic!("processes cannot share a fabric of one of them"),
        }
    }

    /// Options of all ranks of a job, in order.
    pub fn job_options(self, world_size: usize, port: u16) -> Vec<JoinOptions> {
        let mut all = job_options(world_size, port);
        for options in &mut all {
            options.ranks_per_node = self.ranks_per_node();
            options.encrypt_data = matches!(self, Way::Sealed | Way::SealedMixed);
        }
        all
    }

    /// Joins all of `all` as threads of this process, and chooses their paths.
    pub fn join_all(self, all: Vec<JoinOptions>) -> Vec<Arc<dyn Transport>> {
        let num_ranks = all.len();
        let controls = join_all(all).into_iter().map(|joined| joined.expect("all ranks join"));
        let fabric = Fabric::rails(7, NetworkModel::CALM, num_ranks, 1);
        let choice = |control: Arc<TcpTransport>| {
            let (node, local_index) = {
                let (topology, rank) = (control.topology(), control.rank());
                (topology.node_of(rank), topology.local_index(rank))
            };
            let nics =
                VerbsNetwork::new(VerbsSettings::default(), fabric.provider(node), local_index);
            let ucx = (self == Way::Ucx).then(|| UcxNetwork::of_machine(&control));
            let network = match self {
                Way::Verbs | Way::Nodes => Some(&nics as &dyn Network),
                _ => ucx.as_ref().map(|ucx| ucx as &dyn Network),
            };
            choose(control, &ChooseOptions { wanted: self.wanted(), network, exchanges: None })
        };
        std::thread::scope(|scope| {
            let choice = &choice;
            let choices: Vec<_> =
                controls.map(|control| scope.spawn(move || choice(control))).collect();
            let chosen =
                choices.into_iter().map(|choice| choice.join().expect("choosing does not panic"));
            chosen.map(|chosen| chosen.expect("the paths are there").transport).collect()
        })
    }

    /// A whole job of threads, every rank with its own transport.
    pub fn job(self, world_size: usize) -> Vec<Arc<dyn Transport>> {
        let port = reserve_port();
        self.join_all(self.job_options(world_size, port.port))
    }
}

/// Each of these functions as a test, once for each [`Way`].
macro_rules! over_every_way {
    ($($name:ident),* $(,)?) => {
        over_every_way!(processes: $($name),*);
        over_every_way!(@ verbs, Verbs, $($name),*);
        over_every_way!(@ nodes, Nodes, $($name),*);
        over_every_way!(@ sealed, Sealed, $($name),*);
        over_every_way!(@ sealed_mixed, SealedMixed, $($name),*);
    };
    (processes: $($name:ident),* $(,)?) => {
        over_every_way!(@ tcp, Tcp, $($name),*);
        over_every_way!(@ shm, Shm, $($name),*);
        over_every_way!(@ mixed, Mixed, $($name),*);
        over_every_way!(@ ucx, Ucx, $($name),*);
    };
    (@ $module:ident, $way:ident, $($name:ident),*) => {
        mod $module {
            $(
                #[test]
                fn $name() {
                    let way = crate::tcp_support::Way::$way;
                    match way.is_missing() {
                        Some(reason) => println!("skipped, because {reason}"),
                        None => super::$name(way),
                    }
                }
            )*
        }
    };
}
pub(crate) use over_every_way;
