//! What happened, as one number and, where asked for, as text.

use super::plan::Time;
use std::collections::VecDeque;

/// So many lines are kept.
const LINES: usize = 4000;

/// Every event goes into the hash; the last ones are kept as text where asked for.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    events: u64,
    lines: Option<VecDeque<String>>,
}

fn mix(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95)
}

impl Trace {
    pub fn new(keep_lines: bool) -> Self {
        Self { hash: 0, events: 0, lines: keep_lines.then(VecDeque::new) }
    }

    /// One event; `line` is what a reader sees of it.
    pub fn note(
        &mut self,
        time: Time,
        what: &'static str,
        who: u64,
        number: u64,
        line: impl FnOnce() -> String,
    ) {
        self.events += 1;
        let name = what.bytes().fold(0, |hash, byte| mix(hash, u64::from(byte)));
        self.hash = [time, name, who, number].into_iter().fold(self.hash, mix);
        if let Some(lines) = &mut self.lines {
            if lines.len() == LINES {
                lines.pop_front();
            }
            lines.push_back(format!("{:>12.3} ms  {}", time as f64 / 1e6, line()));
        }
    }

    /// Equal for equal histories.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// How many events there were.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The last events as text; empty where not kept.
    pub fn lines(&self) -> Vec<String> {
        self.lines.iter().flatten().cloned().collect()
    }
}
