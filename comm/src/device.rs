//! Collectives between GPUs: data stays on the devices, and work is enqueued on streams.
//!
//! | implementation | ranks are | bytes travel |
//! |---|---|---|
//! | `single` | one | by a copy on the device |
//! | [`peer`] | on one node, each with a device that the others' can use | straight into each other's memory |
//! | [`nccl`] | on any nodes, a device each | by NCCL, opened at run time |
//! | [`hierarchical`] | several nodes | inside the node by either, then in one strip per remote node and rail |
//!
//! [`Communicator::attach_device`](crate::Communicator::attach_device) chooses. Ids, agreement and
//! failures travel over the communicator's own transport, so that a rank without NCCL, or one that
//! ends, is heard of by all.
//!
//! **Blocking.** Every operation enqueues on the stream it is given and returns; over peer memory,
//! as soon as all ranks have enqueued it. It may be called on a stream that is being captured: a
//! replay exchanges again. All ranks enqueue the same operations, with the same sizes, in the same
//! order, on one stream each at a time.
//!
//! **Failure.** An operation answers with what can be known when it is enqueued. What happens
//! later, on the device or to a peer, is found by [`DeviceCollectives::check`], which the host
//! calls while it waits: from then on every rank's calls answer with the job's first error, and
//! what waits on the device is given up.

mod attach;
pub mod hierarchical;
pub mod narrow;
pub mod nccl;
pub mod peer;
mod push;
pub mod rail;
mod single;
mod sum;

pub use attach::{NICS_IN_VAIN, goes_by_node};
pub use hierarchical::{longest_block_of_sums, sums_in_two_steps};

use crate::error::{CommError, Result};
use crate::topology::Rank;
use crate::transport::Transport;
use headlong_device::cuda::{CudaDevice, CudaStream, DevicePtr, Event};
use headlong_device::{DType, Stream};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A rank that waits for its device looks all the time at first, and then now and then: others need
/// its core.
const YIELDING: Duration = Duration::from_millis(2);
const PAUSE: Duration = Duration::from_micros(100);

/// For how long the transport may come to know who failed first, when all that is known is that
/// some peer is gone. The transport's ranks tell each other before they leave.
const CULPRIT_WITHIN: Duration = Duration::from_secs(1);

/// What an all-to-all moves: one block for each rank, of which the device knows how much counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// What this rank sends, rank after rank.
    pub from: DevicePtr,
    /// Where what it receives arrives, rank after rank.
    pub to: DevicePtr,
    /// Bytes from one block to the next.
    pub stride: usize,
    /// The most bytes that a block may have, the same on all ranks: what lies after them does not
    /// travel.
    pub bytes_per_peer: usize,
    /// The bytes of each rank's block that count, u32 on the device; null: all. What lies after
    /// them need not travel.
    pub lengths: DevicePtr,
}

/// The largest exchanges that there will be: memory for them is taken before the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceSizes {
    /// Bytes that one rank has for another one.
    pub block_bytes: usize,
    /// Bytes that one rank has for one of another node, where it exchanges along its rail
    /// ([`ByNode::all_to_all_across`]); 0: it never does.
    pub rail_bytes: usize,
    /// Numbers of an all-reduce.
    pub sums: SumLen,
    /// The longest part of what is divided among ranks: so many f32 that are gathered, and so many
    /// bf16 that are added up, where any are.
    pub part: SumLen,
}

impl DeviceSizes {
    /// Whether bf16 are added up.
    fn have_narrow_sums(&self) -> bool {
        self.sums.narrow + self.part.narrow > 0
    }

    /// Bytes of the longest part of what is divided among ranks and added up.
    fn summed_part_bytes(&self) -> usize {
        match self.part {
            SumLen { exact, narrow: 0 } => exact * size_of::<f32>(),
            SumLen { narrow, .. } => narrow * size_of::<u16>(),
        }
    }

    /// Bytes of the longest part of what is divided among ranks.
    fn part_bytes(&self) -> usize {
        let SumLen { exact, narrow } = self.part;
        (exact * size_of::<f32>()).max(narrow * size_of::<u16>())
    }
}

impl Default for DeviceSizes {
    /// A mebibyte, and as many numbers as have that size; nothing is divided.
    fn default() -> Self {
        let sums = SumLen::of_f32(1 << 18);
        Self { block_bytes: 1 << 20, rail_bytes: 0, sums, part: SumLen::of_f32(0) }
    }
}

/// Numbers in one memory that are divided among ranks.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// Where they lie.
    pub data: DevicePtr,
    /// f32 or bf16 where they are added up; anything where they are gathered.
    pub dtype: DType,
    /// Where the part of each rank begins, in numbers, and the end of the last one: the same on
    /// all ranks, and multiples of 16 bytes where they are bf16.
    pub bounds: &'a [usize],
}

impl Parts<'_> {
    /// Bytes of the part of `rank`.
    fn range(&self, rank: Rank) -> Range<usize> {
        let [start, end] = [0, 1].map(|after| self.bounds[rank.0 + after] * self.dtype.bytes());
        start..end
    }

    /// The part of `rank` in the memory that begins at `data`.
    fn in_memory(&self, data: DevicePtr, rank: Rank) -> DevicePtr {
        data.offset(self.range(rank).start)
    }

    fn at(&self, rank: Rank) -> DevicePtr {
        self.in_memory(self.data, rank)
    }

    /// Of the part of `rank`: so many bf16, or so many words of any other type.
    fn len(&self, rank: Rank) -> SumLen {
        self.len_of(self.range(rank).len())
    }

    fn len_of(&self, bytes: usize) -> SumLen {
        match self.dtype {
            DType::Bf16 => SumLen { exact: 0, narrow: bytes / 2 },
            _ => SumLen::of_f32(bytes / size_of::<f32>()),
        }
    }

    fn num_ranks(&self) -> usize {
        self.bounds.len() - 1
    }

    fn bytes(&self) -> usize {
        self.bounds[self.num_ranks()] * self.dtype.bytes()
    }

    /// Bytes of the longest part.
    fn longest(&self) -> usize {
        (0..self.num_ranks()).map(|rank| self.range(Rank(rank)).len()).max().unwrap_or(0)
    }

    /// # Panics
    /// Where these are no parts of so many ranks.
    fn check(&self, num_ranks: usize) {
        let are_parts = self.bounds.len() == num_ranks + 1 && self.bounds.is_sorted();
        assert!(are_parts && self.bounds[0] == 0, "{:?} for {num_ranks} ranks", self.bounds);
    }
}

/// The numbers of an all-reduce, in one memory: f32, and after them bf16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SumLen {
    /// How many are f32.
    pub exact: usize,
    /// How many are bf16: rounded to that wherever two of them have been added up, in f32.
    pub narrow: usize,
}

impl SumLen {
    /// So many f32, and nothing else.
    pub fn of_f32(exact: usize) -> Self {
        Self { exact, narrow: 0 }
    }

    /// Of all of them.
    pub fn bytes(self) -> usize {
        4 * self.exact + 2 * self.narrow
    }

    /// Those in a range of the bytes.
    fn part(self, bytes: &Range<usize>) -> Self {
        let exact = (4 * self.exact).clamp(bytes.start, bytes.end) - bytes.start;
        Self { exact: exact / 4, narrow: (bytes.len() - exact) / 2 }
    }

    /// # Panics
    /// Where kernels cannot add them up in groups of 16 bytes.
    fn check(self, data: DevicePtr) {
        let is_even = self.exact.is_multiple_of(4) && self.narrow.is_multiple_of(8);
        let is_whole = self.narrow == 0 || is_even && data.0.is_multiple_of(16);
        assert!(is_whole, "{self:?} at {:#x}: with bf16, groups of 16 bytes are added up", data.0);
    }
}

/// One rank's end of collectives between devices.
///
/// Addresses are of the rank's device; the caller owns the memory there until the stream has come
/// past the operation.
pub trait DeviceCollectives: Send + Sync {
    /// `one rank`, `peer memory`, `nccl`; `hierarchical: `, and what carries inside nodes and
    /// between them.
    fn name(&self) -> &str;

    /// The communicator's transport: ids, agreement and failures travel over it.
    fn transport(&self) -> &Arc<dyn Transport>;

    /// Who this is.
    fn rank(&self) -> Rank {
        self.transport().rank()
    }

    /// How many ranks there are.
    fn num_ranks(&self) -> usize {
        self.transport().topology().num_ranks()
    }

    /// Part `p` of `from` goes to rank `p`, which has it as part of this rank in its `to`. Both
    /// hold ranks × `bytes_per_peer` bytes and do not overlap.
    ///
    /// # Errors
    /// [`CommError::Device`] where it cannot be enqueued; the job's first error.
    fn all_to_all(
        &self,
        stream: &Stream,
        from: DevicePtr,
        to: DevicePtr,
        bytes_per_peer: usize,
    ) -> Result<()> {
        let (stride, lengths) = (bytes_per_peer, DevicePtr::NULL);
        self.all_to_all_v(stream, Blocks { from, to, stride, bytes_per_peer, lengths })
    }

    /// As [`DeviceCollectives::all_to_all`], where blocks may be shorter than their room. What of a
    /// block does not count may or may not arrive.
    ///
    /// # Errors
    /// As there. A block that is longer than [`Blocks::bytes_per_peer`] is found on the device,
    /// where strips between nodes carry lengths: [`DeviceCollectives::flagged`] tells on all ranks.
    /// Elsewhere its end does not travel. Nothing is written outside of the room.
    fn all_to_all_v(&self, stream: &Stream, blocks: Blocks) -> Result<()>;

    /// Whether of blocks only what counts travels: then [`Blocks::bytes_per_peer`] costs nothing.
    fn sends_what_counts(&self) -> bool;

    /// The two halves of an exchange, where ranks exchange inside their nodes first, and all nodes
    /// have equally many: some power of two.
    fn by_node(&self) -> Option<&dyn ByNode> {
        None
    }

    /// The numbers of `data` become their sums over ranks, with the same bits on all ranks. Sums of
    /// bf16 are always those of [`crate::element`].
    ///
    /// # Panics
    /// With bf16: where `data` is not aligned to 16 bytes, or either kind is no multiple of that.
    fn all_reduce(&self, stream: &Stream, data: DevicePtr, len: SumLen) -> Result<()>;

    /// As [`DeviceCollectives::all_reduce`], of f32.
    fn all_reduce_f32(&self, stream: &Stream, data: DevicePtr, len: usize) -> Result<()> {
        self.all_reduce(stream, data, SumLen::of_f32(len))
    }

    /// The part of `parts` that is this rank's becomes the sum over ranks; the others hold anything
    /// afterwards. The bits are those of [`DeviceCollectives::all_reduce`], save over NCCL alone in
    /// f32: there NCCL adds them up for one rank, which may have another shape.
    ///
    /// # Panics
    /// Where the bounds are not those of parts of all ranks.
    fn reduce_to_parts(&self, stream: &Stream, parts: Parts<'_>) -> Result<()>;

    /// `parts` become those of all ranks, each from the rank whose part it is.
    ///
    /// # Panics
    /// As [`DeviceCollectives::reduce_to_parts`].
    fn gather_parts(&self, stream: &Stream, parts: Parts<'_>) -> Result<()>;

    /// `to` becomes the `bytes_per_rank` bytes of `from` of all ranks, one after another. `from`
    /// may be this rank's part of `to`, and else does not overlap with it.
    fn all_gather(
        &self,
        stream: &Stream,
        from: DevicePtr,
        to: DevicePtr,
        bytes_per_rank: usize,
    ) -> Result<()>;

    /// The `bytes` of `data` of rank `root` become everybody's.
    ///
    /// # Panics
    /// When there is no rank `root`.
    fn broadcast(&self, stream: &Stream, root: Rank, data: DevicePtr, bytes: usize) -> Result<()>;

    /// Whether every rank is well, as far as is known here. It waits for nothing and calls no
    /// driver: for the host's loop during a step.
    ///
    /// # Errors
    /// The job's first error; after it, what waits for peers on the device has been given up.
    fn check(&self) -> Result<()> {
        self.transport().check()
    }

    /// What kernels of this rank's exchanges have found wrong, in those that have run. It calls no
    /// driver.
    fn flagged(&self) -> Result<()> {
        Ok(())
    }

    /// Whether what the device has come past was done: a rank that is lost, and those that hear of
    /// it, let exchanges pass that nothing has come of.
    ///
    /// # Errors
    /// The job's first error.
    fn believe(&self) -> Result<()> {
        self.check()?;
        self.flagged()
    }

    /// For how long other ranks have been busy on their hosts since the job began.
    fn excused(&self) -> Duration {
        self.transport().excused()
    }

    /// Ends the job for all ranks with `error`, unless it has failed already, and gives up what
    /// waits on the device.
    fn abort(&self, error: CommError) {
        self.transport().abort(error);
    }

    /// Ends the collectives with all ranks, after the streams are done. Dropping them without gives
    /// up what still waits, and is a failure to ranks that are not done.
    fn close(self: Box<Self>) -> Result<()>;

    /// Waits until the device has come past `event`, looking after the peers meanwhile.
    ///
    /// # Errors
    /// The job's first error. At the deadline the job ends with [`CommError::Device`].
    fn wait(&self, event: &Event, deadline: Duration) -> Result<()> {
        self.wait_for(&mut || event.query().map_err(|error| error.to_string()), deadline)
    }

    /// As [`DeviceCollectives::wait`], until `is_there` says so, or why it never will be.
    fn wait_for(
        &self,
        is_there: &mut dyn FnMut() -> Result<bool, String>,
        deadline: Duration,
    ) -> Result<()> {
        let (started, excused) = (Instant::now(), self.excused());
        let failed = |reason| CommError::Device {
            seen_by: self.rank(),
            operation: "waiting for the device".to_owned(),
            reason,
        };
        loop {
            match is_there() {
                Ok(true) => return self.believe(),
                Ok(false) => {}
                Err(reason) => {
                    self.abort(failed(reason));
                    return self.check();
                }
            }
            self.check()?;
            // For as long as a rank saves, or waits for its disk, its device is given nothing to
            // do.
            let waited = started.elapsed().saturating_sub(self.excused().saturating_sub(excused));
            if waited > deadline {
                let waited = waited.as_millis();
                self.abort(failed(format!(
                    "it was not done within {waited} ms; a peer may not have come"
                )));
                return self.check();
            }
            match waited < YIELDING {
                true => std::thread::yield_now(),
                false => std::thread::sleep(PAUSE),
            }
        }
    }
}

/// All-to-alls among some of the ranks, for what is worked on between the two: of [`Blocks`] there
/// is one for each of these, in place of one for each rank.
pub trait ByNode: Send + Sync {
    /// Among the ranks of this one's node, in their order.
    ///
    /// # Errors
    /// As [`DeviceCollectives::all_to_all`].
    fn all_to_all_inside(&self, stream: &Stream, blocks: Blocks) -> Result<()>;

    /// `to` becomes the `bytes_per_rank` bytes of `from` of all ranks of this one's node, one after
    /// another.
    ///
    /// # Errors
    /// As [`DeviceCollectives::all_to_all`].
    fn all_gather_inside(
        &self,
        stream: &Stream,
        from: DevicePtr,
        to: DevicePtr,
        bytes_per_rank: usize,
    ) -> Result<()>;

    /// Whether of blocks inside the node only what counts travels.
    fn sends_what_counts_inside(&self) -> bool;

    /// Among the ranks at this one's place in every node, node after node.
    ///
    /// # Errors
    /// As [`DeviceCollectives::all_to_all_v`], of blocks up to [`DeviceSizes::rail_bytes`].
    fn all_to_all_across(&self, stream: &Stream, blocks: Blocks) -> Result<()>;
}

fn own_stream<'a>(stream: &'a Stream, device: &CudaDevice, operation: &str) -> &'a CudaStream {
    let cuda = stream.cuda_body();
    let ours = cuda.device().ordinal() == device.ordinal();
    assert!(ours, "{operation}: a stream of {}, not of {device}", cuda.device());
    cuda
}

/// Waits shortly for the transport to say who failed first.
///
/// # Errors
/// What it says.
fn hear_culprit(transport: &dyn Transport) -> Result<()> {
    let since = Instant::now();
    while since.elapsed() < CULPRIT_WITHIN {
        transport.check()?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn end(collectives: &dyn DeviceCollectives, operation: &str, reason: String) -> Result<()> {
    let seen_by = collectives.rank();
    collectives.abort(CommError::Device { seen_by, operation: operation.to_owned(), reason });
    collectives.transport().check()
}

/// As [`end`], of collectives that are being closed.
fn end_closing(transport: &dyn Transport, operation: &str, reason: String) -> Result<()> {
    let (seen_by, operation) = (transport.rank(), operation.to_owned());
    transport.abort(CommError::Device { seen_by, operation, reason });
    transport.check()
}

/// Of so many bytes, those that the `index`-th of `count` ranks adds up: whole groups of 16, so
/// that only the last segment ends with single numbers. Some may be empty.
fn segment(index: usize, count: usize, bytes: usize) -> Range<usize> {
    let each = bytes.div_ceil(count).next_multiple_of(16);
    (index * each).min(bytes)..((index + 1) * each).min(bytes)
}
