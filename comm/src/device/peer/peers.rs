//! Ranks of one node whose devices can use each other's memory: where they meet on the host, and
//! barriers between their streams.

use super::flags::{Flags, GivingUp};
use super::meeting::{Meeting, Part};
use crate::communicator::Communicator;
use crate::device::push::push;
use crate::device::{Blocks, hear_culprit, own_stream};
use crate::error::{CommError, Result};
use crate::readable::text;
use crate::topology::Rank;
use crate::transport::Transport;
use headlong_device::Stream;
use headlong_device::cuda::{CudaDevice, CudaStream, DevicePtr};
use std::sync::{Arc, Mutex, PoisonError};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(in crate::device) struct Peers {
    meeting: Meeting,
    index: usize,
    device: CudaDevice,
    flags: Flags,
    all_flags: Vec<u64>,
    telling: Arc<Telling>,
    /// Whether one of the ranks is of another process.
    has_foreign: bool,
    giving_up: Mutex<Option<GivingUp>>,
}

/// Tells the other processes of the group that this rank gives up, before its streams pass a
/// barrier of theirs with nothing done: they may come to the end of an exchange before they have
/// heard otherwise. Ranks of the own process share the job's state.
pub(in crate::device) struct Telling {
    device: CudaDevice,
    words: Mutex<Vec<DevicePtr>>,
}

impl Telling {
    /// Returns when they are told; the first time.
    pub(in crate::device) fn tell(&self) {
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        // A device that has failed passes nothing on.
        words.drain(..).for_each(|word| drop(self.device.write_word(word, 1)));
    }

    fn forget(&self) {
        self.words.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Where a rank is and what its device is, as all others hear it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Home {
    process: u64,
    ordinal: u64,
    bus_id: [u8; 32],
}

impl Home {
    fn of(device: &CudaDevice) -> Result<Self> {
        let mut bus_id = [0; 32];
        let text = device.bus_id().unwrap_or_default();
        bus_id.iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = byte);
        Ok(Self { process: process()?, ordinal: u64::from(device.ordinal()), bus_id })
    }

    fn gather(communicator: &Communicator, device: &CudaDevice) -> Result<Vec<Self>> {
        let own = Self::of(device)?;
        let mut all = vec![own; communicator.num_ranks()];
        communicator.all_gather(own.as_bytes(), all.as_mut_bytes())?;
        Ok(all)
    }

    /// Whether these are two devices, one of which can be seen to reach the other; between
    /// processes that only mapping its memory shows.
    fn may_reach(&self, other: &Self, device: &CudaDevice) -> bool {
        if self.process != other.process {
            return self.bus_id != other.bus_id;
        }
        let reaches = |peer: CudaDevice| device.can_access_peer(&peer);
        self.ordinal != other.ordinal && CudaDevice::open(other.ordinal as u32).is_ok_and(reaches)
    }
}

/// A number that no other process has: process ids are the same in containers of one machine.
fn process() -> Result<u64> {
    static DRAWN: Mutex<Option<u64>> = Mutex::new(None);
    let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(number) = *drawn {
        return Ok(number);
    }
    let mut bytes = [0_u8; 8];
    getrandom::fill(&mut bytes)
        .map_err(|error| CommError::system("drawing a random number", error))?;
    Ok(*drawn.insert(u64::from_ne_bytes(bytes)))
}

impl Peers {
    /// Whether the ranks of every one of `groups`, which hold each rank once, are on one node, with
    /// devices of their own that can use each other's memory: the same answer on all ranks.
    pub(in crate::device) fn are_possible(
        communicator: &Communicator,
        cuda: &CudaStream,
        groups: &[&[Rank]],
    ) -> Result<bool> {
        let (rank, device) = (communicator.rank(), cuda.device());
        let homes = Home::gather(communicator, device)?;
        let group = group_of(groups, rank);
        let own = homes[rank.0];
        let others = || group.iter().filter(|peer| **peer != rank);
        let may = group.len() <= super::MOST_RANKS
            && others().all(|&peer| communicator.topology().same_node(peer, rank))
            && others().all(|peer| own.may_reach(&homes[peer.0], device));
        if !communicator.all_say(may)? {
            return Ok(false);
        }
        let is_split = |group: &&[Rank]| foreign(group, &homes, group[0]).contains(&true);
        if !groups.iter().any(is_split) {
            return Ok(true);
        }
        Meeting::new(communicator, device, group, foreign(group, &homes, rank)).can_map()
    }

    /// Comes together with the ranks of its group; `load` takes what its kernels need, because a
    /// captured call may not load them.
    pub(in crate::device) fn attach(
        communicator: &Communicator,
        cuda: &CudaStream,
        groups: &[&[Rank]],
        load: impl FnOnce() -> Result<(), String>,
    ) -> Result<Self> {
        let (rank, device) = (communicator.rank(), cuda.device());
        let group = group_of(groups, rank);
        let place = group.iter().position(|&other| other == rank);
        let index = place.expect("a rank is in its own group");
        let made = enable_access(cuda).map_err(text).and_then(|()| {
            load()?;
            Flags::new(device, index, group.len())
        });
        let flags = communicator.agree("memory of peers", made)?;
        let homes = Home::gather(communicator, device)?;
        let foreign = foreign(group, &homes, rank);
        let meeting = Meeting::new(communicator, device, group, foreign.clone());
        let part = Part { addresses: [flags.address(), 0], ..Part::none("flags") };
        let parts = meeting.meet(part)?;
        let all_flags: Vec<u64> = parts.iter().map(|part| part.addresses[0]).collect();
        let others = all_flags.iter().zip(&foreign).filter(|(_, is_foreign)| **is_foreign);
        let words = others.map(|(&address, _)| flags.told(address)).collect();
        Ok(Self {
            all_flags,
            telling: Arc::new(Telling { device: device.clone(), words: Mutex::new(words) }),
            has_foreign: foreign.contains(&true),
            meeting,
            index,
            device: device.clone(),
            flags,
            giving_up: Mutex::new(None),
        })
    }

    pub(super) fn transport(&self) -> &Arc<dyn Transport> {
        self.meeting.communicator().transport()
    }

    fn rank(&self) -> Rank {
        self.meeting.ranks()[self.index]
    }

    pub(in crate::device) fn meet(&self, part: Part) -> Result<Vec<Part>> {
        self.meeting.meet(part).or_else(|error| self.end(error))
    }

    /// Enqueues that the stream continues when the streams of all have come to their barrier
    /// `which`, 0 or 1, of an operation.
    pub(in crate::device) fn barrier(&self, cuda: &CudaStream, which: usize) -> Result<(), String> {
        self.flags.barrier(cuda, which, &self.all_flags)
    }

    /// Learns where `part` is on all ranks of the group, and enqueues `body` between two barriers.
    pub(super) fn enqueue(
        &self,
        stream: &Stream,
        part: Part,
        body: impl FnOnce(&CudaStream, &[Part]),
    ) -> Result<()> {
        self.check()?;
        if part.size == 0 {
            return Ok(());
        }
        let cuda = own_stream(stream, &self.device, part.operation);
        let parts = self.meet(part)?;
        let enqueued = bind(cuda).and_then(|()| {
            self.barrier(cuda, 0)?;
            body(cuda, &parts);
            self.barrier(cuda, 1)?;
            cuda.check().map_err(text)
        });
        enqueued.or_else(|reason| {
            let operation = part.operation.to_owned();
            self.end(CommError::Device { seen_by: self.rank(), operation, reason })
        })
    }

    /// Each rank of the group pushes what counts of its blocks into the memory of the others, where
    /// that of a rank lies `to_stride` bytes after the one before.
    pub(in crate::device) fn all_to_all_v(
        &self,
        stream: &Stream,
        blocks: Blocks,
        to_stride: usize,
    ) -> Result<()> {
        let part = Part {
            operation: "all_to_all",
            size: blocks.bytes_per_peer as u64,
            root: 0,
            addresses: [blocks.to.0, 0],
        };
        self.enqueue(stream, part, |cuda, parts| {
            let place = |part: &Part| part.first().offset(self.index * to_stride);
            let to: Vec<DevicePtr> = parts.iter().map(place).collect();
            push(cuda, &blocks, &to, (self.index + 1) % parts.len());
        })
    }

    /// Ends the job with this error, unless another was first; the job's first error.
    fn end<T>(&self, error: CommError) -> Result<T> {
        self.abort(error.clone());
        self.transport().check()?;
        Err(error)
    }

    pub(in crate::device) fn check(&self) -> Result<()> {
        self.transport().check().or_else(|error| self.end(error))
    }

    /// Whether what streams have passed has been done, by all: one that gives up passes as well. It
    /// asks the device, where ranks are of other processes.
    pub(in crate::device) fn believe(&self) -> Result<()> {
        self.check()?;
        let told = if self.has_foreign { self.flags.is_told() } else { Ok(false) };
        let reason = match told {
            Ok(false) => return Ok(()),
            Ok(true) => "a rank of the node has given up".to_owned(),
            Err(reason) => reason,
        };
        hear_culprit(&**self.transport()).or_else(|error| self.end(error))?;
        let operation = "an exchange between devices".to_owned();
        self.end(CommError::Device { seen_by: self.rank(), operation, reason })
    }

    pub(in crate::device) fn telling(&self) -> Arc<Telling> {
        Arc::clone(&self.telling)
    }

    /// Ends the job with `error`, unless it has failed already, and lets this rank's streams pass
    /// every barrier.
    pub(in crate::device) fn abort(&self, error: CommError) {
        self.transport().abort(error);
        self.telling.tell();
        let mut giving_up = self.giving_up.lock().unwrap_or_else(PoisonError::into_inner);
        giving_up.get_or_insert_with(|| self.flags.give_up());
    }

    /// Waits on the host until everybody is done: flags and data are others' to write until then,
    /// and what other processes have mapped stays until they have let it go.
    pub(in crate::device) fn close(&self) -> Result<()> {
        self.meeting.meet(Part::none("close"))?;
        self.telling.forget();
        self.meeting.unmap();
        self.meeting.meet(Part::none("unmap")).map(drop)
    }
}

impl Drop for Peers {
    /// Where it was not closed, what others' memory is mapped here goes now: it is the last chance.
    fn drop(&mut self) {
        self.telling.tell();
    }
}

/// Which ranks of a group are in another process than `rank`.
fn foreign(group: &[Rank], homes: &[Home], rank: Rank) -> Vec<bool> {
    group.iter().map(|peer| homes[peer.0].process != homes[rank.0].process).collect()
}

fn group_of<'a>(groups: &[&'a [Rank]], rank: Rank) -> &'a [Rank] {
    groups.iter().find(|group| group.contains(&rank)).expect("every rank is in a group")
}

/// Binds the device's context to this thread, which the driver's calls need.
pub(in crate::device) fn bind(cuda: &CudaStream) -> Result<(), String> {
    cuda.is_capturing().map(drop).map_err(text)
}

fn enable_access(cuda: &CudaStream) -> headlong_device::error::Result<()> {
    for ordinal in 0..CudaDevice::count()? {
        let peer = CudaDevice::open(ordinal)?;
        if cuda.device().can_access_peer(&peer) {
            cuda.device().enable_peer_access(&peer)?;
        }
    }
    Ok(())
}
