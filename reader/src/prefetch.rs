//! What pipelines are made of: threads that are always joined, and buffers that go round.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::{ReaderError, Result};

/// Threads that end when their channels do, joined when this is dropped.
///
/// Note: the owner drops its ends of the channels first; a struct drops its fields in the order
/// they are written, so this field comes last.
#[derive(Debug, Default)]
pub struct OwnedThreads {
    handles: Vec<JoinHandle<()>>,
}

impl OwnedThreads {
    /// Starts a thread.
    ///
    /// # Errors
    /// [`ReaderError::Thread`] if the operating system has none to give.
    pub fn spawn(&mut self, name: String, body: impl FnOnce() + Send + 'static) -> Result<()> {
        let handle = Builder::new()
            .name(name)
            .spawn(body)
            .map_err(|source| ReaderError::Thread { source })?;
        self.handles.push(handle);
        Ok(())
    }
}

impl Drop for OwnedThreads {
    fn drop(&mut self) {
        for handle in self.handles.drain(..) {
            // A panic has been printed by the thread, and its receiver has seen the channel end.
            let _ = handle.join();
        }
    }
}

/// What a thread makes, one after another, to its end or its error.
#[derive(Debug)]
pub(crate) struct Deliveries<T> {
    receiver: Receiver<Result<Option<T>>>,
    finished: bool,
}

/// At most `capacity` deliveries that wait.
pub(crate) fn deliveries<T>(capacity: usize) -> (SyncSender<Result<Option<T>>>, Deliveries<T>) {
    let (sender, receiver) = sync_channel(capacity);
    (sender, Deliveries { receiver, finished: false })
}

impl<T> Deliveries<T> {
    /// The next one, waited for; the time that took is added to `wait_time`.
    pub fn next(&mut self, wait_time: &mut Duration) -> Result<Option<T>> {
        if self.finished {
            return Ok(None);
        }
        let begin = Instant::now();
        let message = self.receiver.recv();
        *wait_time += begin.elapsed();
        let message = message.unwrap_or(Err(ReaderError::Stopped { thread: "assembling" }));
        self.finished = !matches!(message, Ok(Some(_)));
        message
    }
}

/// Where used buffers are given back.
#[derive(Debug)]
pub struct Returns<T> {
    sender: SyncSender<T>,
}

impl<T> Clone for Returns<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone() }
    }
}

/// Where they are taken from again.
#[derive(Debug)]
pub struct Spares<T> {
    receiver: Receiver<T>,
}

/// A round of at most `capacity` waiting buffers.
pub fn recycle<T>(capacity: usize) -> (Returns<T>, Spares<T>) {
    let (sender, receiver) = sync_channel(capacity);
    (Returns { sender }, Spares { receiver })
}

impl<T> Returns<T> {
    /// Gives a buffer back; it is freed if enough are waiting or no one takes any more.
    pub fn give(&self, buffer: T) {
        let _ = self.sender.try_send(buffer);
    }
}

impl<T: Default> Spares<T> {
    pub fn take(&self) -> T {
        self.receiver.try_recv().unwrap_or_default()
    }
}
