//! Sums of bf16 over NCCL: each rank is sent its segment by all others, adds it up in the tree of
//! [`crate::element`], and sends the sum to all; first inside the node, then along the rail, where
//! nodes are subtrees of the tree. So ranks send what NCCL's own sums send, and the bits are those
//! of every other way.

use super::{NcclCollectives, Piece};
use crate::collectives::group::Group;
use crate::device::peer::bind;
use crate::device::sum::{self, MOST_PARTS, Place, sum};
use crate::device::{DeviceCollectives, SumLen, end, own_stream, segment};
use crate::error::Result;
use crate::readable::text;
use crate::topology::{Rank, Topology};
use headlong_device::Stream;
use headlong_device::cuda::{CudaStream, DeviceMemory, DevicePtr};
use std::ops::Range;

/// One rank's room for its segment of every rank's numbers.
pub(super) struct Received {
    memory: DeviceMemory,
    /// Bytes of all numbers that there is room for.
    bytes: usize,
}

impl Received {
    /// Takes the room and loads the kernels: a captured call may not.
    pub(super) fn new(
        cuda: &CudaStream,
        (topology, me): (&Topology, Rank),
        len: SumLen,
    ) -> Result<Self, String> {
        let (bytes, mut range, mut room) = (len.bytes(), len.bytes(), 0);
        for group in levels(topology, me) {
            let mut parts = group.len;
            range = segment(0, parts, range).len();
            room = room.max(parts * range);
            while parts > MOST_PARTS {
                // Whole groups, and what is left of the last one.
                sum::load(cuda, MOST_PARTS, true)?;
                sum::load(cuda, (parts - 1) % MOST_PARTS + 1, true)?;
                parts = parts.div_ceil(MOST_PARTS);
            }
            sum::load(cuda, parts, true)?;
        }
        let memory = DeviceMemory::new(cuda.device(), "parts of sums", room).map_err(text)?;
        Ok(Self { memory, bytes })
    }

    /// Where the part of the `place`-th of a group comes, of so many bytes.
    fn place(&self, place: usize, bytes: usize) -> DevicePtr {
        self.memory.ptr().offset(place * bytes)
    }
}

/// Enqueues that `to` becomes the sum of any number of parts, which are lost. [`MOST_PARTS`] is a
/// power of two: so many neighbours are a subtree.
fn sum_all(cuda: &CudaStream, mut parts: Vec<Place>, to: Place, len: SumLen) {
    while parts.len() > MOST_PARTS {
        let sum_of = |neighbours: &[Place]| {
            sum(cuda, neighbours, &neighbours[..1], len, None);
            neighbours[0]
        };
        parts = parts.chunks(MOST_PARTS).map(sum_of).collect();
    }
    sum(cuda, &parts, &[to], len, None);
}

impl NcclCollectives {
    pub(super) fn sum_narrow(&self, stream: &Stream, data: DevicePtr, len: SumLen) -> Result<()> {
        let operation = "all_reduce";
        len.check(data);
        self.transport.check()?;
        let cuda = own_stream(stream, &self.device, operation);
        let enqueued = bind(cuda).and_then(|()| self.enqueue_sum(cuda, data, len));
        enqueued.or_else(|reason| end(self, operation, reason))
    }

    fn enqueue_sum(&self, cuda: &CudaStream, data: DevicePtr, len: SumLen) -> Result<(), String> {
        let (bytes, room) = (len.bytes(), self.received.as_ref().map_or(0, |room| room.bytes));
        let received = self.received.as_ref().filter(|room| bytes <= room.bytes);
        let received = received.ok_or_else(|| {
            format!("numbers of {bytes} bytes with bf16, and room was made for {room}")
        })?;
        let (mut range, mut shared) = (0..bytes, Vec::new());
        for group in levels(self.transport.topology(), self.rank()) {
            let level = Level { group, range: range.clone(), data };
            range = level.segment(group.me);
            self.exchange(
                cuda,
                level.peers().map(|(place, peer)| level.piece(place, peer)),
                level.peers().map(|(place, peer)| {
                    Piece::new(peer, received.place(place, range.len()), range.len())
                }),
            )?;
            if !range.is_empty() {
                let own = Place::fixed(data.offset(range.start));
                let part = |place| match place == group.me {
                    true => own,
                    false => Place::fixed(received.place(place, range.len())),
                };
                sum_all(cuda, (0..group.len).map(part).collect(), own, len.part(&range));
            }
            shared.push(level);
        }
        for level in shared.iter().rev() {
            let own = |(_, peer)| level.piece(level.group.me, peer);
            let of_peer = |(place, peer)| level.piece(place, peer);
            self.exchange(cuda, level.peers().map(own), level.peers().map(of_peer))?;
        }
        cuda.check().map_err(text)
    }
}

/// Where all nodes are subtrees of the tree, the node and then the rail, so that little crosses
/// between nodes; else all ranks at once.
fn levels(topology: &Topology, me: Rank) -> Vec<Group> {
    match topology.aligned_node_size() {
        Some(size) => vec![Group::node(me, size), Group::rail(topology, me, size)],
        None => vec![Group::all(topology, me)],
    }
}

/// A range of the bytes at `data`, of which each of the group adds up a segment.
struct Level {
    group: Group,
    range: Range<usize>,
    data: DevicePtr,
}

impl Level {
    fn segment(&self, place: usize) -> Range<usize> {
        let Range { start, end } = segment(place, self.group.len, self.range.len());
        self.range.start + start..self.range.start + end
    }

    /// The segment of the rank at `place`, to or from `peer`.
    fn piece(&self, place: usize, peer: Rank) -> Piece {
        let segment = self.segment(place);
        Piece::new(peer, self.data.offset(segment.start), segment.len())
    }

    /// The others with their places, the next one first: not all send to the first at once.
    fn peers(&self) -> impl Iterator<Item = (usize, Rank)> {
        let Group { len, me, .. } = self.group;
        (1..len).map(move |step| (me + step) % len).map(|place| (place, self.group.rank(place)))
    }
}

#[cfg(test)]
mod cuda_tests {
    use super::*;
    use crate::element::Element;
    use half::bf16;
    use headlong_device::cuda::CudaDevice;
    use headlong_device::cuda::testing::{download, has_devices, upload};
    use headlong_device::pool::Pool;
    use std::sync::Arc;
    use zerocopy::IntoBytes;

    #[test]
    fn more_parts_than_a_kernel_takes_are_added_up_in_the_same_tree() {
        if !has_devices(1) {
            return;
        }
        let device = CudaDevice::open(0).unwrap();
        let stream = Stream::cuda(&device, Arc::new(Pool::new(1))).unwrap();
        for count in [65_usize, 130] {
            let number = |part: usize, at: usize| {
                bf16::from_f32((part as f32 + 1.1).powf(at as f32 / 8.0 - 1.0))
            };
            let parts: Vec<Vec<bf16>> =
                (0..count).map(|part| (0..16).map(|at| number(part, at)).collect()).collect();
            let words = |part: &Vec<bf16>| -> Vec<f32> {
                let pairs = part.chunks(2);
                let words = pairs
                    .map(|pair| u32::from(pair[0].to_bits()) | u32::from(pair[1].to_bits()) << 16);
                words.map(f32::from_bits).collect()
            };
            let all: Vec<f32> = parts.iter().flat_map(words).collect();
            let memory = upload(&device, &all).unwrap();
            let places: Vec<Place> =
                (0..count).map(|part| Place::fixed(memory.ptr().offset(32 * part))).collect();
            sum_all(stream.cuda_body(), places.clone(), places[7], SumLen { exact: 0, narrow: 16 });
            stream.synchronize().unwrap();
            let mut expected = parts[0].clone();
            let others: Vec<&[u8]> = parts[1..].iter().map(|part| part.as_bytes()).collect();
            bf16::add_in_tree(&mut expected, 0, &others);
            let found = download::<f32>(&memory).unwrap();
            let bits = |words: &[f32]| words.iter().map(|word| word.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&found[8 * 7..8 * 8]), bits(&words(&expected)), "{count} parts");
        }
    }
}
