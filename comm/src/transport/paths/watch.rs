//! While a rank computes, its own thread does not poll its paths: another does, so that a NIC that
//! breaks is an error at once, on all ranks, and not when the next exchange begins.

use super::progress_loop::ProgressLoop;
use crate::catch::catch;
use crate::error::CommError;
use crate::transport::Transport;
use crate::transport::tcp::TcpTransport;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const EVERY: Duration = Duration::from_millis(200);

/// The thread; dropped, it ends.
pub(super) struct Watch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Looks at the paths of `progress_loop`, and ends the job with what it finds broken.
    pub(super) fn start(
        control: &Arc<TcpTransport>,
        progress: &Arc<Mutex<ProgressLoop>>,
    ) -> Result<Self, CommError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (control, progress, told) =
            (Arc::clone(control), Arc::clone(progress), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("paths-watch".into());
        let work = move || {
            if let Err(reason) = catch("paths-watch", || watch(&control, &progress, &told)) {
                control.abort(CommError::Aborted { culprit: control.rank(), reason });
            }
        };
        let thread = thread
            .spawn(work)
            .map_err(|error| CommError::system("a thread that watches the paths", error))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

fn watch(control: &TcpTransport, progress: &Mutex<ProgressLoop>, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire)
        && !control.health().has_failed()
        && !control.health().is_over()
    {
        std::thread::park_timeout(EVERY);
        // An exchange that runs looks itself, and holds the lock.
        let Ok(mut progress) = progress.try_lock() else { continue };
        if let Err(reason) = progress.watch() {
            let reason = format!("outside of any exchange: {reason}");
            control.abort(CommError::Aborted { culprit: control.rank(), reason });
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // What a panicking thread has to say, it has said to stderr.
            let _ = thread.join();
        }
    }
}
