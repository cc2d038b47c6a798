//! No thread dies of what a peer sends on a control connection, and what is said about it
//! fits a terminal.

use super::control::{ControlThread, Ports};
use super::control_frame::{BusyRank, Control, FrameReader, Frames, Outbox, PeerAddress};
use super::health::{Health, Link};
use crate::error::CommError;
use crate::rendezvous::Deadlines;
use crate::rendezvous::channel::{Channel, MOST_BYTES, TAG_BYTES, pair};
use crate::system::Instant;
use crate::topology::{Rank, Topology};
use crate::transport::{CHOICE, GOODBYE, SET_UP, StepId};
use proptest::prelude::*;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const RANKS: usize = 3;

fn number() -> impl Strategy<Value = usize> {
    prop_oneof![0..=RANKS, any::<usize>(), Just(usize::MAX), Just(1_000_000)]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![".{0,20}", "[\\PC\u{1b}\r\n\u{202e}]{0,40}", Just("x\n".repeat(3000))]
}

fn error() -> impl Strategy<Value = CommError> {
    let rank = || number().prop_map(Rank);
    prop_oneof![
        (rank(), rank(), text(), any::<u64>(), any::<u64>()).prop_map(
            |(culprit, seen_by, operation, sequence, waited_ms)| CommError::Timeout {
                culprit,
                seen_by,
                operation,
                sequence,
                waited_ms
            }
        ),
        (rank(), rank(), text()).prop_map(|(culprit, seen_by, reason)| CommError::PeerLost {
            culprit,
            seen_by,
            reason
        }),
        (rank(), rank(), text(), text()).prop_map(|(culprit, seen_by, expected, found)| {
            CommError::Mismatch { culprit, seen_by, expected, found }
        }),
        (rank(), text()).prop_map(|(culprit, reason)| CommError::Aborted { culprit, reason }),
        (rank(), text(), text()).prop_map(|(seen_by, operation, reason)| CommError::Device {
            seen_by,
            operation,
            reason
        }),
        (text(), text()).prop_map(|(rank, reason)| CommError::Refused { rank, reason }),
        text().prop_map(|reason| CommError::Rendezvous { reason }),
        (text(), text()).prop_map(|(setting, reason)| CommError::Setting { setting, reason }),
        (text(), text()).prop_map(|(what, reason)| CommError::System { what, reason }),
    ]
}

fn frame() -> impl Strategy<Value = Control> {
    let peer = any::<u16>().prop_map(|port| PeerAddress { ip: None, port });
    let busy =
        (number(), text(), any::<u64>()).prop_map(|(rank, what, ms)| BusyRank { rank, what, ms });
    let table = (
        any::<u32>(),
        proptest::collection::vec(peer, 0..5),
        proptest::collection::vec(number(), 0..5),
    );
    prop_oneof![
        Just(Control::Wait),
        table.prop_map(|(epoch, peers, node_of)| Control::Table { epoch, peers, node_of }),
        (any::<u64>(), proptest::option::of(number()), proptest::collection::vec(busy, 0..3))
            .prop_map(|(progress, waiting_for, busy)| Control::Heartbeat {
                progress,
                waiting_for,
                busy
            }),
        (error(), any::<bool>())
            .prop_map(|(error, suspicion)| Control::Report { error, suspicion }),
        error().prop_map(|error| Control::Abort { error }),
        Just(Control::Goodbye),
        Just(Control::Farewell),
    ]
}

/// Frames, some of whose bytes were changed on the way.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let changes = proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..3);
    (proptest::collection::vec(frame(), 1..4), changes).prop_map(|(frames, changes)| {
        let mut bytes: Vec<u8> = frames.iter().flat_map(Control::to_bytes).collect();
        changes.into_iter().for_each(|(place, byte)| *place.get_mut(&mut bytes) = byte);
        bytes
    })
}

/// `bytes` as a peer with the keys sends them.
fn sealed(channel: Channel, bytes: &[u8]) -> Vec<u8> {
    let (mut sealer, _) = channel.split();
    let record = |bytes: &[u8]| {
        let mut record = vec![0; 2 + bytes.len() + TAG_BYTES];
        let (length, sealed) = record.split_at_mut(2);
        length.copy_from_slice(&(sealed.len() as u16).to_le_bytes());
        sealer.seal(bytes, sealed);
        record
    };
    bytes.chunks(MOST_BYTES).flat_map(record).collect()
}

/// What one rank sees of a job of three, and the far ends of its links with their keys.
fn rank(rank: usize) -> (ControlThread, Arc<Health>, Vec<(TcpStream, Channel)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peers: &[usize] = if rank == 0 { &[1, 2] } else { &[0] };
    let (mut links, mut readers, mut far) = (Vec::new(), Vec::new(), Vec::new());
    for &peer in peers {
        let (here, there) = pair();
        far.push((TcpStream::connect(listener.local_addr().unwrap()).unwrap(), there));
        let stream = listener.accept().unwrap().0;
        stream.set_nonblocking(true).unwrap();
        let (sealer, opener) = here.split();
        let outbox = Mutex::new(Outbox::new(sealer));
        links.push(Link { peer: Rank(peer), stream, outbox });
        readers.push(FrameReader::new(RANKS, opener));
    }
    let deadlines = Deadlines::default();
    let health = Arc::new(Health::new(Rank(rank), RANKS, links, deadlines.heartbeat).unwrap());
    (
        ControlThread::new(Arc::clone(&health), deadlines, readers, Ports::default(), None),
        health,
        far,
    )
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn a_rank_lives_on_whatever_it_is_sent(
        at in 0..RANKS, sent in bytes(), by_a_rank in prop::bool::weighted(0.8),
    ) {
        let (mut thread, health, mut far) = rank(at);
        let (mut stream, channel) = far.swap_remove(0);
        let sent = if by_a_rank { sealed(channel, &sent) } else { sent };
        // A frame may be longer than what a socket takes at once.
        stream.set_nonblocking(true).unwrap();
        let _ = stream.write(&sent);
        thread.turn(Instant::now());
        thread.wait(Duration::from_micros(200));
        thread.turn(Instant::now());
        if let Err(error) = health.check() {
            prop_assert!(error.culprit().is_none_or(|culprit| culprit.0 < RANKS), "{:?}", error);
            let text = error.to_string();
            prop_assert!(
                !text.contains(char::is_control) && text.chars().count() < 1400,
                "{}",
                text
            );
        }
    }
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn a_table_that_was_let_through_can_be_used(sent in bytes()) {
        let mut reader = Frames::new(RANKS);
        reader.push(&sent);
        while let Some(frame) = reader.next_frame() {
            if let Control::Table { peers, node_of, .. } = frame {
                prop_assert_eq!(peers.len(), RANKS);
                prop_assert_eq!(Topology::from_node_of(node_of).num_ranks(), RANKS);
            }
        }
        prop_assert!(
            reader.end().is_none_or(|end| !end.contains(char::is_control) && end.len() < 3000)
        );
    }
}

/// Whom a timeout names: the end of the line of waiting ranks, and one that has said goodbye before
/// something of it has come; of a circle the one that the rank that is least far waits for.
#[test]
fn who_is_waited_for_in_the_end_is_named() {
    /// Who waits for whom, in which step.
    type Waits<'a> = &'a [(usize, usize, u32)];
    let cases: [(Waits, Option<usize>, usize, usize); 8] = [
        (&[(1, 2, 0)], None, 1, 2),
        (&[(1, 2, 0), (2, 3, 0)], None, 1, 3),
        (&[(1, 2, 0), (2, 3, 0), (3, 2, 0)], None, 1, 2),
        (&[(1, 2, 0), (2, 3, 0), (3, 2, 1)], None, 1, 3),
        (&[(1, 2, 5), (2, 0, 5), (0, 1, 5)], None, 2, 2),
        (&[(1, 2, 4), (2, 0, 5), (0, 1, 6)], None, 1, 2),
        (&[(1, 2, 5), (2, 0, 4), (0, 1, 5)], None, 1, 0),
        (&[(1, 2, 0), (2, 0, 0), (0, 1, 0)], Some(1), 2, 1),
    ];
    for (waits, goodbye, first, named) in cases {
        let health = Health::new(Rank(0), 4, Vec::new(), Duration::from_secs(60)).unwrap();
        for &(rank, peer, step) in waits {
            let id = StepId { sequence: 0, step, fingerprint: 0, operation: "test" };
            match rank {
                0 => {
                    health.note_step(&id);
                    health.note_waiting(Some(Rank(peer)));
                }
                _ => health.note_heartbeat(Rank(rank), id.progress(), Some(peer), Vec::new()),
            }
        }
        goodbye.into_iter().for_each(|rank| health.note_goodbye(Rank(rank)));
        let late = health.late(Rank(first), "test", 0, Duration::ZERO);
        let culprit = health.resolve(late).culprit();
        assert_eq!(culprit, Some(Rank(named)), "{waits:?}, {goodbye:?}");
    }
}

/// A rank that was heard of just before a stop of this one has not been silent in it.
#[test]
fn a_rank_that_was_stopped_still_knows_who_waits_for_whom() {
    let (mut thread, health, _far) = rank(0);
    health.note_heartbeat(Rank(1), 0, Some(2), Vec::new());
    let (pause, stop) = (Duration::from_millis(200), Duration::from_secs(3600));
    thread.pass(Instant::now(), stop, pause);
    let late = || health.resolve(health.late(Rank(1), "test", 0, Duration::ZERO)).culprit();
    assert_eq!(late(), Some(Rank(2)));
    (0..20).for_each(|_| thread.pass(Instant::now(), pause, pause));
    assert_eq!(late(), Some(Rank(1)), "what rank 1 said is out of date");
}

/// From the choice of paths to the goodbye, over a network as well.
#[test]
fn later_steps_are_further() {
    let step = |sequence, step, operation| StepId { sequence, step, fingerprint: 0, operation };
    let job = [
        step(0, 0, CHOICE),
        step(0, 1, CHOICE),
        step(2, 0, CHOICE),
        step(SET_UP, 0, "verbs"),
        step(SET_UP, 1, "verbs"),
        step(SET_UP + 2, 0, "verbs"),
        step(0, 0, "all_reduce"),
        step(0, 5, "all_reduce"),
        step(1, 0, "all_reduce"),
        step(1 << 40, 0, "all_reduce"),
        step(GOODBYE, 0, "goodbye"),
    ];
    assert!(job.is_sorted_by(|one, later| one.progress() < later.progress()));
}

/// The frames of which threads have died before they were looked at.
#[test]
fn ranks_and_nodes_that_there_are_not_end_the_connection() {
    let late = |culprit, seen_by| {
        let (operation, sequence, waited_ms) = ("all_reduce".to_owned(), 1, 5);
        let (culprit, seen_by) = (Rank(culprit), Rank(seen_by));
        CommError::Timeout { culprit, seen_by, operation, sequence, waited_ms }
    };
    let table = |node_of: [usize; RANKS]| {
        let peers = vec![PeerAddress { ip: None, port: 1 }; RANKS];
        Control::Table { epoch: 1, peers, node_of: node_of.into() }
    };
    let heartbeat = |waiting_for, rank| {
        let busy = vec![BusyRank { rank, what: "saves".into(), ms: 1 }];
        Control::Heartbeat { progress: 0, waiting_for, busy }
    };
    let frames = [
        (
            Control::Report { error: late(RANKS, 0), suspicion: true },
            "an error of rank 3, and there are 3 ranks",
        ),
        (
            Control::Report { error: late(1_000_000, 0), suspicion: true },
            "an error of rank 1000000",
        ),
        (Control::Abort { error: late(0, usize::MAX) }, "an error of rank 18446744073709551615"),
        (heartbeat(Some(RANKS), 0), "that it waits for rank 3"),
        (heartbeat(None, RANKS), "that rank 3 is busy"),
        (table([0, 0, 1 << 60]), "a table with node 1152921504606846976"),
        (table([0, 0, usize::MAX]), "a table with node 18446744073709551615"),
        (
            Control::Table { epoch: 1, peers: Vec::new(), node_of: vec![0; RANKS] },
            "a table of 0 ranks",
        ),
    ];
    for (frame, words) in frames {
        let mut reader = Frames::new(RANKS);
        reader.push(&frame.to_bytes());
        assert_eq!(reader.next_frame(), None, "{frame:?}");
        assert!(
            reader.end().is_some_and(|end| end.contains(words)),
            "{frame:?}: {:?}",
            reader.end()
        );
    }
}

/// Rank 0 tells all who is busy. The others tell only of themselves: else each would repeat to rank
/// 0 what rank 0 has told it.
#[test]
fn a_rank_repeats_nothing_that_rank_0_has_told() {
    for (own, peer, told) in [(2, 0, &[][..]), (0, 1, &[1])] {
        let (_, health, _far) = rank(own);
        let busy = vec![BusyRank { rank: 1, what: "saves".into(), ms: 200 }];
        health.note_heartbeat(Rank(peer), 0, None, busy);
        assert_eq!(health.busy_ranks().len(), 1);
        let Control::Heartbeat { busy, .. } = health.heartbeat() else { unreachable!("it is one") };
        assert_eq!(busy.iter().map(|busy| busy.rank).collect::<Vec<_>>(), told, "rank {own}");
    }
}

/// A thread that panics all the same is this rank's failure, which the others hear of.
#[test]
fn a_panic_of_the_control_thread_is_the_jobs_error() {
    let (_, health, mut far) = rank(0);
    // A reader without a link: what no caller does.
    let readers = (0..RANKS).map(|_| FrameReader::new(RANKS, pair().0.split().1)).collect();
    ControlThread::new(Arc::clone(&health), Deadlines::default(), readers, Ports::default(), None)
        .run();
    let words = "rank 0 has failed: its thread comm-control has panicked: index out of bounds";
    assert!(health.check().unwrap_err().to_string().starts_with(words), "{:?}", health.check());
    let (stream, channel) = far.swap_remove(1);
    let mut reader = FrameReader::new(RANKS, channel.split().1);
    for _ in 0..2000 {
        reader.receive(&stream);
        match reader.next_frame() {
            Some(Control::Abort { error }) => return assert!(error.to_string().starts_with(words)),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    panic!("nothing came");
}
