//! Each rule of ordering is needed: without it, some seed finds wrong bytes, a stuck rank, or what
//! a card forbids.

use super::super::mistake::Mistake;
use super::super::settings::Signal;
use super::flow::finds;

const SEEDS: std::ops::Range<u64> = 0..40;

#[test]
fn every_broken_rule_is_found_out() {
    let both = [Signal::Immediate, Signal::Atomic];
    let cases: [(Mistake, &[Signal], &[&str]); 7] = [
        (Mistake::SignalFirst, &both, &["other bytes", "something else"]),
        (Mistake::SignalElsewhere, &both, &["other bytes", "something else"]),
        (Mistake::PollTheHeader, &both, &["other bytes", "Mismatch"]),
        (Mistake::RelaxedFlags, &[Signal::Atomic], &["other bytes", "something else"]),
        (Mistake::ReuseBeforeCompletion, &both, &["written before its completion"]),
        (Mistake::IgnoreCredits, &both, &["something else", "other bytes"]),
        (Mistake::ForgetReceives, &[Signal::Immediate], &["stuck"]),
    ];
    for (mistake, signals, texts) in cases {
        for &signal in signals {
            let found = finds(mistake, signal, SEEDS);
            let Some((seed, text)) = found else {
                panic!("{mistake:?} by {signal:?}: no seed finds it")
            };
            let expected = texts.iter().any(|expected| text.contains(expected));
            assert!(expected, "{mistake:?} by {signal:?}, seed {seed}: {text}");
        }
    }
}
