//! Lock-free code under [loom], which runs a small program in every order of its threads, with
//! every old value that an atomic may still show.
//!
//! The code itself is what runs: a test module includes the files of the product again, next to a
//! `sync` of this crate's types in the place of the standard library's. Then [`Models::check`]
//!
//! - runs each model to its end: a deadlock (a lost wake-up), a race on plain memory, a loop
//!   without an end or a failed assertion is an error;
//! - weakens each ordering that the models have met, one at a time, and expects an error. An
//!   ordering that can be weaker is named, or it is among those that are known to be spare.
//!
//! So a model that cannot fail is found out, and an ordering that no model needs as well.
//!
//! **What loom is not.** Its `SeqCst` accesses are weaker than the language's; those of this crate
//! are not (see [`sync`]). It has no clock: what waits with a time waits without one here, so that
//! a wake-up that a time-out would hide is seen. No compiler's or processor's own mistakes.
//!
//! [loom]: https://docs.rs/loom

mod site;
pub mod sync;

use site::Weakening;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Names the ordering that a test program weakens.
const WEAKEN: &str = "HEADLONG_MODELS_WEAKEN";

/// A small program: what is asserted in it holds in every order of its threads.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    /// What is shown.
    pub name: &'static str,
    /// How often a thread may be interrupted where it would not wait; none: without limit.
    pub preemptions: Option<usize>,
    /// Runs once for each order.
    pub run: fn(),
}

/// An ordering that may be weaker as far as the models see.
#[derive(Debug, Clone, Copy)]
pub struct Spare {
    /// The end of its file's name.
    pub file: &'static str,
    /// A part of its line.
    pub line: &'static str,
    /// What it could be.
    pub to: Ordering,
    /// Why it is as it is.
    pub reason: &'static str,
}

/// The models of one piece of code.
#[derive(Debug)]
pub struct Models<'a> {
    /// The test that calls [`Models::check`], as its program names it.
    pub test: &'a str,
    /// What is shown of it.
    pub models: &'a [Model],
    /// Orderings that no model needs.
    pub spare: &'a [Spare],
}

impl Models<'_> {
    /// Runs all models, then all of them again for each weaker ordering, in processes of their
    /// own: what breaks in the middle of a model may end its process.
    ///
    /// # Panics
    /// When a model fails, or no model fails with a weaker ordering that is not known to be spare,
    /// or one fails with an ordering that is.
    pub fn check(&self) {
        if let Ok(word) = std::env::var(WEAKEN) {
            site::weaken(word);
            for model in self.models {
                explore(model);
            }
            return;
        }
        for model in self.models {
            let begin = Instant::now();
            let orders = explore(model);
            let seconds = begin.elapsed().as_secs_f64();
            println!("{}: {orders} orders, {seconds:.2} s", model.name);
        }
        let begin = Instant::now();
        let weakenings = site::met();
        assert!(!weakenings.is_empty(), "the models meet an ordering");
        let mut used = vec![false; self.spare.len()];
        let mut wrong = Vec::new();
        for weakening in &weakenings {
            let line = line(weakening);
            let spare = self.spare.iter().position(|one| {
                weakening.file.ends_with(one.file)
                    && line.contains(one.line)
                    && weakening.to == one.to
            });
            spare.into_iter().for_each(|spare| used[spare] = true);
            let found = self.finds(weakening);
            println!("{weakening}: {line}: {}", found.as_deref().unwrap_or("not found"));
            if found.is_some() == spare.is_some() {
                wrong.push(format!("{weakening}: {line}"));
            }
        }
        let unused = self.spare.iter().zip(used).filter(|(_, used)| !used);
        wrong.extend(unused.map(|(spare, _)| format!("no such line: {}", spare.line)));
        println!("{} weaker: {:.2} s", weakenings.len(), begin.elapsed().as_secs_f64());
        assert!(wrong.is_empty(), "weaker, and not found or known to be spare: {wrong:#?}");
    }

    /// How a model fails with the weaker ordering; none: it does not.
    fn finds(&self, weakening: &Weakening) -> Option<String> {
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        command.args(["--exact", self.test, "--nocapture", "--test-threads", "1"]);
        let output = command.env(WEAKEN, weakening.word()).output().expect("it starts again");
        let text = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        assert!(
            text.contains(&weakening.word()),
            "`{}` does not weaken {weakening}: {text}",
            self.test
        );
        if output.status.success() {
            return None;
        }
        let mut lines = text.lines().skip_while(|line| !line.contains("panicked at"));
        Some(lines.nth(1).unwrap_or("ended").trim().to_owned())
    }
}

/// How many orders there are.
fn explore(model: &Model) -> usize {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = model.preemptions;
    let (orders, run) = (Arc::new(AtomicUsize::new(0)), model.run);
    let count = orders.clone();
    let _told = site::Told;
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        site::begin();
        run();
    });
    orders.load(Ordering::Relaxed)
}

/// The line of the source.
fn line(weakening: &Weakening) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let text = std::fs::read_to_string(root.join(weakening.file)).expect("the source is here");
    let line = text.lines().nth(weakening.line as usize - 1).unwrap_or_default();
    line.trim().to_owned()
}
