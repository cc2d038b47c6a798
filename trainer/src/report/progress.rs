//! Lines of progress on standard error, for commands that read whole data sets.

use crate::report::output::say;
use crate::report::{Bar, bytes, count, duration};
use std::time::{Duration, Instant};

/// Lines of progress come at most this often.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// When a command began, and when it last said something.
pub struct Progress {
    started: Instant,
    last: Instant,
    /// Looked for when it is first needed; none where standard error is no terminal.
    bar: Option<Option<Bar>>,
}

impl Progress {
    #[expect(clippy::new_without_default, reason = "a clock has no default")]
    pub fn new() -> Self {
        let now = Instant::now();
        Self { started: now, last: now, bar: None }
    }

    /// Seconds so far.
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Whether it is time for another line, which is counted as said; `at_once` where it cannot
    /// wait.
    pub fn is_due(&mut self, at_once: bool) -> bool {
        let due = at_once || self.last.elapsed() >= PROGRESS_EVERY;
        if due {
            self.last = Instant::now();
        }
        due
    }

    /// Says how many of `all` bytes have been read, how fast, and where `all` is known, how long
    /// the rest will take: as a bar where a person watches, else in a line now and then, at once
    /// where `at_once`. `what` says what is being done.
    pub fn show_bytes(
        &mut self,
        (read, all): (u64, Option<u64>),
        at_once: bool,
        what: &dyn Fn() -> String,
    ) {
        let seconds = self.seconds().max(f64::MIN_POSITIVE);
        let rate = read as f64 / seconds;
        let rest = |all: u64| {
            let rest = duration(all.saturating_sub(read) as f64 / rate.max(1.0));
            (read as f64 / all.max(1) as f64, format!("{rest} to go"))
        };
        let (rate, known) = (bytes(rate as u64), all.map(rest));
        if let Some(bar) = self.bar.get_or_insert_with(Bar::on_terminal) {
            let (share, rest) = known.unwrap_or_default();
            bar.advance(share);
            bar.show(vec![(1, what()), (2, format!("{rate}/s")), (0, rest)]);
        } else if self.is_due(at_once) {
            match known {
                Some((share, rest)) => {
                    say(format_args!("{:.0} %  {}, {rate}/s, {rest}", 100.0 * share, what()));
                }
                None => say(format_args!("{}, {rate}/s", what())),
            }
        }
    }

    /// Says how many samples of `all` there are so far.
    pub fn show_samples(&mut self, samples: u64, all: Option<u64>) {
        if !self.is_due(false) {
            return;
        }
        let rate = samples as f64 / self.seconds();
        let rest = all.map_or_else(String::new, |all| {
            format!(
                " of {}, {} to go",
                count(all),
                duration((all - samples.min(all)) as f64 / rate)
            )
        });
        say(format_args!("{} samples{rest}, {} a second", count(samples), count(rate as u64)));
    }
}
