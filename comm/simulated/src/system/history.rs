//! One history from its begin to its end.

use super::plan::{Befallen, NEVER, Options, Time};
use super::world::{Killed, On, World, call, glance};
use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};

/// What one of the first threads does.
pub struct Body<R> {
    /// Of which process it is; none: of one that is no rank.
    pub rank: Option<usize>,
    /// For the trace.
    pub name: &'static str,
    /// All of it.
    pub work: Box<dyn FnOnce() -> R + Send>,
}

/// How one of the first threads has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish<R> {
    /// With this.
    Done(R),
    /// Its process died.
    Killed,
    /// With these words.
    Panicked(String),
}

/// What a history was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Equal for equal histories.
    pub trace_hash: u64,
    /// How many events there were.
    pub events: u64,
    /// How long it took, in nanoseconds of its own clock.
    pub time: u64,
    /// The faults that have happened.
    pub faults: Vec<Befallen>,
    /// It hangs, with what each thread waits for.
    pub finding: Option<String>,
    /// The last events as text; empty where not kept.
    pub lines: Vec<String>,
}

/// A thread that has been started.
#[derive(Debug)]
pub struct JoinHandle<R> {
    thread: usize,
    result: mpsc::Receiver<Result<R, Box<dyn Any + Send>>>,
}

impl<R> JoinHandle<R> {
    /// Waits for the end of the thread.
    ///
    /// # Errors
    /// Its panic.
    pub fn join(self) -> Result<R, Box<dyn Any + Send>> {
        call("joins", |call| {
            while !call.has_ended(self.thread) {
                call.wait(On::End(self.thread), NEVER);
            }
        });
        self.result.recv().expect("a thread leaves its result before it ends")
    }
}

/// Nanoseconds since the history began, by no rank's clock.
pub fn now() -> Time {
    glance(|call| call.now).unwrap_or(0)
}

/// None is free for a thread that only looks again: such looks take no time here.
pub fn num_cores() -> usize {
    0
}

/// Starts a thread of the caller's process.
///
/// # Errors
/// As the system's.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let (sender, result) = mpsc::channel();
    let thread = call("starts a thread", |call| {
        call.start_thread(name, |world, thread| {
            let builder = std::thread::Builder::new().name(name.to_owned());
            let body = move || {
                world.become_thread(thread);
                let _ = sender.send(catch_unwind(AssertUnwindSafe(work)));
                world.end_thread(thread);
            };
            builder.spawn(body).map(drop)
        })
    })?;
    Ok(JoinHandle { thread, result })
}

/// Plays a history; how each of `bodies` has ended, in their order.
///
/// # Panics
/// When the system gives no threads.
pub fn run<R: Send + 'static>(options: Options, bodies: Vec<Body<R>>) -> (Vec<Finish<R>>, Report) {
    let world = World::new(options);
    let finishes: Arc<Mutex<Vec<Option<Finish<R>>>>> =
        Arc::new(Mutex::new(bodies.iter().map(|_| None).collect()));
    let mut threads = Vec::new();
    for (place, body) in bodies.into_iter().enumerate() {
        let thread = world.add(body.rank, body.name);
        let (world, finishes) = (Arc::clone(&world), Arc::clone(&finishes));
        threads.push(std::thread::spawn(move || {
            world.become_thread(thread);
            let finish = match catch_unwind(AssertUnwindSafe(body.work)) {
                Ok(result) => Finish::Done(result),
                Err(panic) if panic.is::<Killed>() => Finish::Killed,
                Err(panic) => Finish::Panicked(words(&*panic)),
            };
            let mut finishes = finishes.lock().unwrap_or_else(PoisonError::into_inner);
            finishes[place] = Some(finish);
            drop(finishes);
            world.end_thread(thread);
        }));
    }
    world.start();
    threads.into_iter().for_each(|thread| thread.join().expect("panics are caught"));
    let mut finishes = finishes.lock().unwrap_or_else(PoisonError::into_inner);
    let all = finishes.drain(..).map(|finish| finish.expect("each has ended")).collect();
    let state = world.lock();
    let report = Report {
        trace_hash: state.trace.hash(),
        events: state.trace.events(),
        time: state.now,
        faults: state.happened.clone(),
        finding: state.finding.clone(),
        lines: state.trace.lines(),
    };
    (all, report)
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no reason given").to_owned()
}
