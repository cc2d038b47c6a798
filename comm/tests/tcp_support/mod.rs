//! What the tests of processes joined by TCP have in common.
#![allow(dead_code, reason = "each test uses a part")]

use headlong_comm::launcher_env::{Launch, Launcher, SecretSource};
use headlong_comm::rendezvous::{Deadlines, JoinOptions, join};
use headlong_comm::transport::tcp::TcpTransport;
use headlong_comm::{CommError, Rank};
use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// A port that nobody else is given while this lives: it is bound, but not listened at.
pub struct ReservedPort {
    pub port: u16,
    _socket: OwnedFd,
}

pub fn reserve_port() -> ReservedPort {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, Some(ipproto::TCP));
    let socket = socket.expect("a socket");
    sockopt::set_socket_reuseaddr(&socket, true).expect("a socket option");
    let any: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    rustix::net::bind(&socket, &any).expect("a free port");
    let address: SocketAddr =
        rustix::net::getsockname(&socket).expect("its address").try_into().expect("IPv4");
    ReservedPort { port: address.port(), _socket: socket }
}

/// Deadlines short enough for tests, long enough for a busy machine.
pub fn deadlines() -> Deadlines {
    Deadlines {
        rendezvous: Duration::from_secs(20),
        operation: Duration::from_secs(10),
        heartbeat: Duration::from_millis(100),
        silence: Duration::from_millis(1500),
        guest: Duration::from_secs(2),
    }
}

pub fn launch(rank: usize, world_size: usize, port: u16) -> Launch {
    Launch {
        launcher: Launcher::Headlong,
        rank: Rank(rank),
        world_size,
        local_rank: None,
        local_size: None,
        master_host: "127.0.0.1".into(),
        master_port: port,
        job: "test".into(),
        secret: SecretSource::Value("a secret of the test".into()),
        remarks: Vec::new(),
    }
}

pub fn options(rank: usize, world_size: usize, port: u16) -> JoinOptions<'static> {
    JoinOptions { deadlines: deadlines(), ..JoinOptions::new(launch(rank, world_size, port), [7; 32]) }
}

pub type Joined = Result<Arc<TcpTransport>, CommError>;

/// Joins all of `all` as threads of this process; their answers in the same order.
pub fn join_all(all: Vec<JoinOptions<'static>>) -> Vec<Joined> {
    std::thread::scope(|scope| {
        let joins: Vec<_> = all.into_iter().map(|options| scope.spawn(move || join(&options))).collect();
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
pub fn job_options(world_size: usize, port: u16) -> Vec<JoinOptions<'static>> {
    (0..world_size).map(|rank| options(rank, world_size, port)).collect()
}
