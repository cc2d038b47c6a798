//! Ranks of one process whose devices can use each other's memory: where they meet on the host, and
//! barriers between their streams.

use super::flags::{Flags, GivingUp};
use super::world::{self, Part, World};
use crate::communicator::Communicator;
use crate::device::own_stream;
use crate::error::{CommError, Result};
use crate::readable::text;
use crate::topology::Rank;
use crate::transport::Transport;
use headlong_device::Stream;
use headlong_device::cuda::{CudaDevice, CudaStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(in crate::device) struct Peers {
    ranks: Vec<Rank>,
    index: usize,
    world: Arc<World>,
    transport: Arc<dyn Transport>,
    device: CudaDevice,
    deadline: Duration,
    flags: Flags,
    all_flags: Vec<u64>,
    giving_up: Mutex<Option<GivingUp>>,
}

impl Peers {
    /// Whether the ranks of every one of `groups`, which hold each rank once, are threads of this
    /// process with devices of their own that can use each other's memory: the same answer on all
    /// ranks.
    pub(in crate::device) fn are_possible(
        communicator: &Communicator,
        cuda: &CudaStream,
        groups: &[&[Rank]],
    ) -> Result<bool> {
        let own = [world::process()?, u64::from(cuda.device().ordinal())];
        let mut all = vec![0_u64; 2 * communicator.num_ranks()];
        communicator.all_gather(&own, &mut all)?;
        let group = group_of(groups, communicator.rank());
        let mut can = group.len() <= super::MOST_RANKS;
        for &rank in group {
            let (is_me, place) = (rank == communicator.rank(), &all[2 * rank.0..][..2]);
            can &=
                place[0] == own[0] && communicator.topology().same_node(rank, communicator.rank());
            can &= is_me || place[1] != own[1];
            let reaches = || {
                let peer = CudaDevice::open(place[1] as u32);
                peer.is_ok_and(|peer| cuda.device().can_access_peer(&peer))
            };
            can = can && (is_me || reaches());
        }
        let mut answers = vec![0_u8; communicator.num_ranks()];
        communicator.all_gather(&[u8::from(can)], &mut answers)?;
        Ok(answers.iter().all(|answer| *answer == 1))
    }

    /// Comes together with the ranks of its group; `load` takes what its kernels need, because a
    /// captured call may not load them.
    pub(in crate::device) fn attach(
        communicator: &Communicator,
        cuda: &CudaStream,
        groups: &[&[Rank]],
        load: impl FnOnce() -> Result<(), String>,
    ) -> Result<Self> {
        let rank = communicator.rank();
        let ranks = group_of(groups, rank).to_vec();
        let founded = (ranks[0] == rank).then(|| World::found(&ranks));
        let mut ids = vec![0_u64; communicator.num_ranks()];
        let own_id = founded.as_ref().map_or(0, |(_, number)| *number);
        communicator.all_gather(&[own_id], &mut ids)?;
        let world = founded.map(|(world, _)| world).or_else(|| World::join(ids[ranks[0].0]));
        let made = world.ok_or_else(|| format!("{} is gone", ranks[0]));
        let index =
            ranks.iter().position(|&other| other == rank).expect("a rank is in its own group");
        let made = made.and_then(|world| {
            enable_access(cuda).map_err(text)?;
            load()?;
            Ok((world, Flags::new(cuda.device(), index, ranks.len())?))
        });
        let (world, flags) = communicator.agree("memory of peers", made)?;
        let mut all = vec![0_u64; communicator.num_ranks()];
        communicator.all_gather(&[flags.address()], &mut all)?;
        Ok(Self {
            all_flags: ranks.iter().map(|rank| all[rank.0]).collect(),
            ranks,
            index,
            world,
            transport: communicator.transport().clone(),
            device: cuda.device().clone(),
            deadline: communicator.options().deadline,
            flags,
            giving_up: Mutex::new(None),
        })
    }

    pub(super) fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    fn rank(&self) -> Rank {
        self.ranks[self.index]
    }

    pub(in crate::device) fn meet(&self, part: Part) -> Result<Arc<[Part]>> {
        let parts = self.world.meet(self.index, part, self.deadline, &|| self.transport.check());
        parts.or_else(|error| self.end(error))
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
        self.transport.check()?;
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

    /// Ends the job with this error, unless another was first; the job's first error.
    fn end<T>(&self, error: CommError) -> Result<T> {
        self.abort(error.clone());
        self.transport.check()?;
        Err(error)
    }

    pub(in crate::device) fn check(&self) -> Result<()> {
        self.transport.check().or_else(|error| self.end(error))
    }

    /// Ends the job with `error`, unless it has failed already, and lets this rank's streams pass
    /// every barrier.
    pub(in crate::device) fn abort(&self, error: CommError) {
        self.transport.abort(error);
        let mut giving_up = self.giving_up.lock().unwrap_or_else(PoisonError::into_inner);
        giving_up.get_or_insert_with(|| self.flags.give_up());
    }

    /// Waits on the host until everybody is done: flags and data are others' to write until then.
    pub(in crate::device) fn close(&self) -> Result<()> {
        let part = Part { operation: "close", size: 0, root: 0, addresses: [0; 2] };
        self.world.meet(self.index, part, self.deadline, &|| self.transport.check()).map(drop)
    }
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
