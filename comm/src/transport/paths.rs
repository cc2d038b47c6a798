//! Several ways at once: each peer is reached by the best [`Path`] there is, and one progress loop
//! drives them all.
//!
//! A job of processes always has its TCP transport: the control plane, by which ranks hear of
//! failures, and the path of last resort. [`PathTransport`] uses it and carries the payload
//! elsewhere: through memory that processes of a node share, through a NIC.
//!
//! **What a path is.** Both directions between this rank and one peer. Messages of one direction
//! are whole, in order, and carry their [`Head`]: a receiver that expects another one learns what
//! it has found. A path never blocks and never waits; who waits is the progress loop, for all paths
//! of a step together. Only one thread at a time calls it.
//!
//! **What it may keep.** Once [`Path::send`] has said [`Progress::Done`], the caller's bytes are
//! its own again; what the path has copied may still be on its way. A message that is not done when
//! an exchange fails is [withdrawn](Path::withdraw), before its caller's bytes go. A rank that has
//! said goodbye to everybody drops its paths.

mod progress_loop;
mod tcp;
mod transport;
mod waiting;
mod watch;

pub use super::head::Head;
pub use crate::system::poll_read;
pub use tcp::TcpPath;
pub use transport::{PathTransport, name_of};

use crate::error::CommError;
use crate::system::{Instant, num_cores, sleep, yield_now};
use std::fmt;
use std::time::Duration;

/// What a call on a path has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// All of it.
    Done,
    /// A part; more may go at once.
    Moved,
    /// Nothing: the peer, or the wire, comes first.
    Idle,
}

/// Why a path cannot continue. The job ends with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathError {
    /// The peer has sent another message than expected: this one.
    Mismatch(Head),
    /// The peer is gone, as far as this path can tell.
    Lost(String),
    /// The path itself has failed.
    Failed(String),
}

impl fmt::Display for PathError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathError::Mismatch(found) => write!(out, "found {found}"),
            PathError::Lost(reason) | PathError::Failed(reason) => out.write_str(reason),
        }
    }
}

/// Both directions between this rank and one peer. Calls never block; `at` is how far the message
/// has come: 0 at its beginning, kept by the caller, understood by the path alone.
pub trait Path: Send {
    /// `shm`, `verbs`, `ucx`, `tcp`.
    fn name(&self) -> &'static str;

    /// Makes the connection to the peer, where there is none yet. Called before each exchange with
    /// it, and the one call that may wait, as ranks come to that exchange.
    ///
    /// # Errors
    /// The job's first error.
    fn connect(&mut self) -> Result<(), CommError> {
        Ok(())
    }

    /// Sends what can be sent now of one message. After [`Progress::Done`], `bytes` may be written
    /// again. Called for the same message until it is done; a message of no bytes is a message.
    fn send(&mut self, head: &Head, bytes: &[u8], at: &mut usize) -> Result<Progress, PathError>;

    /// Takes what has come of one message, into `bytes`, which are as long as it.
    ///
    /// # Errors
    /// The end of this path; a message that is not the expected one.
    fn receive(
        &mut self,
        head: &Head,
        bytes: &mut [u8],
        at: &mut usize,
    ) -> Result<Progress, PathError>;

    /// The longest message that [`Path::peek`] can show; 0: it shows none. The same on every call.
    fn shows(&self) -> u64 {
        0
    }

    /// A whole message where it lies, aligned for every element, once all of it has come: a
    /// reduction needs no copy of what it adds. Asked again, it shows the same message, until
    /// [`Path::release`]. Only for messages that [`Path::shows`].
    fn peek(&mut self, head: &Head) -> Result<Option<&[u8]>, PathError> {
        let _ = head;
        Ok(None)
    }

    /// Gives back the place of the message that [`Path::peek`] has shown.
    fn release(&mut self) {}

    /// Whether everything that was sent has left: asked, again and again, before the goodbye.
    fn flush(&mut self) -> Result<Progress, PathError> {
        Ok(Progress::Done)
    }

    /// The exchange has failed, and this path with it: when this returns, it touches none of the
    /// bytes that [`Path::send`] and [`Path::receive`] were given and had not done with. Takes a
    /// second at most.
    fn withdraw(&mut self) {}

    /// From the next message on, what leads out of this machine is encrypted where this path can.
    /// Both ends say it between the same two messages.
    fn set_sealed(&mut self, sealed: bool) {
        let _ = sealed;
    }

    /// Which of this rank's [`Doorbells`] rings when the peer has moved something. None: waiting is
    /// done in short naps.
    fn rings(&self) -> Option<DoorbellKind> {
        None
    }

    /// Whether [`Path::watch`] can find anything. The same on every call.
    fn is_watched(&self) -> bool {
        false
    }

    /// Looks for what has broken by itself; called now and then while no exchange runs.
    fn watch(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// What wakes a sleeping rank: its peers ring it after they have moved something, if it listens.
///
/// The order that loses no wake-up: [`Doorbell::listen`], look at all paths once more,
/// [`Doorbell::wait`].
pub trait Doorbell: Send + Sync {
    /// From now on, peers ring. Gives the count for [`Doorbell::wait`].
    fn listen(&self) -> u32;

    /// Returns when a peer has rung since `seen`, at the latest after `longest`; it may return
    /// earlier.
    fn wait(&self, seen: u32, longest: Duration);

    /// Peers need not ring any more.
    fn ignore(&self);
}

/// One of the doorbells of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoorbellKind {
    /// The one that ranks of the same node ring.
    Node,
    /// The network's.
    Network,
}

/// What wakes a sleeping rank. It can sleep at one of them at a time.
pub struct Doorbells {
    /// Rung by paths that ring [`DoorbellKind::Node`].
    pub node: Box<dyn Doorbell>,
    /// Rung by paths that ring [`DoorbellKind::Network`].
    pub network: Box<dyn Doorbell>,
}

impl Doorbells {
    pub(crate) fn at(&self, doorbell: DoorbellKind) -> &dyn Doorbell {
        match doorbell {
            DoorbellKind::Node => &*self.node,
            DoorbellKind::Network => &*self.network,
        }
    }
}

impl Default for Doorbells {
    /// None: naps.
    fn default() -> Self {
        Self { node: Box::new(Silent), network: Box::new(Silent) }
    }
}

/// No doorbell: naps.
struct Silent;

impl Doorbell for Silent {
    fn listen(&self) -> u32 {
        0
    }

    fn wait(&self, _seen: u32, longest: Duration) {
        sleep(longest);
    }

    fn ignore(&self) {}
}
