//! Removes directories while training goes on: a large checkpoint takes its time, and nobody has to wait for it.

use super::error::CheckpointError;
use super::files::Files;
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Directories that wait for their removal, at most; who has another one waits.
const MOST_WAITING: usize = 8;

/// A thread that removes directories, started with the first one and joined when this is dropped.
pub(super) struct Remover {
    files: Arc<dyn Files>,
    shared: Arc<Shared>,
    worker: Mutex<Option<Worker>>,
}

struct Worker {
    queue: SyncSender<PathBuf>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    is_idle: Condvar,
}

#[derive(Default)]
struct State {
    /// Directories that are not removed yet.
    pending: usize,
    /// What went wrong.
    warnings: Vec<String>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Remover {
    pub fn new(files: Arc<dyn Files>) -> Self {
        Self { files, shared: Arc::default(), worker: Mutex::default() }
    }

    /// Has `path` removed, which bears a name that the next start removes, too.
    pub fn remove(&self, path: PathBuf) {
        let mut worker = locked(&self.worker);
        if worker.is_none() {
            *worker = self.start();
        }
        locked(&self.shared.state).pending += 1;
        let unsent = match worker.as_ref() {
            Some(worker) => worker.queue.send(path).err().map(|error| error.0),
            // The system gives no thread: then it is done here.
            None => Some(path),
        };
        if let Some(path) = unsent {
            self.shared.remove(&*self.files, path);
        }
    }

    fn start(&self) -> Option<Worker> {
        let (queue, paths) = sync_channel::<PathBuf>(MOST_WAITING);
        let (files, shared) = (Arc::clone(&self.files), Arc::clone(&self.shared));
        let work = move || paths.into_iter().for_each(|path| shared.remove(&*files, path));
        let thread = Builder::new().name("old-checkpoints".to_owned()).spawn(work).ok()?;
        Some(Worker { queue, thread })
    }

    /// Waits until everything is removed, and says what went wrong since the last look.
    pub fn wait(&self) -> Vec<String> {
        let state = locked(&self.shared.state);
        let idle = self.shared.is_idle.wait_while(state, |state| state.pending > 0);
        std::mem::take(&mut idle.unwrap_or_else(PoisonError::into_inner).warnings)
    }

    /// What went wrong since the last look.
    pub fn warnings(&self) -> Vec<String> {
        std::mem::take(&mut locked(&self.shared.state).warnings)
    }
}

impl Shared {
    fn remove(&self, files: &dyn Files, path: PathBuf) {
        let removed = files.remove_dir_all(&path).map_err(CheckpointError::io("remove", &path));
        let mut state = locked(&self.state);
        state.pending -= 1;
        if let Err(error) = removed {
            state.warnings.push(error.with_cause());
        }
        if state.pending == 0 {
            self.is_idle.notify_all();
        }
    }
}

impl Drop for Remover {
    fn drop(&mut self) {
        if let Some(Worker { queue, thread }) = locked(&self.worker).take() {
            drop(queue);
            // A removal that panicked has been told of on standard error.
            let _ = thread.join();
        }
    }
}
