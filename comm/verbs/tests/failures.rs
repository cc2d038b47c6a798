//! What goes wrong with NICs, ports and cables is an error with a name, on all ranks, within its
//! time.

use crate::verbs_support::{Reach, job, on_all, settings, try_job};
use headlong_comm::transport::paths::PathTransport;
use headlong_comm::transport::{Incoming, Outgoing, StepId, Transport};
use headlong_comm::{CommError, Rank};
use headlong_verbs::fake::{Fabric, NetworkModel, roce_device};
use headlong_verbs::nic::{Limits, PortState, Status};
use headlong_verbs::{Signal, VerbsSettings};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Everybody sends everybody `bytes`, again and again; the error that ends it.
fn until_it_fails(transport: &PathTransport, bytes: usize) -> CommError {
    exchanges(transport, bytes, u64::MAX).expect_err("a loop without an end")
}

/// Everybody sends everybody `bytes`, so often.
fn exchanges(transport: &PathTransport, bytes: usize, times: u64) -> Result<(), CommError> {
    let (own, ranks) = (transport.rank().0, transport.topology().num_ranks());
    let peers: Vec<Rank> = (0..ranks).filter(|peer| *peer != own).map(Rank).collect();
    let (sent, mut received) = (vec![7; bytes], vec![vec![0; bytes]; peers.len()]);
    for sequence in 0..times {
        let id = StepId { sequence, step: 0, fingerprint: 5, operation: "test" };
        let outgoing: Vec<Outgoing> =
            peers.iter().map(|&to| Outgoing { to, bytes: &sent }).collect();
        let pairs = peers.iter().zip(&mut received);
        let mut incoming: Vec<Incoming> =
            pairs.map(|(&from, bytes)| Incoming { from, bytes }).collect();
        transport.exchange(&id, &outgoing, &mut incoming)?;
    }
    Ok(())
}

/// Ranks talk, `happens` happens, and all of them report the same within five seconds.
fn after(fabric: &Arc<Fabric>, happens: impl FnOnce() + Send) -> String {
    let ranks = job(fabric, (2, 1), Reach::All, &settings());
    let begin = Instant::now();
    let errors = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            happens();
        });
        on_all(&ranks, |rank| until_it_fails(rank, 3000))
    });
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}: {errors:?}", begin.elapsed());
    assert_eq!(errors[0], errors[1], "both report the same first error");
    errors[0].to_string()
}

#[test]
fn what_happens_on_the_way_is_named() {
    let fabric = || Fabric::rails(3, NetworkModel::ROUGH, 2, 1);
    let one = fabric();
    let text = after(&one, || one.cut(0, 1, true));
    assert!(
        text.contains("no answer from the peer") && text.contains("comm.verbs.timeout"),
        "{text}"
    );
    let one = fabric();
    let text = after(&one, || one.port_down(1, "fake0", 1));
    assert!(text.contains("port 1 is down") || text.contains("no answer from the peer"), "{text}");
    let one = fabric();
    let text = after(&one, || one.break_device(0, "fake0"));
    // Note: who notices first is a matter of chance: the device's own rank, or its peer, which gets
    // no answer.
    let seen = ["the device has failed", "flushed", "no answer from the peer"];
    assert!(seen.iter().any(|seen| text.contains(seen)), "{text}");
    let one = fabric();
    let text = after(&one, || one.fail_next_send(1, "fake0", Status::Other(17)));
    let seen = ["completion status 17", "has rank 1 ended?", "no answer from the peer"];
    assert!(seen.iter().any(|seen| text.contains(seen)), "{text}");
    let one = fabric();
    let text = after(&one, || one.kill_node(1));
    assert!(text.contains("fake0 port 1 (10.0.0.1"), "{text}");
}

/// What a rank that exchanges nothing hears within five seconds.
fn heard(transport: &PathTransport) -> Option<CommError> {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(5) {
        if let Err(error) = transport.check() {
            return Some(error);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

#[test]
fn a_nic_that_breaks_while_nothing_is_exchanged_is_named_within_seconds() {
    type Breaks = fn(&Fabric);
    let cases: [(Breaks, &str); 2] = [
        (|fabric| fabric.port_down(1, "fake0", 1), "fake0: port 1 is down"),
        (|fabric| fabric.break_device(1, "fake0"), "fake0: the device has failed"),
    ];
    for (breaks, said) in cases {
        let fabric = Fabric::rails(3, NetworkModel::ROUGH, 2, 1);
        let ranks = job(&fabric, (2, 1), Reach::All, &settings());
        assert!(ranks.iter().all(|rank| rank.check().is_ok()));
        breaks(&fabric);
        let errors = on_all(&ranks, heard);
        assert_eq!(errors[0], errors[1], "both report the same first error");
        let error = errors[0].as_ref().expect("within five seconds");
        assert_eq!(error.culprit(), Some(Rank(1)), "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test]
fn a_port_that_goes_down_and_comes_back_ends_nothing() {
    // It is sent again for longer than the port is down.
    let model = NetworkModel { retry: 1 << 40, ..NetworkModel::ROUGH };
    let fabric = Fabric::rails(3, model, 2, 1);
    let settings = VerbsSettings { retries: 7, ..settings() };
    let ranks = job(&fabric, (2, 1), Reach::All, &settings);
    fabric.port_down(1, "fake0", 1);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let fabric = &fabric;
        scope.spawn(move || {
            for _ in 0..2 {
                std::thread::sleep(Duration::from_millis(250));
                fabric.port_up(1, "fake0", 1);
                std::thread::sleep(Duration::from_millis(50));
                fabric.port_down(1, "fake0", 1);
            }
            fabric.port_up(1, "fake0", 1);
        });
        let ends = on_all(&ranks, |rank| exchanges(rank, 30_000, 2));
        assert!(ends.iter().all(Result::is_ok), "{ends:?}");
        assert!(
            begin.elapsed() >= Duration::from_millis(200),
            "nothing passes a port that is down"
        );
    });
    // And while no one exchanges anything, for longer than the device's events are looked at.
    fabric.port_down(1, "fake0", 1);
    std::thread::sleep(Duration::from_millis(700));
    fabric.port_up(1, "fake0", 1);
    std::thread::sleep(Duration::from_millis(400));
    let ends = on_all(&ranks, |rank| exchanges(rank, 3000, 1));
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
}

/// Connects two nodes; the error that both report.
fn refused(fabric: &Arc<Fabric>, settings: &(dyn Fn(usize) -> VerbsSettings + Sync)) -> String {
    let begin = Instant::now();
    let ends = try_job(fabric, (2, 1), Reach::All, settings);
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    let errors: Vec<CommError> =
        ends.into_iter().map(|end| end.map(drop).expect_err("refused")).collect();
    assert_eq!(errors[0], errors[1], "both report the same first error");
    errors[0].to_string()
}

#[test]
fn ranks_that_cannot_connect_say_why_to_all() {
    let with = |change: fn(&mut headlong_verbs::nic::Device)| {
        let mut device = roce_device(1, 0);
        change(&mut device);
        Fabric::new(5, NetworkModel::CALM, vec![vec![roce_device(0, 0)], vec![device]])
    };
    let text = refused(&with(|device| device.ports[0].state = PortState::Down), &|_| settings());
    assert!(text.contains("rank 1") && text.contains("fake0 port 1: it is down"), "{text}");
    let text = refused(&with(|device| device.ports[0].gids.truncate(2)), &|_| settings());
    assert!(text.contains("rank 1") && text.contains("good on one link only"), "{text}");
    let text = refused(&with(|device| device.ports[0].gids.truncate(3)), &|_| settings());
    assert!(text.contains("RoceV1") && text.contains("RoceV2"), "{text}");
    let other = |rank: usize| VerbsSettings { slot_bytes: 4096 << rank, ..settings() };
    let text = refused(&with(|_| {}), &other);
    assert!(text.contains("4096 bytes") && text.contains("8192 bytes"), "{text}");
    let unknown =
        |rank: usize| VerbsSettings { devices: vec![format!("fake{rank}")], ..settings() };
    let text = refused(&with(|_| {}), &unknown);
    assert!(text.contains("rank 1") && text.contains("comm.verbs.devices"), "{text}");
    let small = with(|_| {});
    let allowed = small.provider(0).open("fake0").expect("a NIC").limits();
    small.limit(Limits { completions: 20, ..allowed });
    let text = refused(&small, &|_| settings());
    // Four sends of each of three slots, twice as many receives, and some more.
    assert!(text.contains("fake0: 40 completions of one queue for 1 peers"), "{text}");
    assert!(text.contains("it allows 20: lower comm.verbs.slots"), "{text}");
    let never = |_| VerbsSettings { retries: 9, ..settings() };
    assert!(
        refused(&with(|_| {}), &never).contains("comm.verbs.retries: 9 is not between 0 and 7")
    );
}

#[test]
fn a_wire_that_swallows_everything_is_found_before_the_first_step() {
    let fabric = Fabric::rails(5, NetworkModel::CALM, 2, 1);
    fabric.cut(0, 1, true);
    let patient = VerbsSettings { patience: Duration::from_millis(300), timeout: 20, ..settings() };
    let text = refused(&fabric, &|_| patient.clone());
    assert!(
        text.contains("within 0.3 s although it is connected") || text.contains("no answer"),
        "{text}"
    );
}

#[test]
fn a_rank_in_another_operation_is_named_with_both() {
    let fabric = Fabric::rails(1, NetworkModel::ROUGH, 2, 1);
    for signal in [Signal::Immediate, Signal::Atomic] {
        let ranks = job(&fabric, (2, 1), Reach::All, &VerbsSettings { signal, ..settings() });
        let errors = on_all(&ranks, |rank| until_it_fails(rank, 4 + rank.rank().0));
        assert_eq!(errors[0], errors[1], "both report the same first error");
        let text = errors[0].to_string();
        assert!(matches!(errors[0], CommError::Mismatch { .. }), "{text}");
        assert!(text.contains("4 bytes") && text.contains("5 bytes"), "{text}");
    }
}

#[test]
fn an_own_failure_reaches_everybody_and_a_rank_that_leaves_is_missed() {
    let fabric = Fabric::rails(1, NetworkModel::ROUGH, 2, 1);
    let ranks = job(&fabric, (2, 1), Reach::All, &settings());
    let failure =
        CommError::Aborted { culprit: Rank(1), reason: "part 7, line 12: bad row".into() };
    let errors = on_all(&ranks, |rank| match rank.rank() {
        Rank(1) => {
            rank.abort(failure.clone());
            failure.clone()
        }
        _ => until_it_fails(rank, 100),
    });
    assert_eq!(errors, [failure.clone(), failure]);
    let mut ranks = job(&fabric, (2, 1), Reach::All, &settings());
    drop(ranks.remove(1));
    let error = until_it_fails(&ranks[0], 100);
    assert_eq!(error.culprit(), Some(Rank(1)), "{error}");
}
