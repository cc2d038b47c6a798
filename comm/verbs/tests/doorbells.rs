//! A rank that sleeps is woken by what comes over its NIC.

use crate::verbs_support::{controls, settings};
use headlong_comm::Rank;
use headlong_comm::transport::Transport as _;
use headlong_comm::transport::paths::{Head, Progress};
use headlong_verbs::fake::{Fabric, NetworkModel};
use headlong_verbs::{Connected, Signal, VerbsSettings, connect};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Sleeps that nothing ends last this long.
const LONG: Duration = Duration::from_secs(20);

/// Two ranks, each on a node of its own.
fn two(fabric: &Arc<Fabric>, settings: &VerbsSettings) -> [Connected; 2] {
    // A rank that leaves ends the others' connecting, so they leave together.
    let controls = controls(2, 1, LONG);
    let connected: Vec<Connected> = thread::scope(|scope| {
        let ranks = controls.iter().map(|control| {
            scope.spawn(move || {
                let (me, provider) = (control.rank().0, fabric.provider(control.rank().0));
                connect(&**control, settings, &*provider, &[Rank(1 - me)], &mut Vec::new())
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic").expect("a path")).collect()
    });
    <[Connected; 2]>::try_from(connected).unwrap_or_else(|_| panic!("two ranks"))
}

fn head(step: u32) -> Head {
    Head { epoch: 0, sequence: 0, step, fingerprint: 0, length: 0 }
}

/// Sends a message of no bytes to the other rank while it sleeps; how long it slept.
fn sent_while_asleep(fabric: &Fabric, [asleep, awake]: &mut [Connected; 2], step: u32) -> Duration {
    let doorbell = asleep.doorbell.as_deref().expect("immediates ring");
    let seen = doorbell.listen();
    let idle = asleep.paths[0].1.receive(&head(step), &mut [], &mut 0).expect("a path");
    assert_eq!(idle, Progress::Idle, "nothing was sent yet");
    let woken = AtomicBool::new(false);
    thread::scope(|scope| {
        let (woken, begun) = (&woken, Instant::now());
        let sleeper = scope.spawn(move || {
            doorbell.wait(seen, LONG);
            woken.store(true, Ordering::Relaxed);
            begun.elapsed()
        });
        // A slot may be on its way back still.
        let mut sent = Ok(Progress::Idle);
        while sent == Ok(Progress::Idle) {
            sent = awake.paths[0].1.send(&head(step), &[], &mut 0);
        }
        assert_eq!(sent, Ok(Progress::Done));
        while !woken.load(Ordering::Relaxed) {
            fabric.pass();
            thread::sleep(Duration::from_micros(50));
        }
        sleeper.join().expect("no panic")
    })
}

#[test]
fn what_comes_ends_a_sleep_each_time() {
    let fabric = Fabric::rails(11, NetworkModel::ROUGH, 2, 1);
    fabric.enable_events();
    let mut ranks = two(&fabric, &settings());
    for step in 0..20 {
        let slept = sent_while_asleep(&fabric, &mut ranks, step);
        assert!(slept < LONG / 2, "message {step} ended a sleep of {slept:?}");
        // Its own completions, too, end a sleep, and need not say that a message is there.
        while ranks[0].paths[0].1.receive(&head(step), &mut [], &mut 0) == Ok(Progress::Idle) {}
        for rank in &mut ranks {
            while rank.paths[0].1.flush() != Ok(Progress::Done) {}
        }
    }
    // Whatever has come before is forgotten.
    let doorbell = ranks[0].doorbell.as_deref().expect("immediates ring");
    let (seen, begun) = (doorbell.listen(), Instant::now());
    doorbell.wait(seen, Duration::from_millis(30));
    assert!(begun.elapsed() >= Duration::from_millis(30), "woke after {:?}", begun.elapsed());
}

/// Atomics are no completions at the rank whose memory they change: it naps.
#[test]
fn where_nothing_would_ring_there_is_no_doorbell() {
    let fabric = Fabric::rails(12, NetworkModel::CALM, 2, 1);
    fabric.enable_events();
    let atomic = two(&fabric, &VerbsSettings { signal: Signal::Atomic, ..settings() });
    let without = two(&Fabric::rails(13, NetworkModel::CALM, 2, 1), &settings());
    for rank in atomic.iter().chain(&without) {
        assert!(rank.doorbell.is_none());
        assert_eq!(rank.paths[0].1.rings(), None);
    }
}
