//! SIGINT, SIGTERM and SIGHUP: the first one asks the run to finish its step, save and exit; the
//! second one stops at once.
//!
//! A process that was started to outlive its terminal (`nohup`) continues after SIGHUP.

use crate::error::{Error, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Tells whether the user, or a scheduler that wants the machine back, has asked the run to end.
#[derive(Debug, Clone, Default)]
pub struct StopRequest {
    signal: Arc<AtomicUsize>,
}

impl StopRequest {
    /// A request that no one has made; tests and libraries make it themselves with
    /// [`StopRequest::ask`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Listens to SIGINT, SIGTERM and SIGHUP of this process. A second signal ends it at once with
    /// 128 plus the signal's number.
    pub fn listen() -> Result<Self> {
        let request = Self::new();
        let asked = Arc::new(AtomicBool::new(false));
        for signal in asking() {
            // Note: the order matters. On the first signal the flag is still down, so only the
            // later handlers act.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&asked))
                .and_then(|_| flag::register(signal, Arc::clone(&asked)))
                .and_then(|_| {
                    flag::register_usize(signal, Arc::clone(&request.signal), signal as usize)
                })
                .map_err(|source| Error::Failed {
                    context: format!("the handler of signal {signal} could not be installed"),
                    source: source.into(),
                })?;
        }
        Ok(request)
    }

    /// Asks, as `signal` would.
    pub fn ask(&self, signal: i32) {
        self.signal.store(signal as usize, Ordering::Relaxed);
    }

    /// The signal that asked, if one did.
    pub fn asked(&self) -> Option<i32> {
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(signal as i32),
        }
    }
}

/// The signals that ask a run to end: SIGHUP only where this process was not started to ignore it.
pub fn asking() -> Vec<i32> {
    let hangs_up = !is_ignored(SIGHUP);
    [SIGINT, SIGTERM].into_iter().chain(hangs_up.then_some(SIGHUP)).collect()
}

/// Whether this process was started to ignore a signal, as `nohup` starts what it runs.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// Lets a write beyond a limit of the shell (`ulimit -f`) fail with an error that names the file,
/// where SIGXFSZ would end the process without a word.
pub fn outlive_file_limits() -> Result<()> {
    // The flag is not looked at: the write's own error says it.
    let heard = Arc::new(AtomicBool::new(false));
    let handled = flag::register(SIGXFSZ, heard).map(drop);
    handled.map_err(Error::failed("the handler of SIGXFSZ could not be installed"))
}
