//! The life of one communicator: who may call NCCL with it, what went wrong first, and how it ends.
//!
//! ```text
//!   coming ──► at work ──► finalised ──► destroyed
//!      └──────────┴──► failed ──► aborted            the first error stays, and is every later call's answer
//! ```
//!
//! At most one thread at a time is inside NCCL with a communicator, and no thread holds a lock
//! there: a call that is "in progress" is asked after, again and again, so that a wait can end.
//! **Only the watchdog's thread aborts or destroys**: NCCL may take its time for that, and the
//! thread that waits for a collective may be the one that is stuck.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::library::Library;
use crate::sys::{self, Code};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the watchdog waits for a thread that is inside NCCL, before it aborts all the same.
const ABORT_PATIENCE: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy)]
struct Raw(sys::Comm);

// SAFETY: NCCL ties no communicator to a thread; that one call is made at a time is what
// `State::in_call` sees to.
unsafe impl Send for Raw {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Watch,
    Abort,
    Destroy,
}

#[derive(Debug)]
struct State {
    /// None: not yet made, or ended.
    raw: Option<Raw>,
    /// A caller makes several calls that belong together.
    has_turn: bool,
    in_call: bool,
    /// The call that is in progress: the name that goes with an error found meanwhile.
    in_progress: Option<&'static str>,
    first: Option<Error>,
    wish: Wish,
    ended: Option<Code>,
}

/// What is called before NCCL aborts.
pub(crate) struct BeforeAbort(pub(crate) Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for BeforeAbort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BeforeAbort")
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) library: Arc<Library>,
    pub(crate) config: Config,
    state: Mutex<State>,
    changed: Condvar,
    /// For the watchdog alone.
    wished: Condvar,
    pub(crate) before_abort: OnceLock<BeforeAbort>,
}

/// The watchdog of one communicator. Dropped, it aborts what is not ended, and waits for that at
/// most `Config::end_within`.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Shared {
    /// The state of a communicator that is not yet made, and its watchdog.
    pub(crate) fn start(library: &Arc<Library>, config: Config) -> Result<(Arc<Self>, Watchdog)> {
        let state = State {
            raw: None,
            has_turn: false,
            in_call: false,
            in_progress: None,
            first: None,
            wish: Wish::Watch,
            ended: None,
        };
        let shared = Arc::new(Self {
            library: library.clone(),
            config,
            state: Mutex::new(state),
            changed: Condvar::new(),
            wished: Condvar::new(),
            before_abort: OnceLock::new(),
        });
        let watched = shared.clone();
        let thread =
            std::thread::Builder::new().name("nccl watchdog".into()).spawn(move || watched.watch());
        let thread = thread.map_err(|error| Error::Watchdog { reason: error.to_string() })?;
        Ok((shared.clone(), Watchdog { shared, thread: Some(thread) }))
    }

    pub(crate) fn adopt(&self, raw: sys::Comm) {
        self.lock().raw = (!raw.is_null()).then_some(Raw(raw));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready`, at most until `until`; whether it is.
    fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        until: Instant,
        ready: impl Fn(&State) -> bool,
    ) -> (MutexGuard<'a, State>, bool) {
        while !ready(&state) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return (state, false);
            }
            state =
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        (state, true)
    }

    /// The right to make several calls, one after another, within `within`.
    pub(crate) fn turn(&self, function: &'static str, within: Duration) -> Result<Turn<'_>> {
        let started = Instant::now();
        let is_free = |state: &State| !state.has_turn || state.refusal(function).is_some();
        let (mut state, free) = self.wait(self.lock(), started + within, is_free);
        state.refusal(function).map_or(Ok(()), Err)?;
        if !free {
            return Err(late(function, started));
        }
        state.has_turn = true;
        Ok(Turn { shared: self, deadline: within })
    }

    fn call<T>(&self, function: &'static str, body: impl FnOnce(sys::Comm) -> T) -> Result<T> {
        let started = Instant::now();
        let is_free = |state: &State| !state.in_call || state.refusal(function).is_some();
        let (mut state, free) = self.wait(self.lock(), started + self.config.deadline, is_free);
        state.refusal(function).map_or(Ok(()), Err)?;
        let Some(Raw(raw)) = state.raw.filter(|_| free) else {
            return Err(late(function, started));
        };
        state.in_call = true;
        drop(state);
        let answer = body(raw);
        self.lock().in_call = false;
        self.changed.notify_all();
        Ok(answer)
    }

    fn ask(&self, raw: sys::Comm) -> Result<Code> {
        let mut state = Code::SUCCESS;
        // SAFETY: the communicator is alive, and the pointer is to a code that lives.
        let code = unsafe { (self.library.functions.comm_get_async_error)(raw, &mut state) };
        self.library.result("ncclCommGetAsyncError", code, raw)?;
        Ok(state)
    }

    /// Whether all is well; looks where no other thread is inside NCCL, and waits for nothing.
    pub(crate) fn check(&self) -> Result<()> {
        const FUNCTION: &str = "ncclCommGetAsyncError";
        let mut state = self.lock();
        state.refusal(FUNCTION).map_or(Ok(()), Err)?;
        let Some(Raw(raw)) = state.raw.filter(|_| !state.in_call) else { return Ok(()) };
        state.in_call = true;
        let function = state.in_progress.unwrap_or(FUNCTION);
        drop(state);
        let seen = self.ask(raw).and_then(|code| self.judge(function, code, raw));
        self.lock().in_call = false;
        self.changed.notify_all();
        seen.inspect_err(|error| self.fail(error.clone()))
    }

    fn judge(&self, function: &'static str, code: Code, raw: sys::Comm) -> Result<()> {
        match code {
            Code::IN_PROGRESS => Ok(()),
            code => self.library.result(function, code, raw),
        }
    }

    /// The first error stays; the watchdog aborts.
    fn fail(&self, error: Error) {
        let mut state = self.lock();
        if state.wish == Wish::Watch {
            state.first.get_or_insert(error);
            state.wish = Wish::Abort;
            self.wished.notify_all();
            self.changed.notify_all();
        }
    }

    /// Has the watchdog end the communicator, unless it is ended, and waits for that.
    pub(crate) fn end(&self, wish: Wish, function: &'static str) -> Result<()> {
        let started = Instant::now();
        let mut state = self.lock();
        if state.wish == Wish::Watch {
            state.wish = wish;
            self.wished.notify_all();
            self.changed.notify_all();
        }
        let until = started + self.config.end_within;
        let (state, _) = self.wait(state, until, |state| state.ended.is_some());
        let ended = state.ended;
        drop(state);
        match ended {
            None => Err(late(function, started)),
            Some(code) => self.library.result(function, code, std::ptr::null_mut()),
        }
    }

    fn watch(&self) {
        let mut state = self.lock();
        while state.wish == Wish::Watch {
            let (guard, waited) = self
                .wished
                .wait_timeout(state, self.config.watch_every)
                .unwrap_or_else(PoisonError::into_inner);
            if waited.timed_out() {
                drop(guard);
                // An error is kept for those who call next.
                let _ = self.check();
                state = self.lock();
            } else {
                state = guard;
            }
        }
        // A thread that is stuck inside NCCL is freed by the abort, not waited for.
        let (mut state, _) =
            self.wait(state, Instant::now() + ABORT_PATIENCE, |state| !state.in_call);
        let (raw, wish) = (state.raw.take(), state.wish);
        drop(state);
        if let Some(BeforeAbort(call)) = self.before_abort.get().filter(|_| wish == Wish::Abort) {
            call();
        }
        let functions = &self.library.functions;
        let code = match (raw, wish) {
            (None, _) => Code::SUCCESS,
            // SAFETY: finalised, and taken out: it is not used again.
            (Some(Raw(raw)), Wish::Destroy) => unsafe { (functions.comm_destroy)(raw) },
            // SAFETY: alive, and taken out. NCCL allows an abort during another thread's call on
            // communicators whose calls do not block, and `Config::to_raw` makes no others.
            (Some(Raw(raw)), _) => unsafe { (functions.comm_abort)(raw) },
        };
        self.lock().ended = Some(code);
        self.changed.notify_all();
    }
}

impl State {
    fn refusal(&self, function: &'static str) -> Option<Error> {
        match (&self.first, self.wish) {
            (Some(first), _) => Some(first.clone()),
            (None, Wish::Watch) => None,
            (None, _) => Some(Error::Aborted { function }),
        }
    }
}

fn late(function: &'static str, since: Instant) -> Error {
    Error::Timeout { function, waited_ms: since.elapsed().as_millis() as u64 }
}

pub(crate) struct Turn<'a> {
    pub(crate) shared: &'a Shared,
    deadline: Duration,
}

impl Turn<'_> {
    pub(crate) fn call(
        &self,
        function: &'static str,
        body: impl FnOnce(sys::Comm) -> Code,
    ) -> Result<()> {
        let library = &self.shared.library;
        self.shared.call(function, |raw| library.result(function, body(raw), raw))?
    }

    /// One call of a list; "in progress" says no more than that the list has not ended.
    pub(crate) fn list(
        &self,
        function: &'static str,
        body: impl FnOnce(sys::Comm) -> Code,
    ) -> Result<()> {
        self.shared.call(function, |raw| self.shared.judge(function, body(raw), raw))?
    }

    /// One call, and its end: where it is in progress, waits for it, at most until the deadline. A
    /// failure ends the communicator, unless it is about arguments alone.
    pub(crate) fn finish(
        &self,
        function: &'static str,
        body: impl FnOnce(sys::Comm) -> Code,
    ) -> Result<()> {
        const ARGUMENT: i32 = 4;
        self.shared.lock().in_progress = Some(function);
        let done = self.wait_for(function, body);
        self.shared.lock().in_progress = None;
        match &done {
            Err(Error::Call { code: ARGUMENT, .. }) | Ok(()) => {}
            Err(error) => self.shared.fail(error.clone()),
        }
        done
    }

    fn wait_for(&self, function: &'static str, body: impl FnOnce(sys::Comm) -> Code) -> Result<()> {
        let (shared, started) = (self.shared, Instant::now());
        let mut code = shared.call(function, body)?;
        let mut looks = 0_u32;
        while code == Code::IN_PROGRESS {
            if started.elapsed() >= self.deadline {
                return Err(late(function, started));
            }
            // Enqueueing takes microseconds, coming together seconds.
            match looks {
                0..1000 => std::hint::spin_loop(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
            looks += 1;
            code = shared.call(function, |raw| shared.ask(raw))??;
        }
        shared.call(function, |raw| shared.library.result(function, code, raw))?
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.shared.lock().has_turn = false;
        self.shared.changed.notify_all();
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let end_within = self.shared.config.end_within;
        match self.shared.end(Wish::Abort, "ncclCommAbort") {
            Err(Error::Timeout { .. }) => {
                eprintln!(
                    "nccl-rs: NCCL has not ended a communicator within {end_within:?}; it is left \
                     to itself"
                );
            }
            // Saying that it has ended was the thread's last act.
            _ => drop(self.thread.take().map(JoinHandle::join)),
        }
    }
}
