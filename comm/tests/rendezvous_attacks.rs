//! An attacker who has read the source, but not the secret: nothing is let in, nothing ends, and
//! rank 0's memory stays within bounds.

use crate::tcp_support::{ReservedPort, rank_program, reserve_port};
use headlong_comm::CommError;
use headlong_comm::Rank;
use headlong_comm::launcher_env::SecretSource;
use headlong_comm::rendezvous::handshake::{
    Asking, CLAIM_BYTES, Claims, HELLO_BYTES, HelloFrame, MAGIC,
};
use headlong_comm::rendezvous::proof::Secret;
use headlong_comm::transport::tcp::control_frame::Control;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Connections of the flood.
const FLOOD: usize = 10_000;
const MOST_KIB: usize = 64 << 10;
/// More than any test waits for.
const RUN: [&str; 6] = ["--steps", "100000", "--step-ms", "10", "--elements", "100"];
const PATIENCE: Duration = Duration::from_millis(300);

struct Process(Child);

impl Process {
    fn start(rank: usize, master_port: u16, arguments: &[&str]) -> Self {
        let child = Command::new(rank_program())
            .args(["--rendezvous-ms", "15000", "--operation-ms", "10000"])
            .args(arguments)
            .env_clear()
            .env("HEADLONG_RANK", rank.to_string())
            .env("HEADLONG_WORLD_SIZE", "2")
            .env("HEADLONG_MASTER_ADDR", "127.0.0.1")
            .env("HEADLONG_MASTER_PORT", master_port.to_string())
            .env("HEADLONG_JOB", "the job")
            .env("HEADLONG_SECRET", "the secret of the test")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Self(child.expect("a rank starts"))
    }

    /// Reads on until a line has these words; afterwards its output is read and dropped.
    fn wait_for(&mut self, words: &str) {
        let mut lines = BufReader::new(self.0.stdout.take().expect("read once"));
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            assert!(lines.read_line(&mut line).expect("text") > 0, "ended before `{words}`");
        }
        thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
    }

    /// KiB of a line of the kernel's: `VmRSS`, `VmHWM`.
    fn memory(&self, name: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()));
        let status = status.expect("it runs");
        let line = status.lines().find(|line| line.starts_with(name)).expect("the kernel's line");
        line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
    }

    fn is_running(&mut self) -> bool {
        self.0.try_wait().expect("an own child").is_none()
    }

    fn end(mut self) -> (Option<i32>, String) {
        let mut errors = String::new();
        let mut stderr = self.0.stderr.take().expect("a pipe");
        stderr.read_to_string(&mut errors).expect("text");
        (self.0.wait().expect("an own child").code(), errors)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What went through a [`relay`]: both ends of the connection, and what the rank has sent.
#[derive(Default)]
struct Heard {
    by_rank: Vec<u8>,
    all: Vec<u8>,
    to_host: Option<TcpStream>,
    to_rank: Option<TcpStream>,
}

/// One who sits between a rank and rank 0, and writes down all that passes.
fn relay(host: u16) -> (u16, Arc<Mutex<Heard>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("its address").port();
    let heard: Arc<Mutex<Heard>> = Arc::default();
    let shared = Arc::clone(&heard);
    thread::spawn(move || {
        for rank in listener.incoming() {
            let Ok(rank) = rank else { return };
            let Ok(host) = TcpStream::connect(("127.0.0.1", host)) else { continue };
            let clone = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
            let mut heard = shared.lock().expect("no panic");
            *heard = Heard {
                to_host: Some(clone(&host)),
                to_rank: Some(clone(&rank)),
                ..Heard::default()
            };
            pass(clone(&rank), clone(&host), Arc::clone(&shared), true);
            pass(host, rank, Arc::clone(&shared), false);
        }
    });
    (port, heard)
}

fn pass(mut from: TcpStream, mut to: TcpStream, heard: Arc<Mutex<Heard>>, by_rank: bool) {
    thread::spawn(move || {
        let mut room = [0; 4096];
        while let Ok(received @ 1..) = from.read(&mut room) {
            let mut heard = heard.lock().expect("no panic");
            heard.all.extend(&room[..received]);
            if by_rank {
                heard.by_rank.extend(&room[..received]);
            }
            if to.write_all(&room[..received]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

/// A connection to rank 0, and what it says to anybody.
fn visit(host: u16) -> Option<(TcpStream, HelloFrame)> {
    let address = SocketAddr::from(([127, 0, 0, 1], host));
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello).ok()?;
    Some((stream, hello))
}

/// Whether anything was answered, until the host closes or falls silent.
fn is_answered(mut stream: &TcpStream) -> bool {
    matches!(stream.read(&mut [0; 64]), Ok(1..))
}

/// A report that names a culprit, and an end for all.
fn lies() -> Vec<u8> {
    let lost = |culprit| CommError::PeerLost {
        culprit: Rank(culprit),
        seen_by: Rank(1),
        reason: "an unauthenticated peer says so".into(),
    };
    [
        Control::Report { error: lost(1), suspicion: false },
        Control::Report { error: lost(1_000_000), suspicion: true },
        Control::Abort { error: lost(0) },
        Control::Goodbye,
    ]
    .iter()
    .flat_map(Control::to_bytes)
    .collect()
}

fn claims(rank: u32) -> Claims {
    Claims { rank, world_size: 2, job: "the job".into(), ..Claims::default() }
}

/// Claims of all kinds with another secret, without one, and with the key of a job that has none.
fn join_without_the_secret(host: u16) {
    let value = |text: &[u8]| SecretSource::Value(text.into());
    for source in [value(b"another secret of 16"), SecretSource::None] {
        let secret = Secret::load(&source, "the job").expect("it can be used");
        for rank in [0, 1, 2, u32::MAX] {
            let (mut stream, hello) = visit(host).expect("rank 0 listens");
            let (_, claim) = Asking::claim(&secret, &hello, &claims(rank)).expect("random bytes");
            stream.write_all(&claim).expect("it is taken");
            assert!(!is_answered(&stream), "rank {rank} without the secret was answered");
        }
    }
}

/// What a rank has proven once proves nothing again.
fn replay(host: u16, by_rank: &[u8]) {
    assert!(by_rank.len() >= CLAIM_BYTES, "a claim was heard");
    for length in [CLAIM_BYTES, by_rank.len()] {
        let (mut stream, _) = visit(host).expect("rank 0 listens");
        let _ = stream.write_all(&by_rank[..length]);
        assert!(!is_answered(&stream), "a claim that was recorded was answered");
    }
}

/// Words of the control channel from one who is not on it.
fn speak_without_being_let_in(host: u16) {
    for before in [&[][..], &MAGIC, &[0; CLAIM_BYTES]] {
        let (mut stream, _) = visit(host).expect("rank 0 listens");
        let _ = stream.write_all(&[before, &lies()].concat());
        assert!(!is_answered(&stream));
    }
}

/// A claim without end, frames that say that they are of gigabytes.
fn giant_claims(host: u16) {
    for _ in 0..20 {
        let (mut stream, _) = visit(host).expect("rank 0 listens");
        let _ = stream.set_write_timeout(Some(PATIENCE));
        let _ = stream.write_all(&MAGIC);
        while stream.write_all(&[0xff; 1 << 16]).is_ok() {}
        let (mut stream, _) = visit(host).expect("rank 0 listens");
        let _ = stream.write_all(&u32::MAX.to_le_bytes());
        assert!(!is_answered(&stream));
    }
}

/// Two threads that connect and leave, and garbage in between.
fn flood(host: u16) {
    let address = SocketAddr::from(([127, 0, 0, 1], host));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || {
                for number in 0..FLOOD / 2 {
                    let stream = TcpStream::connect_timeout(&address, PATIENCE);
                    let Ok(mut stream) = stream else { continue };
                    match number % 3 {
                        0 => {}
                        1 => drop(stream.write_all(b"GET / HTTP/1.1\r\n\r\n")),
                        _ => drop(stream.write_all(&MAGIC)),
                    }
                }
            });
        }
    });
}

/// Many who say a right byte now and then.
fn slow_talkers(host: u16) -> Vec<TcpStream> {
    let mut held: Vec<TcpStream> =
        (0..400).filter_map(|_| visit(host).map(|(stream, _)| stream)).collect();
    for byte in MAGIC {
        held.iter_mut().for_each(|stream| drop(stream.write_all(&[byte])));
        thread::sleep(Duration::from_millis(20));
    }
    held
}

/// All of it against a job that comes together and runs.
#[test]
fn an_attacker_without_the_secret_gets_nothing_and_ends_nothing() {
    let port: ReservedPort = reserve_port();
    let (middle, heard) = relay(port.port);
    let until = tempfile::NamedTempFile::new().expect("a file");
    let until_name = until.path().to_str().expect("text");
    let run = &[&RUN[..], &["--while-there", until_name]].concat();
    let mut rank_0 = Process::start(0, port.port, run);
    let begin = Instant::now();
    while visit(port.port).is_none() {
        assert!(begin.elapsed() < Duration::from_secs(10), "rank 0 does not listen");
        thread::sleep(Duration::from_millis(5));
    }
    let before = rank_0.memory("VmRSS");
    let attack = |by_rank: Option<&[u8]>| {
        join_without_the_secret(port.port);
        speak_without_being_let_in(port.port);
        by_rank.into_iter().for_each(|by_rank| replay(port.port, by_rank));
        giant_claims(port.port);
        slow_talkers(port.port)
    };
    let held = attack(None);
    let mut rank_1 = Process::start(1, middle, run);
    rank_1.wait_for("step 0");
    rank_0.wait_for("step 0");
    let by_rank = heard.lock().expect("no panic").by_rank.clone();
    let held_too = attack(Some(&by_rank));
    flood(port.port);
    assert!(rank_0.is_running() && rank_1.is_running(), "the attack came during the job");
    let grown = rank_0.memory("VmHWM").saturating_sub(before);
    assert!(grown < MOST_KIB, "{grown} KiB more");
    drop((held, held_too, until));
    for rank in [rank_0, rank_1] {
        let (code, errors) = rank.end();
        assert_eq!(code, Some(0), "{errors}");
        let is_quiet = !errors.contains("panicked") && !errors.contains("gone");
        assert!(is_quiet, "{errors}");
    }
    let all = &heard.lock().expect("no panic").all;
    for word in [&b"Heartbeat"[..], b"Goodbye", b"the job", b"the secret"] {
        assert!(!all.windows(word.len()).any(|bytes| bytes == word), "{word:?} was readable");
    }
}

/// One on the path can cut a connection, as by its cable; it cannot speak for a rank.
#[test]
fn words_that_are_injected_after_the_handshake_are_not_obeyed() {
    for to_host in [true, false] {
        let port = reserve_port();
        let (middle, heard) = relay(port.port);
        let mut ranks = [Process::start(0, port.port, &RUN), Process::start(1, middle, &RUN)];
        ranks.iter_mut().for_each(|rank| rank.wait_for("step 1"));
        {
            let heard = heard.lock().expect("no panic");
            let stream = if to_host { &heard.to_host } else { &heard.to_rank };
            let mut stream = stream.as_ref().expect("rank 1 came this way");
            stream.write_all(&lies()).expect("the path is the attacker's");
        }
        let mut found = 0;
        for rank in ranks {
            let (code, errors) = rank.end();
            assert_eq!(code, Some(3), "{errors}");
            assert!(!errors.contains("says so") && !errors.contains("panicked"), "{errors}");
            found += usize::from(errors.contains("does not open"));
        }
        assert!(found > 0, "what was injected is named");
    }
}
