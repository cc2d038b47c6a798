//! Where the code names an ordering, and which of them is weaker now.

use std::fmt;
use std::panic::Location;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::{Mutex, OnceLock, PoisonError};

/// What an ordering is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Of {
    Load,
    Store,
    /// Reads and writes in one.
    Both,
    Fence,
}

/// One ordering, a step weaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weakening {
    pub file: &'static str,
    pub line: u32,
    column: u32,
    of: Of,
    /// What it is instead.
    pub to: Ordering,
}

impl fmt::Display for Weakening {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.word())
    }
}

impl Weakening {
    pub fn word(&self) -> String {
        let Self { file, line, column, of, to } = self;
        format!("{file}:{line}:{column} {of:?} {to:?}")
    }
}

/// The next weaker orderings.
fn weaker(of: Of, order: Ordering) -> &'static [Ordering] {
    match (of, order) {
        (Of::Load, SeqCst) => &[Acquire],
        (Of::Store, SeqCst) => &[Release],
        (Of::Both | Of::Fence, SeqCst) => &[AcqRel],
        (_, AcqRel) => &[Acquire, Release],
        (_, Acquire | Release) => &[Relaxed],
        _ => &[],
    }
}

static MET: Mutex<Vec<Weakening>> = Mutex::new(Vec::new());
static WEAKER: OnceLock<Wanted> = OnceLock::new();

/// The word of a weakening, and the line in it: most others differ in that.
struct Wanted(String, u32);

impl Wanted {
    fn is(&self, weakening: &Weakening) -> bool {
        self.1 == weakening.line && self.0 == weakening.word()
    }
}

/// From now on, this ordering is weaker.
pub fn weaken(word: String) {
    println!("weakened: {word}");
    let line = word.split(':').nth(1).and_then(|line| line.parse().ok()).expect("a weakening");
    assert!(WEAKER.set(Wanted(word, line)).is_ok(), "one at a time");
}

/// What could be weaker of all that was met so far, in the order of the sources.
pub fn met() -> Vec<Weakening> {
    let mut met = MET.lock().unwrap_or_else(PoisonError::into_inner).clone();
    met.sort_by_key(|weakening| (weakening.file, weakening.line, weakening.column));
    met
}

/// What was done in the latest order, and by which thread.
static DONE: Mutex<Vec<(loom::thread::ThreadId, Of, u64, &'static Location<'static>)>> =
    Mutex::new(Vec::new());

/// A new order begins.
pub fn begin() {
    DONE.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// A thread has read or written this value.
pub fn note(of: Of, value: u64, place: &'static Location<'static>) {
    let step = (loom::thread::current().id(), of, value, place);
    DONE.lock().unwrap_or_else(PoisonError::into_inner).push(step);
}

/// Prints the latest order where it has ended in a panic.
pub struct Told;

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() && WEAKER.get().is_none() {
            for (thread, of, value, place) in &*DONE.lock().unwrap_or_else(PoisonError::into_inner)
            {
                eprintln!("{thread:?} {of:?} {value:#x} {place}");
            }
        }
    }
}

/// The ordering that holds at this place.
pub fn order(of: Of, order: Ordering, place: &'static Location<'static>) -> Ordering {
    for &to in weaker(of, order) {
        let (file, line, column) = (place.file(), place.line(), place.column());
        let weakening = Weakening { file, line, column, of, to };
        match WEAKER.get() {
            Some(word) if word.is(&weakening) => return to,
            Some(_) => {}
            None => {
                let mut met = MET.lock().unwrap_or_else(PoisonError::into_inner);
                if !met.contains(&weakening) {
                    met.push(weakening);
                }
            }
        }
    }
    order
}
