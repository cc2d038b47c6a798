//! Sums of bf16 over NCCL: each rank is sent its segment by all others, adds it up in the tree of
//! [`crate::element`], and sends the sum to all; first inside the node, then along the rail, where
//! nodes are subtrees of the tree. So ranks send what NCCL's own sums send, and the bits are those
//! of every other way.

use super::{NcclCollectives, Piece};
use crate::collectives::group::Group;
use crate::device::peer::bind;
use crate::device::sum::{self, Place, sum};
use crate::device::{DeviceCollectives, DeviceSizes, Parts, SumLen, end, own_stream, segment};
use crate::error::Result;
use crate::readable::text;
use crate::topology::{Rank, Topology};
use headlong_device::Stream;
use headlong_device::cuda::{CudaStream, DeviceMemory, DevicePtr};
use std::ops::Range;

/// One rank's room for what it adds up of every rank's numbers.
pub(super) struct Received {
    memory: DeviceMemory,
    /// Bytes of it.
    bytes: usize,
}

impl Received {
    /// Takes the room and loads the kernels: a captured call may not.
    pub(super) fn new(
        cuda: &CudaStream,
        (topology, me): (&Topology, Rank),
        DeviceSizes { sums, part, .. }: DeviceSizes,
    ) -> Result<Self, String> {
        // Of what is divided, each of all ranks may have as much for this one.
        let of_part = SumLen { exact: 0, ..part }.bytes().next_multiple_of(16);
        let (mut range, mut room) = (sums.bytes(), of_part * topology.num_ranks());
        for group in levels(topology, me) {
            range = segment(0, group.len, range).len();
            room = room.max(group.len * range.next_multiple_of(16));
            sum::load(cuda, group.len, true)?;
        }
        let memory = DeviceMemory::new(cuda.device(), "parts of sums", room).map_err(text)?;
        Ok(Self { memory, bytes: room })
    }
}

impl NcclCollectives {
    pub(super) fn sum_narrow(&self, stream: &Stream, data: DevicePtr, len: SumLen) -> Result<()> {
        len.check(data);
        self.enqueue_on("all_reduce", stream, |cuda| {
            let (mut range, mut shared) = (0..len.bytes(), Vec::new());
            for group in levels(self.transport.topology(), self.rank()) {
                let segments = (0..group.len).map(|place| {
                    let Range { start, end } = segment(place, group.len, range.len());
                    let own = range.start + start..range.start + end;
                    vec![own]
                });
                let level = Level { group, data, ranges: segments.collect() };
                self.add_up(cuda, &level, len)?;
                range = level.ranges[group.me][0].clone();
                shared.push(level);
            }
            for level in shared.iter().rev() {
                let own = |(_, peer)| level.pieces(level.group.me, peer);
                let of_peer = |(place, peer)| level.pieces(place, peer);
                self.exchange(cuda, level.peers().flat_map(own), level.peers().flat_map(of_peer))?;
            }
            Ok(())
        })
    }

    /// The first half of it, for parts that ranks have: of all ranks at a place of their nodes
    /// inside the node, then of the one rank along the rail.
    pub(super) fn sum_narrow_parts(&self, stream: &Stream, parts: Parts<'_>) -> Result<()> {
        let len = parts.len_of(parts.bytes());
        len.check(parts.data);
        self.enqueue_on("reduce_to_parts", stream, |cuda| {
            let groups = levels(self.transport.topology(), self.rank());
            for (at, &group) in groups.iter().enumerate() {
                let ranges = |place| match groups.get(at + 1) {
                    Some(rail) => {
                        let of_node = |node: usize| Rank(node * group.len + place);
                        (0..rail.len).map(|node| parts.range(of_node(node))).collect()
                    }
                    None => vec![parts.range(group.rank(place))],
                };
                let ranges = (0..group.len).map(ranges).collect();
                self.add_up(cuda, &Level { group, data: parts.data, ranges }, len)?;
            }
            Ok(())
        })
    }

    fn enqueue_on(
        &self,
        operation: &str,
        stream: &Stream,
        body: impl FnOnce(&CudaStream) -> Result<(), String>,
    ) -> Result<()> {
        self.check_transport()?;
        let cuda = own_stream(stream, &self.device, operation);
        let enqueued =
            bind(cuda).and_then(|()| body(cuda)).and_then(|()| cuda.check().map_err(text));
        enqueued.or_else(|reason| end(self, operation, reason))
    }

    /// Enqueues that what this rank adds up of a level becomes the sum over its group; `len` are
    /// all numbers.
    fn add_up(&self, cuda: &CudaStream, level: &Level, len: SumLen) -> Result<(), String> {
        let (group, own) = (level.group, &level.ranges[level.group.me]);
        if group.len == 1 {
            return Ok(());
        }
        let offsets: Vec<usize> = offsets_of(own).collect();
        let of_rank = offsets[own.len()];
        let (needed, room) =
            (group.len * of_rank, self.received.as_ref().map_or(0, |room| room.bytes));
        let received = self.received.as_ref().filter(|_| needed <= room);
        let received = received.ok_or_else(|| {
            let bytes = len.bytes();
            format!(
                "numbers of {bytes} bytes with bf16 need {needed}, and room was made for {room}"
            )
        })?;
        let place = |place: usize, at: usize| match place == group.me {
            true => level.data.offset(own[at].start),
            false => received.memory.ptr().offset(place * of_rank + offsets[at]),
        };
        self.exchange(
            cuda,
            level.peers().flat_map(|(of, peer)| level.pieces(of, peer)),
            level.peers().flat_map(|(of, peer)| {
                let sizes = own.iter().map(Range::len).enumerate();
                sizes.map(move |(at, bytes)| Piece::new(peer, place(of, at), bytes))
            }),
        )?;
        for (at, range) in own.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
            let parts: Vec<Place> = (0..group.len).map(|of| Place::fixed(place(of, at))).collect();
            sum(cuda, &parts, &[Place::fixed(place(group.me, at))], len.part(range), None);
        }
        Ok(())
    }
}

/// Where each range begins, put one after another in groups of 16 bytes, and the end of the last.
fn offsets_of(ranges: &[Range<usize>]) -> impl Iterator<Item = usize> {
    let ends = ranges.iter().scan(0, |end, range| {
        *end += range.len().next_multiple_of(16);
        Some(*end)
    });
    std::iter::once(0).chain(ends)
}

/// Where all nodes are subtrees of the tree, the node and then the rail, so that little crosses
/// between nodes; else all ranks at once.
fn levels(topology: &Topology, me: Rank) -> Vec<Group> {
    match topology.aligned_node_size() {
        Some(size) => vec![Group::node(me, size), Group::rail(topology, me, size)],
        None => vec![Group::all(topology, me)],
    }
}

/// What each of a group adds up.
struct Level {
    group: Group,
    data: DevicePtr,
    /// By place in the group: ranges of the bytes at `data`.
    ranges: Vec<Vec<Range<usize>>>,
}

impl Level {
    /// What the rank at `place` adds up, to or from `peer`.
    fn pieces(&self, place: usize, peer: Rank) -> impl Iterator<Item = Piece> {
        let piece = move |range: &Range<usize>| {
            Piece::new(peer, self.data.offset(range.start), range.len())
        };
        self.ranges[place].iter().map(piece)
    }

    /// The others with their places, the next one first: not all send to the first at once.
    fn peers(&self) -> impl Iterator<Item = (usize, Rank)> {
        let Group { len, me, .. } = self.group;
        (1..len).map(move |step| (me + step) % len).map(|place| (place, self.group.rank(place)))
    }
}
