//! Lines of progress on standard error, for commands that read whole data sets.

use crate::report::{count, duration};
use std::time::{Duration, Instant};

/// Lines of progress come at most this often.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// When a command began, and when it last said something.
pub struct Progress {
    started: Instant,
    last: Instant,
}

impl Progress {
    /// Begins now.
    #[expect(clippy::new_without_default, reason = "a clock has no default")]
    pub fn new() -> Self {
        let now = Instant::now();
        Self { started: now, last: now }
    }

    /// Seconds so far.
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Whether it is time for another line, which is counted as said; `at_once` where it cannot wait.
    pub fn is_due(&mut self, at_once: bool) -> bool {
        let due = at_once || self.last.elapsed() >= PROGRESS_EVERY;
        if due {
            self.last = Instant::now();
        }
        due
    }

    /// Says how many samples of `all` there are so far.
    pub fn show_samples(&mut self, samples: u64, all: Option<u64>) {
        if !self.is_due(false) {
            return;
        }
        let rate = samples as f64 / self.seconds();
        let rest = all.map_or_else(String::new, |all| {
            format!(" of {}, {} to go", count(all), duration((all - samples.min(all)) as f64 / rate))
        });
        eprintln!("{} samples{rest}, {} a second", count(samples), count(rate as u64));
    }
}
