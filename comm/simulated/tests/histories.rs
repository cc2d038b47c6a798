//! Histories of the rendezvous, the TCP transport and its control channel.

use headlong_comm_simulated::histories::{Case, find, play_all};
use headlong_comm_simulated::mistakes::MISTAKES;
use std::time::{SystemTime, UNIX_EPOCH};

#[test]
fn the_same_seed_gives_the_same_history() {
    let mut hashes = Vec::new();
    for seed in 0..60 {
        let play = || Case::new(seed).play().unwrap_or_else(|wrong| panic!("{wrong}"));
        let history = play();
        assert_eq!(history, play(), "seed {seed}");
        hashes.push(history.trace_hash);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 60, "every seed has a history of its own");
}

#[test]
fn fixed_seeds_to_500() {
    play_fixed(0);
}

#[test]
fn fixed_seeds_to_1000() {
    play_fixed(500);
}

#[test]
fn fixed_seeds_to_1500() {
    play_fixed(1000);
}

#[test]
fn fixed_seeds_to_2000() {
    play_fixed(1500);
}

fn play_fixed(first: u64) {
    let counts = play_all(first..first + 500);
    println!("{counts:?}");
    assert!(counts.befallen > 150, "{counts:?}: something failed in most that are not calm");
    assert!(counts.failed > 130, "{counts:?}: most of that was an error");
    assert!(counts.several > 60, "{counts:?}: often it was not alone");
}

/// Seeds that no one has tried: of the second in which this runs.
#[test]
fn new_seeds() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_secs();
    let first = now * 1000;
    println!("seeds from {first} on: {:?}", play_all(first..first + 500));
}

/// Each mistake is seen in the history of some seed.
#[test]
fn mistakes_are_found() {
    let mut unseen = Vec::new();
    for mistake in MISTAKES {
        // Where it was seen first, before all others.
        let seeds = std::iter::once(mistake.seed).chain(0..1000);
        match find(mistake.name, seeds) {
            Some((seed, wrong)) => println!("{}: seed {seed}: {wrong}", mistake.name),
            None => unseen.push(mistake.name),
        }
    }
    assert!(unseen.is_empty(), "not found: {unseen:?}");
}

#[test]
#[ignore = "some 20 minutes; `cargo xtask soak --only histories` runs it"]
fn soak_histories() {
    let half = |first: u64| play_all(first..first + 50_000);
    let counts = std::thread::scope(|scope| {
        let other = scope.spawn(|| half(1_050_000));
        [half(1_000_000), other.join().expect("its words are above")]
    });
    println!("100000 histories: {counts:?}");
}
