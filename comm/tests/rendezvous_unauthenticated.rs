//! Unauthenticated at the listener: whatever they do, the job starts, in bounded memory.

use crate::tcp_support::{job_options, join_all, rank_program, reserve_port};
use headlong_comm::launcher_env::SecretSource;
use headlong_comm::rendezvous::Keys;
use headlong_comm::rendezvous::dial::Dial;
use headlong_comm::rendezvous::handshake::{Claims, Purpose};
use headlong_comm::rendezvous::proof::Secret;
use headlong_comm::rendezvous::trust::Trust;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Runs a job of two while `molest` is called again and again with the address of its listener;
/// then the job must start.
fn start_among(unauthenticated: &(dyn Fn(SocketAddr) + Sync), how_many: u64) {
    let port = reserve_port();
    let address: SocketAddr = ([127, 0, 0, 1], port.port).into();
    let (done, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let begin = Instant::now();
    let mut all = job_options(2, port.port);
    let late = all.pop().expect("two ranks");
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    unauthenticated(address);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let first = scope.spawn(|| join_all(all));
        // Rank 1 comes when the flood has been on for a while, and continues.
        while count.load(Ordering::Relaxed) < how_many {
            assert!(
                begin.elapsed() < Duration::from_secs(15),
                "{} unauthenticated",
                count.load(Ordering::Relaxed)
            );
            thread::sleep(Duration::from_millis(2));
        }
        let second = join_all(vec![late]);
        done.store(true, Ordering::Relaxed);
        assert!(second.iter().all(Result::is_ok), "{second:?}");
        let first = first.join().expect("no panic");
        assert!(first.iter().all(Result::is_ok), "{first:?}");
    });
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
}

fn connect(address: SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok()?;
    stream.set_read_timeout(Some(Duration::from_millis(200))).ok()?;
    Some(stream)
}

fn memory_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("a line VmRSS");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

#[test]
fn ten_thousand_garbage_connections_during_the_start() {
    let before = memory_kib();
    let garbage = |address| {
        let Some(mut stream) = connect(address) else { return };
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: you\r\n\r\n");
        let _ = stream.read(&mut [0; 64]);
    };
    start_among(&garbage, 10_000);
    let grown = memory_kib().saturating_sub(before);
    assert!(grown < 32 << 10, "{grown} KiB more");
}

#[test]
fn port_scanners_that_leave_at_once() {
    start_among(&|address| drop(connect(address)), 500);
}

/// They hold their connection and say nothing: when the table is full, the oldest of them has to
/// go.
#[test]
fn those_who_connect_and_say_nothing() {
    let held = std::sync::Mutex::new(std::collections::VecDeque::new());
    let silent = |address| {
        let mut held = held.lock().expect("no panic");
        held.extend(connect(address));
        if held.len() > 400 {
            held.pop_front();
        }
        thread::sleep(Duration::from_micros(300));
    };
    start_among(&silent, 600);
}

#[test]
fn slow_ones_and_those_with_a_right_beginning_and_too_much_after_it() {
    let slow = |address| {
        let Some(mut stream) = connect(address) else { return };
        let _ = stream.write_all(b"headlng3");
        thread::sleep(Duration::from_millis(5));
        let _ = stream.write_all(&[0xff; 4096]);
        let _ = stream.read(&mut [0; 64]);
    };
    start_among(&slow, 100);
}

/// A rank of a job of two without a secret, as this user or as an unprivileged one; `None` where it
/// cannot be started.
fn without_secret(rank: usize, port: u16, unprivileged: bool) -> Option<Child> {
    let mut command = Command::new(rank_program());
    command.args(["--steps", "3", "--rendezvous-ms", "5000"]).env_clear();
    command.env("HEADLONG_RANK", rank.to_string()).env("HEADLONG_WORLD_SIZE", "2");
    command.env("HEADLONG_MASTER_ADDR", "127.0.0.1").env("HEADLONG_MASTER_PORT", port.to_string());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    if unprivileged {
        command.uid(65534);
    }
    command.spawn().ok()
}

fn end_of(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().expect("an own child");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

/// Without a secret, ranks are processes of one user: another one's is not let in, and does not end
/// the job either.
#[test]
fn another_users_process_is_no_rank_of_a_job_without_a_secret() {
    let port = reserve_port();
    let rank_0 = without_secret(0, port.port, false).expect("starts");
    let Some(other) = without_secret(1, port.port, true) else {
        println!("skipped, because only root may start processes of another user");
        assert_eq!(end_of(without_secret(1, port.port, false).expect("starts")).0, Some(0));
        assert_eq!(end_of(rank_0).0, Some(0));
        return;
    };
    // It does not trust rank 0 either.
    let (code, text) = end_of(other);
    assert!(
        code == Some(3) && text.contains("it is a process of user 0, expected user 65534"),
        "{code:?} {text}"
    );
    let rank_1 = without_secret(1, port.port, false).expect("starts");
    let (code, text) = end_of(rank_0);
    assert!(code == Some(0) && text.contains("any process of this user"), "{code:?} {text}");
    assert_eq!(end_of(rank_1).0, Some(0));
}

/// A process that asks nothing of rank 0 itself is still another user's.
#[test]
fn rank_0_does_not_hear_another_users_proof() {
    let port = reserve_port();
    let secret = Secret::load(&SecretSource::None, "job").expect("there is none to read");
    let keys = Keys { secret, trust: Trust::Anybody };
    let mut rank_0 = Command::new(rank_program());
    rank_0
        .args(["--rendezvous-ms", "2000"])
        .env_clear()
        .env("HEADLONG_RANK", "0")
        .env("HEADLONG_WORLD_SIZE", "2");
    rank_0
        .env("HEADLONG_MASTER_ADDR", "127.0.0.1")
        .env("HEADLONG_MASTER_PORT", port.port.to_string());
    rank_0.stdout(Stdio::null()).stderr(Stdio::piped()).uid(65534);
    let Ok(rank_0) = rank_0.spawn() else {
        println!("skipped, because only root may start processes of another user");
        return;
    };
    let dial = Dial {
        host: "127.0.0.1",
        port: port.port,
        name: "rank 0",
        purpose: Purpose::Rendezvous,
        rank: 1,
        keys: &keys,
        deadline: Instant::now() + Duration::from_secs(2),
        patience: Duration::from_secs(1),
        notice: None,
    };
    let claims = Claims { rank: 1, world_size: 99, ..Claims::default() };
    let refused = dial.connect(&mut |_| Ok(claims.clone()), &|| Ok(()));
    assert!(refused.is_err(), "root is another user than the one without privileges");
    let (code, text) = end_of(rank_0);
    assert!(code == Some(3) && text.contains("rank 1 of 2 did not come within"), "{code:?} {text}");
    assert!(text.contains("of another user: a job of several users needs a secret"), "{text}");
}
