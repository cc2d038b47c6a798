//! Work on a thread of its own, while this one lets other Python threads run and hears Ctrl-C.

use crate::error::{panicked, raised};
use pyo3::{PyErr, PyResult, Python};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// How long a Ctrl-C may wait.
const PATIENCE: Duration = Duration::from_millis(50);

/// Does `work`, and calls `hear` for what comes through `news` meanwhile, which `work` closes when
/// it ends. What `hear` or a signal raises first is raised at the end, after `stop` was called for
/// it; a second one is not waited for.
pub fn done<T: Send + 'static, News: Send>(
    py: Python<'_>,
    mut news: Receiver<News>,
    work: impl FnOnce() -> headlong::Result<T> + Send + 'static,
    mut hear: impl FnMut(News) -> PyResult<()>,
    stop: impl Fn(),
) -> PyResult<T> {
    let worker = thread::Builder::new().name("headlong".to_owned()).spawn(work)?;
    let mut failure: Option<PyErr> = None;
    loop {
        let heard;
        (news, heard) = py.detach(move || {
            let heard = news.recv_timeout(PATIENCE);
            (news, heard)
        });
        let outcome = match heard {
            Ok(heard) if failure.is_none() => hear(heard),
            Ok(_) | Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => break,
        };
        if let Err(error) = outcome {
            failure = Some(error);
            stop();
        }
        if let Err(error) = py.check_signals() {
            if failure.is_some() {
                return Err(error);
            }
            failure = Some(error);
            stop();
        }
    }
    let ended = py.detach(move || worker.join());
    match (failure, ended) {
        (Some(failure), _) => Err(failure),
        (None, Ok(outcome)) => outcome.map_err(|error| raised(&error)),
        (None, Err(panic)) => Err(panicked(&*panic)),
    }
}
