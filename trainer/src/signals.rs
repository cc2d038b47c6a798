//! SIGINT and SIGTERM: the first one asks the run to finish its step, save and exit; the second one stops at once.

use crate::error::{Error, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Tells whether the user, or a scheduler that wants the machine back, has asked the run to end.
#[derive(Debug, Clone, Default)]
pub struct StopRequest {
    signal: Arc<AtomicUsize>,
}

impl StopRequest {
    /// A request that nobody has made; tests and libraries make it themselves with [`StopRequest::ask`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Listens to SIGINT and SIGTERM of this process. A second signal ends it at once with 128 plus the signal's number.
    ///
    /// # Errors
    /// When the system refuses the handler.
    pub fn listen() -> Result<Self> {
        let request = Self::new();
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // Note: the order matters. On the first signal the flag is still down, so only the later handlers act.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&asked))
                .and_then(|_| flag::register(signal, Arc::clone(&asked)))
                .and_then(|_| flag::register_usize(signal, Arc::clone(&request.signal), signal as usize))
                .map_err(|source| Error::Failed {
                    context: format!("the handler of signal {signal} could not be installed"),
                    source: source.into(),
                })?;
        }
        Ok(request)
    }

    /// Asks for the end of the run, as `signal` would.
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
