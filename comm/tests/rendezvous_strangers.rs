//! Strangers at the door: whatever they do, the job starts, in bounded memory.

use crate::tcp_support::{job_options, join_all, reserve_port};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Runs a job of two while `molest` is called again and again with the address of its door; then the job must start.
fn start_among(strangers: &(dyn Fn(SocketAddr) + Sync), how_many: u64) {
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
                    strangers(address);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let first = scope.spawn(|| join_all(all));
        // Rank 1 comes when the flood has been on for a while, and goes on.
        while count.load(Ordering::Relaxed) < how_many {
            assert!(begin.elapsed() < Duration::from_secs(15), "{} strangers", count.load(Ordering::Relaxed));
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

/// They hold their connection and say nothing: when the room is full, the oldest of them has to go.
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
        let _ = stream.write_all(b"headlng1");
        thread::sleep(Duration::from_millis(5));
        let _ = stream.write_all(&[0xff; 4096]);
        let _ = stream.read(&mut [0; 64]);
    };
    start_among(&slow, 100);
}
