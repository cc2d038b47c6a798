//! Everything that a NIC does, checked between two devices of this machine.

use crate::cable::{End, INLINE, LENGTH, connect};
use headlong_verbs::nic::{
    Action, CompletionKind, Nic, NicError, Patch, Provider as _, Receive, ReceiveQueue, Remote,
    Request, Status,
};
use headlong_verbs::sys::Verbs;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;
use std::time::Instant;

/// The exponent of the time for an answer that does not fire on a busy emulated machine: 2 s.
const SLOW: u8 = 19;
/// One that is over soon: 67 ms.
const QUICK: u8 = 14;
/// For ever.
const FOR_EVER: u8 = 7;

/// A check of a connection that nothing has gone over yet.
type Check = fn(&mut End, &mut End) -> Result<(), String>;

const CHECKS: &[(&str, Check)] = &[
    ("a write of many bytes from three pieces arrives, and nothing else changes", write),
    ("a write with an immediate says so, with bytes and without", write_immediate),
    ("bytes given inline may be changed at once", inline),
    ("a read brings the peer's bytes", read),
    ("adding and swapping bring what was there before", atomics),
    ("a send fills a receive", send),
    ("what completes ends a sleep, once", asleep),
    ("a prepared chain is posted again, changed", again),
    ("a wrong key is an error at the sender, and ends the connection", wrong_key),
    ("ending a connection flushes what was posted", flush),
];

/// Runs all checks.
pub fn run(device: &str, peer: &str) -> Result<(), String> {
    let verbs = Verbs::open().map_err(text)?;
    for found in verbs.devices().map_err(text)? {
        let gids: Vec<String> = found
            .ports
            .iter()
            .flat_map(|port| &port.gids)
            .map(|gid| format!("{}:{:?}", gid.address(), gid.kind))
            .collect();
        println!(
            "{}: numa {:?}, bus {:?}, {}",
            found.name,
            found.numa_node,
            found.path,
            gids.join(" ")
        );
    }
    let nic = verbs.open_nic(device).map_err(text)?;
    println!("{device}: {:?}; dmabuf: {:?}", nic.limits(), nic.dmabuf().map_err(text));
    let (from, to): (Arc<dyn Nic>, Arc<dyn Nic>) = (nic, verbs.open_nic(peer).map_err(text)?);
    let mut failed = Vec::new();
    let mut say = |name: &str, result: Result<(), String>| match result {
        Ok(()) => println!("TEST ok   raw: {name}"),
        Err(reason) => {
            println!("TEST FAIL raw: {name}: {reason}");
            failed.push(name.to_owned());
        }
    };
    for (name, check) in CHECKS {
        say(name, checked(&from, &to, SLOW, FOR_EVER, *check));
    }
    say(
        "a peer that is gone is an error after all retries",
        checked(&from, &to, QUICK, FOR_EVER, gone),
    );
    say(
        "a peer without receives is an error after all retries",
        checked(&from, &to, SLOW, 1, no_receive),
    );
    say("two connections share their receives", shared(&from, &to));
    say("a device that is not there is an error with the names of those that are", absent(&verbs));
    say("a queue of another NIC is refused", foreign(&from, &to));
    if failed.is_empty() { Ok(()) } else { Err(format!("raw: {} checks failed", failed.len())) }
}

fn text(error: NicError) -> String {
    error.to_string()
}

fn checked(
    from: &Arc<dyn Nic>,
    to: &Arc<dyn Nic>,
    timeout: u8,
    receiver_retries: u8,
    check: impl Fn(&mut End, &mut End) -> Result<(), String>,
) -> Result<(), String> {
    let mut a = End::new(from.clone(), None).map_err(text)?;
    let mut b = End::new(to.clone(), None).map_err(text)?;
    connect(&mut a, &mut b, timeout, receiver_retries).map_err(text)?;
    a.fill(pattern);
    check(&mut a, &mut b)
}

fn pattern(at: usize) -> u8 {
    (at * 31 + 7) as u8
}

/// That two values are equal; else what they are.
fn equal<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected {
        Ok(())
    } else {
        Err(format!("{what}: expected {expected:?}, found {found:?}"))
    }
}

fn write(a: &mut End, b: &mut End) -> Result<(), String> {
    // Odd places and lengths, more than one packet, from three pieces.
    let pieces = vec![a.segment(1, 20_001), a.segment(30_000, 7), a.segment(40_003, 10_000)];
    a.post(Action::Write(b.remote(5)), pieces, false).map_err(text)?;
    equal("kind", a.success()?.kind, CompletionKind::Write)?;
    // The sender's completion says that the peer's NIC has the bytes; rxe has written them by
    // then.
    let sent = (1..20_002).chain(30_000..30_007).chain(40_003..50_003).map(pattern);
    let expected: Vec<u8> =
        [0; 5].into_iter().chain(sent).chain(std::iter::repeat(0)).take(LENGTH).collect();
    equal("bytes at the peer are as sent", b.bytes() == expected, true)
}

fn write_immediate(a: &mut End, b: &mut End) -> Result<(), String> {
    for (id, length) in [(1, 0), (2, 4097)] {
        b.expect(id).map_err(text)?;
        let pieces = if length == 0 { vec![] } else { vec![a.segment(0, length)] };
        let immediate = 0xc0ff_ee00 + id as u32;
        a.post(Action::WriteImmediate(b.remote(0), immediate), pieces, false).map_err(text)?;
        a.success()?;
        let come = b.success()?;
        equal("receive", (come.id, come.kind), (id, CompletionKind::Immediate(immediate)))?;
        equal("bytes that came", come.bytes as usize, length)?;
        equal("queue pair", come.queue_pair, b.pair.number())?;
        let is_right = b
            .bytes()
            .iter()
            .enumerate()
            .all(|(at, byte)| *byte == if at < length { pattern(at) } else { 0 });
        equal("bytes are as sent", is_right, true)?;
    }
    Ok(())
}

fn inline(a: &mut End, b: &mut End) -> Result<(), String> {
    let length = INLINE as usize - 3;
    a.post(Action::Write(b.remote(8)), vec![a.segment(64, length)], true).map_err(text)?;
    a.fill(|_| 0xee);
    a.success()?;
    let expected: Vec<u8> = (64..64 + length).map(pattern).collect();
    equal("bytes as they were when posted", b.bytes()[8..8 + length].to_vec(), expected)?;
    let too_long =
        a.post(Action::Write(b.remote(0)), vec![a.segment(0, INLINE as usize + 1)], true);
    equal("too many bytes inline are refused", too_long.is_err(), true)
}

fn read(a: &mut End, b: &mut End) -> Result<(), String> {
    b.fill(|at| pattern(at) ^ 0x55);
    a.post(Action::Read(b.remote(3)), vec![a.segment(0, 30_001)], false).map_err(text)?;
    equal("kind", a.success()?.kind, CompletionKind::Read)?;
    let is_right =
        a.bytes()[..30_001].iter().enumerate().all(|(at, byte)| *byte == pattern(at + 3) ^ 0x55);
    equal("bytes are the peer's", is_right, true)
}

fn atomics(a: &mut End, b: &mut End) -> Result<(), String> {
    let word =
        |end: &End, at: usize| u64::from_ne_bytes(std::array::from_fn(|of| end.bytes()[at + of]));
    b.fill(|at| if at == 16 { 40 } else { 0 });
    a.post(Action::FetchAdd(b.remote(16), 2), vec![a.segment(0, 8)], false).map_err(text)?;
    equal("kind", a.success()?.kind, CompletionKind::Atomic)?;
    equal("before the sum, and the sum", (word(a, 0), word(b, 16)), (40, 42))?;
    let too_short = a.post(Action::FetchAdd(b.remote(16), 1), vec![a.segment(0, 4)], false);
    equal("four bytes for an answer of eight are refused", too_short.is_err(), true)
}

fn send(a: &mut End, b: &mut End) -> Result<(), String> {
    let receive = Receive { id: 9, segment: Some(b.segment(100, 50)) };
    b.pair.post_receives(&[receive]).map_err(text)?;
    a.post(Action::Send, vec![a.segment(7, 33)], false).map_err(text)?;
    equal("kind", a.success()?.kind, CompletionKind::Send)?;
    let come = b.success()?;
    equal("receive", (come.id, come.kind, come.bytes), (9, CompletionKind::Received, 33))?;
    equal("bytes", b.bytes()[100..133].to_vec(), (7..40).map(pattern).collect())
}

fn asleep(a: &mut End, b: &mut End) -> Result<(), String> {
    for id in [1, 2] {
        b.completions.arm().map_err(text)?;
        equal("asleep before anything is sent", ends_within(b, 20)?, false)?;
        b.expect(id).map_err(text)?;
        a.post(Action::WriteImmediate(b.remote(0), 1), vec![a.segment(0, 8)], false)
            .map_err(text)?;
        equal("woken by what has come", ends_within(b, 60_000)?, true)?;
        a.success()?;
        equal("receive", b.success()?.id, id)?;
    }
    Ok(())
}

/// Whether something completes at the end within so many ms.
fn ends_within(end: &End, ms: i64) -> Result<bool, String> {
    let events = end.completions.events().ok_or("no events")?;
    let time = Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
    let ready = poll(&mut [PollFd::new(&events, PollFlags::IN)], Some(&time));
    ready.map(|ready| ready == 1).map_err(|error| error.to_string())
}

fn again(a: &mut End, b: &mut End) -> Result<(), String> {
    let write = Request {
        id: 1,
        action: Action::Write(b.remote(0)),
        segments: vec![a.segment(0, 1), a.segment(1000, 1)],
        inline: false,
        signalled: false,
    };
    let arrived = Action::WriteImmediate(Remote { address: 0, key: 0 }, 0);
    let signal =
        Request { id: 2, action: arrived, segments: vec![], inline: false, signalled: true };
    let chain = a.prepare(&[write, signal]).map_err(text)?;
    for round in 0..100_u32 {
        b.expect(u64::from(round)).map_err(text)?;
        let length = round * 37 % 900 + 1;
        let patches = [
            Patch::Length { request: 0, segment: 0, length },
            Patch::Length { request: 0, segment: 1, length: 2 },
            Patch::Immediate { request: 1, immediate: round },
        ];
        a.post_again(chain, &patches).map_err(text)?;
        // Only the last request of the chain is signalled.
        equal("completion", a.success()?.id, 2)?;
        equal("arrival", b.success()?.kind, CompletionKind::Immediate(round))?;
        let (bytes, length) = (b.bytes(), length as usize);
        let is_right = (0..length).all(|at| bytes[at] == pattern(at))
            && (0..2).all(|at| bytes[length + at] == pattern(1000 + at))
            && bytes[length + 2..].iter().all(|byte| *byte == 0);
        equal(&format!("bytes of round {round}"), is_right, true)?;
        b.fill(|_| 0);
    }
    Ok(())
}

fn wrong_key(a: &mut End, b: &mut End) -> Result<(), String> {
    let wrong = Remote { key: b.remote(0).key ^ 0x10_0000, ..b.remote(0) };
    a.post(Action::Write(wrong), vec![a.segment(0, 100)], false).map_err(text)?;
    equal("status", a.completion()?.status, Status::RemoteAccess)?;
    equal("bytes at the peer", b.bytes().iter().all(|byte| *byte == 0), true)?;
    a.post(Action::Write(b.remote(0)), vec![a.segment(0, 1)], false).map_err(text)?;
    equal("status of what follows", a.completion()?.status, Status::Flushed)
}

fn flush(_: &mut End, b: &mut End) -> Result<(), String> {
    b.expect(3).map_err(text)?;
    b.expect(4).map_err(text)?;
    b.pair.fail().map_err(text)?;
    for id in [3, 4] {
        let completion = b.completion()?;
        equal("flushed", (completion.id, completion.status), (id, Status::Flushed))?;
    }
    Ok(())
}

fn gone(a: &mut End, b: &mut End) -> Result<(), String> {
    let at = b.remote(0);
    b.pair.fail().map_err(text)?;
    let begin = Instant::now();
    a.post(Action::Write(at), vec![a.segment(0, 1)], false).map_err(text)?;
    let completion = a.completion()?;
    println!("  a peer that is gone: {} after {:?}", completion.status, begin.elapsed());
    equal("status", completion.status, Status::RetriesExceeded)
}

fn no_receive(a: &mut End, b: &mut End) -> Result<(), String> {
    a.post(Action::WriteImmediate(b.remote(0), 1), vec![], false).map_err(text)?;
    equal("status", a.completion()?.status, Status::ReceiverNotReady)
}

fn shared(from: &Arc<dyn Nic>, to: &Arc<dyn Nic>) -> Result<(), String> {
    let queue: Arc<dyn ReceiveQueue> = to.receive_queue(64).map_err(text)?;
    let mut ends = Vec::new();
    for _ in 0..2 {
        let mut a = End::new(from.clone(), None).map_err(text)?;
        let mut b = End::new(to.clone(), Some(&queue)).map_err(text)?;
        connect(&mut a, &mut b, SLOW, FOR_EVER).map_err(text)?;
        ends.push((a, b));
    }
    queue
        .post(&(0..40).map(|id| Receive { id, segment: None }).collect::<Vec<_>>())
        .map_err(text)?;
    for round in 0..20_u32 {
        for (a, b) in &mut ends {
            a.post(Action::WriteImmediate(b.remote(0), round), vec![], false).map_err(text)?;
            a.success()?;
            equal("arrival", b.success()?.kind, CompletionKind::Immediate(round))?;
        }
    }
    equal("its own receives are refused", ends[0].1.expect(1).is_err(), true)
}

fn absent(verbs: &Verbs) -> Result<(), String> {
    let Err(error) = verbs.open_nic("mlx5_77") else { return Err("it was opened".to_owned()) };
    let error = error.to_string();
    equal("names both", error.contains("mlx5_77") && error.contains("rx"), true).map_err(|_| error)
}

fn foreign(from: &Arc<dyn Nic>, to: &Arc<dyn Nic>) -> Result<(), String> {
    let queue = to.receive_queue(8).map_err(text)?;
    let Err(error) = End::new(from.clone(), Some(&queue)) else {
        return Err("it was taken".to_owned());
    };
    equal("says so", error.to_string().contains("another NIC"), true)
}
