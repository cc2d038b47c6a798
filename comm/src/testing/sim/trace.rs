//! What happened, as one number and, where asked for, as text.

use std::collections::VecDeque;

use super::model::Time;
use super::random::mix;

/// So many lines are kept.
const LINES: usize = 400;

/// Every event goes into the hash; the last ones are kept as text where asked for.
#[derive(Debug)]
pub(super) struct Trace {
    hash: u64,
    events: u64,
    lines: Option<VecDeque<String>>,
}

impl Trace {
    pub fn new(keep_lines: bool) -> Self {
        Self { hash: 0, events: 0, lines: keep_lines.then(VecDeque::new) }
    }

    /// One event at a time: a number for its kind and its parts, and what a reader sees.
    pub fn note(&mut self, time: Time, parts: &[u64], line: impl FnOnce() -> String) {
        self.events += 1;
        self.hash = mix(self.hash ^ time);
        for part in parts {
            self.hash = mix(self.hash.rotate_left(7) ^ part);
        }
        if let Some(lines) = &mut self.lines {
            if lines.len() == LINES {
                lines.pop_front();
            }
            lines.push_back(format!("{:>14.3} us  {}", time as f64 / 1e3, line()));
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

/// A hash of bytes, for the trace.
pub(super) fn hash_bytes(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(bytes.len() as u64, |hash, word| {
        (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95)
    })
}
