//! Who gets the memory of a node: its ranks, after they have proven themselves, and no one else.

use crate::tcp_support;
use headlong_comm::rendezvous::handshake::{Purpose, hello};
use headlong_comm::transport::Transport as _;
use headlong_comm::transport::shm::{Attachment, Offer, Table, offer};
use headlong_comm::transport::tcp::TcpTransport;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

/// The offers of both ranks of a job, and what the first holds ready.
fn offers(
    ranks: &[std::sync::Arc<TcpTransport>],
) -> (Vec<Offer>, headlong_comm::transport::shm::Host) {
    let (first, host) = offer(&ranks[0]);
    (vec![first, offer(&ranks[1]).0], host.expect("rank 0 is the first of its node"))
}

fn connect(offer: &Offer) -> UnixStream {
    let name = offer.socket.as_ref().expect("a socket");
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).expect("a name"))
        .expect("the socket is open")
}

#[test]
fn unauthenticated_peers_get_nothing_and_the_ranks_still_meet() {
    let ranks = tcp_support::job(2);
    let (offers, host) = offers(&ranks);
    // One says nothing sensible, one leaves at once; both are processes with a number that is
    // known.
    let mut liar = connect(&offers[0]);
    liar.write_all(&[7; 312]).expect("it is taken");
    drop(connect(&offers[0]));
    let tables: Vec<Table> = ranks.iter().map(|rank| Table::new(rank, &offers)).collect();
    thread::scope(|scope| {
        let host =
            scope.spawn(|| tables[0].meet(Attachment::Host(host)).map(|near| near.paths.len()));
        let attachment =
            scope.spawn(|| tables[1].meet(tables[1].approach(None)).map(|near| near.paths.len()));
        assert_eq!(host.join().expect("no panic"), Ok(1));
        assert_eq!(attachment.join().expect("no panic"), Ok(1));
    });
    let mut heard = Vec::new();
    let _ = liar.read_to_end(&mut heard);
    assert_eq!(heard.len(), 41, "a random number to be answered, and no more");
    ranks.iter().for_each(|rank| assert_eq!(rank.check(), Ok(())));
}

#[test]
fn a_host_of_another_process_or_without_the_secret_is_not_believed() {
    let ranks = tcp_support::job(2);
    let (mut offers, host) = offers(&ranks);
    offers[0].process += 1;
    let refused = |offers: &[Offer]| {
        let table = Table::new(&ranks[1], offers);
        table.meet(table.approach(None)).err().expect("it is not believed")
    };
    let text = refused(&offers);
    assert!(text.contains("which no rank of this node has told as its own"), "{text}");
    // One with the right number, who cannot answer.
    offers[0].process -= 1;
    let name = "headlong-test-of-a-liar".to_owned() + &std::process::id().to_string();
    let address = SocketAddr::from_abstract_name(&name).expect("a name");
    let listener = std::os::unix::net::UnixListener::bind_addr(&address).expect("a socket");
    offers[0].socket = Ok(name);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("the attachment comes");
            stream.write_all(&hello(Purpose::Memory, &[1; 32])).expect("a number");
            stream.read_exact(&mut [0; 312]).expect("a claim");
            stream.write_all(&[2; 59]).expect("a proof that is none, and no memory");
        });
        let text = refused(&offers);
        assert!(text.contains("has not handed out the memory"), "{text}");
    });
    drop(host);
    offers[0].socket = Ok("headlong-none-is-here".into());
    let text = refused(&offers);
    assert!(text.contains("cannot reach the socket of rank 0"), "{text}");
    assert!(text.contains("different containers or network namespaces"), "{text}");
}

/// The name of a socket is known to everybody on the machine: a queue that somebody has filled must
/// not hold up a rank.
#[test]
fn a_socket_whose_queue_is_full_is_given_up() {
    let ranks = tcp_support::job(2);
    let (mut offers, host) = offers(&ranks);
    drop(host);
    let name = "headlong-test-of-a-queue".to_owned() + &std::process::id().to_string();
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
    let socket = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .expect("a socket")
    };
    let listener = socket();
    rustix::net::bind(&listener, &address).expect("the name is free");
    rustix::net::listen(&listener, 1).expect("a queue");
    let peers: Vec<_> = (0..8).map(|_| socket()).collect();
    let full = peers
        .iter()
        .any(|attachment| rustix::net::connect(attachment, &address) == Err(Errno::AGAIN));
    assert!(full, "a short queue is full soon");
    offers[0].socket = Ok(name);
    let begin = Instant::now();
    let table = Table::new(&ranks[1], &offers);
    let text = table.meet(table.approach(None)).err().expect("no one takes it in");
    assert!(text.contains("cannot reach the socket of rank 0"), "{text}");
    assert!(begin.elapsed() < Duration::from_secs(9), "{:?}", begin.elapsed());
}
