//! One rank's view of the job: the operations, over any transport.

use crate::counters::Counters;
use crate::device::rail::Rails;
use crate::error::{CommError, Result};
use crate::operation::{Algorithm, Collective, fingerprint};
use crate::options::CommOptions;
use crate::plan::Plan;
use crate::scratch::{Lists, Memory, Scratch};
use crate::topology::{Rank, Topology};
use crate::transport::local::LocalTransport;
use crate::transport::{Expected, Incoming, Outgoing, StepId, Transport};
use crate::views::Views;
use headlong_device::copy::copy;
use headlong_device::cuda::CudaStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One rank of a job. All ranks call the same operations in the same order, with the same options.
///
/// Operations block until they are done and take turns where several threads call them. After the
/// first error of any rank, every call on every rank answers with that error.
///
/// A rank that is done says so by [`Communicator::close`]; one that is dropped
/// without is lost to the others.
pub struct Communicator {
    transport: Arc<dyn Transport>,
    topology: Topology,
    options: CommOptions,
    /// Algorithms of all-reduces, each from so many bytes on, as measured.
    measured: Vec<(u64, Algorithm)>,
    rails: Option<Arc<dyn ConnectRails>>,
    inner: Arc<Mutex<Inner>>,
}

/// Makes the rails of a job, for [`Communicator::with_rails`].
pub trait ConnectRails: Send + Sync {
    /// Comes together with all ranks; `peers` are those at this rank's place of the other nodes,
    /// `slot_bytes` the longest that a rank has for one of them in one exchange.
    fn connect(
        &self,
        communicator: &Communicator,
        cuda: &CudaStream,
        peers: Vec<Rank>,
        slot_bytes: usize,
    ) -> Result<Box<dyn Rails>>;
}

/// A rank does something long on its host while this lives.
#[must_use = "dropped, the rank is busy no longer"]
pub struct Busy {
    transport: Arc<dyn Transport>,
    before: Option<&'static str>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.transport.set_busy(self.before);
    }
}

/// What ranks exchange over TCP is encrypted and authenticated while this lives.
#[must_use = "dropped, exchanges are what the job asks for again"]
pub struct Sealed {
    transport: Arc<dyn Transport>,
}

impl Drop for Sealed {
    fn drop(&mut self) {
        self.transport.set_sealed(false);
    }
}

#[derive(Default)]
struct Inner {
    sequence: u64,
    counters: Counters,
    lists: Lists,
    expected: Vec<Expected>,
    memory: Memory,
    plan: Plan,
}

impl Communicator {
    /// A communicator over one end of a transport.
    pub fn new(transport: Arc<dyn Transport>, options: CommOptions) -> Self {
        let topology = transport.topology().clone();
        let measured = measured(&*transport, &options);
        Self { transport, topology, options, measured, rails: None, inner: Arc::default() }
    }

    /// The same rank of the same job: operations of both are counted as one's.
    pub(crate) fn another_handle(&self) -> Self {
        Self {
            transport: Arc::clone(&self.transport),
            topology: self.topology.clone(),
            options: self.options.clone(),
            measured: self.measured.clone(),
            rails: self.rails.clone(),
            inner: Arc::clone(&self.inner),
        }
    }

    /// All ranks of a job whose ranks are threads of this process, in the order of ranks.
    pub fn local(topology: &Topology, options: CommOptions) -> Vec<Communicator> {
        let ends = LocalTransport::world(topology, options.deadline).into_iter();
        ends.map(|end| Communicator::new(Arc::new(end), options.clone())).collect()
    }

    /// Who this is.
    pub fn rank(&self) -> Rank {
        self.transport.rank()
    }

    /// How many ranks the job has.
    pub fn num_ranks(&self) -> usize {
        self.topology.num_ranks()
    }

    /// All ranks and their nodes.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// What carries the messages.
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    pub(crate) fn measured_all_reduce(&self, bytes: usize) -> Option<Algorithm> {
        let above = self.measured.partition_point(|(from, _)| *from <= bytes as u64);
        above.checked_sub(1).map(|place| self.measured[place].1)
    }

    /// Hierarchical collectives between devices use these rails between nodes, instead of NCCL. All
    /// ranks have some, or none.
    #[must_use]
    pub fn with_rails(self, rails: Arc<dyn ConnectRails>) -> Self {
        Self { rails: Some(rails), ..self }
    }

    /// The rails that it was given.
    pub fn rails(&self) -> Option<&dyn ConnectRails> {
        self.rails.as_deref()
    }

    /// How the work is done.
    pub fn options(&self) -> &CommOptions {
        &self.options
    }

    /// Payload that has left this rank. Waits for the end of an operation that another thread has
    /// begun.
    pub fn counters(&self) -> Counters {
        self.lock().counters
    }

    /// Sets the counters to zero.
    pub fn reset_counters(&self) {
        self.lock().counters = Counters::default();
    }

    /// This rank does something long on its host, until the answer is dropped:
    /// `saves a checkpoint`. Waiting for it does not count against the deadlines of the others, for
    /// as long as it does not wait for them itself.
    pub fn busy(&self, what: &'static str) -> Busy {
        let before = self.transport.set_busy(Some(what));
        Busy { transport: Arc::clone(&self.transport), before }
    }

    /// What ranks exchange over TCP is encrypted and authenticated, until the answer is dropped,
    /// also where the job does not ask for it: for keys. All ranks call this, and drop it, between
    /// the same operations.
    pub fn sealed(&self) -> Sealed {
        self.transport.set_sealed(true);
        Sealed { transport: Arc::clone(&self.transport) }
    }

    /// Ends the job for all ranks with `error`, unless it has failed already.
    pub fn abort(&self, error: CommError) {
        self.transport.abort(error);
    }

    /// The job's first error, if it has failed.
    pub fn check(&self) -> Result<()> {
        self.transport.check()
    }

    /// Says goodbye: this rank is done, and its end is no failure.
    pub fn close(&self) -> Result<()> {
        self.transport.close()
    }

    /// `all` becomes the bytes of `own` of every rank of `group`, to which this rank belongs; all
    /// ranks call this, each for its own group. What it sends is not counted.
    pub(crate) fn gather_in_group(&self, group: &[Rank], own: &[u8], all: &mut [u8]) -> Result<()> {
        let mut call = self.call(Collective::AllGather, 0, Algorithm::Hierarchical, 0);
        let (id, me) = (call.next_step(), self.rank());
        let (mut outgoing, mut incoming) = (call.lists().outgoing(), call.lists().incoming());
        for (&rank, bytes) in group.iter().zip(all.chunks_exact_mut(own.len())) {
            if rank == me {
                copy(own, bytes);
            } else {
                outgoing.push(Outgoing { to: rank, bytes: own });
                incoming.push(Incoming { from: rank, bytes });
            }
        }
        self.transport.exchange(&id, &outgoing, &mut incoming)?;
        call.lists().put_outgoing(outgoing);
        call.lists().put_incoming(incoming);
        Ok(())
    }

    /// Whether all ranks say yes: the same answer on all.
    ///
    /// # Errors
    /// As [`Communicator::all_gather`].
    pub fn all_say(&self, own: bool) -> Result<bool> {
        let mut answers = vec![0_u8; self.num_ranks()];
        self.all_gather(&[u8::from(own)], &mut answers)?;
        Ok(answers.iter().all(|answer| *answer == 1))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an operation; what it is given is what all ranks must agree on.
    pub(crate) fn call(
        &self,
        collective: Collective,
        element: u8,
        algorithm: Algorithm,
        root: usize,
    ) -> Call<'_> {
        let mut inner = self.lock();
        let sequence = inner.sequence;
        inner.sequence += 1;
        let fingerprint = fingerprint(collective, element, algorithm, root);
        let id = StepId { sequence, step: 0, fingerprint, operation: collective.name() };
        Call { communicator: self, inner, collective, id }
    }
}

fn measured(transport: &dyn Transport, options: &CommOptions) -> Vec<(u64, Algorithm)> {
    let Some(tuning) = &options.tuning else { return Vec::new() };
    let (topology, operation) = (transport.topology(), Collective::AllReduce.name());
    let nodes = (0..topology.num_nodes()).filter(|&node| topology.node_size(node) > 0).count();
    let steps = tuning.algorithms(operation, transport.name(), nodes, topology.num_ranks());
    let algorithm = |(from, name): (u64, String)| match name.as_str() {
        "direct" => (from, Algorithm::Direct),
        "hierarchical" => (from, Algorithm::Hierarchical),
        _ => (from, Algorithm::TwoSteps),
    };
    steps.into_iter().map(algorithm).collect()
}

pub(crate) struct Call<'c> {
    communicator: &'c Communicator,
    inner: MutexGuard<'c, Inner>,
    collective: Collective,
    id: StepId,
}

impl<'c> Call<'c> {
    pub(crate) fn me(&self) -> Rank {
        self.communicator.rank()
    }

    pub(crate) fn topology(&self) -> &'c Topology {
        &self.communicator.topology
    }

    /// All other ranks, rising.
    pub(crate) fn peers(&self) -> impl Iterator<Item = Rank> + use<> {
        let me = self.me();
        self.topology().ranks().filter(move |&rank| rank != me)
    }

    /// Memory to be used again; what is taken out is to be put back.
    pub(crate) fn memory(&mut self) -> &mut Memory {
        &mut self.inner.memory
    }

    pub(crate) fn lists(&mut self) -> &mut Lists {
        &mut self.inner.lists
    }

    pub(crate) fn plan(&mut self) -> &mut Plan {
        &mut self.inner.plan
    }

    /// The next step: sends and fills everything.
    pub(crate) fn exchange(
        &mut self,
        outgoing: Vec<Outgoing>,
        mut incoming: Vec<Incoming>,
    ) -> Result<()> {
        let id = self.next_step();
        self.communicator.transport.exchange(&id, &outgoing, &mut incoming)?;
        self.count(&outgoing);
        self.lists().put_outgoing(outgoing);
        self.lists().put_incoming(incoming);
        Ok(())
    }

    /// The next step: sends everything, and shows to `read` what comes from the same peers, in the
    /// same order: `length` bytes each.
    pub(crate) fn exchange_reading(
        &mut self,
        outgoing: Vec<Outgoing>,
        length: usize,
        read: &mut dyn FnMut(&[&[u8]]),
    ) -> Result<()> {
        let id = self.next_step();
        if self.communicator.transport.in_place_bytes().is_some() {
            let mut expected = std::mem::take(&mut self.inner.expected);
            expected.clear();
            expected.extend(outgoing.iter().map(|message| Expected { from: message.to, length }));
            self.communicator.transport.exchange_reading(&id, &outgoing, &expected, read)?;
            self.inner.expected = expected;
        } else {
            let mut room = std::mem::take(&mut self.memory().received);
            self.receive_and_read(&id, &outgoing, length, &mut room, read)?;
            self.memory().received = room;
        }
        self.count(&outgoing);
        self.lists().put_outgoing(outgoing);
        Ok(())
    }

    fn receive_and_read(
        &mut self,
        id: &StepId,
        outgoing: &[Outgoing],
        length: usize,
        room: &mut Scratch,
        read: &mut dyn FnMut(&[&[u8]]),
    ) -> Result<()> {
        // Every part begins on a word, aligned for every element.
        let stride = length.next_multiple_of(8).max(8);
        let room = room.bytes(stride * outgoing.len());
        let mut incoming = self.lists().incoming();
        let parts = outgoing.iter().zip(room.chunks_mut(stride));
        incoming.extend(
            parts.map(|(peer, part)| Incoming { from: peer.to, bytes: &mut part[..length] }),
        );
        self.communicator.transport.exchange(id, outgoing, &mut incoming)?;
        self.lists().put_incoming(incoming);
        let mut views = Views::default();
        room.chunks(stride).for_each(|part| views.push(&part[..length]));
        read(views.as_slice());
        Ok(())
    }

    /// Others take these steps, and this rank has no part in them.
    pub(crate) fn pass_steps(&mut self, steps: u32) {
        self.id.step += steps;
    }

    fn next_step(&mut self) -> StepId {
        let id = self.id;
        self.id.step += 1;
        id
    }

    fn count(&mut self, outgoing: &[Outgoing]) {
        let (topology, me) = (self.topology(), self.me());
        self.inner.counters.add(self.collective, topology, me, outgoing);
    }
}

#[cfg(test)]
mod tests {
    use crate::counters::Traffic;
    use crate::operation::Collective;
    use crate::testing::run_ranks;
    use crate::topology::{Rank, Topology};

    #[test]
    fn groups_gather_among_themselves_and_nothing_is_counted() {
        let answers = run_ranks(&Topology::one_node(5), |communicator| {
            let (rank, handle) = (communicator.rank(), communicator.another_handle());
            let group: Vec<Rank> = if rank.0 < 2 { 0..2 } else { 2..5 }.map(Rank).collect();
            let mut all = vec![0; 2 * group.len()];
            for round in 0..3 {
                let own = [rank.0 as u8, round];
                handle.gather_in_group(&group, &own, &mut all).expect("all come");
                communicator.barrier().expect("all come");
            }
            assert_eq!(communicator.counters().of(Collective::AllGather), Traffic::default());
            all
        });
        assert_eq!(answers[..2], [[0, 2, 1, 2], [0, 2, 1, 2]]);
        assert_eq!(answers[2..], [[2, 2, 3, 2, 4, 2]; 3]);
    }
}
