//! Lines of progress on standard error, for commands that read whole data sets.

use crate::output::say;
use crate::report::{bytes, count, duration};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// Lines of progress come at most this often.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// When a command began, and when it last said something.
pub struct Progress {
    started: Instant,
    last: Instant,
    /// Where a person watches.
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Begins now.
    #[expect(clippy::new_without_default, reason = "a clock has no default")]
    pub fn new() -> Self {
        let now = Instant::now();
        Self { started: now, last: now, bar: None }
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

    /// Says how many of `all` bytes have been read, how fast, and how long the rest will take: as a bar where a person watches, else in a line now
    /// and then, at once where `at_once`. `what` says what is being done.
    pub fn show_bytes(&mut self, (read, all): (u64, u64), at_once: bool, what: &dyn Fn() -> String) {
        let seconds = self.seconds().max(f64::MIN_POSITIVE);
        let rate = read as f64 / seconds;
        let text = || {
            let rest = all.saturating_sub(read) as f64 / rate.max(1.0);
            format!("{}, {}/s, {} to go", what(), bytes(rate as u64), duration(rest))
        };
        let bar = self.bar.get_or_insert_with(|| new_bar(all));
        if !bar.is_hidden() {
            bar.set_position(read);
            bar.set_message(text());
        } else if self.is_due(at_once) {
            say(format_args!("{:.0} %  {}", 100.0 * read as f64 / all.max(1) as f64, text()));
        }
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
        say(format_args!("{} samples{rest}, {} a second", count(samples), count(rate as u64)));
    }
}

fn new_bar(all: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:24} {percent:>3} %  {msg}");
    let style = style.expect("the template is a constant and well formed");
    ProgressBar::with_draw_target(Some(all), ProgressDrawTarget::stderr()).with_style(style)
}
