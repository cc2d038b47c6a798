//! How long coming together, and what follows, may take, and who hears of it.

use std::sync::Arc;
use std::time::Duration;

/// How long anything may take. Nothing waits without one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// For all ranks to come.
    pub rendezvous: Duration,
    /// For one step of an operation, and for all ranks to say goodbye.
    pub operation: Duration,
    /// Between two signs of life.
    pub heartbeat: Duration,
    /// Without a sign of life, a rank counts as stopped.
    pub silence: Duration,
    /// For a process that has connected to prove who it is, and for one answer of a listener.
    pub handshake: Duration,
    /// Between two words about a rank that others wait for, as it does something long.
    pub notice: Duration,
}

/// Hears what a user wants to know while ranks come together, and while they wait.
pub type Notice = Arc<dyn Fn(&str) + Send + Sync>;

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            rendezvous: Duration::from_secs(300),
            operation: Duration::from_secs(120),
            heartbeat: Duration::from_secs(1),
            silence: Duration::from_secs(5),
            handshake: Duration::from_secs(5),
            notice: Duration::from_secs(30),
        }
    }
}
