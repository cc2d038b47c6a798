//! Workers and callers under loom: `hand_over.rs` again.

use headlong_models::{Model, Models, Spare};
use std::sync::{Arc, PoisonError};

#[allow(
    clippy::duplicate_mod,
    clippy::absurd_extreme_comparisons,
    clippy::reversed_empty_ranges,
    reason = "the same file over another `sync`, without spins"
)]
#[path = "hand_over.rs"]
mod hand_over;

use hand_over::Team;
use sync::{Condvar, Mutex, Ordering, Plain};

mod sync {
    pub use headlong_models::sync::*;
}

/// None: what a thread has seen before it yields loom does not show it again, and an old number of
/// the latest job is what must not put a worker to sleep.
const SPINS_BEFORE_SLEEP: u32 = 0;

/// As `Pool::run`, without a clock.
fn run(team: &Team, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
    let Some(turn) = team.take() else {
        (0..tasks).for_each(body);
        return;
    };
    assert_eq!(team.workers(), 1);
    let job = turn.open(tasks, body);
    job.take_part();
    drop(job);
    assert!(!turn.panicked());
}

/// Every task runs once, and what it has written is there when the job has ended.
fn a_job(team: &Team) {
    let counts = [0, 0].map(Plain::new);
    // SAFETY: loom looks.
    let add = |task: usize| unsafe { counts[task].set(counts[task].get() + 1) };
    run(team, counts.len(), &add);
    // SAFETY: as above.
    assert!(counts.iter().all(|count| unsafe { count.get() } == 1));
}

/// Two tasks that wait for each other: a worker that is not woken is one that they wait for.
fn a_meeting(team: &Team) {
    let (here, both) = (Mutex::new(0), Condvar::new());
    run(team, 2, &|_| {
        let mut here = here.lock().unwrap_or_else(PoisonError::into_inner);
        *here += 1;
        both.notify_all();
        while *here < 2 {
            here = both.wait(here).unwrap_or_else(PoisonError::into_inner);
        }
    });
}

/// A lost wake-up, a task that runs twice or never, memory that is used too early or too late, and
/// a team that does not end are found.
///
/// Put in by hand, and found: a caller that does not get the team and gives the right to it back
/// all the same (a race of the third model).
#[test]
fn jobs_are_handed_over() {
    let model = |name, preemptions, run| Model { name, preemptions: Some(preemptions), run };
    let spare = |line, to, reason| Spare { file: "hand_over.rs", line, to, reason };
    Models {
        test: "pool::model::jobs_are_handed_over",
        models: &[
            model("two jobs", 3, || {
                let team = Team::new(1);
                (0..2).for_each(|_| a_job(&team));
            }),
            model("tasks that wait for each other", 3, || {
                let team = Team::new(1);
                a_meeting(&team);
            }),
            model("two callers at once", 1, || {
                let team = Arc::new(Team::new(1));
                let other = team.clone();
                let caller = sync::thread::spawn(move || (0..2).for_each(|_| a_job(&other)));
                a_job(&team);
                caller.join().expect("the other caller ends");
            }),
        ],
        spare: &[
            spare(
                "self.0.fetch_and(!OPEN",
                Ordering::Acquire,
                "who sees a closed gate reads nothing behind it",
            ),
            spare(
                "stop.store(true",
                Ordering::Release,
                "the lock that `wake_all` takes is between it and a sleeper's last look",
            ),
            spare("self.stop.load(", Ordering::Acquire, "the other half of it"),
            spare(
                "self.sleepers.fetch_sub(1",
                Ordering::AcqRel,
                "seen late, it costs a needless wake-up",
            ),
            spare("shared.started.load(", Ordering::Relaxed, "it says that threads run, no more"),
            spare("shared.started.fetch_add(1", Ordering::Relaxed, "the other half of it"),
        ],
    }
    .check();
}
