//! The progress bar: one line on a terminal, with as many facts as fit.
//!
//! The line never fills the terminal's last columns, and nothing is written after it, so that
//! neither `^C` on the keyboard nor a window that gets narrower leaves a copy of it behind.

use super::lines::width;
use crate::units::duration;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, TermLike};
use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The bar is full at this position.
const UNITS: u64 = 10_000;
/// Columns that stay free: for what the keyboard echoes (`^C`, twice).
const FREE: usize = 4;
/// Columns of the drawn bar: at least and at most.
const BAR: (usize, usize) = (6, 24);
/// The bar, the percentage and the time take their places among the facts by importance.
const IMPORTANCE_OF_ELAPSED: u8 = 4;

/// A fact of the line: how important it is (0: most), and its text. They are shown in their order;
/// the least important ones are left out where there is no room.
pub type Fact = (u8, String);

/// A line of progress on standard error.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
    facts: Arc<Mutex<Vec<Fact>>>,
}

impl Bar {
    /// A bar, where standard error is a terminal that can draw one.
    pub fn on_terminal() -> Option<Self> {
        if ProgressDrawTarget::stderr().is_hidden() {
            return None;
        }
        let facts = Arc::new(Mutex::new(Vec::new()));
        let shown = Arc::clone(&facts);
        let line = move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let room = width(io::stderr()).unwrap_or(80).saturating_sub(FREE);
            // Writing to a string cannot fail.
            let fraction = state.len().map(|_| state.fraction().into());
            let _ = out.write_str(&line(fraction, state.elapsed(), &locked(&shown), room));
        };
        let style = ProgressStyle::with_template("{line}")
            .expect("the template is a constant and well formed");
        let target = ProgressDrawTarget::term_like_with_hz(Box::<OneLine>::default(), 20);
        let bar =
            ProgressBar::with_draw_target(None, target).with_style(style.with_key("line", line));
        // The clock continues while data is awaited.
        bar.enable_steady_tick(Duration::from_millis(500));
        Some(Self { bar, facts })
    }

    /// What a line of another process begins with, so that it takes the place of a bar that a rank
    /// draws on the same terminal.
    pub fn way_off() -> &'static str {
        if ProgressDrawTarget::stderr().is_hidden() { "" } else { "\r\u{1b}[K" }
    }

    /// What part is done, 0 to 1. Before the first call no part is shown: of a pipe, it is not
    /// known.
    pub fn advance(&self, fraction: f64) {
        self.bar.set_length(UNITS);
        self.bar.set_position((fraction.clamp(0.0, 1.0) * UNITS as f64) as u64);
    }

    pub fn show(&self, facts: Vec<Fact>) {
        *locked(&self.facts) = facts;
        self.bar.tick();
    }

    /// Takes the bar away while `print` writes lines.
    pub fn suspend(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // Facts are replaced as a whole: there are no halves that a panic could leave.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The line, in at most `room` columns where there is room for the bar and the percentage at all.
/// Without a `fraction` it has neither.
fn line(fraction: Option<f64>, elapsed: Duration, facts: &[Fact], room: usize) -> String {
    let elapsed = (IMPORTANCE_OF_ELAPSED, duration(elapsed.as_secs_f64()));
    let mut shown: Vec<&Fact> = std::iter::once(&elapsed).chain(facts).collect();
    let percent = fraction.map(|fraction| format!("{:>3.0} %", (fraction * 100.0).floor()));
    let of_bar = percent.as_ref().map_or(0, |percent| BAR.0 + 2 + percent.chars().count());
    let mut used = of_bar + shown.iter().map(|fact| 2 + fact.1.chars().count()).sum::<usize>();
    while used > room && !shown.is_empty() {
        let least = (0..shown.len()).rev().max_by_key(|&index| shown[index].0).expect("not empty");
        used -= 2 + shown.remove(least).1.chars().count();
    }
    let bar = fraction.map(|fraction| {
        let columns = (room + BAR.0).saturating_sub(used).clamp(BAR.0, BAR.1);
        let full = (fraction * columns as f64) as usize;
        "█".repeat(full) + &"░".repeat(columns - full)
    });
    let texts = bar.iter().chain(&percent).chain(shown.iter().map(|fact| &fact.1));
    texts.map(String::as_str).collect::<Vec<_>>().join("  ")
}

/// A terminal on which one line is drawn again and again.
#[derive(Debug, Default)]
struct OneLine(Mutex<Drawn>);

#[derive(Debug, Default)]
struct Drawn {
    /// Written and not flushed.
    pending: String,
    /// Columns of the line that is there.
    columns: usize,
}

impl TermLike for OneLine {
    fn width(&self) -> u16 {
        width(io::stderr()).and_then(|columns| columns.try_into().ok()).unwrap_or(80)
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.escape(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.escape(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.escape(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.escape(n, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        locked(&self.0).pending.extend([text, "\n"]);
        Ok(())
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        let mut drawn = locked(&self.0);
        if text.bytes().all(|byte| byte == b' ') {
            // Blanks up to the last column are how the library clears the rest of the line. There,
            // what comes next would wrap.
            drawn.pending.push_str("\u{1b}[K");
        } else {
            drawn.pending.push_str(text);
            drawn.columns = text.chars().count();
        }
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        let rows_above = {
            // A window that has become narrower has broken the line into several.
            let drawn = locked(&self.0);
            drawn.columns.saturating_sub(1) / usize::from(self.width())
        };
        self.escape(rows_above, 'A')?;
        locked(&self.0).pending.push_str("\r\u{1b}[J");
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let text = std::mem::take(&mut locked(&self.0).pending);
        let mut out = io::stderr().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush())
    }
}

impl OneLine {
    fn escape(&self, n: usize, letter: char) -> io::Result<()> {
        if n > 0 {
            locked(&self.0).pending.push_str(&format!("\u{1b}[{n}{letter}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Vec<Fact> {
        let facts = [
            (1, "step 1,000"),
            (0, "loss 0.49970"),
            (2, "129,438 samples/s"),
            (5, "data wait 5.4 %"),
            (3, "ETA 2.0 s"),
        ];
        facts.map(|(importance, text)| (importance, text.to_owned())).into()
    }

    #[test]
    fn as_many_facts_are_shown_as_fit() {
        let of = |room| line(Some(0.32), Duration::from_secs(12), &facts(), room);
        assert_eq!(
            of(116),
            "███████░░░░░░░░░░░░░░░░░   32 %  12 s  step 1,000  loss 0.49970  129,438 samples/s  \
             data wait 5.4 %  ETA 2.0 s"
        );
        assert_eq!(
            of(76),
            "██░░░░░   32 %  12 s  step 1,000  loss 0.49970  129,438 samples/s  ETA 2.0 s"
        );
        assert_eq!(
            of(70),
            "██░░░░░   32 %  step 1,000  loss 0.49970  129,438 samples/s  ETA 2.0 s"
        );
        assert_eq!(of(40), "██░░░░░   32 %  step 1,000  loss 0.49970");
        assert_eq!(of(10), "█░░░░░   32 %");
        for room in 14..130 {
            assert!(of(room).chars().count() <= room, "{room}: {}", of(room));
        }
        let of_a_pipe = line(None, Duration::from_secs(12), &facts(), 62);
        assert_eq!(of_a_pipe, "12 s  step 1,000  loss 0.49970  129,438 samples/s  ETA 2.0 s");
    }

    #[test]
    fn a_line_that_a_narrower_window_has_broken_is_cleared_whole() {
        let terminal = OneLine::default();
        terminal.write_str(&"x".repeat(150)).unwrap();
        terminal.write_str(&" ".repeat(10)).unwrap();
        assert!(
            locked(&terminal.0).pending.ends_with("x\u{1b}[K"),
            "no blanks up to the last column"
        );
        locked(&terminal.0).pending.clear();
        terminal.clear_line().unwrap();
        // A test's standard error is no terminal of another width than 80, or is one at least 80
        // wide.
        let rows = 149 / usize::from(terminal.width());
        let up = if rows > 0 { format!("\u{1b}[{rows}A") } else { String::new() };
        assert_eq!(locked(&terminal.0).pending, up + "\r\u{1b}[J");
    }
}
