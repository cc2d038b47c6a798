//! Collectives between GPUs: data stays on the devices, and work is enqueued on streams.
//!
//! | implementation | ranks are | bytes travel |
//! |---|---|---|
//! | [`single`] | one | by a copy on the device |
//! | [`peer`] | threads of one process, each with a device that the others' can use | straight into each other's memory |
//! | [`nccl`] | processes or threads, a device each | by NCCL, opened at run time |
//!
//! [`Communicator::attach_device`](crate::Communicator::attach_device) chooses. Ids, agreement and failures travel over the
//! communicator's own transport, so that a rank without NCCL, or one that ends, is heard of by all.
//!
//! **Blocking.** Every operation enqueues on the stream it is given and returns; over peer memory, as soon as all ranks have
//! enqueued it. It may be called on a stream that is being captured: a replay exchanges again. All ranks enqueue the same operations, with the same sizes, in the same order, on
//! one stream each at a time.
//!
//! **Failure.** An operation answers with what can be known when it is enqueued. What happens later, on the device or to
//! a peer, is found by [`DeviceCollectives::check`], which the host calls while it waits: from then on every rank's calls
//! answer with the job's first error, and what waits on the device is given up.

mod attach;
pub mod nccl;
pub mod peer;
pub mod single;

use crate::error::{CommError, Result};
use crate::topology::Rank;
use headlong_device::Stream;
use headlong_device::cuda::{DevicePtr, Event};
use std::time::{Duration, Instant};

/// One rank's end of collectives between devices.
///
/// Addresses are of the rank's device; the caller owns the memory there until the stream has come past the operation.
pub trait DeviceCollectives: Send + Sync {
    /// `one rank`, `peer memory`, `nccl`.
    fn name(&self) -> &'static str;

    /// Who this is.
    fn rank(&self) -> Rank;

    /// How many ranks there are.
    fn num_ranks(&self) -> usize;

    /// Part `p` of `from` goes to rank `p`, which has it as part of this rank in its `to`. Both hold ranks ×
    /// `bytes_per_peer` bytes and do not overlap.
    ///
    /// # Errors
    /// [`CommError::Device`] where it cannot be enqueued; the job's first error.
    fn all_to_all(
        &self,
        stream: &Stream,
        from: DevicePtr,
        to: DevicePtr,
        bytes_per_peer: usize,
    ) -> Result<()>;

    /// The `len` f32 of `data` become their sum over ranks, with the same bits on all ranks.
    ///
    /// # Errors
    /// As [`DeviceCollectives::all_to_all`].
    fn all_reduce_f32(&self, stream: &Stream, data: DevicePtr, len: usize) -> Result<()>;

    /// `to` becomes the `bytes_per_rank` bytes of `from` of all ranks, one after another. `from` may be this rank's part
    /// of `to`, and else does not overlap with it.
    ///
    /// # Errors
    /// As [`DeviceCollectives::all_to_all`].
    fn all_gather(
        &self,
        stream: &Stream,
        from: DevicePtr,
        to: DevicePtr,
        bytes_per_rank: usize,
    ) -> Result<()>;

    /// The `bytes` of `data` of rank `root` become everybody's.
    ///
    /// # Errors
    /// As [`DeviceCollectives::all_to_all`].
    ///
    /// # Panics
    /// When there is no rank `root`.
    fn broadcast(&self, stream: &Stream, root: Rank, data: DevicePtr, bytes: usize) -> Result<()>;

    /// Whether every rank is well, as far as is known here. It waits for nothing and calls no driver: for the host's loop
    /// beside a running step.
    ///
    /// # Errors
    /// The job's first error; after it, what waits for peers on the device has been given up.
    fn check(&self) -> Result<()>;

    /// Ends the job for all ranks with `error`, unless it has failed already, and gives up what waits on the device.
    fn abort(&self, error: CommError);

    /// Ends the collectives with all ranks, after the streams are done. Dropping them without gives up what still waits, and
    /// is a failure to ranks that are not done.
    ///
    /// # Errors
    /// The job's first error.
    fn close(self: Box<Self>) -> Result<()>;

    /// Waits until the device has come past `event`, looking after the peers meanwhile.
    ///
    /// # Errors
    /// The job's first error. At the deadline the job ends with [`CommError::Device`].
    fn wait(&self, event: &Event, deadline: Duration) -> Result<()> {
        let started = Instant::now();
        let failed = |reason| CommError::Device {
            seen_by: self.rank(),
            operation: "waiting for the device".to_owned(),
            reason,
        };
        loop {
            match event.query() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    self.abort(failed(error.to_string()));
                    return self.check();
                }
            }
            self.check()?;
            if started.elapsed() > deadline {
                let waited = started.elapsed().as_millis();
                self.abort(failed(format!("it was not done within {waited} ms; a peer may not have come")));
                return self.check();
            }
            std::thread::yield_now();
        }
    }
}
