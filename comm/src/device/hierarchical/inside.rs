//! The inside of a node: how this rank comes to see what the other ranks of its node have.
//!
//! A rank reads its peers' memory where it lies, between two barriers. Where devices cannot use
//! each other's memory, or NCCL is asked for, NCCL brings it here first.

use super::Stop;
use super::nodes::{MOST_PEERS, Nodes};
use crate::device::nccl::{NcclCollectives, Piece};
use crate::device::peer::{Part, Peers};
use crate::device::{Parts, segment};
use crate::error::CommError;
use crate::topology::Rank;
use headlong_device::cuda::{CudaDevice, CudaStream, DeviceMemory, DevicePtr};
use std::sync::Arc;

#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks {
    pub(super) operation: &'static str,
    pub(super) from: DevicePtr,
    /// From one rank's block to the next one's; 0 where all get the same.
    pub(super) stride: usize,
    pub(super) bytes: usize,
    /// How long each rank's block is, on the device; null where that is known.
    pub(super) lengths: DevicePtr,
    pub(super) root: Rank,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Sources {
    pub(super) from: [DevicePtr; MOST_PEERS],
    pub(super) lengths: [DevicePtr; MOST_PEERS],
    pub(super) stride: usize,
    /// Whether blocks were brought here: then they lie in the order of strips, the one for this
    /// rank after them.
    pub(super) brought: bool,
}

/// Places of the node's ranks, as kernels take them.
pub(super) fn for_peers(places: impl Iterator<Item = DevicePtr>) -> [DevicePtr; MOST_PEERS] {
    let mut all = [DevicePtr::NULL; MOST_PEERS];
    all.iter_mut().zip(places).for_each(|(to, place)| *to = place);
    all
}

pub(super) enum Inside {
    Memory(Box<Peers>),
    Nccl(Brought),
}

pub(super) struct Brought {
    pub(super) nccl: Arc<NcclCollectives>,
    blocks: DeviceMemory,
    lengths: DeviceMemory,
}

impl Brought {
    pub(super) fn new(
        nccl: Arc<NcclCollectives>,
        device: &CudaDevice,
        nodes: &Nodes,
        (block, segment): (usize, usize),
    ) -> Result<Self, String> {
        let (peers, carried) = (nodes.peers().len(), nodes.carried(nodes.rank()).len());
        let each = ((carried + 1) * block.next_multiple_of(16)).max(segment.next_multiple_of(16));
        let take =
            |what, bytes| DeviceMemory::new(device, what, bytes).map_err(|error| error.to_string());
        Ok(Self {
            nccl,
            blocks: take("what ranks of the node have", peers * each)?,
            lengths: take(
                "how much ranks of the node have",
                peers * nodes.topology().num_ranks() * 4,
            )?,
        })
    }

    fn open(&self, cuda: &CudaStream, nodes: &Nodes, blocks: &Blocks) -> Result<Sources, String> {
        let Blocks { from, stride, bytes, lengths, .. } = *blocks;
        let (peers, ranks) = (nodes.peers(), nodes.topology().num_ranks());
        let (count, room) = (nodes.carried(nodes.rank()).len() + 1, bytes.next_multiple_of(16));
        let length_bytes = if lengths.is_null() { 0 } else { 4 * ranks };
        let place = |index: usize| self.blocks.ptr().offset(index * count * room);
        let lengths_of = |index: usize| self.lengths.ptr().offset(index * length_bytes);
        let sends = peers.iter().flat_map(|&peer| {
            let for_it = nodes.carried(peer).into_iter().chain([peer]);
            let pieces =
                for_it.map(move |rank| Piece::new(peer, from.offset(rank.0 * stride), bytes));
            pieces.chain([Piece::new(peer, lengths, length_bytes)])
        });
        let receives = peers.iter().enumerate().flat_map(|(index, &peer)| {
            let blocks =
                (0..count).map(move |at| Piece::new(peer, place(index).offset(at * room), bytes));
            blocks.chain([Piece::new(peer, lengths_of(index), length_bytes)])
        });
        self.nccl.exchange(cuda, sends, receives)?;
        let lengths_of = |at| if lengths.is_null() { lengths } else { lengths_of(at) };
        Ok(Sources {
            from: for_peers((0..peers.len()).map(place)),
            lengths: for_peers((0..peers.len()).map(lengths_of)),
            stride: room,
            brought: true,
        })
    }

    /// The segments of all peers that this rank adds up.
    fn open_segments(
        &self,
        cuda: &CudaStream,
        nodes: &Nodes,
        data: DevicePtr,
        bytes: usize,
    ) -> Result<Vec<DevicePtr>, String> {
        let (peers, rails) = (nodes.peers(), nodes.num_rails());
        let piece = |index: usize| segment(index, rails, bytes);
        let sends = peers.iter().take(rails).enumerate().map(|(index, &peer)| {
            Piece::new(peer, data.offset(piece(index).start), piece(index).len())
        });
        let own = if nodes.local() < rails { piece(nodes.local()).len() } else { 0 };
        let place = |index: usize| self.blocks.ptr().offset(index * own.next_multiple_of(16));
        let receives =
            peers.iter().enumerate().map(|(index, &peer)| Piece::new(peer, place(index), own));
        self.nccl.exchange(cuda, sends, receives)?;
        Ok((0..peers.len()).map(place).collect())
    }

    /// Of every node, what all peers have of the part of its rank at this one's place.
    fn open_parts(
        &self,
        cuda: &CudaStream,
        nodes: &Nodes,
        parts: Parts<'_>,
    ) -> Result<Vec<Vec<DevicePtr>>, String> {
        let of_place = |peer: Rank| parts_at_place(nodes, peer);
        let own = of_place(nodes.rank());
        let mut end = 0;
        let mut next = |rank: Rank| {
            let start = end;
            end += parts.range(rank).len().next_multiple_of(16);
            self.blocks.ptr().offset(start)
        };
        let mut place = |peer: Rank, rank: Rank| match peer == nodes.rank() {
            true => parts.at(rank),
            false => next(rank),
        };
        let mut of_peer =
            |peer: Rank| -> Vec<DevicePtr> { own.iter().map(|&rank| place(peer, rank)).collect() };
        let brought: Vec<Vec<DevicePtr>> =
            nodes.peers().iter().map(|&peer| of_peer(peer)).collect();
        let piece = |peer, at, rank| Piece::new(peer, at, parts.range(rank).len());
        let sends = others(nodes).flat_map(|(_, peer)| {
            of_place(peer).into_iter().map(move |rank| piece(peer, parts.at(rank), rank))
        });
        let receives = others(nodes).flat_map(|(index, peer)| {
            let places = brought[index].iter().zip(&own);
            places.map(move |(&at, &rank)| piece(peer, at, rank))
        });
        self.nccl.exchange(cuda, sends, receives)?;
        let of_node = |node| brought.iter().map(|of_peer: &Vec<_>| of_peer[node]).collect();
        Ok((0..own.len()).map(of_node).collect())
    }

    /// The parts of all ranks at this one's place to all peers, and those at theirs here.
    fn close_parts(
        &self,
        cuda: &CudaStream,
        nodes: &Nodes,
        parts: Parts<'_>,
    ) -> Result<(), String> {
        let pieces = |from: Rank, peer: Rank| {
            let piece = move |rank| Piece::new(peer, parts.at(rank), parts.range(rank).len());
            parts_at_place(nodes, from).into_iter().map(piece)
        };
        let sends = others(nodes).flat_map(|(_, peer)| pieces(nodes.rank(), peer));
        let receives = others(nodes).flat_map(|(_, peer)| pieces(peer, peer));
        self.nccl.exchange(cuda, sends, receives)
    }

    /// This rank's segment to all peers, and theirs here.
    fn close_segments(
        &self,
        cuda: &CudaStream,
        nodes: &Nodes,
        data: DevicePtr,
        bytes: usize,
    ) -> Result<(), String> {
        let (peers, rails) = (nodes.peers(), nodes.num_rails());
        let others = || peers.iter().enumerate().filter(|(_, peer)| **peer != nodes.rank());
        let piece = |index: usize, peer: Rank| {
            let segment = segment(index, rails, bytes);
            Piece::new(peer, data.offset(segment.start), segment.len())
        };
        let sends =
            others().filter(|_| nodes.local() < rails).map(|(_, &peer)| piece(nodes.local(), peer));
        let receives =
            others().filter(|(index, _)| *index < rails).map(|(index, &peer)| piece(index, peer));
        self.nccl.exchange(cuda, sends, receives)
    }
}

/// The other ranks of the node, and which of its ranks they are.
fn others(nodes: &Nodes) -> impl Iterator<Item = (usize, Rank)> {
    let peers = nodes.peers().iter().copied().enumerate();
    peers.filter(|&(_, peer)| peer != nodes.rank())
}

/// Of every node the rank at the place of `rank`, where all have one.
fn parts_at_place(nodes: &Nodes, rank: Rank) -> Vec<Rank> {
    let (topology, place) = (nodes.topology(), nodes.topology().local_index(rank));
    (0..topology.num_nodes()).map(|node| topology.ranks_of(node)[place]).collect()
}

impl Inside {
    /// Enqueues that the blocks of all ranks of the node can be read where the answer says, until
    /// [`Inside::close`].
    pub(super) fn open(
        &self,
        cuda: &CudaStream,
        nodes: &Nodes,
        blocks: &Blocks,
    ) -> Result<Sources, Stop> {
        let peers = match self {
            Inside::Nccl(brought) => return Ok(brought.open(cuda, nodes, blocks)?),
            Inside::Memory(peers) => peers,
        };
        let parts = peers.meet(Part {
            operation: blocks.operation,
            size: blocks.bytes as u64,
            root: blocks.root.0,
            addresses: [blocks.from.0, blocks.lengths.0],
        })?;
        peers.barrier(cuda, 0)?;
        Ok(Sources {
            from: for_peers(parts.iter().map(Part::first)),
            lengths: for_peers(parts.iter().map(|part| DevicePtr(part.addresses[1]))),
            stride: blocks.stride,
            brought: false,
        })
    }

    /// Enqueues that what all ranks of the node have of the part of every rank at this one's place
    /// can be read where the answer says, by node, until [`Inside::close`].
    pub(super) fn open_parts(
        &self,
        cuda: &CudaStream,
        nodes: &Nodes,
        operation: &'static str,
        parts: Parts<'_>,
    ) -> Result<Vec<Vec<DevicePtr>>, Stop> {
        if let Inside::Nccl(brought) = self {
            return Ok(brought.open_parts(cuda, nodes, parts)?);
        }
        let peers = self.open_all(cuda, operation, parts)?;
        let of_peers = |rank| peers.iter().map(|&data| parts.in_memory(data, rank)).collect();
        Ok(parts_at_place(nodes, nodes.rank()).into_iter().map(of_peers).collect())
    }

    /// Enqueues that the numbers of all ranks of the node can be read and written where the answer
    /// says, until [`Inside::close_parts`]; over NCCL this rank's.
    pub(super) fn open_all(
        &self,
        cuda: &CudaStream,
        operation: &'static str,
        parts: Parts<'_>,
    ) -> Result<Vec<DevicePtr>, Stop> {
        let Inside::Memory(peers) = self else { return Ok(vec![parts.data]) };
        let (size, addresses) = (parts.bytes() as u64, [parts.data.0, 0]);
        let there = peers.meet(Part { operation, size, root: 0, addresses })?;
        peers.barrier(cuda, 0)?;
        Ok(there.iter().map(Part::first).collect())
    }

    /// Enqueues that the parts of all ranks at any place of a node have come to all of the node.
    pub(super) fn close_parts(
        &self,
        cuda: &CudaStream,
        nodes: &Nodes,
        parts: Parts<'_>,
    ) -> Result<(), Stop> {
        match self {
            Inside::Memory(_) => self.close(cuda),
            Inside::Nccl(brought) => Ok(brought.close_parts(cuda, nodes, parts)?),
        }
    }

    /// Has the ranks of the node told before NCCL lets go of what waits on this one's streams.
    pub(super) fn hear_of_aborts(&self, nccl: Option<&NcclCollectives>) {
        if let (Inside::Memory(peers), Some(nccl)) = (self, nccl) {
            let telling = peers.telling();
            nccl.before_abort(move || telling.tell());
        }
    }

    /// Whether what streams have passed was done by the ranks of the node.
    pub(super) fn believe(&self) -> Result<(), CommError> {
        match self {
            Inside::Memory(peers) => peers.believe(),
            Inside::Nccl(_) => Ok(()),
        }
    }

    pub(super) fn close(&self, cuda: &CudaStream) -> Result<(), Stop> {
        match self {
            Inside::Memory(peers) => Ok(peers.barrier(cuda, 1)?),
            Inside::Nccl(_) => Ok(()),
        }
    }

    /// Enqueues that this rank's segment of everybody's `data` can be read at the first places, and
    /// written at the second.
    pub(super) fn open_segments(
        &self,
        cuda: &CudaStream,
        nodes: &Nodes,
        (data, bytes): (DevicePtr, usize),
    ) -> Result<[Vec<DevicePtr>; 2], Stop> {
        let start = segment(nodes.local(), nodes.num_rails(), bytes).start;
        match self {
            Inside::Nccl(brought) => {
                let parts = brought.open_segments(cuda, nodes, data, bytes)?;
                Ok([parts, vec![data.offset(start)]])
            }
            Inside::Memory(peers) => {
                let (operation, addresses) = ("all_reduce", [data.0, 0]);
                let parts =
                    peers.meet(Part { operation, size: bytes as u64, root: 0, addresses })?;
                peers.barrier(cuda, 0)?;
                let places: Vec<DevicePtr> =
                    parts.iter().map(|part| part.first().offset(start)).collect();
                Ok([places.clone(), places])
            }
        }
    }

    /// Enqueues that all segments have come here, and that peers may use theirs.
    pub(super) fn close_segments(
        &self,
        cuda: &CudaStream,
        nodes: &Nodes,
        (data, bytes): (DevicePtr, usize),
    ) -> Result<(), Stop> {
        match self {
            Inside::Memory(peers) => Ok(peers.barrier(cuda, 1)?),
            Inside::Nccl(brought) => Ok(brought.close_segments(cuda, nodes, data, bytes)?),
        }
    }
}
