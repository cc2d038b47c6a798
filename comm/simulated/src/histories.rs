//! Jobs of a few ranks, from the rendezvous to the goodbye, and the judge of how they end.
//!
//! Everything about a history follows from its seed. Of three seeds, one is calm: what befalls the
//! ranks stays below their deadlines, and no rank may see an error. In the others something fails
//! that has to be found out, with the name of a rank that it has befallen.

mod draw;
mod judge;
mod ranks;
mod unauthenticated;

pub use draw::Case;

use crate::system::{Body, Finish, Report, run};
use ranks::{Failure, Marks};
use std::sync::Arc;

impl Case {
    /// Plays it.
    ///
    /// # Errors
    /// What is wrong with how it ended.
    pub fn play(self) -> Result<Report, String> {
        self.play_to_its_end().map(|(report, _)| report)
    }

    /// As [`Case::play`]; and whether a rank has ended with an error.
    fn play_to_its_end(self) -> Result<(Report, bool), String> {
        let case = Arc::new(self);
        let marks: Arc<Vec<Marks>> =
            Arc::new((0..case.num_ranks).map(|_| Marks::default()).collect());
        let mut bodies: Vec<Body<Result<(), Failure>>> = Vec::new();
        for rank in 0..case.num_ranks {
            let (case, marks) = (Arc::clone(&case), Arc::clone(&marks));
            let work = Box::new(move || ranks::work(&case, rank, &marks[rank]));
            bodies.push(Body { rank: Some(rank), name: "main", work });
        }
        for number in 0..case.num_others {
            let seed = case.seed.wrapping_add(number);
            let work = Box::new(move || {
                unauthenticated::work(seed);
                Ok(())
            });
            bodies.push(Body { rank: None, name: "unauthenticated", work });
        }
        let (finishes, report) = run(case.options.clone(), bodies);
        match case.judge(&finishes[..case.num_ranks], &marks, &report) {
            Ok(()) => {
                let is_error = |end: &Finish<_>| matches!(end, Finish::Done(Err(_)));
                let has_failed = finishes.iter().any(is_error);
                Ok((report, has_failed))
            }
            Err(wrong) => {
                let lines = report.lines.join("\n");
                Err(format!("{lines}\n{:?}\n{finishes:#?}\nWRONG: {wrong}", report.faults))
            }
        }
    }
}

/// What histories were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Something happened that had to be found out.
    pub befallen: u64,
    /// More than one thing happened.
    pub several: u64,
    /// A rank has ended with an error, as it should.
    pub failed: u64,
}

/// Plays the histories of `seeds`.
///
/// # Panics
/// With the first that ends wrongly, and how it is played again.
pub fn play_all(seeds: std::ops::Range<u64>) -> Counts {
    let mut counts = Counts::default();
    for seed in seeds {
        let played = Case::new(seed).play_to_its_end();
        let (report, has_failed) =
            played.unwrap_or_else(|wrong| panic!("{wrong}\nplay it again: {}", command(seed)));
        counts.befallen +=
            u64::from(report.faults.iter().any(|one| judge::is_hard(&one.fault.what)));
        counts.several += u64::from(report.faults.len() > 1);
        counts.failed += u64::from(has_failed);
    }
    counts
}

/// What plays the history of a seed again.
pub fn command(seed: u64) -> String {
    format!(
        "cargo run --release -p headlong-comm-simulated --example play_history -- --seed {seed}"
    )
}

/// The first of `seeds` whose history shows that the ranks make a mistake, and is right without.
pub fn find(mistake: &'static str, seeds: impl IntoIterator<Item = u64>) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| {
        let wrong = Case::new(seed).with_mistake(mistake).play().err()?;
        Case::new(seed).play().ok()?;
        Some((seed, wrong.lines().last().unwrap_or_default().to_owned()))
    })
}
