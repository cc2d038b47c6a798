//! Transports: how the bytes of one step of a collective get from rank to rank.
//!
//! A collective is a plan, a list of steps; in each step a rank sends at most one message to each peer and receives at most
//! one from each. Both sides know all lengths beforehand, so a transport never guesses: a header that carries another
//! operation, another step or another length is an error that names the peer.
//!
//! | transport | ranks are | used for |
//! |---|---|---|
//! | [`local`] | threads of one process | the default; tests |
//! | [`sim`] | threads under a virtual clock, driven by a seed | finding wrong orders |
//! | `tcp` | processes | several processes or machines |

pub mod local;
pub mod sim;

use crate::error::{CommError, Result};
use crate::topology::{Rank, Topology};

/// Which step of which operation a message belongs to. All ranks count alike, because all call the same collectives in the
/// same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepId {
    /// Number of the operation on this communicator, from 0.
    pub sequence: u64,
    /// Number of the step within the operation.
    pub step: u32,
    /// Hash of operation, element type, algorithm: two ranks that call different collectives find out at once.
    pub fingerprint: u32,
    /// Name of the operation, for errors.
    pub operation: &'static str,
}

/// One message to a peer.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// Who gets it; never the sender itself.
    pub to: Rank,
    /// What it gets.
    pub bytes: &'a [u8],
}

/// Room for one message from a peer.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// Who sends it; never the receiver itself.
    pub from: Rank,
    /// Exactly as long as the message.
    pub bytes: &'a mut [u8],
}

/// Carries messages between the ranks of one job.
///
/// One thread at a time calls [`Transport::exchange`]; any thread may call the other methods.
pub trait Transport: Send + Sync {
    /// `local`, `sim`, `tcp`.
    fn name(&self) -> &'static str;

    /// Who this end is.
    fn rank(&self) -> Rank;

    /// All ranks and their nodes.
    fn topology(&self) -> &Topology;

    /// Sends all of `outgoing` and fills all of `incoming`, in any order and all at once. At most one of each per peer; a
    /// message of no bytes is a message. Returns when every incoming buffer is full and every outgoing one may be written
    /// again. Waits at most the transport's deadline.
    ///
    /// # Errors
    /// The job's first error, with its culprit, from then on for every call on every rank.
    fn exchange(&self, id: &StepId, outgoing: &[Outgoing], incoming: &mut [Incoming]) -> Result<()>;

    /// Ends the job for all ranks with `error`, unless it has failed already: the first error stays.
    fn abort(&self, error: CommError);

    /// The job's first error, if it has failed.
    ///
    /// # Errors
    /// That error.
    fn check(&self) -> Result<()>;

    /// Says goodbye: a peer that ends after this has not failed. Called once, when this rank needs nobody any more.
    ///
    /// # Errors
    /// The job's first error, if it has failed.
    fn close(&self) -> Result<()> {
        self.check()
    }
}
