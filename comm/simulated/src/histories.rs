//! Jobs of a few ranks, from the rendezvous to the goodbye, and the judge of how they end.
//!
//! Everything about a history follows from its seed. Of three seeds, one is calm: what befalls the
//! ranks stays below their deadlines, and no rank may see an error. In the others something fails
//! that has to be found out, with the name of a rank that it has befallen.

mod draw;
mod judge;
mod ranks;
mod strangers;

pub use draw::Case;
pub use ranks::{Failure, Leave};

use crate::system::{Body, Report, run};
use std::sync::Arc;

impl Case {
    /// Plays it.
    ///
    /// # Errors
    /// What is wrong with how it ended.
    pub fn play(self) -> Result<Report, String> {
        let case = Arc::new(self);
        let mut bodies: Vec<Body<Result<(), Failure>>> = Vec::new();
        for rank in 0..case.num_ranks {
            let case = Arc::clone(&case);
            let work = Box::new(move || ranks::work(&case, rank));
            bodies.push(Body { rank: Some(rank), name: "main", work });
        }
        for stranger in 0..case.strangers {
            let seed = case.seed.wrapping_add(stranger);
            let work = Box::new(move || {
                strangers::work(seed);
                Ok(())
            });
            bodies.push(Body { rank: None, name: "stranger", work });
        }
        let (finishes, report) = run(case.options.clone(), bodies);
        match case.judge(&finishes[..case.num_ranks], &report) {
            Ok(()) => Ok(report),
            Err(wrong) => {
                let lines = report.lines.join("\n");
                Err(format!("{lines}\n{:?}\n{finishes:#?}\nWRONG: {wrong}", report.faults))
            }
        }
    }
}

/// Plays the histories of `seeds`; how many of them ended with an error, as they should.
///
/// # Panics
/// With the first that ends wrongly, and how it is played again.
pub fn play_all(seeds: std::ops::Range<u64>) -> u64 {
    let mut failed = 0;
    for seed in seeds {
        let case = Case::new(seed);
        let is_calm = case.is_calm;
        match case.play() {
            Ok(report) => failed += u64::from(!is_calm && !report.faults.is_empty()),
            Err(wrong) => panic!("{wrong}\nplay it again: {}", command(seed)),
        }
    }
    failed
}

/// What plays the history of a seed again.
pub fn command(seed: u64) -> String {
    format!(
        "cargo run --release -p headlong-comm-simulated --example play_history -- --seed {seed}"
    )
}

/// The first of `seeds` whose history shows that the ranks make a mistake.
pub fn find(mistake: &'static str, seeds: std::ops::Range<u64>) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| {
        let wrong = Case::new(seed).with_mistake(mistake).play().err()?;
        Some((seed, wrong.lines().last().unwrap_or_default().to_owned()))
    })
}
