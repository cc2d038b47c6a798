//! Histories of the rendezvous, the TCP transport and its control channel.

use headlong_comm_simulated::histories::{Case, find, play_all};
use headlong_comm_simulated::mistakes::MISTAKES;

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..30 {
        let play = || Case::new(seed).play().unwrap_or_else(|wrong| panic!("{wrong}"));
        assert_eq!(play(), play(), "seed {seed}");
    }
}

#[test]
fn histories_0() {
    let failed = play_all(0..500);
    println!("{failed}");
}

/// Each mistake is seen in the history of some seed.
#[test]
fn mistakes_are_found() {
    let mut unseen = Vec::new();
    for mistake in MISTAKES {
        match find(mistake.name, 0..1000) {
            Some((seed, wrong)) => println!("{}: seed {seed}: {wrong}", mistake.name),
            None => unseen.push(mistake.name),
        }
    }
    assert!(unseen.is_empty(), "not found: {unseen:?}");
}
