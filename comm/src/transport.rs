//! Transports: how the bytes of one step of a collective get from rank to rank.
//!
//! A collective is a plan, a list of steps; in each step a rank sends at most one message to each
//! peer and receives at most one from each. Both sides know all lengths beforehand, so a transport
//! never guesses: a header that carries another operation, another step or another length is an
//! error that names the peer.
//!
//! | transport | ranks are | used for |
//! |---|---|---|
//! | [`local`] | threads of one process | the default; tests |
//! | [`sim`](crate::testing::sim) | threads under a virtual clock, driven by a seed | finding wrong orders |
//! | [`tcp`] | processes | several processes or machines |
//! | [`paths`] | processes | the same, with payload on the best way to each peer: memory that a node shares ([`shm`]), a NIC |

pub mod choose;
pub mod foreign;
pub mod head;
pub mod local;
pub mod paths;
pub mod shm;
pub mod tcp;

use crate::error::{CommError, Result};
use crate::operation;
use crate::topology::{Rank, Topology};
use std::fmt;
use std::time::Duration;

/// Which step of which operation a message belongs to. All ranks count alike, because all call the
/// same collectives in the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepId {
    /// Number of the operation on this communicator, from 0.
    pub sequence: u64,
    /// Number of the step within the operation.
    pub step: u32,
    /// Operation, element type, algorithm and root in one number ([`operation::fingerprint`]): two
    /// ranks that call different collectives find out at once.
    pub fingerprint: u32,
    /// Name of the operation, for errors.
    pub operation: &'static str,
}

/// The name of what comes first in a job.
pub(crate) const CHOICE: &str = "choosing paths";
/// [`StepId::sequence`] from here on: rounds in which ranks tell each other where they are to be
/// found, before the first operation.
pub const SET_UP: u64 = u64::MAX - 4096;
/// The number of the goodbye.
pub(crate) const GOODBYE: u64 = u64::MAX;

impl StepId {
    /// A number that is larger for each later step of a job.
    pub(crate) fn progress(&self) -> u64 {
        let (phase, number) = match self.sequence {
            number if self.operation == CHOICE => (0, number),
            GOODBYE => (3, 0),
            SET_UP.. => (1, self.sequence - SET_UP),
            number => (2, number),
        };
        phase << 62 | number.min((1 << 46) - 1) << 16 | u64::from(self.step.min(0xffff))
    }
}

impl fmt::Display for StepId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = operation::describe(self.fingerprint);
        write!(formatter, "{what}, number {} step {}", self.sequence, self.step)
    }
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

/// A message to come, for [`Transport::exchange_reading`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// Who sends it; never the receiver itself.
    pub from: Rank,
    /// Bytes of the message.
    pub length: usize,
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

    /// Sends all of `outgoing` and fills all of `incoming`, in any order and all at once. At most
    /// one of each per peer; a message of no bytes is a message. Returns when every incoming buffer
    /// is full and every outgoing one may be written again. Waits at most the transport's deadline.
    ///
    /// # Errors
    /// The job's first error, with its culprit, from then on for every call on every rank.
    fn exchange(&self, id: &StepId, outgoing: &[Outgoing], incoming: &mut [Incoming])
    -> Result<()>;

    /// As [`Transport::exchange`], but instead of filling buffers it shows all messages of
    /// `expected`, in that order, to `read`, once, where they lie: a reduction then needs no copy
    /// of what it adds. `read` must not call the transport.
    ///
    /// Called only where [`Transport::in_place_bytes`] says that it can.
    fn exchange_reading(
        &self,
        id: &StepId,
        outgoing: &[Outgoing],
        expected: &[Expected],
        read: &mut dyn FnMut(&[&[u8]]),
    ) -> Result<()> {
        let _ = (outgoing, expected, read);
        unreachable!("{} cannot show messages in place: {id}", self.name())
    }

    /// The longest message that [`Transport::exchange_reading`] shows where it lies; longer ones it
    /// may have to copy first. None: it shows none. The same on all ranks and for every call.
    fn in_place_bytes(&self) -> Option<usize> {
        None
    }

    /// From now on, what this rank exchanges over TCP is encrypted and authenticated, or only where
    /// the job asks for it. All ranks say it between the same two exchanges: around those that
    /// carry keys.
    fn set_sealed(&self, sealed: bool) {
        let _ = sealed;
    }

    /// From now on this rank does something long on its host, or no longer; what it did before.
    /// Waiting for it does not count against the deadlines of ranks in other processes; threads of
    /// one process share what they wait for.
    fn set_busy(&self, what: Option<&'static str>) -> Option<&'static str> {
        let _ = what;
        None
    }

    /// For how long other ranks have been busy since the job began.
    fn excused(&self) -> Duration {
        Duration::ZERO
    }

    /// Ends the job for all ranks with `error`, unless it has failed already: the first error
    /// stays.
    fn abort(&self, error: CommError);

    /// The job's first error, if it has failed.
    fn check(&self) -> Result<()>;

    /// Says goodbye: a peer that ends after this has not failed. Called once, when this rank is
    /// done.
    fn close(&self) -> Result<()> {
        self.check()
    }
}
