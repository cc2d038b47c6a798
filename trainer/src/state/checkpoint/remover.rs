//! Removes directories while training continues: removing a large checkpoint takes long, and no
//! step should wait for it.

use super::error::CheckpointError;
use super::files::Files;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Removals at a time, at most; the next one waits for the first of them.
const MOST_AT_A_TIME: usize = 8;

/// Threads that remove one directory each, joined when this is dropped.
pub(super) struct Remover {
    files: Arc<dyn Files>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: Vec<JoinHandle<Option<String>>>,
    warnings: Vec<String>,
}

impl State {
    fn join(&mut self, thread: JoinHandle<Option<String>>) {
        let panicked = |_| Some("a thread that removed an old checkpoint panicked".to_owned());
        self.warnings.extend(thread.join().unwrap_or_else(panicked));
    }
}

impl Remover {
    pub fn new(files: Arc<dyn Files>) -> Self {
        Self { files, state: Mutex::default() }
    }

    /// Has `path` removed, whose name is one that the next start removes, too.
    pub fn remove(&self, path: PathBuf) {
        let mut state = self.state();
        if state.running.len() == MOST_AT_A_TIME {
            let first = state.running.remove(0);
            state.join(first);
        }
        let (files, target) = (Arc::clone(&self.files), path.clone());
        let work = move || remove(&*files, &target);
        match Builder::new().name("old-checkpoint".to_owned()).spawn(work) {
            Ok(thread) => state.running.push(thread),
            // The system gives no thread.
            Err(_) => state.warnings.extend(remove(&*self.files, &path)),
        }
    }

    /// Waits until everything is removed, and says what went wrong since the last look.
    pub fn wait(&self) -> Vec<String> {
        self.warnings_of(|_| true)
    }

    /// What went wrong since the last look.
    pub fn warnings(&self) -> Vec<String> {
        self.warnings_of(JoinHandle::is_finished)
    }

    fn warnings_of(&self, is_joined: impl Fn(&JoinHandle<Option<String>>) -> bool) -> Vec<String> {
        let mut state = self.state();
        let (joined, running) = std::mem::take(&mut state.running).into_iter().partition(is_joined);
        state.running = running;
        Vec::into_iter(joined).for_each(|thread| state.join(thread));
        std::mem::take(&mut state.warnings)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What went wrong with removing `path`.
fn remove(files: &dyn Files, path: &Path) -> Option<String> {
    let removed = files.remove_dir_all(path).map_err(CheckpointError::io("remove", path));
    removed.err().map(|error| error.with_cause())
}

impl Drop for Remover {
    fn drop(&mut self) {
        self.wait();
    }
}
