//! Collectives between devices of several nodes: inside the node first, then one strip per remote
//! node and rail.
//!
//! ```text
//! all-to-all   peers' blocks ─ send_strips ─► strips ═ rails ═► strips ─ receive_strips ─► blocks
//!                     └─ (own node) ────────────────────────────────────────────────────────┘
//! all-reduce   peers' segments ─ seal, sum ─► strip ═ rails ═► strips ─ open, sum ─► peers' segments
//! ```
//!
//! The rank of a node that carries for a destination (`comm/src/plan/hierarchical.rs`) gathers what
//! all ranks of the node have for it, as dense as their lengths allow, after a header that says
//! how long each block is, and in which exchange. Lengths stay on the devices. What exceeds a
//! slot's capacity is not sent: its header says so, and every rank hears of it
//! ([`DeviceCollectives::flagged`]). Over NCCL strips travel as long as they can be, because NCCL
//! wants sizes from the host; what is after the blocks is not looked at.
//!
//! **Sums** have the bits of [`crate::element`]. Where nodes are subtrees of the tree, one sum per
//! node crosses, a large one in two steps ([`sums_in_two_steps`]); else the parts do.
//!
//! **Who reads what when.** Blocks of peers are read between the two barriers of `inside::Inside`.
//! A slot of strips is written again when its last exchange has ended on this stream, and by
//! others' rails as `Rails` says.

mod inside;
mod launch;
mod nodes;
mod parts;
mod rails;
mod report;
mod two_steps;

use super::nccl::NcclCollectives;
use super::peer::{Peers, bind};
use super::push;
use super::rail::nccl::NcclRails;
use super::rail::{Exchange, Rails, Route};
use super::sum::{self, Place, Turns, sum};
use super::{
    Blocks, ByNode, DeviceCollectives, DeviceSizes, Parts, SumLen, end, end_closing, own_stream,
    segment,
};
use crate::communicator::Communicator;
use crate::error::{CommError, Result};
use crate::topology::{Rank, Topology};
use crate::transport::Transport;
use headlong_device::Stream;
use headlong_device::cuda::{Build, CudaDevice, CudaStream, DeviceMemory, DevicePtr};
use inside::{Brought, Inside};
use launch::{Kernels, Picked, Slots, Tables};
use nodes::{HEADER_BYTES, MOST_PEERS, Nodes};
use report::Report;
use std::sync::Arc;
pub use two_steps::{longest_block_of_sums, sums_in_two_steps};

/// Bytes of `struct State` of state.cuh.
const STATE_BYTES: usize = 24;

/// Where in it the last one is.
const REFUSED: usize = 12;

/// The kernels of strips, for builds ahead of time, and what copies a single part to all peers.
/// Sums are those of [`super::peer::kernels`].
pub fn kernels() -> Vec<Build> {
    std::iter::once(launch::build()).chain(sum::builds(1)).collect()
}

fn parts_of_sums(nodes: &Nodes) -> Vec<usize> {
    match nodes.sums_by_node() {
        // A single part is copied to all peers.
        true => vec![nodes.peers().len(), nodes.all().count(), 1],
        false => vec![nodes.topology().num_ranks()],
    }
}

enum Stop {
    /// For a reason of this rank.
    Reason(String),
    /// The job has ended.
    Ended(CommError),
}

impl From<String> for Stop {
    fn from(reason: String) -> Self {
        Stop::Reason(reason)
    }
}

impl From<CommError> for Stop {
    fn from(error: CommError) -> Self {
        Stop::Ended(error)
    }
}

/// One rank's end of hierarchical collectives.
pub struct HierarchicalCollectives {
    name: String,
    nodes: Nodes,
    transport: Arc<dyn Transport>,
    device: CudaDevice,
    sizes: DeviceSizes,
    inside: Inside,
    rails: Box<dyn Rails>,
    /// NCCL, where a part of the way is its.
    nccl: Option<Arc<NcclCollectives>>,
    slot_bytes: usize,
    room: Room,
    epoch: u32,
    /// [`CommOptions::one_step_bytes`](crate::CommOptions).
    one_step_bytes: Option<usize>,
}

struct Moved {
    blocks: inside::Blocks,
    /// How long blocks of each rank of the node are, where that is not on the device.
    fixed: [u32; MOST_PEERS],
    to: DevicePtr,
    to_stride: usize,
}

impl Moved {
    /// Blocks of one length, which arrive at `to` in the order of ranks.
    fn one_after_another(blocks: inside::Blocks, to: DevicePtr) -> Self {
        Self { blocks, fixed: [blocks.bytes as u32; MOST_PEERS], to, to_stride: blocks.bytes }
    }
}

/// Whether ranks of this topology can exchange this way; else why not.
pub(super) fn possible(topology: &Topology) -> Result<(), String> {
    let sizes = (0..topology.num_nodes()).map(|node| topology.node_size(node));
    let most = sizes.max().unwrap_or(0);
    match most > MOST_PEERS {
        true => Err(format!(
            "hierarchical exchanges are for up to {MOST_PEERS} ranks of a node, and there are \
             {most}"
        )),
        false => Ok(()),
    }
}

impl HierarchicalCollectives {
    /// Comes together with all ranks. Peers of every node use each other's memory where all of them
    /// can, else NCCL; nodes use the communicator's rails where it has some, else NCCL.
    pub(super) fn attach(
        communicator: &Communicator,
        cuda: &CudaStream,
        sizes: DeviceSizes,
        by_memory: bool,
    ) -> Result<Self> {
        let topology = communicator.topology();
        communicator.agree("hierarchical exchanges", possible(topology))?;
        let nodes = Nodes::new(topology, communicator.rank());
        rails::all_have_some_or_none(communicator)?;
        let load = || {
            launch::load(cuda)?;
            push::load(cuda)?;
            let narrow = sizes.have_narrow_sums();
            let mut parts = parts_of_sums(&nodes).into_iter();
            parts.try_for_each(|parts| sum::load(cuda, parts, narrow))
        };
        let sizes = with_whole_sums(&nodes, sizes);
        let summed = segment(0, nodes.num_rails(), sizes.sums.bytes()).len();
        let of_nodes = nodes.all().count() * sizes.summed_part_bytes().next_multiple_of(16);
        let most = (sizes.block_bytes, summed.max(of_nodes));
        let by_memory = by_memory && is_by_memory(communicator, cuda)?;
        let nccl = match by_memory && communicator.rails().is_some() {
            true => None,
            false => Some(Arc::new(NcclCollectives::attach(communicator, cuda)?)),
        };
        let inside = match &nccl {
            Some(nccl) if !by_memory => {
                let brought = load()
                    .and_then(|()| Brought::new(Arc::clone(nccl), cuda.device(), &nodes, most));
                Inside::Nccl(communicator.agree("room for what NCCL brings", brought)?)
            }
            _ => {
                let peers = Peers::attach(communicator, cuda, &groups(topology), load)?;
                Inside::Memory(Box::new(peers))
            }
        };
        inside.hear_of_aborts(nccl.as_deref());
        let one_step_bytes = communicator.options().one_step_bytes;
        let of_sum = longest_block_of_sums(topology, one_step_bytes, sizes.sums.bytes());
        let slot_bytes = nodes.slot_bytes(most.0, of_sum.max(sizes.part_bytes()), sizes.rail_bytes);
        let rails: Box<dyn Rails> = match (communicator.rails(), &nccl) {
            (None, Some(nccl)) => Box::new(NcclRails::new(Arc::clone(nccl))),
            (rails, _) => {
                let rails = rails.expect("where there is no NCCL, there are rails");
                rails.connect(communicator, cuda, nodes.rail(), slot_bytes)?
            }
        };
        let epoch = draw_epoch(communicator)?;
        let room = Room::new(cuda, &nodes, &*rails, slot_bytes);
        let room = communicator.agree("room for strips", room)?;
        Ok(Self {
            name: name(&inside, rails.name()),
            transport: communicator.transport().clone(),
            device: cuda.device().clone(),
            nodes,
            sizes,
            inside,
            rails,
            nccl,
            slot_bytes,
            room,
            epoch,
            one_step_bytes,
        })
    }

    fn enqueue(
        &self,
        operation: &'static str,
        stream: &Stream,
        body: impl FnOnce(&CudaStream) -> Result<(), Stop>,
    ) -> Result<()> {
        self.check_transport()?;
        let cuda = own_stream(stream, &self.device, operation);
        let enqueued = bind(cuda).map_err(Stop::Reason).and_then(|()| body(cuda));
        let enqueued =
            enqueued.and_then(|()| cuda.check().map_err(|error| Stop::Reason(error.to_string())));
        match enqueued {
            Ok(()) => Ok(()),
            Err(Stop::Ended(error)) => {
                self.abort(error.clone());
                Err(error)
            }
            Err(Stop::Reason(reason)) => end(self, operation, reason),
        }
    }

    /// The job's first error, as far as this rank has heard of one: then nothing that it has
    /// enqueued waits for peers any longer.
    fn check_transport(&self) -> Result<()> {
        self.transport.check().inspect_err(|error| self.abort(error.clone()))
    }

    fn kernels<'a>(
        &'a self,
        cuda: &'a CudaStream,
        operation: &str,
        size: usize,
        capacity: usize,
    ) -> Kernels<'a> {
        let slots = |side: usize| Slots {
            at: self.room.slots[side],
            state: self.room.state.ptr(),
            slot_bytes: self.slot_bytes as u64,
            num_slots: self.rails.num_slots() as u32,
            capacity: capacity as u32,
        };
        let (send, receive) = (slots(0), slots(1));
        let fingerprint = fingerprint(operation, size);
        Kernels {
            cuda,
            tables: &self.room.tables,
            send,
            receive,
            report: self.room.report.at(),
            epoch: self.epoch,
            fingerprint,
        }
    }

    fn hand_over<'a>(&self, route: &'a Route) -> Exchange<'a> {
        let (state, report) = (self.room.state.ptr(), self.room.report.at());
        Exchange { route, from: self.room.slots[0], to: self.room.slots[1], state, report }
    }

    fn move_blocks(&self, stream: &Stream, moved: &Moved) -> Result<()> {
        let blocks = &moved.blocks;
        let (operation, bytes) = (blocks.operation, blocks.bytes);
        if bytes == 0 {
            return self.check_transport();
        }
        if bytes > self.sizes.block_bytes {
            let room = self.sizes.block_bytes;
            return end(
                self,
                operation,
                format!("blocks of {bytes} bytes, and room was made for {room}"),
            );
        }
        let route = self.nodes.exchange_route(bytes);
        self.enqueue(operation, stream, |cuda| {
            let kernels = self.kernels(cuda, operation, bytes, bytes);
            let sources = self.inside.open(cuda, &self.nodes, blocks)?;
            let exchange = self.hand_over(&route);
            self.rails.prepare(cuda, &exchange)?;
            kernels.send_strips(&self.nodes, &sources, moved.fixed, (moved.to, moved.to_stride));
            self.rails.begin(cuda, &exchange)?;
            self.inside.close(cuda)?;
            self.rails.finish(cuda, &exchange)?;
            kernels.receive_strips(false, moved.to, moved.to_stride);
            Ok(())
        })
    }

    /// The memory of one strip's first block, in the slots that are sent from.
    fn own_sum(&self) -> Place {
        Place { is_sent: true, ..Place::in_slot(self.room.slots[0].offset(HEADER_BYTES)) }
    }

    fn turns(&self) -> Option<Turns> {
        Some(Turns {
            sequence: self.room.state.ptr(),
            refused: self.room.state.ptr().offset(REFUSED),
            slot_bytes: self.slot_bytes,
            num_slots: self.rails.num_slots(),
        })
    }

    /// The one block of up to `limit` bytes that a rank has for all.
    fn the_only_block(&self, limit: usize) -> Picked {
        Picked { positions: self.room.tables.numbers(), stride: 0, limit }
    }

    /// This rank's segment of a sum over all nodes, from `parts` of its own node to `outs`.
    fn sum_across(
        &self,
        cuda: &CudaStream,
        [parts, outs]: [&[DevicePtr]; 2],
        len: SumLen,
    ) -> Result<(), Stop> {
        let capacity = len.bytes();
        let route = self.nodes.sum_route(capacity);
        let kernels = self.kernels(cuda, "all_reduce", capacity, capacity);
        let turns = self.turns();
        let (parts, outs) = (fixed(parts), fixed(outs));
        let num_parts = self.nodes.parts_of(self.nodes.node());
        let exchange = self.hand_over(&route);
        self.rails.prepare(cuda, &exchange)?;
        kernels.seal((1, num_parts), [DevicePtr::NULL; MOST_PEERS], [capacity as u32; MOST_PEERS]);
        if self.nodes.sums_by_node() {
            sum(cuda, &parts, &[self.own_sum()], len, turns);
        } else {
            let from = inside::for_peers(parts.iter().map(|part| part.at));
            kernels.pack((1, num_parts), from, self.the_only_block(capacity));
        }
        self.rails.begin(cuda, &exchange)?;
        self.rails.finish(cuda, &exchange)?;
        kernels.open();
        // Own parts are read where they lie: nothing has been written there yet.
        let own = if self.nodes.sums_by_node() { vec![self.own_sum()] } else { parts };
        sum(cuda, &self.leaves(own, &route, capacity), &outs, len, turns);
        Ok(())
    }

    /// All parts in the order of the tree: this node's, and those in the strips of the others.
    fn leaves(&self, own: Vec<Place>, route: &Route, capacity: usize) -> Vec<Place> {
        let room = capacity.next_multiple_of(16);
        let mut leaves: Vec<(Rank, Place)> = Vec::new();
        let first_of = |node: usize| self.nodes.topology().ranks_of(node);
        leaves.extend(first_of(self.nodes.node()).iter().copied().zip(own));
        for hop in &route.receives {
            let node = self.nodes.topology().node_of(hop.peer);
            let blocks = (0..self.nodes.parts_of(node)).map(|block| {
                let offset = hop.offset + HEADER_BYTES + block * room;
                Place::in_slot(self.room.slots[1].offset(offset))
            });
            leaves.extend(first_of(node).iter().copied().zip(blocks));
        }
        leaves.sort_by_key(|(rank, _)| *rank);
        leaves.into_iter().map(|(_, place)| place).collect()
    }
}

/// Where what is divided among ranks is added up for all of them and then broadcast, the longest
/// all-reduce may be that, and nothing has parts.
fn with_whole_sums(nodes: &Nodes, sizes: DeviceSizes) -> DeviceSizes {
    if nodes.sums_by_node() {
        return sizes;
    }
    let divided = nodes.topology().num_ranks() * sizes.summed_part_bytes();
    let divided = SumLen::of_f32(divided.div_ceil(size_of::<f32>()));
    let sums = if divided.bytes() > sizes.sums.bytes() { divided } else { sizes.sums };
    DeviceSizes { sums, part: SumLen::of_f32(0), ..sizes }
}

struct Room {
    /// The first slots, that are sent from and received into.
    slots: [DevicePtr; 2],
    /// Their memory, where the rails have none of their own.
    _memory: Option<DeviceMemory>,
    state: DeviceMemory,
    tables: Tables,
    report: Report,
}

impl Room {
    fn new(
        cuda: &CudaStream,
        nodes: &Nodes,
        rails: &dyn Rails,
        slot_bytes: usize,
    ) -> Result<Self, String> {
        let device = cuda.device();
        let take =
            |what, bytes| DeviceMemory::new(device, what, bytes).map_err(|error| error.to_string());
        let side = rails.num_slots() * slot_bytes;
        let (slots, memory) = match rails.memory() {
            Some(slots) => (slots, None),
            None => {
                let memory = take("strips", 2 * side)?;
                ([memory.ptr(), memory.ptr().offset(side)], Some(memory))
            }
        };
        Ok(Self {
            slots,
            _memory: memory,
            state: take("number of the exchange", STATE_BYTES)?,
            tables: Tables::new(cuda, nodes)?,
            report: Report::new(device)?,
        })
    }
}

fn fixed(places: &[DevicePtr]) -> Vec<Place> {
    places.iter().copied().map(Place::fixed).collect()
}

fn groups(topology: &Topology) -> Vec<&[Rank]> {
    (0..topology.num_nodes())
        .map(|node| topology.ranks_of(node))
        .filter(|ranks| !ranks.is_empty())
        .collect()
}

fn is_by_memory(communicator: &Communicator, cuda: &CudaStream) -> Result<bool> {
    Peers::are_possible(communicator, cuda, &groups(communicator.topology()))
}

/// A number that this job's strips bear, and hardly another's.
fn draw_epoch(communicator: &Communicator) -> Result<u32> {
    let mut bytes = [0_u8; 4];
    getrandom::fill(&mut bytes)
        .map_err(|error| CommError::system("drawing a random number", error))?;
    let mut epoch = [u32::from_ne_bytes(bytes)];
    communicator.broadcast(Rank(0), &mut epoch)?;
    Ok(epoch[0])
}

fn name(inside: &Inside, rails: &str) -> String {
    match (inside, rails) {
        (Inside::Nccl(_), "nccl") => "hierarchical: nccl".to_owned(),
        (Inside::Nccl(_), rails) => format!("hierarchical: nccl, {rails}"),
        (Inside::Memory(_), rails) => format!("hierarchical: peer memory, {rails}"),
    }
}

/// Equal where two ranks are in the same kind of exchange.
fn fingerprint(operation: &str, size: usize) -> u32 {
    // FNV-1a.
    let bytes = operation.bytes().chain(size.to_le_bytes());
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

impl DeviceCollectives for HierarchicalCollectives {
    fn name(&self) -> &str {
        &self.name
    }

    fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    fn all_to_all_v(&self, stream: &Stream, blocks: Blocks) -> Result<()> {
        let Blocks { from, to, stride, bytes_per_peer: bytes, lengths } = blocks;
        let (operation, root) = ("all_to_all", Rank(0));
        let blocks = inside::Blocks { operation, from, stride, bytes, lengths, root };
        let moved = Moved { to_stride: stride, ..Moved::one_after_another(blocks, to) };
        self.move_blocks(stream, &moved)
    }

    /// Unless a part of the way is NCCL's.
    fn sends_what_counts(&self) -> bool {
        self.nccl.is_none()
    }

    fn by_node(&self) -> Option<&dyn ByNode> {
        self.nodes.sums_by_node().then_some(self)
    }

    fn all_reduce(&self, stream: &Stream, data: DevicePtr, len: SumLen) -> Result<()> {
        let (operation, bytes, room) = ("all_reduce", len.bytes(), self.sizes.sums.bytes());
        len.check(data);
        if bytes == 0 {
            return self.check_transport();
        }
        if bytes > room {
            let reason = format!("numbers of {bytes} bytes, and room was made for {room}");
            return end(self, operation, reason);
        }
        self.enqueue(operation, stream, |cuda| {
            let [parts, outs] = self.inside.open_segments(cuda, &self.nodes, (data, bytes))?;
            let segment = segment(self.nodes.local(), self.nodes.num_rails(), bytes);
            let own = len.part(&segment);
            // Also an empty segment is exchanged: all of a rail exchange every time.
            if self.takes_two_steps(bytes) {
                let place = data.offset(segment.start);
                self.sum_in_two_steps(cuda, [&parts, &outs], (place, own))?;
            } else if self.nodes.local() < self.nodes.num_rails() {
                self.sum_across(cuda, [&parts, &outs], own)?;
            } else {
                // Exchanges are counted alike on all ranks.
                let none = [DevicePtr::NULL; MOST_PEERS];
                self.kernels(cuda, operation, 0, 0).seal((0, 0), none, [0; MOST_PEERS]);
            }
            self.inside.close_segments(cuda, &self.nodes, (data, bytes))
        })
    }

    fn reduce_to_parts(&self, stream: &Stream, parts: Parts<'_>) -> Result<()> {
        parts.check(self.num_ranks());
        self.reduce_by_node(stream, parts)
    }

    fn gather_parts(&self, stream: &Stream, parts: Parts<'_>) -> Result<()> {
        parts.check(self.num_ranks());
        self.gather_by_node(stream, parts)
    }

    fn all_gather(
        &self,
        stream: &Stream,
        from: DevicePtr,
        to: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        let (operation, lengths, root) = ("all_gather", DevicePtr::NULL, Rank(0));
        let blocks = inside::Blocks { operation, from, stride: 0, bytes, lengths, root };
        self.move_blocks(stream, &Moved::one_after_another(blocks, to))
    }

    fn broadcast(&self, stream: &Stream, root: Rank, data: DevicePtr, bytes: usize) -> Result<()> {
        assert!(root.0 < self.num_ranks(), "there are {} ranks, no {root}", self.num_ranks());
        let (operation, lengths) = ("broadcast", DevicePtr::NULL);
        let mut fixed = [0; MOST_PEERS];
        let peers = fixed.iter_mut().zip(self.nodes.peers());
        peers.filter(|(_, peer)| **peer == root).for_each(|(length, _)| *length = bytes as u32);
        let blocks = inside::Blocks { operation, from: data, stride: 0, bytes, lengths, root };
        self.move_blocks(stream, &Moved { blocks, fixed, to: data, to_stride: 0 })
    }

    fn check(&self) -> Result<()> {
        self.check_transport()?;
        self.flagged()?;
        // NCCL ends itself alone: what waits for peers, or along rails, would wait for ever.
        let nccl = self.nccl.as_ref().map_or(Ok(()), |nccl| nccl.check());
        nccl.inspect_err(|error| self.abort(error.clone()))
    }

    fn believe(&self) -> Result<()> {
        self.check()?;
        self.inside.believe().inspect_err(|error| self.abort(error.clone()))
    }

    fn flagged(&self) -> Result<()> {
        if let Some(error) = self.room.report.read(&self.nodes) {
            self.abort(error.clone());
            self.transport.check()?;
            return Err(error);
        }
        self.rails.check().or_else(|reason| end(self, "an exchange between nodes", reason))
    }

    fn abort(&self, error: CommError) {
        match &self.inside {
            Inside::Memory(peers) => peers.abort(error.clone()),
            Inside::Nccl(_) => self.transport.abort(error.clone()),
        }
        if let Some(nccl) = &self.nccl {
            nccl.abort(error);
        }
        self.rails.give_up();
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.flagged()?;
        let Self { inside, rails, nccl, transport, .. } = *self;
        if let Err(reason) = rails.close() {
            return end_closing(&*transport, "closing the rails", reason);
        }
        match inside {
            Inside::Memory(peers) => peers.close()?,
            Inside::Nccl(brought) => drop(brought),
        }
        match nccl.map(Arc::try_unwrap) {
            Some(Ok(nccl)) => Box::new(nccl).close(),
            _ => Ok(()),
        }
    }
}
