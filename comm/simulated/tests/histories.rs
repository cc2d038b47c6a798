//! Histories of the rendezvous, the TCP transport and its control channel.

use headlong_comm_simulated::histories::{Case, play_all};

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
